"""A child process that answers requests in JSON, and everything that can happen to it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import PYTHON_PATH

from harness.processes.json_process import JsonProcess, ProcessFailed, RequestRefused, request_once

ENVIRONMENT = {"PYTHONPATH": PYTHON_PATH}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[JsonProcess]:
    with JsonProcess("json_echo", environment=ENVIRONMENT, log=tmp_path / "log", timeout_seconds=60.0) as child:
        yield child


def test_request_returns_the_value_whatever_is_printed(process: JsonProcess, tmp_path: Path) -> None:
    value = {"text": "\u2028 \U0001f600 \n", "numbers": [1, 2.5, None]}
    assert process.request("echo", **value) == value
    assert process.request("variable", name="PYTHONPATH") == PYTHON_PATH
    assert "printed, not answered" in (tmp_path / "log").read_text()


def test_request_refused_or_failed_leaves_the_process_usable(process: JsonProcess) -> None:
    with pytest.raises(RequestRefused, match="^field=3 is wrong$"):
        process.request("refuse", text="field=3\nis wrong")
    with pytest.raises(ProcessFailed, match="^IndexError: out of range$"):
        process.request("fail")
    assert process.request("echo") == {}


def test_request_to_a_process_that_exits_fails_with_its_last_lines(process: JsonProcess) -> None:
    with pytest.raises(ProcessFailed, match=r"^its process ended with code 3: first \| last words$"):
        process.request("exit_with", text="first\n last words\n", code=3)


def test_request_to_a_killed_process_fails_with_the_signal(process: JsonProcess) -> None:
    process.request("echo")
    os.kill(process._process.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(ProcessFailed, match="^killed by SIGKILL; .*: printed, not answered$"):
            process.request("echo")


def test_request_without_an_answer_in_time_kills_the_process(process: JsonProcess) -> None:
    process.request("echo")
    process._timeout = 0.3
    with pytest.raises(ProcessFailed, match="no answer within 0 s"):
        process.request("sleep", seconds=60)
    assert process._process.poll() is not None


def test_request_interrupted_by_its_check_kills_the_process() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    process = JsonProcess("json_echo", environment=ENVIRONMENT, check=interrupt)
    with pytest.raises(KeyboardInterrupt), process:
        process.request("sleep", seconds=60)
    assert process._process.poll() is not None


def test_process_whose_input_ends_exits_while_it_works(process: JsonProcess) -> None:
    process.request("echo")
    assert process._process.stdin is not None
    process._process.stdin.write('{"command": "sleep", "arguments": {"seconds": 60}}\n')
    process._process.stdin.close()
    assert process._process.wait(timeout=20) == 0


def test_idle_time_is_counted_from_the_second_request(process: JsonProcess) -> None:
    process.request("echo")
    assert process.idle_seconds == 0
    process.request("echo")
    assert process.idle_seconds > 0
    assert process.idle_cpu_seconds <= process.idle_seconds + 0.01  # the two clocks are read one after the other


def test_process_that_cannot_start_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ProcessFailed, match="its process cannot be started: No such file or directory"):
        request_once("json_echo", "echo", {})
