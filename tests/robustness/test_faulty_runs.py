"""A run that crashes, is killed, hangs or floods its log ends in a record and does not affect other runs."""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from faulty_runs import QUICK, FaultyRuns, all_end, faulty, until

from harness.execution import local
from harness.execution.launcher import RunSettings
from harness.execution.local import LOST_PROCESSES
from harness.processes import exit_status, json_process
from harness.storage import logs, run_store
from harness.storage.records import RunRecord

pytestmark = [pytest.mark.faults, pytest.mark.skipif(os.name != "posix", reason="sends signals")]

KILLED = "killed by SIGKILL; often because memory is exhausted"
HUNG = "hung: no progress for 6 s"
HANGING = RunSettings(silence_seconds=6.0, grace_seconds=0.5)


# A run that ends badly by itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("raising", "RuntimeError: the planted fault; its log ends: File "),
        ("raising_beside_a_thread", "RuntimeError: the planted fault; its log ends: File "),
        ("out_of_memory", "MemoryError: Unable to allocate 8.00 PiB"),
        pytest.param("aborting", "killed by SIGABRT; abort() was called; its log ends: ", marks=pytest.mark.sample),
        ("segfaulting", "killed by SIGSEGV; a fault in compiled code; its log ends: epoch 1/3"),
        ("exiting", "its process ended with code 0 and left no complete record; its log ends: epoch"),
        pytest.param("half_record", "its process ended with code 0 and left no comp", marks=pytest.mark.sample),
    ],
)
def test_run_ending_badly_fails_with_its_reason(runs: FaultyRuns, kind: str, reason: str) -> None:
    record = runs.record_of(kind)
    assert record.status == "failed"
    assert record.reason.startswith(reason)
    # A Python exception leaves the epochs before it; a process that ends at once leaves none.
    assert len(record.curve) == (kind in {"raising", "raising_beside_a_thread", "out_of_memory"})
    assert "\x1b" not in record.reason + runs.output
    assert runs.starts()[f"{kind}-0"] == 1
    assert LOST_PROCESSES not in record.environment


def test_run_failing_again_does_not_keep_its_earlier_reason(runs: FaultyRuns) -> None:
    run = faulty("exiting")
    run_store.save_record(runs.results, RunRecord(id=run.id, spec=run, status="failed", reason="long ago"))
    assert runs.record_of("exiting").reason.startswith("its process ended with code 0")


@pytest.mark.parametrize("kind", ["leaving_a_child", pytest.param("leaving_a_session", marks=pytest.mark.sample)])
def test_run_leaving_a_child_ends_it(runs: FaultyRuns, kind: str) -> None:
    assert runs.record_of(kind).reason.startswith("its process ended with code 3; ")
    (child,) = runs.processes("children")
    assert all_end([child])


def test_run_flooding_its_log_shortens_it(runs: FaultyRuns) -> None:
    record = runs.record_of("flooding")
    assert record.status == "completed"
    path = run_store.log_path(runs.results, record.id)
    assert path.stat().st_size < logs.LOG_BYTES + 2_000_000
    log = path.read_bytes()
    assert b"longer than 8,000,000 bytes" in log
    assert log.startswith(b"epoch 1/3")
    assert b"epoch 3/3" in log
    assert "was shortened" in runs.output


# A run whose process is lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "limits", "reason"),
    [
        ("killed", replace(QUICK, retries=2), f"{KILLED}; earlier attempts lost: 2"),
        ("killed_once", replace(QUICK, retries=0), f"{KILLED}; its log ends: epoch 1/3"),
        ("hanging", replace(HANGING, retries=1), f"{HUNG}; earlier attempts lost: 1"),
    ],
)
def test_run_lost_repeatedly_fails_after_its_retries(
    runs: FaultyRuns, kind: str, limits: RunSettings, reason: str
) -> None:
    record = runs.record_of(kind, limits=limits)
    assert record.status == "failed"
    assert record.reason.startswith(reason)
    assert (
        record.environment.get(LOST_PROCESSES, []) == [reason.partition("; earlier attempts lost")[0]] * limits.retries
    )
    assert runs.starts()[f"{kind}-0"] == 1 + limits.retries
    assert all_end(runs.processes(f"{kind}-0"))
    assert ("it continues from its last checkpoint, if any (retry" in runs.output) == (limits.retries > 0)


@pytest.mark.sample
def test_run_killed_once_resumes_and_equals_an_undisturbed_run(runs: FaultyRuns) -> None:
    record = runs.record_of("killed_once")
    assert record.status == "completed"
    assert record.environment[LOST_PROCESSES] == [KILLED]
    assert "continues after update 7 of 21" in runs.output
    (undisturbed,) = runs.execute(faulty("sound")).records
    assert record.scores == undisturbed.scores
    assert record.fingerprints == undisturbed.fingerprints
    assert LOST_PROCESSES not in undisturbed.environment


@pytest.mark.parametrize(("kind", "reason"), [("terminated_once", "SIGTERM"), ("hanging_once", HUNG)])
def test_run_terminated_or_hanging_once_resumes(runs: FaultyRuns, kind: str, reason: str) -> None:
    record = runs.record_of(kind, limits=HANGING)
    assert record.status == "completed"
    (lost,) = record.environment[LOST_PROCESSES]
    assert reason in lost


def test_run_killed_by_oom_killer_names_it(runs: FaultyRuns) -> None:
    counter = runs.notes / "counter"
    counter.write_text("low 0\noom 3\noom_kill 3\n")
    runs.patch.setattr(exit_status, "_counters", lambda: [counter])
    record = runs.record_of("killed_for_memory", limits=replace(QUICK, retries=0))
    assert record.status == "failed"
    assert record.reason.startswith("killed by SIGKILL: out of memory (the kernel's OOM killer)")


def test_run_timing_out_fails_and_resumes_when_repeated(runs: FaultyRuns) -> None:
    slow = faulty("slow")
    (record,) = runs.execute(slow, limits=RunSettings(timeout_seconds=4.0, grace_seconds=30.0)).records
    assert record.status == "failed"
    assert record.reason.startswith("timed out after 4 s; its log ends: ")
    assert runs.starts() == {"slow-0": 1}
    (record,) = runs.execute(slow).records
    assert record.status == "completed"
    assert "continues after update" in runs.output


# The conditions of a run ----------------------------------------------------------------------------------------------


@pytest.mark.sample
def test_run_whose_process_cannot_start_fails_alone(runs: FaultyRuns) -> None:
    popen, refusals = subprocess.Popen, [OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))]

    def refuse_first(*arguments: object, **settings: object) -> object:
        if refusals:
            raise refusals.pop()
        return popen(*arguments, **settings)

    runs.patch.setattr(json_process.subprocess, "Popen", refuse_first)
    records = runs.execute(faulty("sound"), faulty("sound", seed=1)).records
    assert [record.status for record in records] == ["failed", "completed"]
    assert "could not be started: [Errno 11] Resource temporarily unavailable" in records[0].reason


def test_run_whose_record_cannot_be_written_fails_alone(runs: FaultyRuns) -> None:
    save = run_store.save_record

    def refuse(results: Path, record: RunRecord) -> Path:
        if "raising" in record.id:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "record.json")
        return save(results, record)

    runs.patch.setattr(run_store, "save_record", refuse)
    outcome = runs.execute(faulty("raising"), faulty("killed_once"))
    assert sorted(record.status for record in outcome.records) == ["completed", "failed"]
    assert "its record cannot be written: [Errno 28] No space left on device" in runs.output


@pytest.mark.sample
def test_too_many_jobs_for_the_limit_on_open_files_raise(runs: FaultyRuns) -> None:
    resource = pytest.importorskip("resource")
    runs.patch.setattr(resource, "getrlimit", lambda which: (90, 100))
    with pytest.raises(ValueError, match=r"jobs=13: expected at most 12 where a process may open 100 files"):
        runs.execute(*(faulty("sound", seed=seed) for seed in range(13)), jobs=200)
    raised = []
    runs.patch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    local.check_descriptors(12)
    assert raised == [(100, 100)]
    runs.patch.setattr(resource, "getrlimit", lambda which: (32, 32))
    with pytest.raises(ValueError, match=r"a process may open 32 files \(ulimit -n\): expected at least 67"):
        local.check_descriptors(1)


def test_200_failing_runs_leak_no_descriptors(runs: FaultyRuns) -> None:
    runs.patch.setattr(json_process.sys, "executable", "/bin/false")
    runs.execute(faulty("sound", seed=1000))
    before = psutil.Process().num_fds()
    outcome = runs.execute(*(faulty("sound", seed=seed) for seed in range(200)), jobs=8)
    assert [record.status for record in outcome.records] == ["failed"] * 200
    assert {record.reason for record in outcome.records} == {"its process ended with code 1; it printed nothing"}
    assert until(lambda: psutil.Process().num_fds() <= before)
