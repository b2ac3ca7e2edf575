"""Runs that are there and need not be run again, as long as the text that they were trained on is still the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.experiments.specs import DataSpec, RunSpec
from harness.storage import run_store
from harness.storage.records import RunRecord


def reusable_records(
    results: Path, specs: Sequence[RunSpec], *, complain: Callable[[str], None] | None = None
) -> list[RunRecord]:
    """Return the records of the runs that have ended; `complain` is told in a line of each that is damaged.

    Raises: ValueError naming the run and the file where one was trained on the user's files, and these are others now.
    """
    from harness.data.dataset import text_digests

    there = (run_store.finished(results, spec.id, complain=complain) for spec in specs)
    found = [record for record in there if record is not None]
    digests: dict[DataSpec, dict[str, str]] = {}
    for record in found:
        data = record.spec.data
        if data.corpus != "files":
            continue
        try:
            digests[data] = digests.get(data) or text_digests(data)
        except ValueError as error:
            raise ValueError(f"run {record.id} is there, and not the text it was trained on: {error}") from error
        _check_text(results, record, digests[data])
    return found


def _check_text(results: Path, record: RunRecord, digests: dict[str, str]) -> None:
    recorded = record.fingerprints.get("files") or {}
    for name, digest in digests.items():
        if recorded.get(name) != digest:
            raise ValueError(
                f"run {record.id}: {name}={getattr(record.spec.data.files, name)} has changed since it was trained on: "
                f"remove the folder {run_store.run_folder(results, record.id)} to run it again, or name other files"
            )
