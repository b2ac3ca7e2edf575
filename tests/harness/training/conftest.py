"""Fixtures for the tests of training."""

from __future__ import annotations

import pytest

from harness.training import run_progress


@pytest.fixture
def every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs report their progress after every update."""
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
