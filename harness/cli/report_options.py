"""Writes the report of some runs: as Markdown, and as one HTML file with the test sentences where they may be shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.console import say, warn
from harness.experiments.specs import DataSpec
from harness.storage import run_store
from harness.storage.records import RunRecord

if TYPE_CHECKING:
    from harness.reporting.run_files import CorpusText


BUSY_LOAD = 1.25
"""The load average for each core above which other work disturbed what was timed."""
RATES = (
    "training_tokens_per_second",
    "epoch_seconds",
    "first_update_seconds",
    "validation_seconds",
    "decoding_sentences_per_second",
    "total_seconds",
)
"""The figures of `RunRecord.speed` that other work on the machine changes."""


def write(
    records: Sequence[RunRecord], results: Path, folder: Path, *, failures: Sequence[str], corpus_text: bool = True
) -> None:
    """Write the report under `folder`, print its tables and headline, and write `failures` to standard error.

    `failures` are those of `check_records`. `corpus_text` lets the HTML show source and reference, where the corpus of
    a run is on this machine and the runs are not published.
    """
    from harness.reporting import bench_report, render_text

    if run_store.is_published(results):
        records = [without_disturbed_rates(record) for record in records]
    texts = shown_texts(records, results) if corpus_text else {}
    report = bench_report.document(records, results=results, texts=texts, failures=failures)
    page = bench_report.write(report, records, folder)
    say(render_text.document(report))
    say(f"The report: {page} (as Markdown: {page.with_suffix('.md')})")
    warn_failures(failures)


def shown_texts(records: Sequence[RunRecord], results: Path) -> dict[DataSpec, CorpusText]:
    """Return the test sets whose text a page may show: those on this machine, and none for published runs."""
    return {} if run_store.is_published(results) else test_sets(records)


def check_records(results: Path, records: Sequence[RunRecord] | None = None) -> list[str]:
    """Apply the rules of `check` that need no corpus to all runs of `results`, or to those of these records.

    Returns a line for each rule that fails.
    """
    from harness.audit import rules

    return rules.failures(rules.without_corpus(results, None if records is None else [record.id for record in records]))


def warn_failures(failures: Iterable[str]) -> None:
    """Write the lines of `check_records` to standard error."""
    for line in failures:
        warn(f"check: {line}")


def without_disturbed_rates(record: RunRecord) -> RunRecord:
    """Return a record without its rates if they were, or may have been, measured while other work used the machine.

    That is so where the load average exceeded `BUSY_LOAD` for each core, or was not recorded.
    """
    machine = record.environment.get("machine")
    cores = machine.get("cores") if isinstance(machine, dict) else None
    load = record.speed.get("load_average", math.inf)
    if isinstance(cores, int) and load <= BUSY_LOAD * cores:
        return record
    return replace(record, speed={name: value for name, value in record.speed.items() if name not in RATES})


def test_sets(records: Iterable[RunRecord]) -> dict[DataSpec, CorpusText]:
    """Return the test set of each corpus that is on this machine and is what the runs were measured on.

    Nothing is downloaded; a corpus that is not here, or another text now, is left out. Where the user's own files are
    others, this is said.
    """
    from harness.data.dataset import at_hand
    from harness.reporting.run_files import CorpusText

    found: dict[DataSpec, CorpusText] = {}
    for data, record in {record.spec.data: record for record in records}.items():
        try:
            prepared = at_hand(record)
        except ValueError as error:
            if data.corpus == "files":
                say(f"{record.id}: {error}")
            continue
        if prepared is not None and prepared.digests["files"] == record.fingerprints.get("files"):
            words = [tuple(prepared.source_words[token] for token in ids) for ids in prepared.test.source]
            found[data] = CorpusText(prepared.test_source_text, prepared.test_target_text, words)
    return found
