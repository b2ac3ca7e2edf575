"""Folders of valid runs for the tests of the rules."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from record_folders import write_set


@pytest.fixture(scope="module")
def valid(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two seeds of two variants, which pass every rule."""
    results = tmp_path_factory.mktemp("valid")
    write_set(results)
    return results


@pytest.fixture
def results(valid: Path, tmp_path: Path) -> Path:
    """Return a copy of the valid folder."""
    shutil.copytree(valid, tmp_path / "results")
    return tmp_path / "results"
