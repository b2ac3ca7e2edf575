"""Atomic, hashed writes and bounded reads.

Every result file is written and read here. Files to be read may come from untrusted sources, so reads have size
limits, follow no links and open neither pipes nor devices.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from harness.experiments.serialization import MOST_DIGITS, canonical_json, json_digest

try:
    import fcntl
except ImportError:  # Windows, where partial files of killed processes are not removed
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".bakeoff.partial"
SEAL = "seal"
"""The field of a JSON object that holds the digest of all other fields."""
JSON_BYTES = 12 * 2**20
"""The size limit of JSON files. A record has about 30,000 bytes, and 600 more for each epoch."""
FILE_BYTES = 4 * 2**30
"""The default size limit, for example of checkpoints."""
HASHED_BYTES = 2**30
"""The size limit of files that are only hashed, which takes a few seconds at most."""
JSON_DEPTH = 50
"""The largest nesting depth of JSON; records have a depth of five."""
TRIES = 9
"""How often a folder is made again that another process removes."""

T = TypeVar("T")

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; if the block succeeds, flush that file and rename it to `path`.

    Partial files that killed processes have left in the same folder are removed.

    Raises: OSError, which names `path`, if it cannot be written; ValueError if it is a folder, a device or a pipe.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path}: cannot be written: expected a new file, or to replace a regular one")
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_partial_files(path.parent)
        locked, temporary = _create_temporary(path)
        try:
            yield temporary
            os.fsync(locked)
            mask = os.umask(0o077)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)
            if os.name != "posix":
                locked.close()  # Windows renames no open file
            temporary.replace(path)
            _flush_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                locked.close()
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


def in_folder(folder: Path, make: Callable[[], T]) -> T:
    """Make a folder, and return what `make` returns, which makes a file in it.

    Both are tried again if another process removes the folder meanwhile, because it is still empty.
    """
    for _ in range(TRIES):
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            folder.mkdir(parents=True, exist_ok=True)  # finds one, and then no folder, if it is removed meanwhile
            return make()
    folder.mkdir(parents=True, exist_ok=True)
    return make()


def write_bytes(path: Path, content: bytes, most: int | None = None) -> str:
    """Write a file atomically and return the SHA-256 of its content.

    Raises: as `replacing`; also ValueError for more than `most` bytes, which could not be read again.
    """
    if most is not None and len(content) > most:
        raise ValueError(f"{path}: cannot be written: {len(content):,} bytes: expected at most {most:,}")
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically. Raises: as `write_bytes`; also ValueError for NaN and infinity."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode(), JSON_BYTES)


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with its seal. Raises: as `write_json`."""
    write_json(path, {**value, SEAL: seal(value)})


def seal(value: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its seal. It reveals edits by hand, but not a forged seal."""
    unsealed = {name: item for name, item in value.items() if name != SEAL}
    return json_digest(unsealed)


def _create_temporary(path: Path) -> tuple[io.FileIO, Path]:
    """Create an empty file beside `path`, locked as long as the returned file is open."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=PARTIAL, dir=path.parent)
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.lexists(name):
            return io.FileIO(handle), Path(name)
        os.close(handle)  # another process has removed it as abandoned before it was locked


def _remove_partial_files(folder: Path) -> None:
    """Remove the temporary files that no living process has locked."""
    if fcntl is None:
        return
    for path in folder.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError, ValueError), reading(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _flush_folder(folder: Path) -> None:
    """Flush a folder, so that a rename survives a power failure, on systems that can do so."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def reading(path: Path, most: int = FILE_BYTES, *, links: bool = False) -> Iterator[io.BufferedReader]:
    """Open a regular file of at most `most` bytes. Pipes and devices are not opened, so reading never hangs.

    With `links`, `path` itself may be a link; its folders always may.

    Raises: OSError if it cannot be opened; ValueError, naming it, if it is not a regular file or too large.
    """
    mode = (path.stat() if links else path.lstat()).st_mode
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path}: a folder, expected a file")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: expected a regular file{'' if links else ', not a link to one'}")
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags if links else flags | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{path}: {size:,} bytes: expected at most {most:,}")
        yield file


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raise an error in reading or checking a file as a ValueError whose message begins with its path."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, TypeError) as error:
        reason = str(error)
        raise ValueError(reason if reason.startswith(f"{path}: ") else f"{path}: {reason}") from error


def may_exist(path: Path) -> bool:
    """Return whether a file exists, or its folder may not be read."""
    try:
        path.lstat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def read_bytes(path: Path, most: int, *, links: bool = False) -> bytes:
    """Return the content of a file. Raises: as `reading`, and ValueError if the file grows meanwhile."""
    with reading(path, most, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1)
    if len(content) > size:
        raise ValueError(f"{path}: it grew while it was read: expected a file that nothing writes to")
    return content


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises: ValueError, naming it, if it cannot be read or is not JSON."""
    with naming(path):
        content = read_bytes(path, JSON_BYTES)
        try:
            return parse_json(content)
        except ValueError as error:
            raise ValueError(f"not JSON ({error})") from error


def read_sealed(path: Path) -> dict[str, Any]:
    """Return the JSON object in a sealed file, without its seal. Raises: as `read_json` and `unsealed`."""
    with naming(path):
        return unsealed(read_json(path))


def unsealed(value: Any) -> dict[str, Any]:
    """Return a JSON object without its seal. Raises: ValueError if it is no object, or has no seal or a wrong one."""
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    if SEAL not in value:
        raise ValueError("it has no seal: expected a file as it was written")
    if value[SEAL] != seal(value):
        raise ValueError("its seal is not that of its content: expected a file as it was written")
    return {name: item for name, item in value.items() if name != SEAL}


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text.

    Raises: ValueError if it is not JSON, or JSON parsers disagree on it: NaN, numbers out of range, repeated names,
    half a surrogate pair, or deep nesting.
    """
    try:
        value = _DECODER.decode(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deep") from None
    _check_depth(value)
    if SURROGATE.search(content):
        canonical_json(value).encode()
    return value


def file_digest(path: Path, most: int = HASHED_BYTES) -> str:
    """Return the SHA-256 of a file in hexadecimal digits. Raises: as `reading`."""
    with reading(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(JSON_DEPTH):
        if not level:
            return
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [item for inner in containers for item in (inner.values() if isinstance(inner, dict) else inner)]
    if level:
        raise ValueError("nested too deep")


def _reject_number(text: str) -> NoReturn:
    raise ValueError(f"{text if len(text) < 40 else f'{text[:40]}…'} is not JSON")


def _parse_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _reject_number(text)


def _parse_int(text: str) -> int:
    return int(text) if len(text) <= MOST_DIGITS else _reject_number(text)


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {name[:40]!r} appears twice")
    return value


_DECODER = json.JSONDecoder(
    parse_constant=_reject_number,
    parse_float=_parse_float,
    parse_int=_parse_int,
    object_pairs_hook=_parse_object,
)
