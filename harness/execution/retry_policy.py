"""Turns the end of a run's process into a record, or into another try."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.execution.launcher import RunHandle, RunSettings, save_record
from harness.processes import exit_status
from harness.processes.workers import Worker
from harness.storage import checkpoint_files, logs, run_store
from harness.storage.records import RunRecord

LOST_PROCESSES = "lost_processes"
"""The field of a record's environment that lists how earlier processes of the run were lost."""


@dataclass(kw_only=True)
class RunProcess(RunHandle):
    """The process of a run.

    Attributes:
        worker: The process.
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


class RetryPolicy:
    """Decides what follows from the end of a process. It writes records; `say` receives lines to show."""

    def __init__(self, results: Path, settings: RunSettings, say: Callable[[str], None]) -> None:
        self.results, self.settings, self.say = results, settings, say
        self.losses: defaultdict[str, list[str]] = defaultdict(list)
        """How earlier processes of each run were lost."""

    def resolve(self, process: RunProcess, *, stopping: bool) -> RunRecord | None:
        """Return the stored record of a run whose process has ended, or None to try the run again.

        Args:
            process: The process, with its exit code.
            stopping: Whether all runs were asked to end, so that none is tried again.
        """
        run, losses = process.spec.id, self.losses[process.spec.id]
        record = run_store.usable_record(self.results, run)
        exit_text = exit_status.describe(
            process.exit_code, out_of_memory=exit_status.out_of_memory_kills() > process.oom_kills
        )
        if record is not None and record.status in run_store.FINISHED:
            if process.exit_code:
                self.say(f"{run}: {exit_text}, after its record was written")
                with contextlib.suppress(OSError):
                    checkpoint_files.remove(self.results, run)  # it may have ended before it could do so itself
            return self._with_losses(record) if losses else record
        interrupted = record is not None and record.status == "interrupted"
        lost = process.hung if process.stop_reason else interrupted or exit_status.lost(process.exit_code)
        if lost and len(losses) < self.settings.retries and not stopping:
            losses.append(process.stop_reason or (record.reason if interrupted and record else exit_text))
            return None
        if record is None and stopping and not process.stop_reason:
            reason = "killed before it could write a checkpoint; it resumes from the last one"
            return self._with_losses(self.settings.new_record(process.spec, "interrupted", reason))
        if record is None or process.stop_reason:
            return self._failed(process, process.stop_reason or exit_text, record)
        if interrupted:
            return self._with_losses(record) if losses else record
        return self._failed(process, record.reason, record)

    def _failed(self, process: RunProcess, reason: str, record: RunRecord | None) -> RunRecord:
        """Return a stored record of a failure, with the end of the log and the contents of the record, if any."""
        run = process.spec.id
        lines = logs.last_lines(run_store.log_path(self.results, run), since=process.log_bytes)
        new_lines = [line for line in lines if not _repeats(line, reason)]
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
        return save_record(self.results, record, self.say)


def _repeats(line: str, reason: str) -> bool:
    """Return whether a line of a log has a message that `reason` has too, or the statement that raised it."""
    message = (line.partition(": ")[2] or line).removesuffix(logs.CUT)
    return line.startswith("raise ") or message in " ".join(reason.split())
