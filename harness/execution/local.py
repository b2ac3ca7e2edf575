"""Runs many specs, one process each, so many at once: what fails stays where it is, and the others go on."""

from __future__ import annotations

import contextlib
import queue
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from harness.execution.eta import Forecast
from harness.execution.launcher import Outcome, RunLimits
from harness.execution.retry_policy import Records, Running, Task
from harness.experiments.run_names import run_names
from harness.experiments.specs import RunSpec
from harness.processes import exit_status
from harness.processes.progress import Event, duration
from harness.processes.progress_display import Display
from harness.processes.signals import SignalGuard
from harness.processes.workers import Ended, Payload, Worker
from harness.storage import locks, logs, run_store
from harness.storage.records import RunRecord

TICK_SECONDS = 0.25
LOOK_SECONDS = 2.0
KILL_SECONDS = 10.0
SUSPENDED_SECONDS = 10.0
"""A longer time between two ticks means that this process was stopped itself, and heard nothing meanwhile."""

DESCRIPTORS = 3
SPARE_DESCRIPTORS = 64


def execute(
    specs: Sequence[RunSpec],
    results: Path,
    *,
    jobs: int,
    stream: TextIO,
    forecast: Forecast | None = None,
    command: str = "",
    note: str = "",
    terms: RunLimits | None = None,
    gpus: Sequence[str] = (),
) -> Outcome:
    """Run each spec in a process of its own, `jobs` at once, and show how far they are on `stream`.

    A run that fails leaves a record that says why, and the others go on. One whose process is lost goes on from its
    checkpoint. One that another process runs is passed over, and waited for at the end. A signal ends all in order;
    Ctrl-C after it ends them at once. Where there are several `gpus`, by the words that name them in
    CUDA_VISIBLE_DEVICES, each run on "cuda" sees one of them, the least busy.

    Raises: ValueError where this process may not open files enough for so many at once, or `results` has no locks.
    """
    jobs = min(jobs, len(specs))
    check_descriptors(jobs)
    told = {"command": command, "note": note}
    crew = _Crew(specs, results, stream, forecast or Forecast({}, jobs), terms or RunLimits(), told, gpus)
    with SignalGuard(on_second_interrupt=crew.kill) as watch:
        try:
            while crew.busy and watch.received is None:
                crew.start(jobs)
                crew.attend()
        finally:
            if crew.busy:
                crew.outcome.signal = watch.received
            crew.stop()
            crew.display.close()
    return crew.outcome


def check_descriptors(jobs: int) -> None:
    """See that this process may open the files that so many runs at once need; raise its limit where it may.

    Raises: ValueError where it may not.
    """
    if sys.platform == "win32":
        return
    import resource

    needed = jobs * DESCRIPTORS + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        most = max(1, (hard - SPARE_DESCRIPTORS) // DESCRIPTORS)
        raise ValueError(f"jobs={jobs}: expected at most {most} where a process may open {hard} files (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class _Crew:
    """The processes under way, the runs that wait for one, and those that other processes run."""

    def __init__(
        self,
        specs: Sequence[RunSpec],
        results: Path,
        stream: TextIO,
        forecast: Forecast,
        terms: RunLimits,
        told: dict[str, Any],
        gpus: Sequence[str],
    ) -> None:
        self.gpus = gpus
        self.results, self.forecast, self.terms, self.runs = results, forecast, terms, len(specs)
        self.stopping = False
        self.display = Display(
            stream,
            names={spec.id: name for spec, name in zip(specs, run_names(specs), strict=True)},
            overall=self._overall,
        )
        self.told = told
        self.records = Records(results, told, terms.retries, self.display.line)
        self.waiting = [Task(spec) for spec in specs]
        self.running: dict[str, Running] = {}
        self.elsewhere: dict[str, Task] = {}
        self.events: queue.Queue[Event | Ended] = queue.Queue(maxsize=10_000)
        self.outcome = Outcome()
        self.ticked = self.looked = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether any run is not over."""
        return bool(self.waiting or self.running or self.elsewhere)

    # Starting ---------------------------------------------------------------------------------------------------------

    def start(self, jobs: int) -> None:
        """Start the processes of as many waiting runs as may be at work at once."""
        while self.waiting and len(self.running) < jobs:
            task = self.waiting.pop(0)
            try:
                self._start(task)
            except locks.Locked as error:
                self._pass_over(task, str(error))
            except locks.NoLocks:
                raise
            except (OSError, ValueError) as error:
                self._close(self.records.failed(task, f"its process could not be started: {error}"))

    def _start(self, task: Task) -> None:
        """Start the process of a run, unless it has a record now. Raises: Locked where another process runs it."""
        run = task.spec.id
        with locks.hold(self.results, run):
            there = run_store.finished(self.results, run)
            if there is None:
                run_store.remove_record(self.results, run)
        if there is not None:
            self.display.line(f"{run}: {there.status} by another process")
            self._close(there)
            return
        terms = self.terms
        payload = Payload(
            spec=task.spec,
            checkpoint_seconds=terms.checkpoint_seconds,
            resume_anyway=terms.resume_anyway,
            score_every=terms.score_every,
            **self.told,
        )
        printed = logs.size(run_store.log_path(self.results, run))
        killed, now = exit_status.out_of_memory_kills(), time.monotonic()
        gpu = self._gpu(task.spec)
        worker = Worker(payload, self.results, self.events.put, gpu=gpu)
        self.running[run] = Running(task, worker, now, now, printed, killed, gpu=gpu)
        self.forecast.start(run)

    def _gpu(self, spec: RunSpec) -> str | None:
        """Return the GPU that a run is to see, or None where there is nothing to choose."""
        if spec.device != "cuda" or len(self.gpus) < 2:
            return None
        busy = Counter(one.gpu for one in self.running.values())
        return min(self.gpus, key=lambda gpu: busy[gpu])

    def _pass_over(self, task: Task, reason: str) -> None:
        """Leave a run to the process that runs it, for now."""
        run = task.spec.id
        self.elsewhere[run] = task
        self.forecast.put_back(run)
        self.display.line(f"{reason}; it is passed over and waited for at the end")
        self.display(Event(run=run, stage="elsewhere"))

    # Attending --------------------------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Wait a moment for what the processes tell, and look after those that tell nothing."""
        try:
            found = self.events.get(timeout=TICK_SECONDS)
        except queue.Empty:
            self._look()
            return
        running = self.running.get(found.run)
        if isinstance(found, Ended):
            self._end(self.running.pop(found.run), found.code)
        elif running is not None:
            running.heard = time.monotonic()
            if found.stage == "elsewhere":
                running.elsewhere = found.remark
                return
            self.forecast.note(found)
            self.display(found)
        if time.monotonic() - self.looked > LOOK_SECONDS:
            self._look()

    def _look(self) -> None:
        """End what takes too long, keep logs short, and see what other processes have come to."""
        now = time.monotonic()
        pause = now - self.ticked if now - self.ticked > SUSPENDED_SECONDS else 0.0
        self.ticked = now
        for one in self.running.values():
            one.began, one.heard = one.began + pause, one.heard + pause
            self._limit(one, now)
            if now >= one.kill_at:
                one.worker.kill()
        if now - self.looked < LOOK_SECONDS:
            return
        self.looked = now
        for one in self.running.values():
            self._cut_log(one)
        for task in list(self.elsewhere.values()):
            self._look_elsewhere(task)

    def _limit(self, one: Running, now: float) -> None:
        """Ask a process to end that has used up its time, or gives no sign of life."""
        terms = self.terms
        if one.verdict:
            return
        if terms.timeout_seconds is not None and now - one.began >= terms.timeout_seconds:
            one.verdict = f"timed out after {duration(terms.timeout_seconds)}"
        elif terms.silence_seconds is not None and now - one.heard >= terms.silence_seconds:
            one.verdict, one.again = f"hung: no sign of life for {duration(terms.silence_seconds)}", True
        else:
            return
        one.kill_at = now + terms.grace_seconds
        one.worker.ask_to_end()
        self.display.line(f"{one.worker.run}: {one.verdict}; asked to end, killed in {duration(terms.grace_seconds)}")

    def _cut_log(self, one: Running) -> None:
        with contextlib.suppress(OSError):
            if logs.cut(run_store.log_path(self.results, one.worker.run)):
                one.log_bytes = 0
                self.display.line(f"{one.worker.run}: its log grew beyond {logs.LOG_BYTES:,} bytes and was shortened")

    def _look_elsewhere(self, task: Task) -> None:
        """Take the record of a run that another process has ended; run it here where that left none."""
        run = task.spec.id
        try:
            with locks.hold(self.results, run):
                record = self.records.stored(run)
        except locks.Locked:
            self.display(Event(run=run, stage="elsewhere"))
            return
        except (OSError, ValueError) as error:
            record = self.records.failed(task, f"its lock cannot be held: {error}")
        del self.elsewhere[run]
        self.display(Event(run=run, stage="ended"))
        if record is None or record.status == "interrupted":
            self.display.line(f"{run}: the process that ran it is gone and left it unfinished; it goes on here")
            self.waiting.append(task)
            return
        self.display.line(f"{run}: {record.status} by another process")
        self._close(record)

    # Ending -----------------------------------------------------------------------------------------------------------

    def _end(self, one: Running, code: int) -> None:
        """Take the record of a process that has ended, write one where it left none, or try the run again."""
        task, run = one.task, one.task.spec.id
        self._cut_log(one)
        self.display(Event(run=run, stage="ended"))
        if one.elsewhere:
            self._pass_over(task, one.elsewhere)
            return
        try:
            with locks.hold(self.results, run):
                record = self.records.judge(one, code, last=self.stopping)
        except locks.Locked as error:
            self._pass_over(task, str(error))
            return
        except (OSError, ValueError) as error:
            record = self.records.failed(task, f"its record cannot be kept: {error}")
        if record is None:
            self.display.line(
                f"{run}: {task.lost[-1]}; it goes on from its last checkpoint "
                f"(retry {len(task.lost)} of {self.terms.retries})"
            )
            self.forecast.put_back(run)
            self.waiting.append(task)
        else:
            self._close(record)

    def _close(self, record: RunRecord) -> None:
        """Count a run as over."""
        self.forecast.end(record.id)
        self.outcome.records.append(record)
        if record.status == "failed":
            log = run_store.log_path(self.results, record.id)
            self.display.line(f"{record.id}: failed: {record.reason} (its log: {log})")

    # Stopping ---------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask every process to end, wait for what they leave, and kill those that do not end in time."""
        self.stopping = True
        self.waiting.clear()
        self.elsewhere.clear()
        if not self.running:
            return
        grace = self.terms.grace_seconds
        self.display.line(
            f"{len(self.running)} runs are asked to write their checkpoints and end; "
            f"they are killed in {duration(grace)}, or at once by Ctrl-C"
        )
        for one in self.running.values():
            one.worker.ask_to_end()
        self._await_ends(grace)
        self.kill()
        self._await_ends(KILL_SECONDS)

    def _await_ends(self, seconds: float) -> None:
        """Wait until all processes have ended, but not longer."""
        until = time.monotonic() + seconds
        while self.running and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                found = self.events.get(timeout=left)
                if isinstance(found, Ended):
                    self._end(self.running.pop(found.run), found.code)

    def kill(self) -> None:
        """End every process and its children now."""
        for one in list(self.running.values()):
            one.worker.kill()

    def _overall(self) -> str:
        done = len(self.outcome.records)
        if self.elsewhere and not (self.waiting or self.running):
            return f"{done} of {self.runs} runs done, {len(self.elsewhere)} are run by other processes"
        return f"{done} of {self.runs} runs done, about {duration(self.forecast.seconds())} left in all"
