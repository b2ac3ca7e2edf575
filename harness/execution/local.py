"""Executes runs on this machine, each in a process of its own."""

from __future__ import annotations

import contextlib
import math
import queue
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from harness.execution.eta import Forecast
from harness.execution.launcher import CHECK_SECONDS, Launcher, Outcome, RunHandle, RunSettings, save_record
from harness.experiments.specs import RunSpec
from harness.processes import exit_status
from harness.processes.progress import Event, Progress, duration, silent
from harness.processes.workers import Ended, Worker
from harness.storage import checkpoint_files, locks, logs, run_store
from harness.storage.records import RunRecord

POLL_SECONDS = 0.25
SUSPENDED_SECONDS = 10.0
"""A longer time between two checks means that this process was suspended and could not receive events."""

DESCRIPTORS = 3
SPARE_DESCRIPTORS = 64

LOST_PROCESSES = "lost_processes"
"""The field of a record's environment that lists how earlier processes of the run were lost."""


def execute(
    specs: Sequence[RunSpec],
    results: Path,
    *,
    jobs: int,
    stream: TextIO,
    settings: RunSettings | None = None,
    forecast: Forecast | None = None,
    gpus: Sequence[str] = (),
    listener: Progress = silent,
    names: Mapping[str, str] | None = None,
) -> Outcome:
    """Execute runs on this machine, at most `jobs` at once; see `Launcher.execute`.

    If there are several `gpus`, named as in CUDA_VISIBLE_DEVICES, each run on "cuda" sees the least busy one.

    Raises: as `Launcher.execute` and `check_descriptors`.
    """
    jobs, settings = min(jobs, len(specs)), settings or RunSettings()
    check_descriptors(jobs)
    return LocalLauncher(
        specs=specs,
        results=results,
        stream=stream,
        settings=settings,
        forecast=forecast or Forecast({}, jobs),
        most_at_once=jobs,
        grace_seconds=settings.grace_seconds,
        gpus=gpus,
        listener=listener,
        names=names or {},
    ).execute()


def check_descriptors(jobs: int) -> None:
    """Raise this process's limit of open files to what simultaneous runs need. Raises: ValueError if it cannot."""
    if sys.platform == "win32":
        return
    import resource

    needed = jobs * DESCRIPTORS + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        most = (hard - SPARE_DESCRIPTORS) // DESCRIPTORS
        if most < 1:
            least = DESCRIPTORS + SPARE_DESCRIPTORS
            raise ValueError(f"a process may open {hard} files (ulimit -n): expected at least {least}")
        raise ValueError(f"jobs={jobs}: expected at most {most} where a process may open {hard} files (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@dataclass(kw_only=True)
class RunProcess(RunHandle):
    """The process of a run.

    Attributes:
        started, last_event: The times of its start and of its last event, as `time.monotonic`.
        log_bytes: The size of the run's log when the process started.
        oom_kills: The number of out-of-memory kills when it started.
        gpu: The GPU that it sees; None for all.
        stop_reason: Why it was asked to end; empty if it was not.
        hung: Whether `stop_reason` is that it hung, so that the run is tried again.
        locked_by: The message that another process holds the run; empty if none does.
        kill_at: When it is killed, as `time.monotonic`.
        exit_code: As in `subprocess`; meaningful once the process has ended.
    """

    worker: Worker
    started: float
    last_event: float
    log_bytes: int = 0
    oom_kills: int = 0
    gpu: str | None = None
    stop_reason: str = ""
    hung: bool = False
    locked_by: str = ""
    kill_at: float = math.inf
    exit_code: int = 0


@dataclass(kw_only=True, eq=False)
class LocalLauncher(Launcher[RunProcess]):
    """Executes each run in a child process. A run whose process was lost is tried again.

    `gpus` are those to choose from, as in CUDA_VISIBLE_DEVICES; `losses` tells how earlier processes of each run were
    lost.
    """

    gpus: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.losses: defaultdict[str, list[str]] = defaultdict(list)
        self._events: queue.Queue[Event | Ended] = queue.Queue(maxsize=10_000)
        self._polled = self._logs_checked = time.monotonic()

    def start(self, spec: RunSpec) -> RunProcess:
        """Start the process of a run."""
        now, gpu = time.monotonic(), self.least_busy_gpu(spec)
        return RunProcess(
            spec=spec,
            started=now,
            last_event=now,
            log_bytes=logs.size(run_store.log_path(self.results, spec.id)),
            oom_kills=exit_status.out_of_memory_kills(),
            gpu=gpu,
            worker=Worker(spec, self.settings, self.results, self._events.put, gpu=gpu),  # last: it starts the process
        )

    def least_busy_gpu(self, spec: RunSpec) -> str | None:
        """Return the GPU for a run, or None if there is no choice."""
        if spec.device != "cuda" or len(self.gpus) < 2:
            return None
        runs = Counter(process.gpu for process in self.running.values())
        return min(self.gpus, key=lambda gpu: runs[gpu])

    def poll(self) -> list[RunProcess]:
        """Handle one event of the processes, and check those without events."""
        try:
            event = self._events.get(timeout=POLL_SECONDS)
        except queue.Empty:
            self._check_processes()
            return []
        process = self.running.get(event.run)
        if isinstance(event, Ended):
            assert process is not None
            process.exit_code = event.code
            self._shorten_log(process)
            return [process]
        if process is not None:
            process.last_event = time.monotonic()
            if event.stage == "elsewhere":
                process.locked_by = event.remark
            else:
                self.forecast.note(event)
                self.display(event)
                if event.stage != "ended":
                    self.listener(event)
        if time.monotonic() - self._logs_checked > CHECK_SECONDS:
            self._check_processes()
        return []

    def _check_processes(self) -> None:
        """End processes that take too long or hang, and shorten their logs."""
        now = time.monotonic()
        pause = now - self._polled if now - self._polled > SUSPENDED_SECONDS else 0.0
        self._polled = now
        for process in self.running.values():
            process.started, process.last_event = process.started + pause, process.last_event + pause
            if not self.stopping and not process.stop_reason:
                self._check_limits(process, now)
            if now >= process.kill_at:
                process.worker.kill()
        if now - self._logs_checked >= CHECK_SECONDS:
            self._logs_checked = now
            for process in self.running.values():
                self._shorten_log(process)

    def _check_limits(self, process: RunProcess, now: float) -> None:
        """Ask a process to end that has reached its timeout or is silent."""
        timeout, silence = self.settings.timeout_seconds, self.settings.silence_seconds
        if timeout is not None and now - process.started >= timeout:
            process.stop_reason = f"timed out after {_limit(timeout)}"
        elif silence is not None and now - process.last_event >= silence:
            process.stop_reason, process.hung = f"hung: no progress for {_limit(silence)}", True
        else:
            return
        process.kill_at = now + self.grace_seconds
        process.worker.ask_to_end()
        deadline = duration(self.grace_seconds)
        self.display.line(f"{process.spec.id}: {process.stop_reason}; it is asked to end, and killed in {deadline}")

    def _shorten_log(self, process: RunProcess) -> None:
        run = process.spec.id
        with contextlib.suppress(OSError):
            if logs.cut(run_store.log_path(self.results, run)):
                process.log_bytes = 0
                self.display.line(f"{run}: its log grew beyond {logs.LOG_BYTES:,} bytes and was shortened")

    def collect(self, handle: RunProcess) -> RunRecord | None:
        """Return the stored record of a run whose process has ended, or None to try the run again."""
        if handle.locked_by:
            raise locks.Locked(handle.locked_by)
        run, losses = handle.spec.id, self.losses[handle.spec.id]
        record = run_store.usable_record(self.results, run)
        out_of_memory = exit_status.out_of_memory_kills() > handle.oom_kills
        exit_text = exit_status.describe(handle.exit_code, out_of_memory=out_of_memory)
        if record is not None and record.status in run_store.FINISHED:
            if handle.exit_code:
                self.display.line(f"{run}: {exit_text}, after its record was written")
                with contextlib.suppress(OSError):
                    checkpoint_files.remove(self.results, run)  # it may have ended before it could do so itself
            return self._with_losses(record) if losses else record
        interrupted = record is not None and record.status == "interrupted"
        lost = handle.hung if handle.stop_reason else interrupted or exit_status.lost(handle.exit_code)
        if lost and len(losses) < self.settings.retries and not self.stopping:
            losses.append(handle.stop_reason or (record.reason if interrupted and record else exit_text))
            retry = f"retry {len(losses)} of {self.settings.retries}"
            self.display.line(f"{run}: {losses[-1]}; it continues from its last checkpoint, if any ({retry})")
            return None
        if record is None and self.stopping and not handle.stop_reason:
            reason = "killed before it could write a checkpoint; it continues from the last one, if any"
            return self._with_losses(self.settings.new_record(handle.spec, "interrupted", reason))
        if record is None or handle.stop_reason:
            return self._failure_of(handle, handle.stop_reason or exit_text, record)
        if interrupted:
            return self._with_losses(record) if losses else record
        return self._failure_of(handle, record.reason, record)

    def _failure_of(self, process: RunProcess, reason: str, record: RunRecord | None) -> RunRecord:
        """Return a stored record of a failure, with the end of the log and the contents of the record, if any."""
        run = process.spec.id
        lines = logs.last_lines(run_store.log_path(self.results, run), since=process.log_bytes)
        new_lines = [line for line in lines if not _repeats(line, reason)]
        if new_lines and new_lines[-1].startswith("bakeoff: "):
            new_lines = new_lines[-1:]  # a refusal; the others are warnings of libraries
        if self.losses[run]:
            reason += f"; earlier attempts lost: {len(self.losses[run])}"
        if new_lines:
            reason += f"; its log ends: {' / '.join(new_lines)}"
        elif not lines:
            reason += "; it printed nothing"
        record = record or self.settings.new_record(process.spec, "failed", reason)
        return self._with_losses(replace(record, status="failed", reason=reason))

    def _with_losses(self, record: RunRecord) -> RunRecord:
        """Store and return a record, with how earlier processes of its run were lost."""
        losses = self.losses[record.id]
        if losses:
            record = replace(record, environment={**record.environment, LOST_PROCESSES: losses})
        return save_record(self.results, record, self.display.line)

    def interrupt(self) -> None:
        """Send SIGTERM to every process."""
        for process in self.running.values():
            process.worker.ask_to_end()

    def kill(self) -> None:
        """Kill every process and its children."""
        for process in list(self.running.values()):
            process.worker.kill()


def _limit(seconds: float) -> str:
    """Return a limit of time as text. One below a second is not rounded to 0 s."""
    return duration(seconds) if seconds >= 1 else f"{seconds:g} s"


def _repeats(line: str, reason: str) -> bool:
    """Return whether a line of a log has a message that `reason` has too, or the statement that raised it."""
    message = (line.partition(": ")[2] or line).removesuffix(logs.CUT)
    return line.startswith("raise ") or message in " ".join(reason.split())
