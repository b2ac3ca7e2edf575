"""Files that are written whole or not at all, flushed to the disk and hashed; and read with bounds, following no link.

Every result goes through here, and comes back through here: whoever reads results may have them from a stranger.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from harness.experiments.serialization import canonical_json

try:
    import fcntl
except ImportError:  # Windows, where what killed processes leave stays
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".bakeoff.partial"
SEAL = "seal"
"""The field of a JSON object that holds the digest of all its others."""

JSON_BYTES = 4 * 2**20
"""The limit of a JSON file. Units: bytes; a record has some 30,000."""

FILE_BYTES = 4 * 2**30
"""The limit of files without one of their own, such as checkpoints. Units: bytes."""

HASHED_BYTES = 2**30
"""The limit of files that are only hashed. Units: bytes; hashing one takes a few seconds."""

JSON_DEPTH = 50
"""How deep JSON may be nested; a record is five deep. What is done with it later goes down several calls for each."""

_FLUSHES_NO_FOLDER = (errno.EINVAL, errno.ENOTSUP)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


# Writing --------------------------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; flush it to the disk and rename it to `path` where the block succeeds.

    What killed processes left of their own writes in that folder is removed.

    Raises: OSError naming `path`; ValueError where that is a folder, a device or a pipe.
    """
    with _naming(path):
        if path.exists() and not path.is_file():
            raise ValueError(f"{path}: cannot be written: expected a new file, or to replace a regular one")
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        locked, temporary = _temporary(path)
        try:
            yield temporary
            os.fsync(locked)
            temporary.chmod(0o666 & ~_umask())
            if os.name != "posix":
                locked.close()  # Windows renames no open file
            temporary.replace(path)
            _flush_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                locked.close()
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> str:
    """Write a whole file or none, and return the SHA-256 of what it is to hold."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON that a person can read, whole or not at all. Raises: ValueError for NaN and infinity."""
    text = json.dumps(value, indent=1, sort_keys=False, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with its seal. Raises: as `write_json`."""
    write_json(path, {**value, SEAL: seal(value)})


def seal(value: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, its seal apart: it shows an edit by hand, not one by who can reseal."""
    others = {name: one for name, one in value.items() if name != SEAL}
    return hashlib.sha256(canonical_json(others).encode()).hexdigest()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let every OSError of a write name the file that was to be written."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


def _temporary(path: Path) -> tuple[io.FileIO, Path]:
    """Create an empty file beside `path`, locked as long as the returned one is open."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=PARTIAL, dir=path.parent)
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.lexists(name):
            return io.FileIO(handle), Path(name)
        os.close(handle)  # another process took it for a leftover before it was locked


def _sweep(folder: Path) -> None:
    """Remove the temporary files whose process is gone, and its lock with it."""
    if fcntl is None:
        return
    for left in folder.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError, ValueError), reading(left) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can open folders and the file system can flush them."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _FLUSHES_NO_FOLDER:
            raise
    finally:
        os.close(descriptor)


# Reading --------------------------------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path, most: int = FILE_BYTES, *, links: bool = False) -> Iterator[io.BufferedReader]:
    """Open a regular file of at most `most` bytes; `links` says whether the path itself may be a link to one.

    Links among the folders before it are followed. Neither a pipe nor a device is opened, so nothing hangs.

    Raises: ValueError naming the file and what is allowed; OSError where it cannot be opened.
    """
    if not stat.S_ISREG((path.stat() if links else path.lstat()).st_mode):
        raise ValueError(f"{path}: expected a regular file{'' if links else ', and no link to one'}")
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags if links else flags | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{path}: {size:,} bytes: expected at most {most:,}")
        yield file


def read_bytes(path: Path, most: int, *, links: bool = False) -> bytes:
    """Read a file whole. Raises: as `reading`; ValueError where it grows meanwhile."""
    with reading(path, most, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1)
    if len(content) > size:
        raise ValueError(f"{path}: grew while it was read: expected a file that stays as it is")
    return content


def read_json(path: Path, most: int = JSON_BYTES) -> Any:
    """Read a JSON file. Raises: as `read_bytes`; ValueError naming it and what in it is not JSON."""
    try:
        return parse_json(read_bytes(path, most))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        told = str(error)
        raise ValueError(told if told.startswith(f"{path}: ") else f"{path}: not JSON ({told})") from error


def read_sealed(path: Path, most: int = JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object without its seal. Raises: as `read_json`; ValueError where its seal is not that of the rest.

    One without a seal is taken as it is: older versions wrote none.
    """
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object")
    if SEAL in value and value.pop(SEAL) != seal(value):
        raise ValueError(f"{path}: its seal is not that of its content: expected a file as it was written")
    return value


def parse_json(content: bytes) -> Any:
    """Return what JSON says. Raises: ValueError for what is not JSON, or means different things to different readers.

    That is NaN, infinity and numbers beyond them, a name that an object has twice, half a surrogate pair, and nesting
    that no reader holds.
    """
    try:
        value = json.loads(
            content.decode("utf-8"),
            parse_constant=_refuse,
            parse_float=_number,
            parse_int=_integer,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise ValueError("nested too deep") from None
    _check_depth(value)
    if _SURROGATE.search(content):
        canonical_json(value).encode()
    return value


def file_digest(path: Path, most: int = HASHED_BYTES) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits. Raises: as `reading`."""
    with reading(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, digest: str | None, most: int = HASHED_BYTES) -> None:
    """Raise ValueError naming the file where its SHA-256 is not `digest`; None is not checked."""
    if digest is not None and file_digest(path, most) != digest:
        raise ValueError(f"{path}: damaged (its SHA-256 is not {digest})")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(JSON_DEPTH):
        nested = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [inner for one in nested for inner in one]
    if level:
        raise ValueError("nested too deep")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _number(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _refuse(text if len(text) < 40 else f"{text[:40]}…")


def _integer(text: str) -> int:
    return int(text) if len(text) <= 40 else _refuse(f"{text[:40]}…")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name[:40]!r} stands there twice")
    return found
