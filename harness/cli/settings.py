"""`settings`: list every setting of a run with its value, the accepted values, and its meaning."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union

from harness.cli import options
from harness.cli.console import say, say_json
from harness.experiments import suites
from harness.experiments.overrides import setting_names
from harness.experiments.specs import RunSpec
from harness.training.load import find_variant

SUMMARY = "list every setting that --set can change"
EXAMPLES = (
    ("the settings of the default variant", ""),
    ("those of paper in the suite quick, trained as all others are", "paper --suite quick --budget controlled"),
    ("those of your own recipe, as JSON", "my_recipes:ROTARY --json"),
)
HELP = {
    "framework": "framework of the model: torch or keras",
    "backend": "backend of Keras; none in torch",
    "device": "device that computes, such as cpu or cuda",
    "precision": "floating point format of training",
    "matmul_precision": "precision of products of float32 matrices in torch",
    "cuda_graphs": "experimental: replay training and decoding as CUDA graphs",
    "threads": "CPU threads",
    "updates": "stop training after this many updates; none: all epochs",
    "recipe.width": "model width (d_model); hidden size of a GRU",
    "recipe.embedding_width": "width of word embeddings of a GRU",
    "recipe.layers": "layers of the encoder, and of the decoder",
    "recipe.heads": "attention heads",
    "recipe.head_width": "width of a head; none: width / heads",
    "recipe.ffn_width": "hidden width of the feed-forward block",
    "recipe.dropout": "dropout rate",
    "recipe.attention_dropout": "dropout rate of attention weights; none: dropout",
    "recipe.activation_dropout": "dropout rate of feed-forward hidden units; none: dropout",
    "recipe.max_length": "longest sequence that positions cover",
    "recipe.positions": "position information",
    "recipe.embedding_scale": "factor of word embeddings",
    "recipe.embedding_init": "initial distribution of embeddings",
    "recipe.norm": "normalisation layer",
    "recipe.norm_order": "normalise after (post) or before (pre) each residual block",
    "recipe.norm_epsilon": "epsilon of the normalisation; none: 1e-5 (handmade: 1e-9)",
    "recipe.ffn": "feed-forward block",
    "recipe.activation": "activation of the feed-forward block",
    "recipe.tying": "which embedding and output matrices are shared",
    "training.beta1": "Adam: decay of the mean gradient",
    "training.beta2": "Adam: decay of the mean squared gradient",
    "training.epsilon": "Adam: epsilon",
    "training.schedule": "learning rate schedule",
    "training.peak_rate": "highest learning rate",
    "training.warmup_updates": "updates of linear warm-up",
    "training.clip_norm": "largest gradient norm; none: no clipping",
    "training.batching": "how sentence pairs form batches",
    "training.batch_size": "sentence pairs per batch",
    "training.batch_tokens": "tokens per batch, with batching=tokens",
    "training.epochs": "passes over the training data",
    "training.patience": "stop after this number of epochs without a lower validation loss; none: train all epochs",
    "training.label_smoothing": "label smoothing",
    "training.teacher_forcing": "share of target tokens fed from the reference (GRU)",
    "training.averaged_epochs": "average the weights of this number of last epochs; 0: keep the best epoch",
    "data.corpus": "corpus",
    "data.direction": "source and target language",
    "data.test_split": "test set of Multi30k: test_2016_flickr, test_2017_flickr or test_2017_mscoco",
    "data.tokenizer": "tokenizer",
    "data.case": "lower-case the text, or keep it",
    "data.vocabulary": "one vocabulary per language, or a joint one",
    "data.minimum_frequency": "rarer words become <unk> (word tokenizers)",
    "data.vocabulary_size": "vocabulary size (SentencePiece)",
    "data.merges": "merge operations (moses-bpe)",
    "data.max_length": "longest sentence in tokens, with <sos> and <eos>",
    "data.training_pairs": "use only this number of sentence pairs, the first ones; none: all",
    "data.seed": "seed of the built-in captions and of SentencePiece",
    "decoding.beam": "beam width; 1 is greedy search",
    "decoding.length_penalty": "exponent of the length normalisation",
    "decoding.max_tokens": "longest translation",
    "decoding.batch_size": "sentences decoded together",
    "decoding.unknown": "whether translations may contain <unk>",
    "decoding.length_formula": "formula of the length normalisation",
}
"""One line for each setting."""

HIDDEN = ("variant", "budget", "seed", "recipe", "recipe.name", "recipe.source")
"""Settings that are not listed: they have options of their own, or are no settings of an architecture."""

ACCEPTED_WIDTH = 42
"""The width of the column of accepted values; longer lists move the help of their line to the right."""


@dataclass(frozen=True)
class Setting:
    """One setting of a run: its dotted name, its value, the values it accepts, and a line of help."""

    name: str
    value: Any
    accepted: str
    help: str


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "variant",
        nargs="?",
        default="learned_positions",
        help="a variant, or package.module:NAME (default learned_positions)",
    )
    options.add_suite_and_budget(parser)
    options.add_json(parser, "the settings")
    options.add_data(parser)
    options.add_runs(parser)


def command(arguments: argparse.Namespace) -> int:
    """Print the settings of a variant. Returns 0."""
    suite = suites.SUITES[arguments.suite]
    variant = find_variant(arguments.variant)
    options.check_variants([variant], arguments.set)
    spec = suites.spec(suite, variant, budget=arguments.budget, seed=0, data=options.data_spec(arguments))
    rows = list(settings(options.apply(spec, arguments)))
    if arguments.json:
        say_json([dataclasses.asdict(row) for row in rows])
        return 0
    say(f"Settings of {variant}, budget {arguments.budget}, suite {suite.name}. Change one with --set FIELD=VALUE.")
    widths = [max(len(cell) for cell in column) for column in zip(*map(_cells, rows), strict=True)]
    widths[2] = min(widths[2], ACCEPTED_WIDTH)
    for _, group in itertools.groupby(rows, key=lambda row: row.name.rpartition(".")[0]):
        say()
        for row in group:
            name, value, accepted = (cell.ljust(width) for cell, width in zip(_cells(row), widths, strict=True))
            say(f"{name}  {value}  {accepted}  {row.help}")
    return 0


def _cells(row: Setting) -> tuple[str, str, str]:
    return row.name, _shown(row.value), row.accepted


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def settings(spec: RunSpec) -> Iterator[Setting]:
    """Yield every setting of a run that `--set` can change: those of the run, then those of its parts."""
    for name in sorted(setting_names(spec), key=lambda name: "." in name):
        if name not in HIDDEN and not name.startswith("data.files"):
            group, _, field = name.rpartition(".")
            owner = getattr(spec, group) if group else spec
            hint = typing.get_type_hints(type(owner))[field]
            yield Setting(name, getattr(owner, field), accepted_values(hint), HELP[name])


def accepted_values(hint: Any) -> str:
    """Return the values that a type accepts, such as "learned, sinusoidal" or "integer or none"."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return " or ".join(accepted_values(kind) for kind in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return ", ".join(map(str, typing.get_args(hint)))
    return {int: "integer", float: "number", str: "text", type(None): "none"}[hint]
