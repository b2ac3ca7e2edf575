"""Fixtures of the tests of commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import Trained
from small_runs import TINY, spec

from harness.storage import run_store
from harness.training import train


@pytest.fixture(scope="module")
def trained(offline: None, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return a folder of results with a completed run, and its record."""
    results = tmp_path_factory.mktemp("results")
    return results, train.run(spec("learned_positions", TINY, updates=2), results)


@pytest.fixture
def of_run(trained: Trained) -> list[str]:
    """Return the options that name the run of `trained`."""
    return ["--results", str(trained[0]), "--run", trained[1].id]


@pytest.fixture
def copied(trained: Trained, tmp_path: Path) -> Path:
    """Return a folder with the files of the run of `trained`, without its record and the counts of its sentences."""
    results, record = trained
    left_out = shutil.ignore_patterns(run_store.RECORD, run_store.SENTENCES)
    shutil.copytree(results / record.id, tmp_path / "copied" / record.id, ignore=left_out)
    return tmp_path / "copied"
