"""Locks of runs, so that two processes never run the same run.

RESULTS/ID/run.lock   held by the process that trains the run or replaces its record; its text names that process

The kernel holds the lock, so it is released when its owner dies; a remaining lock file blocks nobody.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from harness.storage import files, run_store

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"
LOCKED_CODE = 75
"""The exit code of a run that another process already runs: EX_TEMPFAIL of sysexits.h."""

UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
"""The errors of file systems without locks."""

_OWNER_BYTES = 500


class Locked(ValueError):
    """Another process holds the lock of a run; the message names it."""


class NoLocks(ValueError):
    """The folder of results is on a file system without locks."""


_IN_PROCESS: dict[int, threading.RLock] = {}


def alone() -> threading.RLock:
    """Return the lock of this process that a thread holds while it trains a run or builds a model.

    Without it, random numbers that one thread draws would change the dropout in another: torch has one generator per
    process. Runs also set the number of threads and environment variables. A forked process has a lock of its own.
    """
    return _IN_PROCESS.setdefault(os.getpid(), threading.RLock())


@contextlib.contextmanager
def hold(results: Path, run_id: str) -> Iterator[None]:
    """Hold the lock of a run, without waiting for it.

    Raises: Locked; NoLocks; OSError, which names the lock file, if it cannot be created or locked; ValueError if the
    folder of the run is a link.
    """
    path = run_store.own_folder(results, run_id) / LOCK
    lock = FileLock(path, blocking=False, thread_local=False, fallback_to_soft=False, preserve_lock_file=True)
    try:
        files.in_folder(path.parent, lock.acquire)
    except Timeout:
        raise Locked(f"{run_id}: is being run by {owner(results, run_id)}") from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise NoLocks(
            f"{path}: cannot be locked ({error.strerror}): expected a folder of results on a file system with locks"
        ) from error
    try:
        _sign(path)
        yield
    finally:
        if os.name == "posix":
            # Removed before release: a process that has already opened the file sees that it is gone and gives up.
            with contextlib.suppress(OSError):  # a remaining file blocks nobody
                path.unlink()
                path.parent.rmdir()  # only if it is empty: the run was refused and has stored nothing
        lock.release()


def is_held(results: Path, run_id: str) -> bool:
    """Return whether a process holds the lock of a run; True if that is unknown."""
    path = run_store.run_folder(results, run_id) / LOCK
    if not os.path.lexists(path):
        return False
    if fcntl is None:
        return True
    try:
        with files.reading(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ValueError):
        return True
    return False


def owner(results: Path, run_id: str) -> str:
    """Return a phrase that names the process that holds the lock of a run."""
    path = run_store.run_folder(results, run_id) / LOCK
    try:
        with files.reading(path) as file:
            signature = json.loads(file.read(_OWNER_BYTES))
        host = "".join(letter for letter in str(signature["host"]) if letter.isprintable())
        since = datetime.fromisoformat(signature["since"]).astimezone(UTC)
        return f"process {int(signature['process'])} on {host} since {since:%Y-%m-%d %H:%M:%S} UTC"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "another process"


def _sign(path: Path) -> None:
    """Write the name of this process into a lock file, if possible: some systems forbid it, and disks may be full."""
    signature = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(signature) + "\n", encoding="utf-8")
