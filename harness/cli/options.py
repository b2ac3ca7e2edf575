"""Options that several commands share, and how they become run specs."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import text as terminal
from harness.experiments import specs, suites
from harness.experiments.overrides import overridden
from harness.experiments.specs import DataSpec, FileSpec, RunSpec
from harness.storage import checkpoint_files, run_store
from harness.storage.records import RunRecord
from impls import registry
from impls.contract import Seq2SeqModel

if TYPE_CHECKING:
    from harness.data.dataset import Dataset

REPORTS = Path("reports/local")
FILE_OPTIONS = ("train_source", "validation_source", "test_source", "train_target", "validation_target", "test_target")
NO_FILES = "corpus 'files': name its text with --train-source, --validation-source and --test-source"
LONGEST_WARNING = 1_600
"""Characters: what is refused, and quoted, may be of any length."""

SETTINGS = {
    "direction": "data.direction",
    "tokenizer": "data.tokenizer",
    "epochs": "training.epochs",
    "updates": "updates",
    "threads": "threads",
    "device": "device",
    "precision": "precision",
    "cuda_graphs": "cuda_graphs",
}
"""Options that are short for one `--set`."""


def say(text: str = "") -> None:
    """Write a line, or several, to standard output, without what a terminal would obey.

    Raises: OSError naming standard output where it cannot be written.
    """
    try:
        sys.stdout.write(terminal.printable(text) + "\n")
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # else the interpreter tries the rest again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "standard output") from error


def warn(text: str) -> None:
    """Write one line to standard error, without what a terminal would obey; nobody hears it where that is closed."""
    line = terminal.one_line(text)
    if len(line) > LONGEST_WARNING:
        line = f"{line[: LONGEST_WARNING // 2]} … {line[-LONGEST_WARNING // 4 :]}"
    with contextlib.suppress(OSError):
        sys.stderr.write(f"bakeoff: {line}\n")
        sys.stderr.flush()


def count(text: str) -> int:
    """Read a whole number of at least 0."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is a whole number of at least 0")
    return number


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is a whole number of at least 1")
    return number


def seconds(text: str) -> float:
    """Read a number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is a number of seconds, at least 0")
    return number


def learning_rates(text: str) -> tuple[float, ...]:
    """Read two or more learning rates, separated by commas, and return them in ascending order."""
    try:
        rates = sorted({float(one) for one in text.split(",")})
    except ValueError:
        rates = []
    if len(rates) < 2 or not all(0 < rate < math.inf for rate in rates):
        raise argparse.ArgumentTypeError(
            f"{text!r}: give two or more different learning rates above 0, separated by commas, such as 5e-4,1e-3,2e-3"
        )
    return tuple(rates)


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    """Add how often a run writes what an interrupted one goes on from."""
    parser.add_argument(
        "--checkpoint-seconds",
        type=seconds,
        default=checkpoint_files.SECONDS,
        metavar="SECONDS",
        help=f"time between two checkpoints ({checkpoint_files.SECONDS:.0f}; 0: at the end of each epoch alone)",
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add where records lie."""
    parser.add_argument(
        "--results", type=Path, default=run_store.RESULTS, help=f"folder of results ({run_store.RESULTS})"
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a corpus."""
    group = parser.add_argument_group("data")
    group.add_argument("--corpus", choices=typing.get_args(specs.CorpusName), help="multi30k where it can be had")
    group.add_argument("--direction", help="languages, such as de-en")
    group.add_argument("--tokenizer", choices=typing.get_args(specs.Tokenizer))
    for name in FILE_OPTIONS:
        help_text = "for --corpus files: a file with a sentence a line"
        if name.endswith("source"):
            help_text += ", or a TSV of both sides"
        group.add_argument(f"--{name.replace('_', '-')}", metavar="FILE", default="", help=help_text)


def add_framework(parser: Any, *, several: bool = False) -> None:
    """Add the options that choose what models are made of."""
    frameworks = sorted({framework for _, framework in registry.BUILDERS}, reverse=True)
    if several:
        help_text = "may be given several times (torch, and without --variant what the suite has in Keras)"
        parser.add_argument("--framework", choices=frameworks, action="append", help=help_text)
    else:
        parser.add_argument("--framework", choices=frameworks, help="(torch)")
    parser.add_argument("--backend", choices=registry.BACKENDS, help="what Keras runs on (tensorflow)")


def framework_settings(framework: str | None, backend: str | None) -> tuple[str, ...]:
    """Return a choice of framework in the words of `--set`. Raises: ValueError for a backend without Keras."""
    if backend is not None and framework != "keras":
        raise ValueError(f"--backend {backend}: allowed is with --framework keras")
    chosen = (("framework", framework), ("backend", backend))
    return tuple(f"{name}={value}" for name, value in chosen if value is not None)


def add_runs(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the options that change runs; with `several` they may name more than one framework."""
    group = parser.add_argument_group("runs")
    group.add_argument("--epochs", type=positive)
    group.add_argument("--updates", type=positive, help="end training after so many updates")
    group.add_argument("--threads", type=positive, help="processor threads of a run (2)")
    group.add_argument("--device", help="cpu, cuda, or another word of the framework's")
    group.add_argument("--precision", choices=typing.get_args(specs.Precision))
    add_cuda_graphs(group)
    add_framework(group, several=several)
    group.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="any setting, such as recipe.dropout=0.3"
    )


def add_cuda_graphs(group: Any) -> None:
    """Add the choice of how a GPU is told to do an update."""
    help_text = "capture a Transformer's updates and decoding in torch as CUDA graphs and replay them (off)"
    group.add_argument("--cuda-graphs", choices=typing.get_args(specs.CudaGraphs), help=help_text)


def data_spec(arguments: argparse.Namespace) -> DataSpec:
    """Return the corpus that the options name, multi30k where they name none; whether it can be had is not asked."""
    names = {name: getattr(arguments, name) for name in FILE_OPTIONS}
    files = None
    if any(names.values()):
        missing = [f"--{name.replace('_', '-')}" for name in FILE_OPTIONS[:3] if not names[name]]
        if missing:
            raise ValueError(f"corpus 'files': {', '.join(missing)} is missing")
        files = FileSpec(**{name: os.path.abspath(value) if value else "" for name, value in names.items()})
    corpus: specs.CorpusName = arguments.corpus or ("files" if files else "multi30k")
    if corpus == "files" and files is None:
        raise ValueError(NO_FILES)
    settings = {name: getattr(arguments, name) for name in ("direction", "tokenizer") if getattr(arguments, name)}
    return DataSpec(corpus=corpus, files=files, **settings)


def available(arguments: argparse.Namespace, build: Callable[[DataSpec], list[RunSpec]]) -> list[RunSpec]:
    """Return the runs that `build` makes of the corpus that the options name, or of the captions.

    The captions stand in for Multi30k where it cannot be had and `--corpus` does not insist on it; this is said in a
    line, and noted in the records.

    Raises: ValueError with the reason where `--corpus` insists.
    """
    from harness.data.dataset import unavailable

    base = data_spec(arguments)
    specs = build(base)
    reasons = [unavailable(data) for data in dict.fromkeys(spec.data for spec in specs)]
    reason = next((one for one in reasons if one is not None), None)
    if reason is None:
        return specs
    if arguments.corpus is not None:
        raise ValueError(reason)
    say(f"Multi30k cannot be had: {reason}")
    say("So this runs on the embedded corpus `captions`: its figures are for captions, not for Multi30k.")
    arguments.note = f"{getattr(arguments, 'note', '')} Multi30k could not be had: {reason}".strip()
    return build(replace(base, corpus="captions"))


def apply(spec: RunSpec, arguments: argparse.Namespace, framework: str | None = None) -> RunSpec:
    """Return `spec` with every setting that the options name, in one framework where they may name several.

    Raises: ValueError for what does not fit.
    """
    if framework is None:
        chosen = framework_settings(arguments.framework, arguments.backend)
    else:
        chosen = framework_settings(framework, arguments.backend if framework == "keras" else None)
    told = {name: getattr(arguments, option) for option, name in SETTINGS.items()}
    by_option = [f"{name}={value}" for name, value in told.items() if value is not None]
    spec = overridden(spec, [*chosen, *by_option, *arguments.set])
    spec.id  # noqa: B018  a number that JSON cannot hold shows here
    return spec


def find_variant(name: str) -> str:
    """Return `name` where it is a variant. Raises: ValueError with the nearest name."""
    folder = os.getcwd()
    if ":" in name and folder not in sys.path:
        sys.path.insert(0, folder)
    suites.resolve(name)
    return name


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add the consent to execute what a record names."""
    parser.add_argument(
        "--import-builder",
        action="store_true",
        help="import the builder from outside, package.module:NAME, that the record of a run names: it is executed",
    )


def stored_model(
    record: RunRecord, results: Path, prepared: Dataset, *, device: str, import_builder: bool = False
) -> Seq2SeqModel:
    """Build the model of a run with its stored weights.

    A record may be a stranger's: code that it names is imported with `import_builder` alone, and nothing is built of a
    recipe that is not that of the weights.

    Raises: ValueError where the model or its weights cannot be had.
    """
    from harness.processes.workers import worker_environment
    from harness.training.train import build_model
    from impls.weights import shapes

    spec = replace(record.spec, cuda_graphs="off", device=device)
    weights = run_store.load_weights(results, record.id, record.fingerprints.get("trained_weights"))
    if spec.recipe is None:
        if not import_builder:
            raise ValueError(
                f"run {record.id}: its model is made by {spec.variant!r}, which is not of this program: allowed with "
                "--import-builder, which executes it"
            )
        find_variant(spec.variant)
    elif {name: one.shape for name, one in weights.items()} != dict(
        shapes(spec.recipe, len(prepared.source_words), len(prepared.target_words))
    ):
        raise ValueError(f"run {record.id}: its weights are not those of its recipe and the words of its corpus")
    os.environ.update(worker_environment(spec))
    model = build_model(spec, prepared)
    model.set_weights(weights)
    return model
