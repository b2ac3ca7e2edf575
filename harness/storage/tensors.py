"""Tensors as safetensors files. Pickle is never used.

Files may come from untrusted sources: their size is limited, and safetensors refuses a header that does not describe
every byte of the file exactly once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from harness.storage import files
from impls.contract import Arrays


def write(path: Path, arrays: Arrays, most: int | None = None) -> str:
    """Write a safetensors file atomically and return its SHA-256. Raises: as `files.write_bytes`."""
    contiguous = {name: np.array(array, order="C") for name, array in arrays.items()}
    return files.write_bytes(path, safetensors.numpy.save(contiguous), most)


def read(path: Path, digest: str | None = None, most: int = files.FILE_BYTES) -> Arrays:
    """Read a safetensors file of at most `most` bytes with the SHA-256 `digest`, if that is known.

    Raises: ValueError, naming the file, if it is missing, damaged, too large, or has another digest.
    """
    with files.naming(path):
        with files.reading(path, most):
            pass  # it is a regular file of an accepted size
        if digest is not None and files.file_digest(path, most) != digest:
            raise ValueError(f"damaged (its SHA-256 is not {digest})")
        try:
            arrays: Arrays = safetensors.numpy.load_file(path)
        except MemoryError as error:
            raise ValueError("too large for the free memory of this machine") from error
        except (safetensors.SafetensorError, TypeError, ValueError) as error:  # the last two: types, shapes of no array
            raise ValueError(f"not safetensors ({' '.join(str(error).split())})") from error
    return arrays
