"""Flipped bits and truncations of each kind of file are rejected, or leave the stored value unchanged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_files import RECORD, SPEC, STORED

from harness.storage import files, run_store


def damages(content: bytes, kind: str) -> Iterator[bytes]:
    """Yield the content alternately with one bit flipped and truncated, at positions that the kind's name seeds."""
    noise = np.random.default_rng([*kind.encode()])
    while True:
        position, bit = int(noise.integers(len(content))), 1 << int(noise.integers(8))
        yield content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :]
        yield content[: int(noise.integers(len(content)))]


def harmless_damages(folder: Path, kind: str, count: int) -> int:
    """Damage a file `count` times; return how often its value was unchanged, and fail if it changed."""
    path, read = STORED[kind].write(folder)
    content, value = path.read_bytes(), read()
    harmless = 0
    for damaged in itertools.islice(damages(content, kind), count):
        path.write_bytes(damaged)
        try:
            damaged_value = read()
        except ValueError as error:
            message = str(error)
        else:
            assert damaged_value == value
            harmless += 1
            continue
        assert path.name.partition(".")[0].partition("-")[0] in message
        assert "\n" not in message
    path.write_bytes(content)
    assert read() == value
    return harmless


@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.faults)])
@pytest.mark.parametrize("kind", STORED)
def test_load_damaged_file_is_rejected_or_unchanged(tmp_path: Path, kind: str, count: int) -> None:
    """In JSON that is hashed as a value, few flips may give an equal value, such as 1E-05 for 1e-05."""
    assert harmless_damages(tmp_path, kind, count) <= (0 if STORED[kind].every_byte else 2 + count // 125)


@pytest.mark.parametrize(
    ("edits", "complaint"),
    [
        ({"note": "edited"}, "its seal is not that of its content"),
        ({"note": "edited", files.SEAL: None}, "it has no seal: expected a file as it was written"),
    ],
)
def test_edited_record_is_reported_and_skipped(tmp_path: Path, edits: dict[str, Any], complaint: str) -> None:
    path = run_store.save_record(tmp_path, RECORD)
    value = json.loads(path.read_text(encoding="utf-8")) | edits
    path.write_text(json.dumps({name: value[name] for name in value if value[name] is not None}), encoding="utf-8")
    complaints: list[str] = []
    assert run_store.records(tmp_path, complain=complaints.append) == []
    assert run_store.finished(tmp_path, SPEC.id, complain=complaints.append) is None
    assert len(complaints) == 2
    assert all(f"{path}: {complaint}" in line for line in complaints)
    with pytest.raises(ValueError, match=complaint):
        run_store.find(tmp_path, SPEC.id[:12])
