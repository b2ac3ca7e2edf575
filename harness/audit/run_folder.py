"""A stored run as the rules see it, and what several rules share: computed values, and the wording of faults."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from harness.storage import checkpoint_files, files, locks, results_folders, run_store
from harness.storage.records import LATER_FIELDS, RECORD_SCHEMA, RunRecord, misfits, record_from_json
from harness.storage.run_store import Hypothesis
from harness.text import brief
from impls.contract import Arrays

NOT_STARTED = "stopped before training"
NO_EPOCH = "no finished epoch"
NOT_COMPLETED = "not completed"
UNREADABLE = "the record cannot be read"

Seal = Literal["missing", "wrong", "right"]
T = TypeVar("T")

STARTING_SECONDS = 30.0
"""A folder that has changed within this time, and has neither record nor results, is that of a run that starts."""

ROUNDING = 1e-6
"""Relative tolerance between two computations of the same number."""


class Skipped(Exception):
    """A rule does not apply to a run or a table, for this reason; neither a pass nor a fault."""


def skip_unless(value: T | None, reason: str) -> T:
    """Return a value that a rule needs. Raises: Skipped with the reason if it is missing, empty or false."""
    if not value:
        raise Skipped(reason)
    return value


def unequal(name: str, recorded: Any, expected: Any, source: str, tolerance: float = ROUNDING) -> Iterator[str]:
    """Yield a fault if a recorded value is not the expected one; `source` says where the expected one comes from.

    Floats may differ by `tolerance`, relative to the larger.
    """
    if isinstance(recorded, float) and isinstance(expected, float):
        is_equal = math.isclose(recorded, expected, rel_tol=tolerance, abs_tol=1e-9)
    else:
        is_equal = bool(recorded == expected)
    if not is_equal:
        yield f"{name}={brief(recorded)}, expected {brief(expected)} ({source})"


@dataclass
class AuditContext:
    """What the rules of an audit share: whether those for published results apply, and a cache of computed values."""

    published: bool = False
    _cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    _files: tuple[Path, AuditContext] | None = field(default=None, repr=False)

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of `key`, which is computed once unless that raises."""
        if key not in self._cache:
            self._cache[key] = compute()
        value: T = self._cache[key]
        return value

    def of_file(self, path: Path, kind: str, read: Callable[[], T]) -> T:
        """As `cached`, for a value of a file of a run; only those of the last run are kept, because they are large."""
        if self._files is None or self._files[0] != path.parent:
            self._files = path.parent, AuditContext()
        return self._files[1].cached((path.name, kind), read)


@dataclass(frozen=True)
class StoredRun:
    """The folder `name` of `results`, read as far as possible.

    Attributes:
        context: What the rules share.
        seal: Whether the record has a seal, and one that fits its content.
        parsed: The record, or None if it cannot be used.
        unreadable: Why the file is not a record of the current schema; empty if it is.
        misfits: The fields with values that are not accepted.
    """

    results: Path
    name: str
    context: AuditContext = field(repr=False)
    seal: Seal = "missing"
    parsed: RunRecord | None = field(default=None, repr=False)
    unreadable: str = ""
    misfits: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return run_store.run_folder(self.results, self.name)

    @property
    def record(self) -> RunRecord:
        """The record. Raises: Skipped if it cannot be used."""
        return skip_unless(self.parsed, UNREADABLE)

    @property
    def trained(self) -> RunRecord:
        """The record of a run with at least one epoch. Raises: Skipped for other runs."""
        skip_unless(self.record.curve, NO_EPOCH)
        return self.record

    @property
    def completed(self) -> RunRecord:
        """The record of a completed run. Raises: Skipped for other runs."""
        skip_unless(self.record.status == "completed", NOT_COMPLETED)
        return self.record

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file in the folder. Raises: As `harness.storage.files.file_digest`."""
        path = self.folder / name
        return self.context.of_file(path, "digest", lambda: files.file_digest(path))

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """The translations. Raises: Skipped unless completed; ValueError for a missing or damaged file."""
        skip_unless(self.record.status == "completed", NOT_COMPLETED)
        path = self.folder / run_store.HYPOTHESES
        return self.context.of_file(path, "content", lambda: run_store.load_hypotheses(self.results, self.name))

    @property
    def sentences(self) -> Arrays:
        """The statistics of each test sentence. Raises: As `hypotheses`, and ValueError for a missing digest."""
        digest = self.completed.fingerprints.get("sentences")
        if digest is None:
            raise ValueError(f"the record has no digest of {run_store.SENTENCES}")
        path = self.folder / run_store.SENTENCES
        return self.context.of_file(path, "content", lambda: run_store.load_sentences(self.results, self.name, digest))

    @property
    def checked_sentences(self) -> Arrays:
        """As `sentences`. Raises: Skipped if these or the translations are not readable, which other rules report."""
        try:
            skip_unless(self.hypotheses, "no translations")
            return self.sentences
        except (ValueError, OSError) as error:
            raise Skipped("the translations or their statistics cannot be read") from error


def read(results: Path, name: str, context: AuditContext) -> StoredRun:
    """Read as much as possible of the record in the folder `name`."""
    path = run_store.run_folder(results, name) / run_store.RECORD
    stored = StoredRun(results, name, context)
    if not files.may_exist(path):
        return replace(stored, unreadable=f"there is no {run_store.RECORD}")
    try:
        raw = files.read_json(path)
    except ValueError as error:
        return replace(stored, unreadable=str(error).removeprefix(f"{path}: "))
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != RECORD_SCHEMA:
        return replace(stored, unreadable=f"schema={brief(schema)}: expected {RECORD_SCHEMA}")
    if files.SEAL in raw:
        stored = replace(stored, seal="right" if files.seal(raw) == raw[files.SEAL] else "wrong")
    try:
        record = record_from_json({name: value for name, value in raw.items() if name != files.SEAL})
    except (ValueError, TypeError) as error:
        return replace(stored, misfits=(str(error),))
    numbers = [*record.sizes.items(), *record.speed.items()]  # the rules rely on these being at least 0
    negative = [f"{name}={number!r}: expected a number of at least 0" for name, number in numbers if number < 0]
    wrong = (*misfits(record), *negative)
    required = [part.name for part in fields(RunRecord) if part.name not in LATER_FIELDS]
    missing = tuple(f"record.{part}: missing" for part in required if part not in raw)
    return replace(stored, parsed=None if wrong else record, misfits=wrong + missing)


def run_names(results: Path) -> list[str]:
    """Return the names of the run folders under `results`. Raises: ValueError if it does not exist or has no run."""
    if not results.is_dir():
        bench = results_folders.command_on(results, "bench")
        raise ValueError(f"{results}: there is no such folder; train runs with: {bench}")
    traces = (run_store.RECORD, run_store.HYPOTHESES, run_store.LOG, run_store.WEIGHTS)
    names = [
        path.name
        for path in results_folders.run_folders(results)
        if any((path / trace).exists() for trace in traces) or checkpoint_files.exists(results, path.name)
    ]
    if not names:
        raise ValueError(run_store.no_record(results))
    return names


def is_running(results: Path, name: str) -> bool:
    """Return whether a process trains a run that has no record yet, or has just been started to do so.

    A process takes the lock of its run when it has loaded its libraries, some seconds after it was started.
    """
    folder = run_store.run_folder(results, name)
    if os.path.lexists(folder / run_store.RECORD):
        return False
    is_new = abs(time.time() - folder.stat().st_mtime) < STARTING_SECONDS
    is_starting = is_new and not any((folder / file).exists() for file in (run_store.HYPOTHESES, run_store.WEIGHTS))
    return is_starting or locks.is_held(results, name)
