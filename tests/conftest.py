"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def multi30k_folder() -> Path:
    """Return the folder of Multi30k's files that MULTI30K_DIR names; skip where there is none."""
    chosen = os.environ.get("MULTI30K_DIR")
    if not chosen:
        pytest.skip("needs Multi30k: MULTI30K_DIR is not set")
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        pytest.skip(f"needs Multi30k: MULTI30K_DIR={chosen} is not a folder")
    return folder
