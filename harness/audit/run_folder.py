"""A stored run as the rules see it, and a cache of what several rules need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.audit.batch_reference import Expected
from harness.experiments.specs import DataSpec
from harness.storage import checkpoint_files, files, run_store
from harness.storage.records import LATER_FIELDS, RECORD_SCHEMAS, RunRecord, misfits, record_from_json
from harness.storage.run_store import Hypothesis
from harness.text import brief
from impls.contract import Arrays

SEAL = run_store.SEAL


class Skipped(Exception):
    """A rule does not apply to a run, for this reason; neither a pass nor a fault."""


@dataclass
class FileCache:
    """The context of a check, and a cache of what several rules need.

    `published` says whether the rules for published results apply. Cached are corpora by settings and files, digests of
    initial tensors and of batches, git's answers, and the files of each run.
    """

    published: bool = False
    prepared: dict[tuple[DataSpec, str], Any] = field(default_factory=dict)
    drawn: dict[tuple[object, ...], str] = field(default_factory=dict)
    streams: dict[tuple[object, ...], Expected] = field(default_factory=dict)
    commits: dict[str, Any] = field(default_factory=dict)
    digests: dict[Path, str] = field(default_factory=dict)
    hypotheses: dict[Path, list[Hypothesis]] = field(default_factory=dict)
    sentences: dict[Path, Arrays] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredRun:
    """The folder `name` of `results`.

    `unreadable` says why the file is no record of a known schema, and `misfits` lists fields that do not fit. If the
    record cannot be used, `record` is None.
    """

    results: Path
    name: str
    memory: FileCache = field(repr=False)
    raw: Any = field(default=None, repr=False)
    record: RunRecord | None = field(default=None, repr=False)
    unreadable: str = ""
    misfits: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return run_store.run_folder(self.results, self.name)

    @property
    def known(self) -> RunRecord:
        """The record. Raises `Skipped` if it is not readable."""
        if self.record is None:
            raise Skipped("no record can be read")
        return self.record

    @property
    def completed(self) -> RunRecord:
        """The record of a completed run. Raises `Skipped` for other runs."""
        if self.known.status != "completed":
            raise Skipped("not completed")
        return self.known

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file in the folder; raises as `harness.storage.files.file_digest`."""
        path = self.folder / name
        if path not in self.memory.digests:
            self.memory.digests[path] = files.file_digest(path)
        return self.memory.digests[path]

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """The translations of a completed run. Raises `Skipped`, or ValueError if the file is missing or damaged."""
        if self.completed and self.folder not in self.memory.hypotheses:
            self.memory.hypotheses[self.folder] = run_store.load_hypotheses(self.results, self.name)
        return self.memory.hypotheses[self.folder]

    @property
    def whole(self) -> StoredRun:
        """The run, if its translations and counts are readable. Raises `Skipped` if another rule reports why not."""
        try:
            if self.hypotheses and self.sentences:
                return self
        except (ValueError, OSError) as error:
            raise Skipped("translations or counts cannot be read") from error
        raise Skipped("no translations")

    @property
    def sentences(self) -> Arrays:
        """The stored counts of each test sentence.

        Raises `Skipped` if an older version stored none, ValueError if the file is damaged or has another digest.
        """
        digest = self.completed.fingerprints.get("sentences")
        there = run_store.has_sentences(self.results, self.name)
        if digest is None and not there:
            raise Skipped(f"no {run_store.SENTENCES}: made by an older version")
        if digest is None:
            raise ValueError(f"{run_store.SENTENCES} exists, but the record has no digest of it")
        if there and self.digest(run_store.SENTENCES) != digest:
            raise ValueError(f"{run_store.SENTENCES}: damaged (its SHA-256 is not {digest})")
        if self.folder not in self.memory.sentences:
            self.memory.sentences[self.folder] = run_store.load_sentences(self.results, self.name)
        return self.memory.sentences[self.folder]


def read(results: Path, name: str, memory: FileCache) -> StoredRun:
    """Read as much as possible of the record in the folder `name`."""
    path = run_store.run_folder(results, name) / run_store.RECORD
    found = StoredRun(results, name, memory)
    if not os.path.lexists(path):
        return _with(found, unreadable=f"there is no {run_store.RECORD}")
    try:
        raw = files.read_json(path)
    except ValueError as error:
        return _with(found, unreadable=str(error).removeprefix(f"{path}: "))
    if not isinstance(raw, dict) or raw.get("schema") not in RECORD_SCHEMAS:
        number = raw.get("schema") if isinstance(raw, dict) else None
        known = ", ".join(map(str, RECORD_SCHEMAS))
        return _with(found, raw=raw, unreadable=f"schema={number!r}: expected one of {known}")
    try:
        record = record_from_json({key: value for key, value in raw.items() if key != SEAL})
    except (ValueError, TypeError) as error:
        return _with(found, raw=raw, misfits=(str(error),))
    wrong = tuple(_misfits(record))
    lost = tuple(f"record.{one.name}: missing" for one in fields(RunRecord) if one.name not in {*raw, *LATER_FIELDS})
    return _with(found, raw=raw, record=None if wrong else record, misfits=wrong + lost)


def run_names(results: Path) -> list[str]:
    """Return the folders of runs under `results`, whatever their status.

    Raises:
        ValueError: there is no such folder, or no run in it.
    """
    if not results.is_dir():
        raise ValueError(f"{results}: there is no such folder")
    traces = (run_store.RECORD, run_store.HYPOTHESES, run_store.LOG, f"{run_store.WEIGHTS}.json")
    found = sorted(
        one.name
        for one in results.iterdir()
        if one.is_dir() and not one.name.startswith(".")
        if any((one / trace).exists() for trace in traces) or checkpoint_files.exists(results, one.name)
    )
    if not found:
        raise ValueError(f"{results}: there is no record in it; make some with: python -m harness bench")
    return found


def _with(stored: StoredRun, **found: Any) -> StoredRun:
    return StoredRun(stored.results, stored.name, stored.memory, **found)


def _misfits(record: RunRecord) -> Iterator[str]:
    """Yield errors in the untyped parts of a record, on which rules rely."""
    yield from misfits(record)
    for name in ("machine", "commit"):
        value = record.environment.get(name)
        if value is not None and not isinstance(value, dict):
            yield f"environment.{name}={brief(value)}: expected an object"
    for name, number in [*record.sizes.items(), *record.speed.items()]:
        if number < 0:
            yield f"{name}={number!r} must be a number of at least 0"
