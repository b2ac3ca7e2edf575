"""Files that killed processes leave behind: checkpoints of finished runs, partial writes and unheld locks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.storage import checkpoint_files, files, locks, run_store
from harness.storage.results_folders import run_folders

ABANDONED_SECONDS = 3_600.0
"""Partial writes of this age are abandoned: no write takes an hour."""


@dataclass(frozen=True)
class Leftover:
    """A file or folder that is no longer needed, and why. `is_of_run` if it is in the folder of a run."""

    path: Path
    reason: str
    is_of_run: bool = False

    @property
    def size_bytes(self) -> int:
        """The bytes of the file, or of all files in the folder; links are not followed."""
        paths = [self.path, *(self.path.rglob("*") if self.path.is_dir() and not self.path.is_symlink() else ())]
        return sum(path.lstat().st_size for path in paths if path.is_symlink() or path.is_file())

    def remove(self) -> None:
        """Remove the file or folder. Raises: OSError; Locked if a process has started its run meanwhile."""
        if self.is_of_run:
            with locks.hold(self.path.parents[1], self.path.parent.name):  # which also removes the lock file
                self.path.unlink(missing_ok=True)
        elif self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


def of_results(results: Path) -> Iterator[Leftover]:
    """Yield the leftovers of every run that no process is working on."""
    for folder in run_folders(results):
        if not folder.is_symlink() and not locks.is_held(results, folder.name):
            yield from _of_run(results, folder)


def _of_run(results: Path, folder: Path) -> Iterator[Leftover]:
    if run_store.finished(results, folder.name) is not None:
        for path in checkpoint_files.paths(results, folder.name):
            yield Leftover(path, "checkpoint of a finished run", is_of_run=True)
    for path in sorted(folder.glob(f".*{files.PARTIAL}")):
        if is_abandoned(path):
            yield Leftover(path, "partial write of a process that is gone", is_of_run=True)
    if (folder / locks.LOCK).is_file():
        yield Leftover(folder / locks.LOCK, "lock of a process that is gone", is_of_run=True)


def is_abandoned(path: Path) -> bool:
    """Return whether a partial write was last changed more than an hour ago."""
    try:
        return time.time() - path.lstat().st_mtime > ABANDONED_SECONDS
    except OSError:
        return False
