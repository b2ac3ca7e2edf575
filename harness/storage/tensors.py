"""Tensors in files: safetensors, and JSON manifests that name and hash them. Never pickle.

Files may come from strangers, so the header is checked before any tensor is read: it must describe the file exactly,
byte by byte, and hold the tensors that the caller expects.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.numpy

from harness.experiments.specs import SCHEMA
from harness.storage import files
from harness.text import brief
from impls.contract import Arrays

HEADER_BYTES = 4 * 2**20
"""The limit of the header of a safetensors file, which names its tensors. Units: bytes."""

DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F16": ("float16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "F32": ("float32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F64": ("float64", 8),
}
"""The types that NumPy can read, with their size in bytes."""

_FIELDS = ("schema", "file", "sha256", "shapes")
_DIMENSIONS = 8


@dataclass(frozen=True)
class TensorHeader:
    """What the header of a file says of one tensor: `dtype` is NumPy's name."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


Headers = Mapping[str, TensorHeader]


def write(path: Path, arrays: Arrays) -> str:
    """Write a safetensors file and return its SHA-256. Raises: as `files.replacing`."""
    return files.write_bytes(path, safetensors.numpy.save({k: np.array(v, order="C") for k, v in arrays.items()}))


def manifest(name: str, digest: str, arrays: Arrays) -> dict[str, Any]:
    """Return the manifest of the tensors in the file `name` beside it, to be written with its seal."""
    shapes = {key: list(array.shape) for key, array in sorted(arrays.items())}
    return {"schema": SCHEMA, "file": name, "sha256": digest, "shapes": shapes}


def read_named(manifest: Path, most: int = files.FILE_BYTES) -> tuple[Arrays, dict[str, Any]]:
    """Read the tensors that a manifest names, from a file of at most `most` bytes, and the manifest.

    Raises:
        ValueError: A file is missing, damaged, or not what the manifest says; the message names it.
    """
    found = files.read_sealed(manifest)
    schema, name, digest, shapes = (found.get(field) for field in _FIELDS)
    foreign = sorted(found.keys() - {*_FIELDS, "notes"})
    if schema != SCHEMA or not isinstance(digest, str) or foreign:
        fields = f"schema={brief(schema)}, sha256={brief(digest)}" + (f", and {', '.join(foreign)}" if foreign else "")
        raise ValueError(f"{manifest}: {fields}: not a manifest of tensors of schema {SCHEMA}")
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
        raise ValueError(f"{manifest}: file={brief(name)}: expected the name of a file beside it")

    def check(headers: Headers) -> None:
        if {key: list(header.shape) for key, header in headers.items()} != shapes:
            raise ValueError(f"its tensors are not those of {manifest.name}")

    return read(manifest.parent / name, digest, most, check=check), found


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
        most: The limit of its size. Units: bytes.
        check: Called with the header before any tensor is read; a ValueError rejects the file.

    Raises:
        ValueError: The file is missing, damaged, too large, rejected, or has another digest; the message names it.
    """
    try:
        with files.reading(path, most) as file:
            headers = read_headers(file)
        if check is not None:
            check(headers)
        files.check_digest(path, digest, most)
        arrays: Arrays = safetensors.numpy.load_file(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (safetensors.SafetensorError, KeyError, TypeError, AttributeError, MemoryError) as error:
        raise ValueError(f"{path}: not safetensors ({error})") from error
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
    except ValueError as error:
        raise ValueError(f"not safetensors (its header is not JSON: {error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"not safetensors (its header is {brief(value)}: expected a JSON object)")
    entries = [_entry(name, item) for name, item in value.items() if name != "__metadata__"]
    end = 0
    for start, stop, name, _ in sorted(entries, key=lambda entry: entry[:2]):
        if start != end:
            raise ValueError(f"not safetensors ({brief(name)} starts at byte {start:,}: expected {end:,})")
        end = stop
    if end != size - 8 - length:
        raise ValueError(f"not safetensors ({size - 8 - length:,} bytes of tensors: expected {end:,})")
    return {name: header for _, _, name, header in entries}


def _entry(name: str, value: Any) -> tuple[int, int, str, TensorHeader]:
    """Return where a tensor starts and stops, its name and its header. Raises: ValueError if they do not fit."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"not safetensors ({brief(name)} is {brief(value)}: expected dtype, shape and data_offsets)")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"not safetensors ({brief(name)}.dtype={brief(dtype)}: expected one of {', '.join(DTYPES)})")
    if not _are_counts(shape) or len(shape) > _DIMENSIONS:
        raise ValueError(f"not safetensors ({brief(name)}.shape={brief(shape)}: expected up to {_DIMENSIONS} counts)")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"not safetensors ({brief(name)}.data_offsets={brief(offsets)}: expected two counts)")
    kind, item_bytes = DTYPES[dtype]
    if offsets[1] - offsets[0] != item_bytes * math.prod(shape):
        raise ValueError(f"not safetensors ({brief(name)}: {dtype}{shape} does not fit its offsets {offsets})")
    return offsets[0], offsets[1], name, TensorHeader(kind, tuple(shape))


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)
