"""`clean` removes leftovers and nothing else."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from record_factory import record

from harness.cli.main import main
from harness.data import cache
from harness.storage import checkpoint_files, locks, run_store
from harness.training import reuse

OLD_SECONDS = 7_200


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run with a checkpoint and a lock, an unfinished one with a checkpoint, and partial writes."""
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))
    results = tmp_path / "results"
    for seed, status in enumerate(("completed", "interrupted")):
        run = replace(record(seed=seed), status=status)
        run_store.save_record(results, run)
        checkpoint_files.save(results, run.id, {"a": np.zeros(1_000, np.float32)}, {})
    (results / finished(results) / locks.LOCK).write_text("{}\n")
    for path in (
        results / finished(results) / ".record.json.x.bakeoff.partial",
        tmp_path / "cache/prepared/.writing-a/it",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10)
        os.utime(path, (0, time.time() - OLD_SECONDS))
    os.utime(tmp_path / "cache/prepared/.writing-a", (0, time.time() - OLD_SECONDS))
    (tmp_path / "cache/prepared/.writing-new").mkdir()
    return tmp_path


def finished(results: Path) -> str:
    """Return the id of the finished run."""
    return next(run.id for run in run_store.records(results) if run.status == "completed")


def paths_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_clean_dry_run_lists_and_removes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = paths_in(folder)
    assert main(["clean", "--dry-run", "--results", str(folder / "results")]) == 0
    assert paths_in(folder) == before
    output = capsys.readouterr().out
    assert "checkpoint-1.safetensors" in output
    assert "5 leftovers" in output


def test_clean_removes_leftovers_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, results = paths_in(folder), folder / "results"
    run = finished(results)
    assert main(["clean", "--results", str(results)]) == 0
    assert before - paths_in(folder) == {
        f"results/{run}/checkpoint-1.json",
        f"results/{run}/checkpoint-1.safetensors",
        f"results/{run}/run.lock",
        f"results/{run}/.record.json.x.bakeoff.partial",
        "cache/prepared/.writing-a",
        "cache/prepared/.writing-a/it",
    }
    assert main(["clean", "--results", str(results)]) == 0
    assert capsys.readouterr().out.endswith("Nothing to clean.\n")


def test_clean_leaves_what_the_cache_has_not_written(folder: Path) -> None:
    names = [f"prepared/{'a' * 64}/it", "multi30k/.train.de.x.bakeoff.partial", "prepared/mine/it", "multi30k/.mine"]
    for path in (cache.folder() / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        for changed in (path, path.parent):
            os.utime(changed, (0, time.time() - OLD_SECONDS))
    assert main(["clean", "--results", str(folder / "results")]) == 0
    assert [name for name in names if (cache.folder() / name).exists()] == ["prepared/mine/it", "multi30k/.mine"]


def test_clean_locked_run_is_left_alone(folder: Path) -> None:
    results = folder / "results"
    with locks.hold(results, finished(results)):
        before = {path for path in paths_in(folder) if "results" in path}
        assert main(["clean", "--results", str(results)]) == 0
        assert {path for path in paths_in(folder) if "results" in path} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [([], ""), (["--results", "typo"], "typo: there is no such folder"), (["--experiment", "e"], "results/local/e: ")],
)
def test_clean_names_a_missing_folder_unless_it_is_the_default(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    assert main(["clean", *options]) == (2 if message else 0)
    printed = capsys.readouterr()
    assert message in printed.err if message else printed.out == "Nothing to clean.\n"
    assert list(tmp_path.iterdir()) == []


def test_write_entry_removes_abandoned_partial_writes(folder: Path) -> None:
    cache.write_entry(cache.folder() / "prepared" / "a", {}, {"it": b"x"})
    assert sorted(path.name for path in (cache.folder() / "prepared").iterdir()) == [".writing-new", "a"]


def test_reusable_records_finished_run_loses_its_checkpoint(folder: Path) -> None:
    results = folder / "results"
    runs = run_store.records(results)
    (done,) = reuse.reusable_records(results, [run.spec for run in runs])
    assert [run.id for run in runs if not checkpoint_files.exists(results, run.id)] == [done.id]
