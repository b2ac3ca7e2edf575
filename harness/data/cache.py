"""The cache folder: where it is, and entries of it that are written whole or not at all and verified when read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.experiments.serialization import canonical_json
from harness.storage import files
from harness.storage.leftovers import Leftover, is_abandoned

CONTENTS = "contents.json"
ENTRIES = ("prepared", "handed")
PARTIAL = ".writing-"
TURN_SECONDS = 20.0


def folder() -> Path:
    """Return the cache folder: BAKEOFF_CACHE, else XDG_CACHE_HOME/bakeoff, else ~/.cache/bakeoff. It need not exist.

    Raises: ValueError where that is in a home that cannot be found.
    """
    general = os.environ.get("XDG_CACHE_HOME", "")
    usual = Path(general if os.path.isabs(general) else "~/.cache", "bakeoff")
    chosen = Path(os.environ.get("BAKEOFF_CACHE") or usual)
    try:
        return chosen.expanduser()
    except RuntimeError as error:
        raise ValueError(f"the cache folder {chosen}: {error}: name another one in BAKEOFF_CACHE") from error


def digest(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a second writer, sees all of it or none.

    Raises: ValueError naming the cache folder where it cannot be written.
    """
    with _writing():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                _write(file, content)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


@contextlib.contextmanager
def turn(work: str) -> Iterator[None]:
    """Let processes that would do the same work do it one after the other.

    None waits for longer than 20 seconds, nor where the file system has no locks: the work is then done twice.

    Raises: ValueError naming the cache folder where it cannot be written.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder() / f".{work}.lock", timeout=TURN_SECONDS, fallback_to_soft=False)
    with _writing():
        folder().mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK):
                raise
    try:
        yield
    finally:
        lock.release()


def write_entry(entry: Path, description: dict[str, Any], contents: dict[str, bytes]) -> None:
    """Write a folder of files with their digests and a description, in one step; replace what was damaged there.

    Where another process has written the same entry meanwhile, that one stays.

    Raises: ValueError naming the cache folder where it cannot be written, or a name that leads out of the entry.
    """
    body = {"description": description, "files": {_plain(name): digest(content) for name, content in contents.items()}}
    sealed = canonical_json({**body, "digest": digest(canonical_json(body).encode())})
    with _writing():
        entry.parent.mkdir(parents=True, exist_ok=True)
        for path in entry.parent.glob(f"{PARTIAL}*"):
            if is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(dir=entry.parent, prefix=PARTIAL))
        try:
            for name, content in {**contents, CONTENTS: sealed.encode()}.items():
                with open(temporary / name, "wb") as file:
                    _write(file, content)
            if entry.exists() and read_entry(entry) is None:
                os.rename(entry, temporary / "damaged")
            try:
                os.rename(temporary, entry)
            except OSError:
                if read_entry(entry) is None:
                    raise
            shutil.rmtree(entry / "damaged", ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def read_description(entry: Path) -> dict[str, Any] | None:
    """Return the description of an entry, or None where there is none or it is damaged."""
    body = _read_contents(entry)
    found: dict[str, Any] | None = None if body is None else body["description"]
    return found


def read_entry(entry: Path) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """Return the description and the files of an entry, or None where it is missing, incomplete or damaged."""
    body = _read_contents(entry)
    if body is None:
        return None
    try:
        found = {_plain(name): files.read_bytes(entry / name, files.FILE_BYTES) for name in body["files"]}
    except (OSError, ValueError):
        return None
    if any(digest(content) != body["files"][name] for name, content in found.items()):
        return None
    return body["description"], found


def leftovers() -> Iterator[Leftover]:
    """Yield the partial writes of processes that are gone, and entries that no command can read."""
    for name in ENTRIES:
        for path in sorted((folder() / name).glob("*")):
            if path.name.startswith(PARTIAL):
                if is_abandoned(path):
                    yield Leftover(path, "partial write of a process that is gone")
            elif path.is_dir() and read_description(path) is None and is_abandoned(path):
                yield Leftover(path, "entry of the cache that cannot be read")
    for path in sorted((folder() / "multi30k").glob(".*")):
        if path.is_file() and is_abandoned(path):
            yield Leftover(path, "partial download")


def _read_contents(entry: Path) -> dict[str, Any] | None:
    try:
        contents = files.read_json(entry / CONTENTS)
        expected = contents.pop("digest")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return contents if digest(canonical_json(contents).encode()) == expected else None


def _plain(name: str) -> str:
    if Path(name).name != name or name == "..":
        raise ValueError(f"{name!r} in an entry of the cache: expected the name of a file, without folders")
    return name


def _write(file: Any, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(
            f"the cache folder {folder()} cannot be written ({reason}): name another one in BAKEOFF_CACHE"
        ) from error
