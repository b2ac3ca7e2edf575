"""Tensors in files: safetensors, and JSON manifests that name and hash them. Never pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from harness.experiments.specs import SCHEMA
from harness.storage import files
from impls.contract import Arrays

HEADER_BYTES = 8 * 2**20
"""The most that the header of a safetensors file may have, which names its tensors. Units: bytes."""

_FIELDS = ("schema", "file", "sha256", "shapes")


def write(path: Path, arrays: Arrays) -> str:
    """Write a safetensors file and return its SHA-256. Raises: as `files.replacing`."""
    return files.write_bytes(path, safetensors.numpy.save({k: np.array(one, order="C") for k, one in arrays.items()}))


def manifest(name: str, digest: str, arrays: Arrays) -> dict[str, Any]:
    """Return what a manifest says of the tensors in the file `name` beside it, to be written with its seal."""
    shapes = {key: list(one.shape) for key, one in sorted(arrays.items())}
    return {"schema": SCHEMA, "file": name, "sha256": digest, "shapes": shapes}


def read_named(manifest: Path, most: int = files.FILE_BYTES) -> tuple[Arrays, dict[str, Any]]:
    """Read the tensors that a manifest names, from a file of at most `most` bytes, and the manifest.

    Raises: ValueError naming the file that is missing, damaged, or not what the manifest says.
    """
    found = files.read_sealed(manifest)
    schema, name, digest, shapes = (found.get(one) for one in _FIELDS)
    foreign = sorted(found.keys() - {*_FIELDS, "notes"})
    if schema != SCHEMA or not isinstance(digest, str) or foreign:
        told = f"schema={schema!r}, sha256={digest!r}" + f", and {', '.join(foreign)}" * bool(foreign)
        raise ValueError(f"{manifest}: {told}: not a manifest of tensors of schema {SCHEMA}")
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
        raise ValueError(f"{manifest}: file={name!r}: allowed is a file beside it")
    path = manifest.parent / name
    arrays = read(path, digest, most)
    if {key: list(one.shape) for key, one in arrays.items()} != shapes:
        raise ValueError(f"{path}: its tensors are not those of {manifest.name}")
    return arrays, found


def read(path: Path, digest: str | None = None, most: int = files.FILE_BYTES) -> Arrays:
    """Read a safetensors file of at most `most` bytes.

    Raises: ValueError naming it where it is missing or damaged, not a regular file, or its SHA-256 is not `digest`.
    """
    try:
        with files.reading(path, most) as file:
            header = int.from_bytes(file.read(8), "little")
        if header > HEADER_BYTES:
            raise ValueError(f"{path}: a header of {header:,} bytes: allowed is at most {HEADER_BYTES:,}")
        files.check_digest(path, digest, most)
        arrays: Arrays = safetensors.numpy.load_file(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (safetensors.SafetensorError, KeyError, TypeError, AttributeError, MemoryError) as error:
        raise ValueError(f"{path}: not safetensors ({error})") from error
    except ValueError as error:
        told = str(error)
        raise ValueError(told if told.startswith(f"{path}: ") else f"{path}: not safetensors ({told})") from error
    return arrays
