"""Checkpoint files: two generations, of which every damage is noticed."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.storage import checkpoint_files

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(2.5), "c": np.array(True)}


def load(results: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the notes of the loaded checkpoint, and the complaints about others."""
    complaints: list[str] = []
    notes = checkpoint_files.load(results, "run", lambda arrays, notes: notes, complaints.append)
    return notes, complaints


def write_two(results: Path) -> dict[str, bytes]:
    for number in (1, 2):
        checkpoint_files.save(results, "run", ARRAYS, {"updates": number, "best": math.inf, "seconds": 1.5 * number})
    return contents(results)


def contents(results: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((results / "run").iterdir())}


def put(results: Path, replacement: dict[str, bytes]) -> None:
    for path in (results / "run").iterdir():
        path.unlink()
    for name, content in replacement.items():
        (results / "run" / name).write_bytes(content)


def test_checkpoint_files_keep_two_generations(tmp_path: Path) -> None:
    assert load(tmp_path) == (None, [])
    assert not checkpoint_files.exists(tmp_path, "run")
    for number in range(1, 5):
        checkpoint_files.save(tmp_path, "run", {**ARRAYS, "b": np.array(number)}, {"updates": number, "best": math.inf})
        assert load(tmp_path) == ({"updates": number, "best": None}, [])
    assert sorted(contents(tmp_path)) == [f"checkpoint-{n}.{kind}" for n in (3, 4) for kind in ("json", "safetensors")]
    arrays_read = checkpoint_files.load(tmp_path, "run", lambda arrays, notes: arrays, print)
    assert arrays_read is not None
    assert arrays_read["b"] == 4
    for name, array in ARRAYS.items():
        assert arrays_read[name].dtype == np.asarray(array if name != "b" else 4).dtype
    assert checkpoint_files.exists(tmp_path, "run")
    checkpoint_files.remove(tmp_path, "run")
    assert contents(tmp_path) == {}


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """Return a content with a bit flipped, or cut short."""
    if random.random() < 0.25:
        return content[: int(random.integers(len(content)))]
    changed, place = bytearray(content), int(random.integers(len(content)))
    changed[place] ^= 1 << int(random.integers(8))
    return bytes(changed)


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_checkpoint_with_any_of_500_damages_falls_back_to_the_older(kind: str, tmp_path: Path) -> None:
    random, intact, harmless = np.random.default_rng(500), write_two(tmp_path), 0
    name = f"checkpoint-2.{kind}"
    for number in range(500):
        bad = damaged(intact[name], random)
        put(tmp_path, {**intact, name: bad})
        notes, complaints = load(tmp_path)
        if kind == "json" and not complaints:  # for example a tab in place of a space: no value has changed
            assert notes == {"updates": 2, "best": None, "seconds": 3.0}, (number, bad)
            harmless += 1
            continue
        assert notes == {"updates": 1, "best": None, "seconds": 1.5}, (number, bad)
        assert len(complaints) == 1
        assert complaints[0].startswith("checkpoint-2.")
        assert sorted(contents(tmp_path)) == ["checkpoint-1.json", "checkpoint-1.safetensors"]
        put(tmp_path, {**intact, name: bad, name.replace("2", "1"): damaged(intact[name.replace("2", "1")], random)})
        notes, complaints = load(tmp_path)
        assert (notes, len(complaints)) == (None, 2)
    assert harmless <= 10


@pytest.mark.parametrize(
    ("removed", "copied", "updates"),
    [
        ("checkpoint-2.json", "", 1),
        ("checkpoint-2.safetensors", "", 1),
        ("checkpoint-3.json", "checkpoint-1.json", 2),  # with tensors that are missing
    ],
)
def test_checkpoint_without_its_own_files_falls_back_to_the_older(
    removed: str, copied: str, updates: int, tmp_path: Path
) -> None:
    intact = write_two(tmp_path)
    files = {name: content for name, content in intact.items() if name != removed}
    put(tmp_path, files | ({removed: intact[copied]} if copied else {}))
    notes, (complaint,) = load(tmp_path)
    assert notes is not None
    assert notes["updates"] == updates
    assert complaint.startswith(removed.split(".")[0])


def test_checkpoint_save_killed_at_any_system_call_leaves_one_complete(tmp_path: Path) -> None:
    """A process is killed at each system call that changes a folder or flushes a file."""

    def killed_at(number: int, results: Path) -> bool:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        calls = 0

        def counting(call: Any) -> Any:
            def counted(*arguments: Any, **more: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == number:
                    os._exit(9)
                return call(*arguments, **more)

            return counted

        for name in ("open", "fsync", "replace", "rename", "unlink", "chmod"):
            setattr(os, name, counting(getattr(os, name)))
        checkpoint_files.save(results, "run", ARRAYS, {"updates": 3})
        os._exit(0)

    write_two(tmp_path / "0")
    number = 0
    while True:
        number += 1
        results = tmp_path / str(number)
        write_two(results)
        if not killed_at(number, results):
            break
        notes, _ = load(results)
        assert notes is not None
        assert notes["updates"] in (2, 3)
        checkpoint_files.save(results, "run", ARRAYS, {"updates": 4})
        assert load(results) == ({"updates": 4}, [])
        assert len(contents(results)) == 4
    assert number > 10
