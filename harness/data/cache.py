"""The cache folder, whose files and entries are written atomically and verified when they are read.

Functions that write raise a ValueError that names the folder and BAKEOFF_CACHE if they cannot write.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from harness.experiments.serialization import canonical_json
from harness.storage import files, locks
from harness.storage.leftovers import Leftover, is_abandoned

CONTENTS = "contents.json"
ENTRIES = ("prepared", "handed")
ENTRY = re.compile("[0-9a-f]{64}")
"""The name of an entry: a SHA-256."""
PARTIAL = ".writing-"
TURN_SECONDS = 20.0


def folder() -> Path:
    """Return the cache folder, which need not exist: BAKEOFF_CACHE, else XDG_CACHE_HOME/bakeoff, else ~/.cache/bakeoff.

    Raises: ValueError if the path begins with the home folder of an unknown user.
    """
    xdg_cache = os.environ.get("XDG_CACHE_HOME", "")
    default = Path(xdg_cache if os.path.isabs(xdg_cache) else "~/.cache", "bakeoff")
    path = Path(os.environ.get("BAKEOFF_CACHE") or default)
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"the cache folder {path}: {error}: name another one in BAKEOFF_CACHE") from error


def digest(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write a file of the cache atomically."""
    with _naming_the_folder():
        files.write_bytes(path, content)


@contextlib.contextmanager
def turn(work: str) -> Iterator[None]:
    """Let processes that do the same work do it one after the other, so that the later ones find it done.

    A process waits for at most `TURN_SECONDS`, and not at all on file systems without locks; then the work is done
    twice.
    """
    lock = FileLock(folder() / f".{work}.lock", timeout=TURN_SECONDS, fallback_to_soft=False)
    with _naming_the_folder():
        folder().mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            pass
        except OSError as error:
            if error.errno not in locks.UNSUPPORTED:
                raise
    try:
        yield
    finally:
        lock.release()


def write_entry(entry: Path, description: dict[str, Any], contents: dict[str, bytes]) -> None:
    """Write an entry atomically: a folder of files, with their digests and a description.

    A damaged entry is replaced. An entry that another process has written meanwhile is kept.

    Raises: ValueError, also if a file name has folders.
    """
    digests = {_plain_name(name): digest(content) for name, content in contents.items()}
    body = {"description": description, "files": digests}
    sealed = canonical_json({**body, "digest": files.seal(body)})
    with _naming_the_folder():
        entry.parent.mkdir(parents=True, exist_ok=True)
        for path in entry.parent.glob(f"{PARTIAL}*"):
            if is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)
        temporary = entry.parent / f"{PARTIAL}{uuid.uuid4().hex}"
        temporary.mkdir()
        try:
            for name, content in {**contents, CONTENTS: sealed.encode()}.items():
                files.write_bytes(temporary / name, content)
            if entry.exists() and read_entry(entry) is None:
                with contextlib.suppress(FileNotFoundError):  # another process has moved it meanwhile
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
    """Return the description of an entry; None if the entry is missing or damaged."""
    body = _read_contents(entry)
    description: dict[str, Any] | None = None if body is None else body["description"]
    return description


def read_entry(entry: Path) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """Return the description and the files of an entry; None if it is missing, incomplete or damaged."""
    body = _read_contents(entry)
    if body is None:
        return None
    try:
        contents = {_plain_name(name): files.read_bytes(entry / name, files.FILE_BYTES) for name in body["files"]}
    except (OSError, ValueError):
        return None
    is_intact = all(digest(content) == body["files"][name] for name, content in contents.items())
    return (body["description"], contents) if is_intact else None


def leftovers() -> Iterator[Leftover]:
    """Yield the partial writes of killed processes, and unreadable entries."""
    for name in ENTRIES:
        for path in sorted((folder() / name).glob("*")):
            if path.name.startswith(PARTIAL):
                if is_abandoned(path):
                    yield Leftover(path, "partial write of a process that is gone")
            elif ENTRY.fullmatch(path.name) and read_description(path) is None and is_abandoned(path):
                yield Leftover(path, "entry of the cache that cannot be read")
    for path in sorted((folder() / "multi30k").glob(f".*{files.PARTIAL}")):
        if is_abandoned(path):
            yield Leftover(path, "partial download")


def _read_contents(entry: Path) -> dict[str, Any] | None:
    try:
        contents = files.read_json(entry / CONTENTS)
        expected = contents.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    return contents if files.seal(contents) == expected else None


def _plain_name(name: str) -> str:
    if Path(name).name != name or name == "..":
        raise ValueError(f"{name!r} in an entry of the cache: expected the name of a file, without folders")
    return name


@contextlib.contextmanager
def _naming_the_folder() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(
            f"the cache folder {folder()} cannot be written ({reason}): name another one in BAKEOFF_CACHE"
        ) from error
