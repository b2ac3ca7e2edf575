"""Two runners share a results folder, and runs survive the end of their runner."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_runs import (
    PATIENCE_SECONDS,
    QUICK,
    FaultyRuns,
    all_end,
    faulty,
    lock_holder,
    read_until,
    until,
)
from places import ROOT
from small_runs import OPTIONS

from harness.processes import exit_status
from harness.storage import locks, run_store

pytestmark = [pytest.mark.faults, pytest.mark.skipif(os.name != "posix", reason="sends signals")]


# Two runners ----------------------------------------------------------------------------------------------------------


@pytest.mark.sample
def test_run_of_another_process_is_awaited(runs: FaultyRuns) -> None:
    with lock_holder(runs.results, "ends") as holder:
        outcome = runs.execute(faulty("sound"), faulty("sound", seed=1), jobs=1)
    records = {record.spec.seed: record for record in outcome.records}
    assert {seed: record.status for seed, record in records.items()} == {0: "diverged", 1: "completed"}
    assert records[0].note == "by the lock holder"
    assert runs.starts() == {"sound-1": 1}
    assert f"{faulty('sound').id}: is being run by process {holder.pid} on " in runs.output
    assert "diverged by another process" in runs.output
    assert not runs.locks()


@pytest.mark.sample
def test_run_of_a_process_that_dies_is_taken_over(runs: FaultyRuns) -> None:
    with lock_holder(runs.results, "dies"):
        outcome = runs.execute(faulty("sound"))
    assert [record.status for record in outcome.records] == ["completed"]
    assert "is gone and left it unfinished; resuming it" in runs.output
    assert runs.starts() == {"sound-0": 1}


def test_run_locked_between_check_and_start_is_awaited(runs: FaultyRuns) -> None:
    """The lock is free when the runner looks, taken when its process does, and free again when that has ended."""
    hold, stack, holders = locks.hold, contextlib.ExitStack(), []

    @contextlib.contextmanager
    def overtaken(results: Path, run: str) -> Iterator[None]:
        if holders:
            holders[0].kill()
            holders[0].wait()
        with hold(results, run):
            yield
        if not holders:
            holders.append(stack.enter_context(lock_holder(runs.results, "dies", seconds=600)))

    runs.patch.setattr(locks, "hold", overtaken)
    with stack:
        (record,) = runs.execute(faulty("sound")).records
    assert record.status == "completed"
    assert runs.starts() == {"sound-0": 1}
    assert f"is being run by process {holders[0].pid} on " in runs.output


def test_run_command_on_a_locked_run_is_one_line(runs: FaultyRuns) -> None:
    command = [sys.executable, "-m", "harness", "run", "faulty_models:build_sound", *OPTIONS]
    command += ["--results", str(runs.results), "--set", "updates=3"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    run = next(line for line in process.stdout.splitlines() if line.startswith("faulty_models")).partition(":")[0]
    run_store.remove_record(runs.results, run)
    with locks.hold(runs.results, run):
        process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert process.returncode == 2
    assert process.stderr.startswith(f"bakeoff: {run}: is being run by process {os.getpid()} on ")
    assert process.stderr.count("\n") == 1
    assert runs.starts() == {"sound-0": 1}


def test_two_runners_share_the_runs(runs: FaultyRuns) -> None:
    runners = [runs.runner(), runs.runner()]
    outputs = [runner.communicate(timeout=PATIENCE_SECONDS)[0] for runner in runners]
    assert [runner.returncode for runner in runners] == [0, 0], outputs
    assert runs.starts() == {"slow-0": 1, "slow-1": 1, "slow-2": 1}
    assert len(runs.statuses()) == 3
    assert "is being run by process" in "".join(outputs)
    assert not runs.locks()


@pytest.mark.sample
def test_folder_without_locks_is_refused(runs: FaultyRuns) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    runs.patch.setattr("fcntl.flock", refuse)
    with pytest.raises(locks.NoLocks, match=r"run\.lock: cannot be locked \(No locks available\): expected a folder"):
        runs.execute(faulty("sound"))
    assert not runs.starts()


# The end of the runner ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[pytest.mark.sample] * (number == signal.SIGTERM), id=number.name)
        for number in exit_status.LOST[1:]
    ],
)
def test_runner_receiving_a_signal_interrupts_its_runs(runs: FaultyRuns, number: signal.Signals) -> None:
    with runs.bench() as process:
        read_until(process, "epoch 1/3: training loss", 2)
        process.send_signal(number)
        output = process.stdout.read()
    assert process.returncode == 128 + number
    assert "Traceback" not in output
    assert "0 of 3 runs are done, 2 started, 1 not started. Repeat the command to continue." in output
    assert runs.statuses() == ["interrupted"] * 2
    assert all("of 21 updates" in record.reason for record in run_store.records(runs.results))
    assert all_end(_two_processes(runs))
    assert not runs.locks()


def _two_processes(runs: FaultyRuns) -> list[int]:
    processes = [process for seed in range(2) for process in runs.processes(f"slow-{seed}")]
    assert len(processes) == 2
    return processes


def test_repeated_command_runs_all_but_completed_runs(runs: FaultyRuns) -> None:
    kinds = ("sound", "killed_once", "terminated_once")
    outcome = runs.execute(*map(faulty, kinds), limits=replace(QUICK, retries=0))
    statuses = {record.spec.variant: record.status for record in outcome.records}
    assert [statuses[faulty(kind).variant] for kind in kinds] == ["completed", "failed", "interrupted"]
    path = runs.results / faulty("sound").id / run_store.RECORD
    before = path.stat()
    outcome = runs.execute(*map(faulty, (*kinds, "out_of_memory")))
    statuses = {record.spec.variant: record.status for record in outcome.records}
    assert [statuses[faulty(kind).variant] for kind in kinds] == ["completed"] * 3
    assert statuses[faulty("out_of_memory").variant] == "failed"
    assert runs.starts() == {"sound-0": 1, "killed_once-0": 2, "terminated_once-0": 2, "out_of_memory-0": 1}
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_runs_of_a_killed_runner_interrupt_themselves_and_resume(runs: FaultyRuns) -> None:
    with runs.runner() as process:
        read_until(process, "epoch 1/3: training loss", 2)
        process.kill()
    assert all_end(_two_processes(runs))
    assert runs.statuses() == ["interrupted"] * 2
    with runs.runner() as process:
        output = process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert process.returncode == 0
    assert output.count("continues after update") == 2


def test_runs_of_a_killed_runner_end_within_an_update(runs: FaultyRuns) -> None:
    with runs.runner("hanging_until_sigterm") as process:
        read_until(process, "epoch 1/3: training loss", 2)
        assert until(lambda: len(runs.processes("hanging")) == 2)
        process.kill()
    assert all_end(runs.processes("hanging"))


IGNORING_SIGTERM = """
import signal, subprocess, sys, time
from harness.processes.signals import exit_with_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
exit_with_parent(grace_seconds=1.0)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_process_ignoring_sigterm_ends_with_its_parent() -> None:
    command = [sys.executable, "-c", IGNORING_SIGTERM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, start_new_session=True, **pipes) as process:
        child = int(process.stdout.readline())
        assert process.poll() is None
        process.stdin.close()
        assert all_end([process.pid, child])


def test_second_ctrl_c_ends_the_runner_immediately(runs: FaultyRuns) -> None:
    with runs.bench("--variant", "faulty_models:build_hanging", "--seed", "0") as process:
        assert until(lambda: len(runs.processes("hanging")) == 1)
        process.send_signal(signal.SIGINT)
        read_until(process, "writes its checkpoint and ends")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_SECONDS)
    assert process.returncode == 130
    assert all_end(runs.processes("hanging"))
    assert time.monotonic() - began < 10
