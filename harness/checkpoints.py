"""What an interrupted run goes on from, on the disk.

RESULTS/ID/checkpoint.json   the manifest, naming its checkpoint-….safetensors
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import files, store, tensors
from impls.contract import Arrays

CHECKPOINT = "checkpoint"


def save(results: Path, run_id: str, state: Arrays, notes: dict[str, Any]) -> None:
    """Write what an interrupted run goes on from; the older checkpoint stands until this one is whole."""
    folder = store.run_folder(results, run_id)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{CHECKPOINT}-{notes['epochs']}.safetensors"
    digest = tensors.write(folder / name, state)
    manifest = tensors.manifest(name, digest, state)
    files.write_json(folder / f"{CHECKPOINT}.json", {**manifest, "notes": store.finite(notes)})
    for older in folder.glob(f"{CHECKPOINT}-*.safetensors"):
        if older.name != name:
            older.unlink()


def load(results: Path, run_id: str) -> tuple[Arrays, dict[str, Any]] | None:
    """Return the arrays and notes of an unfinished run, or None. Raises: ValueError naming a damaged file."""
    manifest = store.run_folder(results, run_id) / f"{CHECKPOINT}.json"
    if not manifest.is_file():
        return None
    state, found = tensors.read_named(manifest)
    return state, dict(found["notes"])


def remove(results: Path, run_id: str) -> None:
    """Remove the checkpoint of a run that needs it no longer."""
    folder = store.run_folder(results, run_id)
    (folder / f"{CHECKPOINT}.json").unlink(missing_ok=True)
    for path in folder.glob(f"{CHECKPOINT}-*.safetensors"):
        path.unlink()
