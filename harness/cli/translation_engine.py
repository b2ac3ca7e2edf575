"""`--engine` and `--compute-type`: whether `translate` and `score` translate with CTranslate2."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.console import say
from harness.data.dataset import Dataset, of_run
from harness.experiments.specs import DecodingSpec
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls import registry

if TYPE_CHECKING:
    from harness.training.converted import Translate

NATIVE, CTRANSLATE2 = "native", "ctranslate2"


def add_options(parser: argparse.ArgumentParser, *, native: str) -> None:
    """Add the options; `native` says what the native engine is."""
    parser.add_argument(
        "--engine",
        choices=(NATIVE, CTRANSLATE2),
        default=NATIVE,
        help=f"native: {native}; ctranslate2: the run's weights, converted for CTranslate2; on the test set it also "
        "counts the translations that equal the stored ones (default native)",
    )
    parser.add_argument(
        "--compute-type",
        choices=tuple(registry.COMPUTE_TYPES),
        help="for --engine ctranslate2: number format of its weights; float32 gives the native translations in greedy "
        "search, the others change some (default float32)",
    )


def uses_library(arguments: argparse.Namespace) -> bool:
    """Return whether the command translates with CTranslate2. Raises: ValueError for --compute-type without it."""
    if arguments.engine == NATIVE and arguments.compute_type is not None:
        raise ValueError(f"--compute-type {arguments.compute_type} requires --engine ctranslate2")
    return bool(arguments.engine == CTRANSLATE2)


def translator(record: RunRecord, results: Path, *, device: str, compute_type: str | None) -> tuple[Dataset, Translate]:
    """Return the corpus of a run and the function that translates. Raises: as in `harness.training.converted`."""
    from harness.training import converted

    chosen = compute_type or "float32"
    converted.check(record, device=device, compute_type=chosen)  # before the corpus is prepared
    dataset = of_run(record)
    return dataset, converted.translator(record, results, dataset, device=device, compute_type=chosen)


def equal_translations(
    record: RunRecord, results: Path, hypotheses: Sequence[run_store.Hypothesis], decoding: DecodingSpec
) -> int | None:
    """Return how many translations of the test set are those that the run has stored.

    None if the run has none, or translated with other settings, so that its translations are no measure.
    """
    stored = run_store.hypotheses_of(run_store.run_folder(results, record.id), record)
    if stored is None or decoding != record.spec.decoding:
        return None
    return sum(mine.tokens == theirs.tokens for mine, theirs in zip(hypotheses, stored, strict=False))


def say_equal(equal: int | None, sentences: int) -> None:
    """Print how many translations are equal to the stored ones, if that is known."""
    if equal is not None:
        say(f"  {'equal':20} {equal:,} of {sentences:,} translations equal those that the run stored")
