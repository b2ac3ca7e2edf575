"""What becomes of a run whose process has ended: the record that it left, one that says why not, or another try."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.experiments.specs import RunSpec
from harness.processes import exit_status
from harness.processes.workers import Worker
from harness.storage import checkpoint_files, logs, run_store
from harness.storage.records import RunRecord, Status

LOST_PROCESSES = "lost_processes"
"""The name in a record's environment of how the processes ended that were lost before the one it is of."""


@dataclass
class Task:
    """A run that is to be run, and how its processes ended that were lost."""

    spec: RunSpec
    lost: list[str] = field(default_factory=list)


@dataclass
class Running:
    """A run whose process is at work.

    `verdict`: why it was asked to end, if it was; `again`: it is then tried again; `elsewhere`: who else runs it;
    `gpu`: the one that it sees, where there are several.
    """

    task: Task
    worker: Worker
    began: float
    heard: float
    log_bytes: int
    out_of_memory_kills: int
    verdict: str = ""
    again: bool = False
    elsewhere: str = ""
    kill_at: float = math.inf
    gpu: str | None = None


class Records:
    """The records of a set of runs. `told` is what all have in common; `say` shows a line."""

    def __init__(self, results: Path, told: dict[str, Any], retries: int, say: Callable[[str], None]) -> None:
        self.results, self.told, self.retries, self.say = results, told, retries, say

    def judge(self, one: Running, code: int, *, last: bool) -> RunRecord | None:
        """Return the record of a run whose process has ended, stored; None where it is to be tried again.

        `last`: it is not tried again, because its process was asked to end and all others with it.
        """
        task, run = one.task, one.task.spec.id
        record, retried = self.stored(run), len(task.lost) < self.retries and not last
        ended = exit_status.describe(code, out_of_memory=exit_status.out_of_memory_kills() > one.out_of_memory_kills)
        if record is not None and record.status in run_store.FINISHED:
            if code:
                self.say(f"{run}: {ended}, after its record was written")
                with contextlib.suppress(OSError):
                    checkpoint_files.remove(self.results, run)  # it may not have come to that
            return self._with_losses(task, record) if task.lost else record
        asked = record is not None and record.status == "interrupted"
        if retried and (one.again if one.verdict else asked or exit_status.lost(code)):
            task.lost.append(one.verdict or (record.reason if asked and record is not None else ended))
            return None
        if not one.verdict and record is not None and (asked or record.status == "failed"):
            if not asked:
                return self.failed(task, record.reason, one, record)
            return self._with_losses(task, record) if task.lost else record
        if last and not one.verdict:
            reason = "broken off before its process could write where it was; it goes on from its last checkpoint"
            return self._with_losses(task, self._new(task, "interrupted", reason))
        return self.failed(task, one.verdict or ended, one, record)

    def failed(self, task: Task, reason: str, one: Running | None = None, record: RunRecord | None = None) -> RunRecord:
        """Return a stored record that says why a run failed, with the end of its log and what `record` knows of it."""
        spec = task.spec
        if one is not None:
            lines = logs.last_lines(run_store.log_path(self.results, spec.id), since=one.log_bytes)
            new = [line for line in lines if (line.partition(": ")[2] or line) not in reason]
            reason += f"; lost before it: {len(task.lost)}" if task.lost else ""
            reason += f"; its log ends: {' / '.join(new)}" if new else "" if lines else "; it printed nothing"
        known = record or self._new(task, "failed")
        return self._with_losses(task, replace(known, status="failed", reason=reason))

    def _new(self, task: Task, status: Status, reason: str = "") -> RunRecord:
        return RunRecord(id=task.spec.id, spec=task.spec, status=status, reason=reason, **self.told)

    def _with_losses(self, task: Task, record: RunRecord) -> RunRecord:
        """Return a record that says how often its run's process was lost, stored."""
        if task.lost:
            record = replace(record, environment={**record.environment, LOST_PROCESSES: task.lost})
        try:
            run_store.save_record(self.results, record)
        except (OSError, ValueError) as error:
            self.say(f"{record.id}: its record cannot be written: {error}")
        return record

    def stored(self, run: str) -> RunRecord | None:
        """Return the record of a run as it stands on the disk; None where there is none that can be read."""
        try:
            record = run_store.load_record(self.results, run)
        except (OSError, ValueError):
            return None
        return record if record is not None and record.id == run else None
