"""Fixtures for the tests of data."""

from __future__ import annotations

import pytest
from fault_server import DIGESTS, closed_port

from harness.data import multi30k


@pytest.fixture
def small_multi30k(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Multi30k by two lines per file, with an empty cache, no folder and no server."""
    monkeypatch.setattr(multi30k, "DIGESTS", DIGESTS)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", closed_port())
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
