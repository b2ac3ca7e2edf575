"""Sends a run to another machine and accepts its files, without a shared file system.

Files travel as bytes by name. A name that runs do not write is refused, and so is a file whose digest differs from the
one in the record. Files of unfinished runs need no digest: the runs write them again.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from harness.data import dataset
from harness.data.dataset import PackedCorpus
from harness.execution import local
from harness.execution.launcher import RunSettings
from harness.experiments.serialization import canonical_json
from harness.experiments.specs import RunSpec
from harness.processes import machine
from harness.storage import checkpoint_files, files, run_store
from harness.storage.records import RunRecord, record_from_json

Contents = dict[str, bytes]
"""Files of a run's folder by name."""

HASHED = {
    "hypotheses": run_store.HYPOTHESES,
    "sentences": run_store.SENTENCES,
    "attention": run_store.ATTENTION,
    "trained_weights": run_store.WEIGHTS,
}
"""The fingerprints of a record that are digests of files, with the names of these files."""

COMPLETE = {run_store.HYPOTHESES, run_store.SENTENCES, run_store.WEIGHTS}
CHECKPOINTS = (f"{checkpoint_files.CHECKPOINT}*.json", f"{checkpoint_files.CHECKPOINT}*.safetensors")
ALLOWED = (run_store.RECORD, run_store.LOG, *HASHED.values(), *CHECKPOINTS)


@dataclass(frozen=True)
class RemoteRun:
    """A run that is sent to another machine.

    Attributes:
        commit: The commit of the code as JSON; null if it is unknown.
        checkpoint: The files of the checkpoint from which the run resumes.
        checkpoint_folder: A folder that all machines share, for the checkpoints of lost machines; empty for none.
    """

    spec: RunSpec
    settings: RunSettings
    commit: str
    checkpoint: Contents
    checkpoint_folder: str


def remote_run(spec: RunSpec, results: Path, settings: RunSettings, *, checkpoint_folder: str = "") -> RemoteRun:
    """Return a run to send, with its checkpoint if there is one."""
    folder = run_store.run_folder(results, spec.id)
    checkpoint = {path.name: path.read_bytes() for pattern in CHECKPOINTS for path in sorted(folder.glob(pattern))}
    return RemoteRun(spec, settings, canonical_json(machine.commit()), checkpoint, checkpoint_folder)


def execute_remote(remote: RemoteRun, corpus: PackedCorpus, say: Callable[[str], None]) -> Contents:
    """Execute a run in a temporary folder of this machine or in its `checkpoint_folder`, and return its files.

    Ctrl-C interrupts the run; its files then include a checkpoint. A `checkpoint_folder` may have a checkpoint of a
    machine that was lost, from which the run resumes; the folder of the run in it is removed at the end. `say` receives
    every line of progress.
    """
    spec = remote.spec
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as name:
        results = Path(remote.checkpoint_folder or Path(name, "results"))
        folder = run_store.own_folder(results, spec.id)
        if not checkpoint_files.exists(results, spec.id):
            _write(folder, remote.checkpoint)
        with environment_variables(BAKEOFF_CACHE=str(Path(name, "cache")), **{machine.COMMIT: remote.commit}):
            dataset.unpack(spec.data, corpus)
            local.execute([spec], results, jobs=1, stream=_LineStream(say), settings=remote.settings)
        contents = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if _is_allowed(path.name)}
        shutil.rmtree(folder, ignore_errors=True)
        return contents


def accept_results(results: Path, spec: RunSpec, contents: Contents) -> RunRecord:
    """Store the files of a run that another machine has executed, and return its record, which is written last.

    Raises: as `check`; then nothing is written.
    """
    record = _record(contents)
    check(spec, record, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()})
    folder = run_store.run_folder(results, spec.id)
    run_store.remove_record(results, spec.id)
    if record.status in run_store.FINISHED or any(fnmatchcase(name, CHECKPOINTS[0]) for name in contents):
        checkpoint_files.remove(results, spec.id)
    with run_store.open_log(results, spec.id) as file:
        file.write(contents.get(run_store.LOG, b""))
    separate = (run_store.LOG, run_store.RECORD)
    _write(folder, {name: content for name, content in contents.items() if name not in separate})
    files.write_bytes(folder / run_store.RECORD, contents[run_store.RECORD])
    return record


def check(spec: RunSpec, record: RunRecord, digests: Mapping[str, str]) -> None:
    """Check that a record, and its files by their SHA-256, belong to a run.

    Raises: ValueError if the record is of another run, or a file is missing, damaged or unknown.
    """
    unknown = [name for name in digests if not _is_allowed(name)]
    if unknown:
        raise ValueError(f"{unknown[0]!r}: expected {', '.join(ALLOWED)}")
    if record.id != spec.id or record.spec != spec:
        raise ValueError(f"{run_store.RECORD}: it is of the run {record.id}: expected {spec.id} with its own settings")
    needed = {HASHED[name] for name in record.fingerprints if name in HASHED}
    if record.status == "completed":
        needed |= COMPLETE
    missing = sorted(needed - digests.keys())
    if missing:
        raise ValueError(f"{missing[0]}: missing")
    for name, file in HASHED.items():
        # A run that ends while it stores its results leaves files that its record does not name; it writes them again.
        vouched = name in record.fingerprints or record.status in run_store.FINISHED
        if vouched and file in digests and digests[file] != record.fingerprints.get(name):
            raise ValueError(f"{file}: damaged (its SHA-256 is not that in the record)")


def _record(contents: Contents) -> RunRecord:
    """Return the record among the files. Raises: ValueError if it is missing or damaged."""
    if run_store.RECORD not in contents:
        raise ValueError(f"{run_store.RECORD}: missing")
    try:
        return record_from_json(files.unsealed(files.parse_json(contents[run_store.RECORD])))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{run_store.RECORD}: damaged ({error})") from error


def _is_allowed(name: str) -> bool:
    return "/" not in name and os.sep not in name and any(fnmatchcase(name, pattern) for pattern in ALLOWED)


def _write(folder: Path, contents: Contents) -> None:
    # The manifest of a checkpoint is written after its tensors, as in a run.
    for name in sorted(contents, key=lambda name: (name.endswith(".json"), name)):
        files.write_bytes(folder / name, contents[name])


@contextmanager
def environment_variables(**values: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _LineStream(io.StringIO):
    """A stream that passes on complete lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._rest = say, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)
