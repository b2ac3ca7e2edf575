"""Fixtures of the tests of commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import FIXTURES, ROOT
from small_runs import TINY, spec

from harness.storage.records import RunRecord
from harness.training import train


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty cache, no Multi30k, and one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("MULTI30K_DIR", str(tmp_path_factory.mktemp("empty") / "missing"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(FIXTURES), str(ROOT)]))
        yield


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands write into an empty folder, on a machine without GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.processes.machine.gpus", list)


@pytest.fixture(scope="module")
def trained(offline: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """Return a folder of results with a completed run, and its record."""
    results = tmp_path_factory.mktemp("results")
    return results, train.run(spec("learned_positions", TINY, updates=2), results)
