"""Reuse of finished runs, and of the training of runs that differ only in test set or search."""

from __future__ import annotations

import contextlib
import functools
import marshal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from harness.data.dataset import text_digests
from harness.experiments.specs import RunSpec
from harness.processes.machine import arithmetic_differences
from harness.storage import checkpoint_files, locks, run_store
from harness.storage.records import RunRecord
from impls import registry

_IMPORTED: dict[str, tuple[object, str]] = {}
"""For each module: its spec, which a reload replaces, and the digest of its file; "" if that had changed already."""


def reusable_records(
    results: Path, specs: Sequence[RunSpec], *, complain: Callable[[str], None] | None = None
) -> list[RunRecord]:
    """Return the records of the runs that are finished; `complain` receives a line for each damaged one.

    Raises:
        ValueError: The record of a run is of another version; or a run was trained on the user's files or with the
            user's module, and a file has changed or is missing. The message names the run and the file.
    """
    records = []
    for spec in specs:
        if record := run_store.finished(results, spec.id, complain=complain):
            records.append(record)
        else:
            run_store.check_version(results, spec.id)
    digests_of = functools.cache(text_digests)
    if changed := [record for record in records if has_other_builder(record)]:
        folders = [run_store.run_folder(results, record.id) for record in changed]
        raise ValueError(
            f"run {changed[0].id}: the module of {changed[0].spec.variant} has changed since it was trained: remove "
            f"{', '.join(map(str, folders))} to run it again, or give the builder another name"
        )
    for record in records:
        _remove_checkpoints(results, record.id)
        if record.spec.data.corpus != "files":
            continue
        try:
            digests = digests_of(record.spec.data)
        except ValueError as error:
            raise ValueError(f"run {record.id} exists, but not the text that it was trained on: {error}") from error
        recorded = record.fingerprints.get("files") or {}
        other = [name for name, digest in digests.items() if recorded.get(name) != digest]
        if other:
            raise ValueError(
                f"run {record.id}: {other[0]}={getattr(record.spec.data.files, other[0])} has changed since it was "
                f"trained on: remove the folder {run_store.run_folder(results, record.id)} to run it again, or name "
                "other files"
            )
    return records


def has_other_builder(record: RunRecord) -> bool:
    """Return whether a run is of an external builder whose module has changed. It imports the module."""
    recorded, variant = record.fingerprints.get("builder"), record.spec.variant
    external = record.spec.recipe is None and ":" in variant  # only such models execute the module
    return bool(recorded) and external and registry.source_digest(variant) != recorded


def imported_digest(variant: str) -> str:
    """Return the SHA-256 of the module of "package.module:NAME", as `registry.source_digest`.

    Raises: ValueError if the file has changed since its import: Python still executes the code that it has imported.
    """
    digest, name = registry.source_digest(variant), variant.partition(":")[0]
    spec = sys.modules[name].__spec__
    if name not in _IMPORTED or _IMPORTED[name][0] is not spec:
        _IMPORTED[name] = spec, "" if digest and _edited_since_import(sys.modules[name]) else digest
    if _IMPORTED[name][1] != digest:
        raise ValueError(
            f"{variant!r}: the file of {name} has changed since Python imported it, and Python still has the earlier "
            "code: restart Python (in a notebook, the kernel)"
        )
    return digest


def _edited_since_import(module: ModuleType) -> bool:
    """Return whether a module's file was edited in this process's time and is not what its byte code was made from."""
    path, cached = module.__file__, module.__spec__ and module.__spec__.cached
    if not path or not cached or not Path(cached).is_file():
        return False
    if Path(path).stat().st_mtime < psutil.Process().create_time():
        return False
    imported = marshal.loads(Path(cached).read_bytes()[16:])  # after a header of 16 bytes
    try:
        return bool(imported != compile(Path(path).read_bytes(), path, "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return True


def other_builder(record: RunRecord) -> str:
    """Return a warning about a run for which `has_other_builder` holds."""
    return f"{record.id}: the module of {record.spec.variant} has changed since it was trained"


def same_training(
    results: Path,
    spec: RunSpec,
    environment: dict[str, Any] | None = None,
    *,
    finished: Callable[[Path, str], RunRecord | None] = run_store.finished,
) -> RunRecord | None:
    """Return the record of a completed run whose training is that of `spec`, and whose weights are stored; else None.

    Such a run differs only in its test set, beam or length penalty. One that was trained with another arithmetic than
    in `environment` does not count. `finished` reads the record of a finished run, from a cache if many are looked up.
    """
    for path in sorted(results.glob(f"{spec.id.rpartition('-')[0]}-*")):
        record = finished(results, path.name)
        if record is None or record.status != "completed" or _tested_alike(record.spec, spec) != spec:
            continue
        if has_other_builder(record):
            continue
        if environment and arithmetic_differences(record.environment, environment, spec.computes):
            continue
        if run_store.has(results, record.id, run_store.WEIGHTS):
            return record
    return None


def _tested_alike(trained: RunSpec, spec: RunSpec) -> RunSpec:
    """Return the settings of a trained run with the test set and search of another."""
    data, files = trained.data, spec.data.files
    if data.files is not None and files is not None:
        files = replace(data.files, test_source=files.test_source, test_target=files.test_target)
    search = {name: getattr(spec.decoding, name) for name in ("beam", "length_penalty", "length_formula")}
    return replace(
        trained,
        data=replace(data, test_split=spec.data.test_split, files=files),
        decoding=replace(trained.decoding, **search),
    )


def differs_in_text(record: RunRecord, digests: dict[str, Any]) -> bool:
    """Return whether a run was trained on other text or vocabularies than a dataset with these digests."""
    vocabularies = ("source_vocabulary", "target_vocabulary")
    trained, now = record.fingerprints.get("files") or {}, digests["files"]
    texts = {name for name in (*trained, *now) if not name.startswith("test_")}
    return any(record.fingerprints.get(name) != digests[name] for name in vocabularies) or any(
        trained.get(name) != now.get(name) for name in texts
    )


def _remove_checkpoints(results: Path, run_id: str) -> None:
    """Remove the checkpoints that remain when a process is killed right after it has written its record."""
    if checkpoint_files.exists(results, run_id):
        with contextlib.suppress(locks.Locked, locks.NoLocks, OSError), locks.hold(results, run_id):
            checkpoint_files.remove(results, run_id)
