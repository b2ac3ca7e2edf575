"""Signals in every phase of a run: it ends with a checkpoint and resumes without loss. And `SignalGuard`."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import counting_model
import psutil
import pytest
from killed_runs import outcome
from signalled_run import COMPILING_SECONDS, NUMBERS, PHASES, UPDATES, arguments
from small_runs import spec

from harness.experiments.specs import RunSpec
from harness.processes.progress import Event
from harness.processes.signals import Interrupted, SignalGuard
from harness.storage import checkpoint_files, run_store
from harness.storage.records import RunRecord
from harness.training import train

CASES = [(phase, name) for phase in PHASES for name in NUMBERS]
SAMPLE = {
    ("checking", "SIGINT"),
    ("tokenising", "SIGHUP"),
    ("training", "SIGTERM"),
    ("translating", "SIGINT"),
    ("storing", "SIGTERM"),
}
OBEYED_SECONDS = 5.0

UPDATES_AT = {
    "tokenising": (None, None),
    "building": (None, None),
    "checking": (0, None),
    "resuming": (0, None),
    "compiling": (1, 1),
    "training": (10, 10),
    "validating": (14, 14),
    "translating": (21, 21),
    "storing": (21, 21),
}
"""The updates that are done when the signal arrives in a phase, and those in the checkpoint; None for none."""


@pytest.fixture(scope="module", autouse=True)
def _compiling(processes: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting_model, "COMPILING_SECONDS", COMPILING_SECONDS)
        yield


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunSpec], dict[str, Any]]:
    """Return a function that returns the outcome of a run without signals."""

    def of(run: RunSpec) -> dict[str, Any]:
        results = tmp_path_factory.mktemp("straight")
        train.run(run, results)
        return outcome(results, run)

    return functools.cache(of)


def run_with_signal(phase: str, name: str, results: Path, cache: Path) -> tuple[int, float]:
    """Return the exit code of a run that receives a signal, and the seconds from the signal to its end."""
    moment = results / "moment"
    results.mkdir(exist_ok=True)
    moment.write_text(str(time.time()))
    process = subprocess.Popen(
        [sys.executable, "-m", "signalled_run", phase, name, str(results), str(moment)],
        env={**os.environ, "BAKEOFF_CACHE": str(cache)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(timeout=120)
        seconds = time.time() - float(moment.read_text())
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    moment.unlink()
    return code, seconds


def only_record(results: Path) -> RunRecord:
    (record,) = run_store.records(results)
    return record


@pytest.mark.parametrize(
    ("phase", "name"), [pytest.param(*case, marks=[] if case in SAMPLE else [pytest.mark.faults]) for case in CASES]
)
def test_run_receiving_a_signal_ends_with_a_checkpoint(
    phase: str,
    name: str,
    straight: Callable[[RunSpec], dict[str, Any]],
    cache: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    prepared = tmp_path_factory.mktemp("empty") if phase == "tokenising" else cache
    code, seconds = run_with_signal(phase, name, tmp_path, prepared)
    assert code == 128 + NUMBERS[name]
    assert seconds < OBEYED_SECONDS
    record, (updates, saved) = only_record(tmp_path), UPDATES_AT[phase]
    assert record.status == "interrupted"
    after = "before its training" if updates is None else f"after {updates} of {UPDATES} updates"
    assert record.reason == f"interrupted by {name} {after}"
    saved_updates: list[Any] = []
    checkpoint_files.load(
        tmp_path, record.id, lambda _, notes: saved_updates.append(notes["updates"]), saved_updates.append
    )
    assert saved_updates == ([] if saved is None else [saved])
    resumed = train.run(record.spec, tmp_path)
    assert outcome(tmp_path, record.spec) == straight(record.spec)
    assert resumed.environment["resumed_after_updates"] == saved_updates


def test_second_ctrl_c_ends_immediately(cache: Path, tmp_path: Path) -> None:
    code, seconds = run_with_signal("twice", "SIGINT", tmp_path, cache)
    assert code == 128 + signal.SIGINT
    assert seconds < 1.0
    assert run_store.records(tmp_path) == []


def test_signal_ignored_at_start_stays_ignored(cache: Path, tmp_path: Path) -> None:
    assert run_with_signal("ignored", "SIGHUP", tmp_path, cache)[0] == 0
    assert only_record(tmp_path).status == "completed"


@pytest.mark.usefixtures("every_update")
def test_checkpoint_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = SignalGuard()

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "checkpoint-1.json")

    def report(event: Event) -> None:
        if event.updates:
            guard.receive(signal.SIGTERM)

    monkeypatch.setattr(checkpoint_files, "save", refuse)
    record = train.run(spec(), tmp_path, progress=report, guard=guard)
    assert record.status == "interrupted"
    assert re.fullmatch("interrupted by SIGTERM after 1 of 21 updates; OSError: .*No space left.*", record.reason)


def test_closed_terminal_is_an_interruption_and_no_failure(tmp_path: Path) -> None:
    """It sends SIGHUP, and nothing can be written to it any more."""
    words = [word.replace("build_compiling", "build_slow") for word in arguments(tmp_path)]
    terminal, program_end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *words],
        stdin=program_end,
        stdout=program_end,
        stderr=program_end,
        start_new_session=True,
    )
    os.close(program_end)
    output = b""
    while b"epoch 1/3: training loss" not in output:
        assert process.poll() is None, output
        output += os.read(terminal, 4096)
    os.close(terminal)
    process.send_signal(signal.SIGHUP)  # the system sends its own to the session of the terminal
    assert process.wait(60) == 128 + signal.SIGHUP
    assert only_record(tmp_path).status == "interrupted"


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    """Restore the signals that are ignored if this process was started by nohup or in the background."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in NUMBERS.values()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS.values())
def test_guard_records_a_signal_and_check_raises_it(number: int) -> None:
    with SignalGuard() as guard:
        os.kill(os.getpid(), number)
        assert guard.received == number
        with pytest.raises(Interrupted, match=f"interrupted by {signal.Signals(number).name}") as caught:
            guard.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert guard.received == number, "the first one"
    assert (caught.value.number, caught.value.exit_code) == (number, 128 + number)
    assert signal.getsignal(number) == signal.SIG_DFL


def test_guard_interruptible_block_raises_immediately() -> None:
    events: list[Any] = []
    with SignalGuard() as guard:
        for number in (signal.SIGTERM, 0):
            try:
                with guard.interruptible():
                    os.kill(os.getpid(), number)
                    events.append(number)
            except Interrupted:
                events.append("interrupted")
        os.kill(os.getpid(), signal.SIGTERM)
        events.append("outside")
    assert events == ["interrupted", "interrupted", "outside"]


def test_guard_raises_a_signal_that_was_swallowed_or_became_another_exception() -> None:
    def importing() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise RuntimeError("cannot be imported") from error

    with SignalGuard() as guard:
        with pytest.raises(RuntimeError, match="its own"), guard.interruptible():
            raise RuntimeError("its own")
        with pytest.raises(Interrupted), guard.interruptible():
            importing()
    swallowing = contextlib.suppress(KeyboardInterrupt)
    with SignalGuard() as guard, pytest.raises(Interrupted), guard.interruptible(), swallowing:
        os.kill(os.getpid(), signal.SIGTERM)


def test_guard_in_another_thread_installs_no_handler() -> None:
    before, values = signal.getsignal(signal.SIGTERM), list[Any]()

    def use_guard() -> None:
        with SignalGuard() as guard:
            values.append(signal.getsignal(signal.SIGTERM))
            guard.receive(signal.SIGTERM)
            values.append(guard.received)

    thread = threading.Thread(target=use_guard)
    thread.start()
    thread.join()
    assert values == [before, signal.SIGTERM]


def test_guards_leave_no_thread_and_no_file() -> None:
    files = psutil.Process().num_fds
    before = files(), threading.active_count()
    for _ in range(20):
        with SignalGuard():
            pass
    until = time.monotonic() + 5
    while (files(), threading.active_count()) != before and time.monotonic() < until:
        time.sleep(0.01)
    assert (files(), threading.active_count()) == before
