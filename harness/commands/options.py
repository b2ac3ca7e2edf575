"""Options that several commands share, and how they become run specs."""

from __future__ import annotations

import argparse
import os
import sys
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import specs, store, suites
from harness.specs import DataSpec, FileSpec, RunRecord, RunSpec, override
from impls import registry
from impls.contract import Seq2SeqModel

if TYPE_CHECKING:
    from harness.data.prepared import Prepared

REPORTS = Path("reports/local")
FILE_OPTIONS = ("train_source", "validation_source", "test_source", "train_target", "validation_target", "test_target")
NO_FILES = "corpus 'files': name its text with --train-source, --validation-source and --test-source"
SETTINGS = {
    "direction": "data.direction",
    "tokenizer": "data.tokenizer",
    "epochs": "training.epochs",
    "updates": "updates",
    "threads": "threads",
    "device": "device",
    "precision": "precision",
}
"""Options that are short for one `--set`."""


def say(text: str = "") -> None:
    """Write a line to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"bakeoff: {text}\n")
    sys.stderr.flush()


def interrupt(number: int, frame: Any) -> None:
    """Take a signal for Ctrl-C."""
    raise KeyboardInterrupt


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


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add where records lie."""
    parser.add_argument("--results", type=Path, default=store.RESULTS, help=f"folder of results ({store.RESULTS})")


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
    add_framework(group, several=several)
    group.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="any setting, such as recipe.dropout=0.3"
    )


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
    from harness.data.prepared import unavailable

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
    for setting in chosen:
        spec = override(spec, setting)
    for option, name in SETTINGS.items():
        value = getattr(arguments, option)
        if value is not None:
            spec = override(spec, f"{name}={value}")
    for setting in arguments.set:
        spec = override(spec, setting)
    spec.id  # noqa: B018  a number that JSON cannot hold shows here
    return spec


def find_variant(name: str) -> str:
    """Return `name` where it is a variant. Raises: ValueError with the nearest name."""
    folder = os.getcwd()
    if ":" in name and folder not in sys.path:
        sys.path.insert(0, folder)
    suites.resolve(name)
    return name


def stored_model(record: RunRecord, results: Path, prepared: Prepared, *, device: str) -> Seq2SeqModel:
    """Build the model of a run with its stored weights. Raises: ValueError where either cannot be had."""
    from harness.executor import worker_environment
    from harness.training import build_model

    spec = replace(record.spec, device=device)
    find_variant(spec.variant)
    os.environ.update(worker_environment(spec))
    weights = store.load_weights(results, record.id)
    model = build_model(spec, prepared)
    model.set_weights(weights)
    return model
