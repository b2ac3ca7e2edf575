"""Fixtures for the tests of robustness."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_runs import FaultyRuns
from small_runs import DATA

from harness.data.dataset import prepare


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: None) -> FaultyRuns:
    prepare(DATA)
    return FaultyRuns(tmp_path, monkeypatch)
