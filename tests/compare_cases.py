"""Records to compare, and comparisons of them, for the tests of `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_factory import record

from harness.analysis import comparability, selection
from harness.analysis.comparison import Comparison, ReferenceCorpus, compare
from harness.experiments.specs import RunRecord
from harness.reporting import comparison_report, document
from harness.storage import run_store

FIRST, SECOND = "learned_positions", "conv_ffn"
BLEU = {FIRST: (30.0, 31.0, 32.0), SECOND: (31.0, 33.0, 33.0)}


def written(results: Path, variant: str, seed: int, **changes: Any) -> RunRecord:
    """Store a record without anything beside it; changes are those of the record."""
    one = record(variant, seed)
    made_one = replace(one, **{**changes, "scores": {**one.scores, **changes.get("scores", {})}})
    run_store.save_record(results, made_one)
    return made_one


def found(
    results: Path, *words: str, corpus: ReferenceCorpus | None = None, allow: Sequence[str] = (), **more: Any
) -> Comparison:
    chosen = selection.find(words or (FIRST, SECOND), results, complain=pytest.fail)
    return compare(chosen, comparability.check(chosen, allow, complain=pytest.fail), corpus, examples=3, **more)


def text(results: Path, *words: str, **more: Any) -> str:
    return document.terminal(comparison_report.document(found(results, *words, **more)))
