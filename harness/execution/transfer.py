"""A run that is sent to another machine: what goes there, what comes back, and what is accepted of it.

No file system is shared. Files travel as bytes by name; a name that a run does not write is refused, and so is a file
that is not the one its record has the digest of.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from harness.data import portable_corpus
from harness.data.portable_corpus import PackedCorpus
from harness.execution import local
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec, spec_from_json
from harness.processes import machine
from harness.storage import checkpoint_files, files, run_store
from harness.storage.records import RunRecord, Status, record_from_json

Contents = dict[str, bytes]
"""Files of a run's folder by name."""

HASHED = {
    "hypotheses": run_store.HYPOTHESES,
    "sentences": run_store.SENTENCES,
    "attention": run_store.ATTENTION,
    "trained_weights": f"{run_store.WEIGHTS}.safetensors",
}
"""The fingerprint of a record that is the digest of a file, and that file."""

MANIFEST = f"{run_store.WEIGHTS}.json"
COMPLETE = {run_store.HYPOTHESES, run_store.SENTENCES, f"{run_store.WEIGHTS}.safetensors", MANIFEST}
CHECKPOINTS = (f"{checkpoint_files.CHECKPOINT}*.json", f"{checkpoint_files.CHECKPOINT}*.safetensors")
ALLOWED = (run_store.RECORD, run_store.LOG, MANIFEST, *HASHED.values(), *CHECKPOINTS)


@dataclass(frozen=True)
class Order:
    """A run by its id and as JSON, how it is executed, the commit of the code, and the checkpoint it goes on from."""

    run: str
    spec: str
    settings: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    checkpoint: Contents = field(default_factory=dict)


def order(spec: RunSpec, results: Path, settings: Mapping[str, Any]) -> Order:
    """Return what another machine has to know of a run; `settings` are those of `harness.execution.local.execute`."""
    folder = run_store.run_folder(results, spec.id)
    checkpoint = {one.name: one.read_bytes() for pattern in CHECKPOINTS for one in sorted(folder.glob(pattern))}
    commit = machine.commit()
    known = "" if commit is None else canonical_json(commit)
    return Order(spec.id, canonical_json(to_json(spec)), dict(settings), known, checkpoint)


def fulfil(sent: Order, corpus: PackedCorpus, tell: Callable[[str], None]) -> Contents:
    """Carry out a run in a temporary folder of this machine and return the files that came of it.

    It is the local engine that runs it, in a process of its own; each line that this shows is given to `tell`. Ctrl-C
    interrupts the run, and what it goes on from is among the files.
    """
    spec = spec_from_json(json.loads(sent.spec))
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as name:
        results, cache = Path(name, "results"), Path(name, "cache")
        folder = run_store.run_folder(results, spec.id)
        _write(folder, sent.checkpoint)
        with _variables(BAKEOFF_CACHE=str(cache), **{machine.COMMIT: sent.commit}):
            portable_corpus.unpack(spec.data, corpus)
            local.execute([spec], results, jobs=1, stream=_Lines(tell), **sent.settings)
        return {one.name: one.read_bytes() for one in sorted(folder.iterdir()) if _is_allowed(one.name)}


def accept(results: Path, spec: RunSpec, contents: Contents) -> RunRecord:
    """Write the files that came back for a run, its record last, and return that.

    Nothing is written, and no older record is touched, where something is wrong.

    Raises: ValueError naming the file that is missing, damaged, foreign or of another run.
    """
    record = _record(contents)
    check(spec, record, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()})
    if MANIFEST in contents:
        _check_manifest(contents[MANIFEST], record)
    folder = run_store.run_folder(results, spec.id)
    run_store.remove_record(results, spec.id)
    if record.status in run_store.FINISHED or any(fnmatchcase(name, CHECKPOINTS[0]) for name in contents):
        checkpoint_files.remove(results, spec.id)
    log = contents.get(run_store.LOG, b"")
    with run_store.open_log(results, spec.id) as file:
        file.write(log)
    _write(folder, {name: one for name, one in contents.items() if name not in (run_store.LOG, run_store.RECORD)})
    files.write_bytes(folder / run_store.RECORD, contents[run_store.RECORD])
    return record


def check(spec: RunSpec, record: RunRecord, digests: Mapping[str, str]) -> None:
    """Raise ValueError where a record is not of this run, or the files, by name with SHA-256, are not its own."""
    foreign = [name for name in digests if not _is_allowed(name)]
    if foreign:
        raise ValueError(f"{foreign[0]!r}: expected {', '.join(ALLOWED)}")
    if record.id != spec.id or record.spec != spec:
        raise ValueError(f"{run_store.RECORD}: it is of the run {record.id}: expected {spec.id} with its own settings")
    needed = {HASHED[name] for name in record.fingerprints if name in HASHED}
    if record.status == "completed":
        needed |= COMPLETE
    missing = sorted(needed - digests.keys())
    if missing:
        raise ValueError(f"{missing[0]}: missing")
    for name, file in HASHED.items():
        if file in digests and digests[file] != record.fingerprints.get(name):
            raise ValueError(f"{file}: damaged (its SHA-256 is not that in the record)")


def without(results: Path, spec: RunSpec, status: Status, reason: str, settings: Mapping[str, Any]) -> RunRecord:
    """Store and return the record of a run that left none of its own."""
    words = {name: settings[name] for name in ("command", "note") if name in settings}
    record = RunRecord(id=spec.id, spec=spec, status=status, reason=reason, **words)
    run_store.save_record(results, record)
    return record


def _record(contents: Contents) -> RunRecord:
    """Return the record among the files. Raises: ValueError where it is missing, damaged, or its seal is broken."""
    if run_store.RECORD not in contents:
        raise ValueError(f"{run_store.RECORD}: missing")
    try:
        value = files.parse_json(contents[run_store.RECORD])
        sealed = value.pop(run_store.SEAL)
        whole = sealed == files.seal(value)
        record = record_from_json(value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{run_store.RECORD}: damaged ({error})") from error
    if not whole:
        raise ValueError(f"{run_store.RECORD}: damaged (its seal is not that of its content)")
    return record


def _check_manifest(content: bytes, record: RunRecord) -> None:
    try:
        digest = files.parse_json(content)["sha256"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{MANIFEST}: damaged ({error})") from error
    if digest != record.fingerprints.get("trained_weights"):
        raise ValueError(f"{MANIFEST}: damaged (it is of other weights than the record)")


def _is_allowed(name: str) -> bool:
    return "/" not in name and os.sep not in name and any(fnmatchcase(name, pattern) for pattern in ALLOWED)


def _write(folder: Path, contents: Contents) -> None:
    # A checkpoint's manifest comes after the tensors it names, as when it was first written.
    for name in sorted(contents, key=lambda name: (name.endswith(".json"), name)):
        files.write_bytes(folder / name, contents[name])


@contextmanager
def _variables(**wanted: str) -> Iterator[None]:
    """Set environment variables for a while: the process that a cluster lends does other work later."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Lines(io.StringIO):
    """A stream that passes on whole lines."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell, self._rest = tell, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._tell(line)
        return len(text)
