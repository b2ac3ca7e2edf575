"""Logs of runs: cut to a size, and their last lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.storage import logs


def test_cut_keeps_the_first_and_the_last_bytes_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", 100)
    monkeypatch.setattr(logs, "KEPT_BYTES", 10)
    path = tmp_path / "log"
    path.write_bytes(b"y" * 100)
    assert not logs.cut(path)
    assert logs.size(path) == 100
    path.write_bytes(b"first line" + b"x" * 200 + b"last lines")
    assert logs.cut(path)
    remark = b"\n[the middle of this log, which was longer than 100 bytes, has been removed]\n"
    assert path.read_bytes() == b"first line" + remark + b"last lines"
    assert not logs.cut(tmp_path / "missing")


def test_last_lines_are_printable_short_and_have_letters(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"early\nzero\n--- \none\n\n\x1b[2J two\xff\n" + b"x" * 300 + b"\n***\n")
    *others, longest = logs.last_lines(path)
    assert others == ["one", "[2J two\N{REPLACEMENT CHARACTER}"]
    assert longest == f"{'x' * logs.LINE_CHARACTERS} …"
    assert logs.last_lines(path, since=len("early\nzero\n--- \none\n")) == [others[1], longest]
    assert logs.last_lines(path, since=10**6)[-1] == longest, "a log that was cut meanwhile"
    assert logs.last_lines(tmp_path / "missing") == []
