"""Options that several commands share, and the run specs that they make."""

from __future__ import annotations

import argparse
import dataclasses
import math
import typing
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.cli.console import say
from harness.data import corpora
from harness.data.dataset import unavailable
from harness.experiments import specs, suites
from harness.experiments.overrides import check_used, override, setting_names
from harness.experiments.serialization import RECIPE_TYPES
from harness.experiments.specs import DataSpec, FileSpec, RunSpec
from harness.storage import checkpoint_files
from harness.text import did_you_mean
from impls import registry

FILE_OPTIONS = tuple(field.name for field in dataclasses.fields(FileSpec))
MOST_SEEDS = 1_000
"""The most seeds that one range may name."""

MODEL_SETTINGS = ("threads", "device", "precision", "matmul_precision", "cuda_graphs")
"""Options of `add_models` that abbreviate a `--set` of the same name."""
SETTINGS = {
    "tokenizer": "data.tokenizer",
    "epochs": "training.epochs",
    "updates": "updates",
    **{name: name for name in MODEL_SETTINGS},
}
"""Options that abbreviate one `--set`."""
RECIPE_SETTINGS = {f"recipe.{field.name}" for recipe in RECIPE_TYPES.values() for field in dataclasses.fields(recipe)}
"""The settings of recipes of any family."""


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# Values ---------------------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    """Parse a whole number of at least 0."""
    return _whole_number(text, 0)


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    return _whole_number(text, 1)


def _whole_number(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return number


def seeds(text: str) -> tuple[int, ...]:
    """Parse seeds: "3", a list "0,1,2", a range "0-4" (both ends included), or a mixture such as "0-4,7"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [end.strip() for end in ((first, last) if dash else (first, first))]
        if not all(end.isascii() and end.isdecimal() for end in ends):
            raise argparse.ArgumentTypeError(f"{text!r} is not a seed; give 3, 0,1,2 or 0-4")
        low, high = map(int, ends)
        if not low <= high < low + MOST_SEEDS:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r}: a range ascends, as in 0-4, and has at most {MOST_SEEDS:,} seeds"
            )
        numbers += range(low, high + 1)
    return tuple(dict.fromkeys(numbers))


def seconds(text: str) -> float:
    """Parse a number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds of at least 0")
    return number


def learning_rates(text: str) -> tuple[float, ...]:
    """Parse two or more learning rates, separated by commas, and return them in ascending order."""
    try:
        rates = sorted({float(part) for part in text.split(",")})
    except ValueError:
        rates = []
    if len(rates) < 2 or not all(0 < rate < math.inf for rate in rates):
        raise argparse.ArgumentTypeError(
            f"{text!r}: give two or more different learning rates above 0, separated by commas, such as 5e-4,1e-3,2e-3"
        )
    return tuple(rates)


# Options --------------------------------------------------------------------------------------------------------------


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint-seconds",
        type=seconds,
        default=checkpoint_files.SECONDS,
        metavar="SECONDS",
        help=f"time between checkpoints, from which an interrupted run resumes (default "
        f"{checkpoint_files.SECONDS:.0f}; 0: only at the end of each epoch)",
    )
    parser.add_argument(
        "--resume-anyway",
        action="store_true",
        help="resume runs whose checkpoints were written with another processor, library version or setting that "
        "changes the last digits of results; their records say so",
    )
    parser.add_argument(
        "--score-every",
        type=count,
        default=0,
        metavar="EPOCHS",
        help="translate the validation set every EPOCHS epochs and store its BLEU in the learning curve "
        "(default 0: never)",
    )


def add_note(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--note", default="", metavar="TEXT", help="free text to store with the result (default none)")


def add_suite_and_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite", choices=list(suites.SUITES), default="standard", help="sizes of the run (default standard)"
    )
    parser.add_argument(
        "--budget", choices=("controlled", "source"), default="source", help="training settings (default source)"
    )


def add_json(parser: argparse.ArgumentParser, contents: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {contents} as JSON (default: text)")


def add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument(
        "--corpus",
        choices=typing.get_args(specs.CorpusName),
        help="the text (default multi30k if available, otherwise the built-in captions)",
    )
    group.add_argument("--direction", metavar="SOURCE-TARGET", help="source and target language (default de-en)")
    group.add_argument(
        "--tokenizer",
        choices=typing.get_args(specs.Tokenizer),
        help="how text becomes tokens (default: the variant's, mostly spacy)",
    )
    formats = {
        "source": "one sentence per line, or a TSV of source and target (default: none)",
        "target": "one sentence per line (default: the second column of the TSV)",
    }
    for name in FILE_OPTIONS:
        help_text = f"for --corpus files: {formats[name.rpartition('_')[2]]}"
        group.add_argument(flag(name), metavar="FILE", default="", help=help_text)


def add_framework(group: Any, *, repeatable: Container[str] = ()) -> None:
    frameworks = sorted({framework for _, framework in registry.BUILDERS}, reverse=True)
    if "framework" in repeatable:
        help_text = "framework of the models; repeatable (default torch; without --variant also some Keras variants)"
        group.add_argument("--framework", choices=frameworks, action="append", help=help_text)
    else:
        group.add_argument("--framework", choices=frameworks, help="framework of the model (default torch)")
    help_text = f"backend of Keras{'; repeatable' * ('backend' in repeatable)} (default tensorflow)"
    action = "append" if "backend" in repeatable else "store"
    group.add_argument("--backend", choices=registry.BACKENDS, action=action, help=help_text)


def check_backend(framework: str | None, backend: str | None) -> None:
    """Raise ValueError for a backend without Keras."""
    if backend is not None and framework != "keras":
        raise ValueError(f"--backend {backend} requires --framework keras")


def add_runs(parser: argparse.ArgumentParser, *, many: bool = False, repeatable: Container[str] = ()) -> None:
    """Add the options that change runs.

    Args:
        many: Whether the command starts many runs, so that defaults and help differ.
        repeatable: The options among "framework" and "backend" that may be given several times.
    """
    group = parser.add_argument_group("runs")
    group.add_argument("--epochs", type=positive, help="passes over the training data (default: the suite's)")
    group.add_argument(
        "--updates", type=positive, metavar="N", help="stop training after N updates (default: all epochs)"
    )
    add_models(group, many=many, repeatable=repeatable)


def add_models(group: Any, *, many: bool = False, repeatable: Container[str] = ()) -> None:
    group.add_argument("--threads", type=positive, help=f"CPU threads per run (default {1 if many else 2})")
    device = "a GPU if there is one, otherwise cpu" if many else "cpu"
    group.add_argument("--device", help=f"cpu, cuda, or another device of the framework (default {device})")
    group.add_argument(
        "--precision", choices=typing.get_args(specs.Precision), help="number format of training (default float32)"
    )
    group.add_argument(
        "--matmul-precision",
        choices=typing.get_args(specs.MatmulPrecision),
        help="how torch multiplies float32 matrices: high is TF32 on a GPU, medium also bfloat16 on a CPU with AMX "
        "(default highest)",
    )
    group.add_argument(
        "--cuda-graphs",
        choices=typing.get_args(specs.CudaGraphs),
        help="experimental: capture torch training and decoding of Transformers as CUDA graphs (default off)",
    )
    add_framework(group, repeatable=repeatable)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change any setting, such as recipe.dropout=0.3"
        f"{', or paper:recipe.dropout=0.3 for the runs of one variant' if many else ''}; repeatable; "
        "`settings` lists all of them (default: none)",
    )


# Run specs ------------------------------------------------------------------------------------------------------------


def data_spec(arguments: argparse.Namespace) -> DataSpec:
    """Return the corpus that the options name, by default multi30k, whether or not it is available.

    Raises: ValueError if a file of the corpus "files" is missing, or files are given for another corpus.
    """
    files = {name: path for name in FILE_OPTIONS if (path := getattr(arguments, name))}
    corpus: specs.CorpusName = arguments.corpus or ("files" if files else "multi30k")
    if files and corpus != "files":
        raise ValueError(f"{flag(next(iter(files)))} with --corpus {corpus}: it is only for --corpus files")
    missing = [flag(name) for name in FILE_OPTIONS[:3] if name not in files]
    if corpus == "files" and missing:
        raise ValueError(f"--corpus files needs {', '.join(missing)}")
    options = ("direction", "tokenizer")
    settings = {name: value for name in options if (value := getattr(arguments, name)) is not None}
    return DataSpec(corpus=corpus, files=FileSpec.located(files) if files else None, **settings)


def available(
    arguments: argparse.Namespace, build: Callable[[DataSpec], list[RunSpec]], *, suite: str | None = None
) -> list[RunSpec]:
    """Return the runs that `build` creates for the corpus that the options name, or for the built-in captions.

    The captions replace Multi30k if it is not available, unless the options name it, a language or a test set that only
    it has, or a longer `suite` than quick. A printed line and a note in the records say so.

    Raises: ValueError if the corpus that `--corpus` names, or that a long suite needs, is not available, or a `--set`
    argument changes no run.
    """
    base = data_spec(arguments)
    runs = build(base)
    for setting in arguments.set:
        variant, name, _ = parts_of(setting)
        check_used((spec for spec in runs if variant in ("", spec.variant)), name)
    reason = next(filter(None, map(unavailable, dict.fromkeys(spec.data for spec in runs))), None)
    if reason is None:
        return runs
    if arguments.corpus is not None:
        raise ValueError(reason)
    if suite not in (None, "quick"):  # hours of training on a corpus that nobody asked for
        raise ValueError(f"{reason}; or train the suite {suite} on the built-in sentences with --corpus captions")
    runs = build(replace(base, corpus="captions"))
    try:
        for data in dict.fromkeys(spec.data for spec in runs):
            corpora.load(data)
    except ValueError:  # the captions do not have the direction or the test set
        raise ValueError(reason) from None
    say(f"Multi30k is not available: {reason}")
    say("Using the built-in corpus `captions` instead: results are for captions, not for Multi30k.")
    arguments.note = f"{getattr(arguments, 'note', '')} Multi30k was not available: {reason}".strip()
    return runs


def _check_names(spec: RunSpec, settings: list[str]) -> None:
    """Raise ValueError for what `--set` cannot change, or only in other variants."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in ("variant", "budget"):
            raise ValueError(f"--set {setting}: the {name} is no setting; choose it on the command line")
        if name in RECIPE_SETTINGS and name not in setting_names(spec):
            reason = f"has no setting {name!r}; change it in one variant"
            if spec.recipe is None:
                reason = "is a builder and has no recipe; change its code, or the recipe of one variant,"
            raise ValueError(f"--set {setting}: {spec.variant} {reason} with --set VARIANT:{setting}")


def parts_of(setting: str) -> tuple[str, str, str]:
    """Return variant, field and value of a `--set` argument; the variant is empty if it is for all."""
    name, _, value = setting.partition("=")
    variant, _, field = name.rpartition(":")
    return variant, field.strip(), value


def settings_of(variant: str, settings: Sequence[str]) -> list[str]:
    """Return the `--set` arguments for a variant: FIELD=VALUE, and VARIANT:FIELD=VALUE without the variant."""
    return [setting.removeprefix(f"{variant}:") for setting in settings if parts_of(setting)[0] in ("", variant)]


def check_variants(variants: Iterable[str], settings: Sequence[str]) -> None:
    """Raise ValueError for a `--set` argument of a variant that has no run."""
    known = list(dict.fromkeys(variants))
    for setting in settings:
        variant, _, _ = parts_of(setting)
        if variant and variant not in known:
            raise ValueError(f"--set {setting}: no run is of the variant {variant!r}{did_you_mean(variant, known)}")


def apply(spec: RunSpec, arguments: argparse.Namespace, framework: str | None = None) -> RunSpec:
    """Return `spec` as `changed` by the options; `framework` is the one to use if they name several."""
    backend = arguments.backend
    if framework is None:
        framework = arguments.framework
        check_backend(framework, backend)
    elif framework != "keras":
        backend = None
    values = {name: getattr(arguments, option) for option, name in SETTINGS.items()}
    return changed(spec, {"framework": framework, "backend": backend, **values}, arguments.set)


def changed(spec: RunSpec, values: Mapping[str, Any], settings: Sequence[str]) -> RunSpec:
    """Return `spec` with the values by setting that are not None, and the `--set` arguments that are for its variant.

    Raises: ValueError if a setting is unknown or its value is not accepted.
    """
    own = settings_of(spec.variant, settings)
    _check_names(spec, own)
    by_option = [f"{name}={value}" for name, value in values.items() if value is not None]
    try:
        return override(spec, [*by_option, *own])
    except ValueError as error:
        raise ValueError(f"{spec.variant}: {error}") from error
