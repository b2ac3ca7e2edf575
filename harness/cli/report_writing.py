"""Writes the report of runs as Markdown and as an HTML file, with the test sentences if they may be shown."""

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
from harness.storage.stored_files import StoredFiles

if TYPE_CHECKING:
    from harness.reporting.run_files import CorpusText


BUSY_LOAD = 1.25
"""The load average per core above which other work disturbs measurements of time."""
BUSY_GPU_LOAD = 2.0
"""The load average above which other runs probably share the GPU: one run keeps about one core busy."""


def write(
    records: Sequence[RunRecord], results: Path, folder: Path, *, failures: Sequence[str], corpus_text: bool = True
) -> None:
    """Write the report, print its tables and headline, and write the failures to standard error.

    Runs with a damaged file are named on standard error and left out. `failures` are the lines of `check_records`.
    With `corpus_text` the HTML shows source and reference: only of corpora on this machine, and for published runs
    only that of the embedded captions.
    """
    from harness.reporting import bench_report, render_text

    stored = StoredFiles(results)
    records = readable(records, stored)
    if run_store.is_published(results):
        records = [without_disturbed_rates(record) for record in records]
    texts = shown_texts(records, results) if corpus_text else {}
    report = bench_report.document(records, results=stored, texts=texts, failures=failures)
    page = bench_report.write(report, records, folder)
    say(render_text.document(report))
    say_page("report", page)
    warn_failures(failures)


def readable(records: Sequence[RunRecord], stored: StoredFiles) -> list[RunRecord]:
    """Return the runs without damaged files, and name the others on standard error."""
    readable = []
    for record in records:
        try:
            stored.check(record)
        except ValueError as error:
            warn(f"{error}; the run is left out of the report")
        else:
            readable.append(record)
    if records and not readable:
        raise ValueError(f"{stored.results}: every run has a damaged file")
    return readable


def say_page(kind: str, page: Path) -> None:
    say(f"The {kind}: {page} (as Markdown: {page.with_suffix('.md')})")


def shown_texts(records: Sequence[RunRecord], results: Path) -> dict[DataSpec, CorpusText]:
    """Return the test sets that a page may show: those on this machine, for published runs only the embedded one."""
    if run_store.is_published(results):
        records = [record for record in records if record.spec.data.corpus == "captions"]
    return test_sets(records)


def check_records(results: Path, records: Sequence[RunRecord] | None = None) -> list[str]:
    """Apply the rules of `check` that need no corpus to some or all runs, and return a line for each that fails."""
    from harness.audit import rules

    names = None if records is None else [record.id for record in records]
    return rules.failures(rules.check(results, names, with_corpus=False))


def warn_failures(failures: Iterable[str]) -> None:
    for line in failures:
        warn(f"check: {line}")


def without_disturbed_rates(record: RunRecord) -> RunRecord:
    """Return a record without its rates if the load average shows other work, or was not recorded."""
    from harness.analysis.metric_registry import SPEEDS

    cores = (record.environment.get("machine") or {}).get("cores")
    load = record.speed.get("load_average", math.inf)
    if isinstance(cores, int) and load <= (BUSY_LOAD * cores if record.spec.device == "cpu" else BUSY_GPU_LOAD):
        return record
    return replace(record, speed={name: value for name, value in record.speed.items() if name not in SPEEDS})


def test_sets(records: Iterable[RunRecord]) -> dict[DataSpec, CorpusText]:
    """Return the test set of each corpus that is on this machine and has not changed since the runs.

    Nothing is downloaded. A line is printed if the user's own files have changed.
    """
    from harness.data.dataset import of_run_offline
    from harness.reporting.run_files import CorpusText

    texts: dict[DataSpec, CorpusText] = {}
    for data, record in {record.spec.data: record for record in records}.items():
        try:
            dataset = of_run_offline(record)
        except ValueError as error:
            if data.corpus == "files":
                say(f"{record.id}: {error}")
            continue
        if dataset is not None and dataset.digests["files"] == record.fingerprints.get("files"):
            words = [tuple(dataset.source_words[token] for token in ids) for ids in dataset.test.source]
            texts[data] = CorpusText(dataset.test_source_text, dataset.test_target_text, words)
    return texts
