"""Fixtures of the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import TINY, spec

from harness.storage.records import RunRecord
from harness.training import train


@pytest.fixture(scope="module")
def trained(offline: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """Return a folder of results with a completed run, and its record."""
    results = tmp_path_factory.mktemp("results")
    return results, train.run(spec("learned_positions", TINY, updates=2), results)
