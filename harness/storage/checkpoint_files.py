"""The checkpoint files of a run: two generations, so that the older one remains if the newer one is damaged.

RESULTS/ID/checkpoint-N.json         the manifest of generation N, with its own seal and the digest of the tensors
RESULTS/ID/checkpoint-N.safetensors  the tensors; written before the manifest
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from harness.storage import files, run_store, tensors
from impls.contract import Arrays

CHECKPOINT = "checkpoint"
GENERATIONS = 2
SECONDS = 120.0
"""The default time between two checkpoints within an epoch."""

_NAME = re.compile(rf"{CHECKPOINT}-(\d+)\.(json|safetensors)")

Restored = TypeVar("Restored")


def save(results: Path, run_id: str, state: Arrays, notes: dict[str, Any]) -> None:
    """Write a new generation and remove all but the last two.

    A process that is killed at any moment leaves at least one complete generation, if there was one.
    """
    folder = run_store.own_folder(results, run_id)
    number = max(_generations(folder), default=0) + 1
    digest = tensors.write(_path(folder, number, "safetensors"), state)
    files.write_sealed(_path(folder, number, "json"), {"sha256": digest, "notes": run_store.finite(notes)})
    for older in _generations(folder)[GENERATIONS:]:
        _remove(folder, older)


def load(
    results: Path,
    run_id: str,
    restore: Callable[[Arrays, dict[str, Any]], Restored],
    complain: Callable[[str], None],
    *,
    most: int = files.FILE_BYTES,
) -> Restored | None:
    """Restore the newest usable generation, remove those newer than it, and return what `restore` returns, or None.

    Args:
        restore: Called with the tensors and notes of a generation; raises ValueError to refuse it.
        complain: Receives a line for each generation that is damaged or refused.
        most: The largest accepted size of the tensors in bytes.
    """
    folder, unusable = run_store.run_folder(results, run_id), []
    for number in _generations(folder):
        try:
            digest, notes = _manifest(folder, number)
            restored = restore(tensors.read(_path(folder, number, "safetensors"), digest, most), notes)
        except (ValueError, OSError) as error:
            unusable.append(number)
            complain(str(error).replace(f"{folder}{os.sep}", ""))
            continue
        for newer in unusable:
            _remove(folder, newer)
        return restored
    return None


def notes(results: Path, run_id: str) -> dict[str, Any]:
    """Return the notes of the newest readable manifest, without reading tensors; empty if there is none."""
    folder = run_store.run_folder(results, run_id)
    for number in _generations(folder):
        with contextlib.suppress(ValueError):
            return _manifest(folder, number)[1]
    return {}


def exists(results: Path, run_id: str) -> bool:
    """Return whether a run has a checkpoint, damaged or not."""
    return bool(paths(results, run_id))


def paths(results: Path, run_id: str) -> list[Path]:
    """Return the files of all checkpoints of a run."""
    folder = run_store.run_folder(results, run_id)
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []


def remove(results: Path, run_id: str) -> None:
    """Remove all checkpoints of a run."""
    for path in paths(results, run_id):
        path.unlink(missing_ok=True)


def _manifest(folder: Path, number: int) -> tuple[str, dict[str, Any]]:
    """Return the digest of the tensors and the notes of a generation. Raises: ValueError naming the file."""
    path = _path(folder, number, "json")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; its process was probably killed before it wrote it")
    match files.read_sealed(path):
        case {"sha256": str(digest), "notes": dict(notes)}:
            return digest, notes
    raise ValueError(f"{path}: expected sha256 and notes")


def _generations(folder: Path) -> list[int]:
    """Return the numbers of the generations that have any file, the newest first."""
    names = map(_NAME.fullmatch, os.listdir(folder)) if folder.is_dir() else ()
    return sorted({int(name[1]) for name in names if name}, reverse=True)


def _path(folder: Path, number: int, suffix: str) -> Path:
    return folder / f"{CHECKPOINT}-{number}.{suffix}"


def _remove(folder: Path, number: int) -> None:
    for suffix in ("json", "safetensors"):
        _path(folder, number, suffix).unlink(missing_ok=True)
