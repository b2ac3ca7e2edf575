"""The files of run folders that a report shows, each read and checked once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness.storage import files, run_store
from harness.storage.records import RunRecord
from harness.storage.run_store import Hypothesis
from impls.contract import Arrays, Numbers

T = TypeVar("T")

MOST_KEPT = 400
"""The files that stay in memory; those of further runs are read at each use, so that the memory is limited."""


class StoredFiles:
    """The files of the runs under `results`. Of translations and statistics the first `MOST_KEPT` stay in memory.

    Every method raises a ValueError that names a damaged file.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self._contents: dict[tuple[str, str, str | None], object] = {}

    @classmethod
    def of(cls, results: Path | StoredFiles) -> StoredFiles:
        """Return the files under a folder; files that were opened before keep what they have read."""
        return results if isinstance(results, StoredFiles) else cls(results)

    def folder(self, record: RunRecord) -> Path:
        """Return the folder of a run."""
        return run_store.run_folder(self.results, record.id)

    def hypotheses(self, record: RunRecord) -> list[Hypothesis]:
        """Return the translations of a run; empty if they are not stored."""
        return self._once("hypotheses", record, lambda: run_store.hypotheses_of(self.folder(record), record) or [])

    def sentences(self, record: RunRecord) -> Arrays | None:
        """Return the statistics of each test sentence of a run; None if they are not stored."""
        return self._once("sentences", record, lambda: run_store.sentences_of(self.folder(record), record))

    def attention(self, record: RunRecord) -> dict[int, Numbers]:
        """Return the stored attention of a run, as `run_store.load_attention`. It is read at each call."""
        return run_store.load_attention(self.results, record.id, record.fingerprints.get("attention"))

    def check(self, record: RunRecord) -> None:
        """Read every file of a run that a report needs."""
        self.hypotheses(record)
        self.sentences(record)
        self.attention(record)
        weights = self.folder(record) / run_store.WEIGHTS
        digest = record.fingerprints.get("trained_weights")
        if digest and os.path.lexists(weights) and files.file_digest(weights, run_store.WEIGHTS_BYTES) != digest:
            raise ValueError(f"{weights}: damaged (its SHA-256 is not that in the record)")

    def _once(self, kind: str, record: RunRecord, read: Callable[[], T]) -> T:
        key = (kind, record.id, record.fingerprints.get(kind))
        if key in self._contents:
            content: T = self._contents[key]  # type: ignore[assignment]
            return content
        content = read()
        if len(self._contents) < MOST_KEPT:
            self._contents[key] = content
        return content
