"""Tensors as safetensors files, and JSON manifests with their names and digests. Pickle is never used.

Files may come from untrusted sources, so the header is checked before any tensor is read: it must describe every byte
of the file exactly once, and have the tensors that the caller expects.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
import safetensors
import safetensors.numpy
from annotated_types import Ge, Lt, MaxLen

from harness.experiments.serialization import from_json
from harness.experiments.specs import SCHEMA
from harness.storage import files
from harness.text import brief
from impls.contract import Arrays

HEADER_BYTES = 4 * 2**20
"""The size limit of the header of a safetensors file."""

DTYPES = {"BOOL": np.dtype(bool)} | {
    f"{kind.upper()}{8 * size}": np.dtype(f"{kind}{size}")
    for kind in "uif"
    for size in (1, 2, 4, 8)
    if (kind, size) != ("f", 1)
}
"""NumPy's data types by their names in safetensors, such as "F32"."""

Size = Annotated[int, Ge(0), Lt(2**63)]


@dataclass(frozen=True)
class TensorHeader:
    """The data type, as NumPy names it, and the shape of a stored tensor."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


Headers = Mapping[str, TensorHeader]


@dataclass(frozen=True)
class _HeaderEntry:
    """The entry of a tensor in the header of a safetensors file."""

    dtype: str
    shape: Annotated[tuple[Size, ...], MaxLen(8)]
    data_offsets: tuple[Size, Size]


@dataclass(frozen=True)
class _Manifest:
    """The fields of a manifest; checkpoints have notes."""

    schema: Literal[1]
    file: str
    sha256: str
    shapes: dict[str, tuple[Size, ...]]
    notes: dict[str, Any] | None = None


def write(path: Path, arrays: Arrays, most: int | None = None) -> str:
    """Write a safetensors file of at most `most` bytes atomically and return its SHA-256.

    Raises:
        OSError, ValueError: As `files.replacing`; also a ValueError for a file that would be too large to be read.
    """
    contiguous = {name: np.array(array, order="C") for name, array in arrays.items()}
    content = safetensors.numpy.save(contiguous)
    if most is not None and len(content) > most:
        raise ValueError(f"{path}: cannot be written: {len(content):,} bytes: expected at most {most:,}")
    return files.write_bytes(path, content)


def manifest(name: str, digest: str, arrays: Arrays) -> dict[str, Any]:
    """Return the manifest of the file `name`, to be written beside it with a seal."""
    shapes = {key: list(array.shape) for key, array in sorted(arrays.items())}
    return {"schema": SCHEMA, "file": name, "sha256": digest, "shapes": shapes}


def read_named(manifest: Path, most: int = files.FILE_BYTES) -> tuple[Arrays, dict[str, Any]]:
    """Read the tensors that a manifest names, from a file of at most `most` bytes.

    Returns:
        The tensors and the manifest.

    Raises:
        ValueError: A file is missing, damaged, or does not match the manifest; the message names it.
    """
    value = _read_manifest(manifest)
    name = value["file"]
    if name in ("", ".", "..") or Path(name).name != name or "\0" in name:
        raise ValueError(f"{manifest}: file={brief(name)}: expected the name of a file beside it")

    def check(headers: Headers) -> None:
        if {key: list(header.shape) for key, header in headers.items()} != value["shapes"]:
            raise ValueError(f"its tensors are not those of {manifest.name}")

    return read(manifest.parent / name, value["sha256"], most, check=check), value


def manifest_shapes(manifest: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that a manifest names. Raises: as `read_named`."""
    return {name: tuple(shape) for name, shape in _read_manifest(manifest)["shapes"].items()}


def _read_manifest(path: Path) -> dict[str, Any]:
    value = files.read_sealed(path)
    try:
        from_json(_Manifest, value, "manifest")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return value


def read(
    path: Path,
    digest: str | None = None,
    most: int = files.FILE_BYTES,
    *,
    check: Callable[[Headers], None] | None = None,
) -> Arrays:
    """Read a safetensors file.

    Args:
        path: A regular file.
        digest: Its SHA-256, if known.
        most: The largest accepted size in bytes.
        check: Called with the header before any tensor is read; a ValueError rejects the file.

    Raises:
        ValueError: The file is missing, damaged, too large, rejected, or has another digest; the message names it.
    """
    try:
        with files.reading(path, most) as file:
            headers = read_headers(file)
        if check is not None:
            check(headers)
        if digest is not None and files.file_digest(path, most) != digest:
            raise ValueError(f"damaged (its SHA-256 is not {digest})")
        arrays: Arrays = safetensors.numpy.load_file(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: not safetensors ({error})") from error
    except MemoryError as error:
        raise ValueError(f"{path}: too large for the free memory of this machine") from error
    except ValueError as error:
        reason = str(error)
        raise ValueError(reason if reason.startswith(f"{path}: ") else f"{path}: {reason}") from error
    return arrays


def read_headers(file: BinaryIO) -> dict[str, TensorHeader]:
    """Return the tensors that the header of an open safetensors file describes, without reading them.

    Raises:
        ValueError: The header is malformed, or does not describe every byte of the file exactly once.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(HEADER_BYTES, size - 8):
        limit = f"expected at most {HEADER_BYTES:,} and no more than the file has"
        raise ValueError(f"not safetensors (a header of {length:,} bytes: {limit})")
    try:
        value = files.parse_json(file.read(length))
        if isinstance(value, dict):
            value.pop("__metadata__", None)
        entries: dict[str, _HeaderEntry] = from_json(dict[str, _HeaderEntry], value, "header")
        _check_layout(entries, size - 8 - length)
    except ValueError as error:
        raise ValueError(f"not safetensors ({error})") from error
    return {name: TensorHeader(DTYPES[entry.dtype].name, entry.shape) for name, entry in entries.items()}


def _check_layout(entries: Mapping[str, _HeaderEntry], data_bytes: int) -> None:
    """Raise ValueError unless the tensors fill `data_bytes` bytes without gaps and overlaps."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in DTYPES:
            raise ValueError(f"{brief(name)}.dtype={brief(entry.dtype)}: expected one of {', '.join(DTYPES)}")
        start, stop = entry.data_offsets
        if start != end or stop - start != DTYPES[entry.dtype].itemsize * math.prod(entry.shape):
            raise ValueError(
                f"{brief(name)}: its bytes {start:,} to {stop:,} do not fit its shape and the tensors before"
            )
        end = stop
    if end != data_bytes:
        raise ValueError(f"{data_bytes:,} bytes of tensors: expected {end:,}")
