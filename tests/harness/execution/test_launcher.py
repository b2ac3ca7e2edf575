"""The loop of all launchers: claims, locks, runs of other processes, records and signals."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from remote_runs import SETTINGS, ReactingStream
from small_runs import spec

from harness.execution import launcher as launchers
from harness.execution.launcher import Launcher, NoRecord, RunHandle
from harness.experiments.specs import RunSpec
from harness.processes import progress_display
from harness.processes.progress import Event
from harness.storage import locks, run_store
from harness.storage.records import RunRecord


def record_of(run: RunSpec, status: str = "completed", **fields: str) -> RunRecord:
    return RunRecord(id=run.id, spec=run, status=status, **fields)  # type: ignore[arg-type]


@dataclass(kw_only=True, eq=False)
class InstantLauncher(Launcher[RunHandle]):
    """Ends every run at the next poll. `finish` stores its record; by default it completes."""

    finish: Callable[[Path, RunSpec], RunRecord | None] = lambda results, run: record_of(run)
    is_endless: bool = False
    events: list[str] = field(default_factory=list)

    def start(self, spec: RunSpec) -> RunHandle:
        self.events.append(f"start {spec.seed}")
        return RunHandle(spec=spec)

    def poll(self) -> list[RunHandle]:
        return [] if self.is_endless and not self.stopping else list(self.running.values())

    def collect(self, handle: RunHandle) -> RunRecord | None:
        assert locks.is_held(self.results, handle.spec.id)
        record = self.finish(self.results, handle.spec)
        if record is not None:
            run_store.save_record(self.results, record)
        return record

    def interrupt(self) -> None:
        self.events.append("interrupt")

    def kill(self) -> None:
        self.events.append("kill")


class LockingLauncher(InstantLauncher):
    """Holds the locks of its runs itself, as the launcher of Ray does."""

    holds_locks: ClassVar[bool] = True


RUNS = [spec(seed=seed) for seed in range(3)]
BOTH = pytest.mark.parametrize("kind", [InstantLauncher, LockingLauncher])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(launchers, "KILL_SECONDS", 0.1)


@BOTH
def test_runs_are_started_once_and_their_records_returned(kind: type[InstantLauncher], tmp_path: Path) -> None:
    run_store.save_record(tmp_path, record_of(RUNS[1], "diverged"))
    run_store.save_record(tmp_path, record_of(RUNS[2], "failed", reason="an earlier failure"))
    launcher = kind(specs=RUNS, results=tmp_path, stream=io.StringIO(), settings=SETTINGS)
    outcome = launcher.execute()
    assert launcher.events == ["start 0", "start 2"], "a finished run is not started"
    assert {record.spec.seed: record.status for record in outcome.records} == {
        0: "completed",
        1: "diverged",
        2: "completed",
    }
    assert outcome.signal is None
    assert not list(tmp_path.glob(f"*/{locks.LOCK}"))


def test_launcher_has_at_most_the_given_number_of_runs_in_progress(tmp_path: Path) -> None:
    in_progress = []

    def finish(results: Path, run: RunSpec) -> RunRecord:
        in_progress.append(len(launcher.running) + 1)
        return record_of(run)

    launcher = InstantLauncher(specs=RUNS, results=tmp_path, stream=io.StringIO(), most_at_once=2, finish=finish)
    launcher.execute()
    assert max(in_progress) == 2


@BOTH
def test_run_that_leaves_no_record_fails_with_the_reason(kind: type[InstantLauncher], tmp_path: Path) -> None:
    def finish(results: Path, run: RunSpec) -> RunRecord:
        if run.seed == 0:
            raise NoRecord("its node is gone")
        if run.seed == 1:
            raise OSError("no space left")
        return record_of(run)

    stream = io.StringIO()
    outcome = kind(specs=RUNS, results=tmp_path, stream=stream, settings=SETTINGS, finish=finish).execute()
    records = {record.spec.seed: record for record in outcome.records}
    assert [records[seed].status for seed in range(3)] == ["failed", "failed", "completed"]
    assert records[0].reason == "its node is gone"
    assert records[1].reason == "its record cannot be stored: no space left"
    assert (records[0].command, records[0].note) == ("the command", "a note")
    assert run_store.load_record(tmp_path, RUNS[0].id) == records[0]
    assert f"{RUNS[0].id}: failed: its node is gone (its log: " in stream.getvalue()


def test_run_without_a_result_is_started_again(tmp_path: Path) -> None:
    results = iter([None, record_of(RUNS[0])])
    launcher = InstantLauncher(
        specs=RUNS[:1], results=tmp_path, stream=io.StringIO(), finish=lambda folder, run: next(results)
    )
    assert [record.status for record in launcher.execute().records] == ["completed"]
    assert launcher.events == ["start 0", "start 0"]


@BOTH
@pytest.mark.parametrize(
    ("status", "starts", "line"),
    [
        ("diverged", [], "diverged by another process"),
        ("failed", [], "failed by another process"),
        ("interrupted", ["start 0"], "left it unfinished; resuming it"),
        (None, ["start 0"], "left it unfinished; resuming it"),
    ],
)
def test_run_of_another_process_is_waited_for(
    kind: type[InstantLauncher], status: str | None, starts: list[str], line: str, tmp_path: Path
) -> None:
    locked, release = threading.Event(), threading.Event()

    def other_process() -> None:
        with locks.hold(tmp_path, RUNS[0].id):
            locked.set()
            release.wait()
            if status is not None:
                run_store.save_record(tmp_path, record_of(RUNS[0], status, reason="theirs"))

    other = threading.Thread(target=other_process)
    other.start()
    locked.wait()
    stream = ReactingStream(lambda text: "is skipped, and waited for at the end" in text, release.set)
    launcher = kind(specs=RUNS[:2], results=tmp_path, stream=stream, settings=SETTINGS)
    outcome = launcher.execute()
    other.join()
    assert line in stream.getvalue()
    assert launcher.events == ["start 1", *starts]
    assert {record.spec.seed: record.status for record in outcome.records} == {
        0: status if not starts else "completed",
        1: "completed",
    }


@pytest.mark.parametrize(("runs", "end"), [(RUNS[:1], "preparing\n"), (RUNS, "preparing; 0 of 3 runs done\n")])
def test_progress_counts_runs_only_if_there_are_several(
    runs: list[RunSpec], end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.0)
    stream = io.StringIO()
    launcher = InstantLauncher(specs=runs, results=tmp_path, stream=stream)
    launcher.display(Event(run=runs[0].id, stage="preparing"))
    assert stream.getvalue().endswith(end), "a node of a cluster has one run of many"


@BOTH
@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
def test_signal_interrupts_runs_in_progress_and_starts_no_more(kind: type[InstantLauncher], tmp_path: Path) -> None:
    launcher = kind(
        specs=RUNS,
        results=tmp_path,
        stream=io.StringIO(),
        most_at_once=2,
        is_endless=True,
        finish=lambda results, run: record_of(run, "interrupted"),
    )
    start = launcher.start

    def start_and_signal(run: RunSpec) -> RunHandle:
        if run.seed == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return start(run)

    launcher.start = start_and_signal  # type: ignore[method-assign]
    outcome = launcher.execute()
    assert outcome.signal == signal.SIGTERM
    assert launcher.events == ["start 0", "start 1", "interrupt"]
    assert [record.status for record in outcome.records] == ["interrupted"] * 2
    assert not list(tmp_path.glob(f"*/{locks.LOCK}"))


@BOTH
@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
def test_run_that_does_not_end_in_time_is_killed(kind: type[InstantLauncher], tmp_path: Path) -> None:
    launcher = kind(specs=RUNS[:2], results=tmp_path, stream=io.StringIO(), grace_seconds=0.1)
    launcher.has_started = lambda handle: handle.spec.seed == 0  # type: ignore[method-assign]

    def poll() -> list[RunHandle]:
        if not launcher.stopping:
            os.kill(os.getpid(), signal.SIGTERM)
        return []

    launcher.poll = poll  # type: ignore[method-assign]
    outcome = launcher.execute()
    assert launcher.events == ["start 0", "start 1", "interrupt", "kill"]
    (record,) = outcome.records
    assert (record.spec.seed, record.status) == (0, "interrupted")
    assert "did not end in time" in record.reason
    assert run_store.load_record(tmp_path, RUNS[1].id) is None, "it had not started"
    assert not list(tmp_path.glob(f"*/{locks.LOCK}"))
