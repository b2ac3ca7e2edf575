"""How the end of a process is described, and how kills for lack of memory are counted."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from harness.processes import exit_status


@pytest.mark.parametrize(
    ("code", "out_of_memory", "text"),
    [
        (3, False, "its process ended with code 3"),
        (0, False, "its process ended with code 0 and left no complete record"),
        (-signal.SIGKILL, False, "killed by SIGKILL; often because memory is exhausted"),
        (-signal.SIGKILL, True, "killed by SIGKILL: out of memory (the kernel's OOM killer)"),
        (-signal.SIGSEGV, True, "killed by SIGSEGV; a fault in compiled code"),
        (-signal.SIGUSR1, False, "killed by SIGUSR1"),
        (-200, False, "killed by signal 200"),
    ],
)
def test_describe_names_code_or_signal_with_its_hint(code: int, out_of_memory: bool, text: str) -> None:
    assert exit_status.describe(code, out_of_memory=out_of_memory) == text


@pytest.mark.parametrize(
    ("code", "is_lost"), [(-9, True), (-15, True), (-2, True), (-6, False), (0, False), (9, False)]
)
def test_lost_is_an_end_by_a_signal_from_another_process(code: int, is_lost: bool) -> None:
    assert exit_status.lost(code) is is_lost


def test_out_of_memory_kills_is_the_count_of_the_first_file_that_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, narrow, wide = (tmp_path / name for name in ("without", "narrow", "wide"))
    without.write_text("low 0\noom 5\n")
    narrow.write_text("low 0\noom 4\noom_kill 3\n")
    wide.write_text("oom_kill 70\n")
    for paths, count in (([tmp_path / "missing", without, narrow, wide], 3), ([without], 0)):
        monkeypatch.setattr(exit_status, "_counters", lambda paths=paths: paths)
        assert exit_status.out_of_memory_kills() == count
