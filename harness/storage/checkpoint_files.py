"""What an interrupted run goes on from, on the disk: two generations, so that a damaged file loses little.

RESULTS/ID/checkpoint-N.json         the manifest of generation N, which seals itself and hashes the tensors
RESULTS/ID/checkpoint-N.safetensors  the tensors; written first, so that a manifest vouches for what is there
"""

from __future__ import annotations

import contextlib
import json
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
"""How often a run writes one in the middle of an epoch, where nothing else is said."""

_NAME = re.compile(rf"{CHECKPOINT}-(\d+)\.(json|safetensors)")

Restored = TypeVar("Restored")


def save(results: Path, run_id: str, state: Arrays, notes: dict[str, Any]) -> None:
    """Write what an interrupted run goes on from, and remove all but the last two generations.

    A kill at any moment leaves every older generation, or the last two, whole.
    """
    folder = run_store.own_folder(results, run_id)
    number = max(_generations(folder), default=0) + 1
    path = _tensors(folder, number)
    value = {**tensors.manifest(path.name, tensors.write(path, state), state), "notes": run_store.finite(notes)}
    files.write_bytes(_manifest(folder, number), _sealed(value))
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
    """Return what `restore` makes of the tensors and notes of the newest generation that is whole; None without one.

    A file of more than `most` bytes is refused unread. `complain` is told in a line of each generation that is damaged,
    or that `restore` refuses with a ValueError. Those newer than the one that serves are removed, so that the next that
    is written leaves two to fall back on.
    """
    folder, unusable = run_store.run_folder(results, run_id), []
    for number in _generations(folder):
        try:
            restored = restore(*_read(folder, number, most))
        except (ValueError, OSError) as error:
            unusable.append(number)
            complain(str(error).replace(f"{folder}{os.sep}", ""))
            continue
        for one in unusable:
            _remove(folder, one)
        return restored
    return None


def notes(results: Path, run_id: str) -> dict[str, Any]:
    """Return the notes of the newest generation whose manifest can be read; its tensors are not looked at."""
    folder = run_store.run_folder(results, run_id)
    for number in _generations(folder):
        with contextlib.suppress(ValueError):
            found = files.read_sealed(_manifest(folder, number)).get("notes")
            if isinstance(found, dict):
                return found
    return {}


def exists(results: Path, run_id: str) -> bool:
    """Return whether there is a checkpoint of a run, whole or not."""
    return bool(_generations(run_store.run_folder(results, run_id)))


def paths(results: Path, run_id: str) -> list[Path]:
    """Return the files of all checkpoints of a run."""
    folder = run_store.run_folder(results, run_id)
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []


def remove(results: Path, run_id: str) -> None:
    """Remove the checkpoints of a run that needs them no longer."""
    folder = run_store.run_folder(results, run_id)
    for number in _generations(folder):
        _remove(folder, number)


def _read(folder: Path, number: int, most: int) -> tuple[Arrays, dict[str, Any]]:
    """Return the tensors and notes of a generation. Raises: ValueError naming the file that is missing or damaged."""
    manifest = _manifest(folder, number)
    if not manifest.is_file():
        raise ValueError(f"{manifest}: there is no such file, as where a process was killed before it wrote it")
    state, found = tensors.read_named(manifest, most)
    as_written = files.read_bytes(manifest, files.JSON_BYTES) == _sealed(found)
    notes = found.get("notes")
    if not as_written or found["file"] != _tensors(folder, number).name or not isinstance(notes, dict):
        raise ValueError(f"{manifest}: damaged (not as it was written)")
    return state, notes


def _sealed(value: dict[str, Any]) -> bytes:
    """Return a manifest as the bytes of its file. Whoever reads it writes it again: so every byte is vouched for."""
    sealed = {**value, files.SEAL: files.seal(value)}
    return (json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _generations(folder: Path) -> list[int]:
    """Return the numbers of the generations of which there is any file, the newest first."""
    if not folder.is_dir():
        return []
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted({int(name[1]) for name in names if name}, reverse=True)


def _manifest(folder: Path, number: int) -> Path:
    return folder / f"{CHECKPOINT}-{number}.json"


def _tensors(folder: Path, number: int) -> Path:
    return folder / f"{CHECKPOINT}-{number}.safetensors"


def _remove(folder: Path, number: int) -> None:
    _manifest(folder, number).unlink(missing_ok=True)
    _tensors(folder, number).unlink(missing_ok=True)
