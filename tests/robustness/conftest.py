"""Fixtures for the tests of robustness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_runs import FaultyRuns
from hostile_files import write_valid
from small_runs import DATA

from harness.data.dataset import prepare


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with two complete runs and its own cache."""
    folder = tmp_path_factory.mktemp("valid")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(folder / "cache"))
        write_valid(folder)
        yield folder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: None) -> FaultyRuns:
    prepare(DATA)
    return FaultyRuns(tmp_path, monkeypatch)
