"""Stored files are complete, hashed and read back; damaged files are named and affect nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import spec
from stored_files import comparable

from harness.storage import files, run_store, tensors
from harness.storage.records import RunRecord
from harness.storage.run_store import Hypothesis

SPEC = spec()
RECORD = RunRecord(id=SPEC.id, spec=SPEC, status="completed", scores={"test_loss": 1.5})
HYPOTHESES = [
    Hypothesis(0, ("a", "\u2028", "dog"), "A dog\x85\u2028."),
    Hypothesis(1, (), ""),
    Hypothesis(2, ('quote"', "back\\slash", "\u2047", "]}"), 'x "y" \\ \t'),
]
ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "a.scalar": np.array(7, dtype=np.int64),
    "empty": np.zeros((0, 4), np.float64),
}
SENTENCES = {
    "nats": np.array([1.5, 0.0]),
    "tokens": np.array([3, 1], np.int32),
    "chrf": np.arange(36, dtype=np.int32).reshape(2, 18),
}


def test_save_record_is_read_back(tmp_path: Path) -> None:
    path = run_store.save_record(tmp_path, RECORD)
    assert path == tmp_path / SPEC.id / "record.json"
    assert run_store.load_record(tmp_path, SPEC.id) == RECORD
    assert run_store.load_record(tmp_path, "another") is None
    assert run_store.finished(tmp_path, SPEC.id) == RECORD


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_finished_returns_no_unfinished_record(tmp_path: Path, status: Any) -> None:
    run_store.save_record(tmp_path, replace(RECORD, status=status))
    assert run_store.finished(tmp_path, SPEC.id) is None


def test_save_record_not_finite_figures_become_none(tmp_path: Path) -> None:
    scores = {"a": math.nan, "b": math.inf, "c": np.float32(0.5)}
    path = run_store.save_record(tmp_path, replace(RECORD, scores=scores))  # type: ignore[arg-type]
    assert json.loads(path.read_text())["scores"] == {"a": None, "b": None, "c": 0.5}


SAVED: dict[str, tuple[Any, Any, Any]] = {
    "hypotheses": (run_store.save_hypotheses, run_store.load_hypotheses, HYPOTHESES),
    "weights": (run_store.save_weights, run_store.load_weights, ARRAYS),
    "sentences": (run_store.save_sentences, run_store.load_sentences, SENTENCES),
}


@pytest.mark.parametrize(("save", "load", "value"), SAVED.values(), ids=SAVED)
def test_saved_file_is_read_back_and_its_digest_does_not_depend_on_the_order_of_arrays(
    save: Any, load: Any, value: Any, tmp_path: Path
) -> None:
    digest = save(tmp_path, "run", value)
    loaded = load(tmp_path, "run", digest)
    assert loaded == value if isinstance(value, list) else comparable(loaded) == comparable(value)
    (path,) = (tmp_path / "run").iterdir()
    reordered = value if isinstance(value, list) else dict(reversed(value.items()))
    assert files.file_digest(path) == digest == save(tmp_path, "again", reordered)


def test_translations_too_large_to_be_read_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "HYPOTHESES_BYTES", 50)
    with pytest.raises(ValueError, match=r"hypotheses\.jsonl: cannot be written: .* bytes: expected at most 50"):
        run_store.save_hypotheses(tmp_path, "run", HYPOTHESES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"nats": np.zeros(2, np.float32)},
        {"nats": np.zeros(3)},
        {"tokens": np.zeros(2, np.int64)},
        {"chrf": np.zeros((3, 18), np.int32)},
        {"chrf": np.zeros(2, np.int32)},
        {"chrf": np.zeros((2, 18))},
        {"nats": None},
    ],
)
def test_sentences_of_wrong_shape_or_type_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    arrays = {name: array for name, array in {**SENTENCES, **changes}.items() if array is not None}
    message = r"sentences\.safetensors: {'chrf': '\w+\[.*: expected nats float64 \[N\]"
    with pytest.raises(ValueError, match=message):
        run_store.save_sentences(tmp_path, "run", arrays)
    with pytest.raises(ValueError, match=r"run.sentences\.safetensors: there is no such file"):
        run_store.load_sentences(tmp_path, "run")
    tensors.write(tmp_path / "run" / run_store.SENTENCES, arrays)
    with pytest.raises(ValueError, match=message):
        run_store.load_sentences(tmp_path, "run")


def test_write_json_not_finite_number_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, {"a": math.nan})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_records_damaged_files_are_reported_and_skipped(tmp_path: Path) -> None:
    run_store.save_record(tmp_path, RECORD)
    files.write_sealed(tmp_path / "foreign" / "record.json", {"schema": 99})
    files.write_bytes(tmp_path / "moved" / "record.json", (tmp_path / SPEC.id / "record.json").read_bytes())
    files.write_bytes(tmp_path / "empty" / "notes.txt", b"")
    complaints: list[str] = []
    assert run_store.records(tmp_path, complain=complaints.append) == [RECORD]
    assert ["foreign" in complaint or "moved" in complaint for complaint in complaints] == [True, True]
    assert run_store.records(tmp_path / "nowhere") == []


def test_list_command_quotes_the_folder() -> None:
    assert run_store.list_command(run_store.RESULTS).endswith("python -m harness list")
    assert run_store.list_command(Path("my results")).endswith("list --results 'my results'")


def test_find_unique_prefix_returns_the_record(tmp_path: Path) -> None:
    run_store.save_record(tmp_path, RECORD)
    assert run_store.find(tmp_path, SPEC.id[:12]) == RECORD
    longer = replace(RECORD, id=SPEC.id + "0")
    run_store.save_record(tmp_path, longer)
    assert run_store.find(tmp_path, SPEC.id) == RECORD
    with pytest.raises(ValueError, match="2 ids begin with it"):
        run_store.find(tmp_path, SPEC.id[:12])
    with pytest.raises(ValueError, match=r"there is none in [^;]+; see"):
        run_store.find(tmp_path, "nothing")
    variant = SPEC.id.partition("-")[0]
    with pytest.raises(ValueError, match=rf"; did you mean {variant!r}\?$"):
        run_store.find(tmp_path, f"{variant[:-1]}-")
