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

from harness.storage import files, run_store
from harness.storage.records import RunRecord
from harness.storage.run_store import Hypothesis

SPEC = spec()
RECORD = RunRecord(id=SPEC.id, spec=SPEC, status="completed", scores={"test_loss": 1.5})
HYPOTHESES = [Hypothesis(0, ("a", "\u2028", "dog"), "A dog\x85\u2028."), Hypothesis(1, (), "")]
ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "a.scalar": np.array(7, dtype=np.int64),
    "empty": np.zeros((0, 4), np.float64),
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_save_record_is_read_back(tmp_path: Path) -> None:
    path = run_store.save_record(tmp_path, RECORD)
    assert path == tmp_path / SPEC.id / "record.json"
    assert run_store.load_record(tmp_path, SPEC.id) == RECORD
    assert run_store.load_record(tmp_path, "another") is None
    assert run_store.finished(tmp_path, SPEC.id) == RECORD


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_finished_unfinished_record_is_none(tmp_path: Path, status: Any) -> None:
    run_store.save_record(tmp_path, replace(RECORD, status=status))
    assert run_store.finished(tmp_path, SPEC.id) is None


def test_save_record_not_finite_figures_become_none(tmp_path: Path) -> None:
    scores = {"a": math.nan, "b": math.inf, "c": np.float32(0.5)}
    path = run_store.save_record(tmp_path, replace(RECORD, scores=scores))  # type: ignore[arg-type]
    assert json.loads(path.read_text())["scores"] == {"a": None, "b": None, "c": 0.5}


def test_save_hypotheses_are_read_back(tmp_path: Path) -> None:
    digest = run_store.save_hypotheses(tmp_path, "run", HYPOTHESES)
    assert run_store.load_hypotheses(tmp_path, "run", digest) == HYPOTHESES
    lines = (tmp_path / "run" / "hypotheses.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert [sorted(json.loads(line)) for line in lines] == [["sentence", "text", "tokens"]] * 2


def test_save_weights_are_read_back_with_type_and_shape(tmp_path: Path) -> None:
    run_store.save_weights(tmp_path, "run", ARRAYS)
    loaded = run_store.load_weights(tmp_path, "run")
    assert sorted(loaded) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array, strict=True)


def test_write_json_not_finite_number_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, {"a": math.nan})
    assert json.loads(path.read_text()) == {"a": 1}
    assert names(tmp_path) == ["one.json"]


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
    with pytest.raises(ValueError, match="there is none"):
        run_store.find(tmp_path, "nothing")
