"""The suites `quick`, `standard` and `full`, and how each variant departs from the common settings, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.experiments.overrides import override
from harness.experiments.specs import Budget, DataSpec, RunSpec
from impls import registry
from impls.contract import GruRecipe, Recipe, TorchReferenceRecipe, Training, TransformerRecipe
from impls.recipes import TUTORIAL

OUTSIDE_SUITES = ("plain", "tuned")
"""Built-in variants that run only where they are named."""
FULL_VARIANTS = tuple(name for name in registry.names() if name not in OUTSIDE_SUITES)
VARIANTS = tuple(name for name in FULL_VARIANTS if name != "paper_base")
MULTI30K_PAIRS = 29_000

AS_SOURCE: dict[str, tuple[str, ...]] = {
    "learned_positions": ("decoding.unknown=allowed",),
    "plain": ("decoding.unknown=allowed",),
    "sinusoidal_handmade": ("recipe.dropout=0.2", "decoding.unknown=allowed"),
    "bahdanau_gru": ("decoding.unknown=allowed",),
    "torch_reference": ("decoding.unknown=allowed",),
    "conv_ffn": ("data.tokenizer=sentencepiece-unigram", "data.vocabulary_size=7000"),
    "paper": ("decoding.beam=5",),
    "paper_base": ("decoding.beam=5",),
    "tuned": ("data.tokenizer=moses-bpe", "data.vocabulary=joint", "decoding.beam=5"),
}
"""What a variant's source does besides its TRAINING, in the words of `--set`; for the budget "source" alone.

The tutorials' searches may choose `<unk>`, so those of the variants that follow them may too. `paper` and `paper_base`
never do, after Vaswani et al. 2017, whose subwords leave no word unknown. Neither does `conv_ffn`: its source does not
translate, and its SentencePiece vocabulary covers every character of the training text. It has 7,000 tokens: the
English text of Multi30k does not contain enough different pieces for the 8,000 of the source.
"""

LITTLE_TEXT: dict[str, tuple[str, ...]] = {
    "conv_ffn": ("data.vocabulary_size=200",),
}
"""The same where the text is the embedded captions, which have not enough words for the source's vocabulary."""


@dataclass(frozen=True)
class Suite:
    """A set of runs of one size.

    `width`, `epochs` and `training_pairs` None keep what the recipe, its training and the corpus say. `in_keras` are
    the variants that are run in Keras too.
    """

    name: str
    purpose: str
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    budgets: tuple[Budget, ...]
    width: int | None = None
    epochs: int | None = None
    training_pairs: int | None = None
    in_keras: tuple[str, ...] = tuple(name for name in VARIANTS if name != "torch_reference")


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name="quick",
            purpose="every variant, small and short, 15 minutes on 2 cores; not comparable with published figures",
            variants=VARIANTS,
            seeds=(0,),
            budgets=("controlled",),
            width=128,
            epochs=3,
            training_pairs=10_000,
            in_keras=("learned_positions",),
        ),
        Suite(
            name="standard",
            purpose="the tutorials' size, 3 seeds",
            variants=VARIANTS,
            seeds=(0, 1, 2),
            budgets=("controlled", "source"),
        ),
        Suite(
            name="full",
            purpose="the tutorials' size and the paper's base size, 8 seeds",
            variants=FULL_VARIANTS,
            seeds=tuple(range(8)),
            budgets=("controlled", "source"),
        ),
    )
}


def spec(suite: Suite, variant: str, *, budget: Budget, seed: int, data: DataSpec, threads: int = 2) -> RunSpec:
    """Return one run of a suite.

    "controlled": the training that all share, so that only the architecture differs. "source": as the variant's own
    source trains it.

    Raises: ValueError where there is no such variant.
    """
    recipe, own = resolve(variant)
    training = TUTORIAL if budget == "controlled" else own
    if suite.training_pairs is not None and data.training_pairs is None and data.corpus != "captions":
        data = replace(data, training_pairs=suite.training_pairs)
    found = RunSpec(
        variant=variant,
        recipe=recipe if suite.width is None or recipe is None else _narrow(variant, recipe, suite.width),
        training=training if suite.epochs is None else shortened(training, suite),
        data=data,
        budget=budget,
        threads=threads,
        seed=seed,
    )
    if budget == "source":
        little = LITTLE_TEXT.get(variant, ()) if data.corpus == "captions" else ()
        for setting in (*AS_SOURCE.get(variant, ()), *little):
            found = override(found, setting)
    return found


def has(variant: str, framework: str) -> bool:
    """Return whether a variant can be built in a framework; an outsider's builder is taken for what it is, once."""
    recipe, _ = resolve(variant)
    if recipe is None:
        return framework == "torch"
    return (recipe.family, framework) in registry.BUILDERS


def resolve(variant: str) -> tuple[Recipe | None, Training]:
    """Return the recipe of a variant, None for a builder from outside, and how its source trains it.

    A variant from outside may have its module name a TRAINING; without one it is trained as the tutorials do.

    Raises: ValueError where there is no such variant, with the nearest name.
    """
    if ":" not in variant:
        return registry.recipe(variant), registry.training(variant)
    named = registry.load(variant)
    try:
        training = registry.load(f"{variant.partition(':')[0]}:TRAINING")
    except ValueError:
        training = TUTORIAL
    if not isinstance(training, Training):
        raise ValueError(f"{variant!r}: its module's TRAINING is {training!r}: expected a Training")
    if isinstance(named, TransformerRecipe | GruRecipe | TorchReferenceRecipe):
        return named, training
    registry.check_builder(variant, named)
    return None, training


def _narrow(variant: str, recipe: Recipe, width: int) -> Recipe:
    try:
        return reduced(recipe, width)
    except ValueError as error:
        raise ValueError(f"{variant} cannot be made as narrow as this suite, {error}; take --suite standard") from error


def reduced(recipe: Recipe, width: int) -> Recipe:
    """Return a recipe made narrower: feed-forward and head width in proportion, a GRU of one width."""
    if isinstance(recipe, GruRecipe):
        return replace(recipe, embedding_width=width, width=width)
    inner = max(1, recipe.ffn_width * width // recipe.width)
    if isinstance(recipe, TorchReferenceRecipe):
        return replace(recipe, width=width, ffn_width=inner)
    head_width = None if recipe.head_width is None else max(1, recipe.head_width * width // recipe.width)
    return replace(recipe, width=width, ffn_width=inner, head_width=head_width)


def shortened(training: Training, suite: Suite) -> Training:
    """Return a training of the suite's epochs, its warm-up the same share of all updates as before."""
    assert suite.epochs is not None
    share = suite.epochs / training.epochs * (suite.training_pairs or MULTI30K_PAIRS) / MULTI30K_PAIRS
    return replace(
        training,
        epochs=suite.epochs,
        warmup_updates=max(1, round(training.warmup_updates * share)) if training.warmup_updates else 0,
        averaged_epochs=min(training.averaged_epochs, suite.epochs),
    )
