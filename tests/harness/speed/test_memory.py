"""The peak of memory is reset where the system can do so; elsewhere nothing fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.speed import memory


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_reset_peak_without_glibc_and_proc_is_false(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str | None) -> None:
        raise error("argument of type 'NoneType' is not iterable")

    monkeypatch.setattr(memory.ctypes, "CDLL", refuse)
    monkeypatch.setattr(memory, "CLEAR_REFS", tmp_path / "missing" / "clear_refs")
    assert not memory.reset_peak()
