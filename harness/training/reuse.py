"""Reuse of finished runs, as long as the files that they were trained on have not changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.experiments.specs import DataSpec, RunSpec
from harness.storage import checkpoint_files, locks, run_store
from harness.storage.records import RunRecord


def reusable_records(
    results: Path, specs: Sequence[RunSpec], *, complain: Callable[[str], None] | None = None
) -> list[RunRecord]:
    """Return the records of the runs that are finished.

    Args:
        results: The folder of results.
        specs: The runs.
        complain: Receives a line for each record that is damaged.

    Raises:
        ValueError: A run was trained on the user's files, and a file has changed or is missing. The message names both.
    """
    from harness.data.dataset import text_digests

    stored = (run_store.finished(results, spec.id, complain=complain) for spec in specs)
    records = [record for record in stored if record is not None]
    for record in records:
        _remove_checkpoints(results, record.id)
    digests: dict[DataSpec, dict[str, str]] = {}
    for record in records:
        data = record.spec.data
        if data.corpus != "files":
            continue
        try:
            digests[data] = digests.get(data) or text_digests(data)
        except ValueError as error:
            raise ValueError(f"run {record.id} exists, but not the text that it was trained on: {error}") from error
        _check_text(results, record, digests[data])
    return records


def _remove_checkpoints(results: Path, run_id: str) -> None:
    """Remove the checkpoints that remain when a process is killed right after it has written its record."""
    if checkpoint_files.exists(results, run_id):
        with contextlib.suppress(locks.Locked, locks.NoLocks, OSError), locks.hold(results, run_id):
            checkpoint_files.remove(results, run_id)


def _check_text(results: Path, record: RunRecord, digests: dict[str, str]) -> None:
    recorded = record.fingerprints.get("files") or {}
    for name, digest in digests.items():
        if recorded.get(name) != digest:
            raise ValueError(
                f"run {record.id}: {name}={getattr(record.spec.data.files, name)} has changed since it was trained on: "
                f"remove the folder {run_store.run_folder(results, record.id)} to run it again, or name other files"
            )
