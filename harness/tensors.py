"""Tensors in files: safetensors, and JSON manifests that name and hash them. Never pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from harness.files import check_digest, file_digest, replacing
from harness.specs import SCHEMA
from impls.contract import Arrays


def write(path: Path, arrays: Arrays) -> str:
    """Write a safetensors file and return its SHA-256."""
    with replacing(path) as temporary:
        safetensors.numpy.save_file({name: np.array(one, order="C") for name, one in arrays.items()}, temporary)
    return file_digest(path)


def manifest(name: str, digest: str, arrays: Arrays) -> dict[str, Any]:
    """Return what a manifest says of the tensors in the file `name` beside it."""
    shapes = {key: list(one.shape) for key, one in sorted(arrays.items())}
    return {"schema": SCHEMA, "file": name, "sha256": digest, "shapes": shapes}


def read_named(manifest: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read the tensors that a manifest names, and the manifest.

    Raises: ValueError naming the file that is missing, damaged, or not what the manifest says.
    """
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
        schema, name, digest, shapes = (found[key] for key in ("schema", "file", "sha256", "shapes"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{manifest}: not a manifest of weights ({error})") from error
    path = manifest.parent / str(name)
    if schema != SCHEMA or path.parent != manifest.parent or not path.is_file():
        raise ValueError(
            f"{manifest}: schema={schema!r}, file={name!r}: allowed is schema {SCHEMA} and a file beside it"
        )
    arrays = read(path, digest)
    if {key: list(one.shape) for key, one in arrays.items()} != shapes:
        raise ValueError(f"{path}: its tensors are not those of {manifest.name}")
    return arrays, found


def read(path: Path, digest: str | None = None) -> Arrays:
    """Read a safetensors file. Raises: ValueError naming it where it is damaged, or its SHA-256 is not `digest`."""
    check_digest(path, digest)
    try:
        arrays: Arrays = safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: not safetensors ({error})") from error
    return arrays
