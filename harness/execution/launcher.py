"""`Launcher`: claims each run, starts it, and collects its record.

The loop is the same everywhere. A subclass starts, polls and stops one kind of execution: `local` processes of this
machine, `slurm_launcher` Slurm jobs, `ray_launcher` Ray tasks.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TextIO, TypeVar

from harness.execution.eta import Forecast
from harness.experiments.run_names import names_by_id
from harness.experiments.specs import RunSpec
from harness.processes.progress import Event, Progress, duration, silent
from harness.processes.progress_display import Display
from harness.processes.signals import SignalGuard
from harness.processes.workers import ProcessSettings
from harness.storage import locks, run_store
from harness.storage.records import RunRecord, Status
from harness.text import count

LauncherName = Literal["local", "ray", "slurm"]
LIBRARIES = {"ray": "ray", "slurm": "submitit"}

GRACE_SECONDS = 30.0
"""The time that an interrupted process has to write its checkpoint before it is killed."""

NETWORK_SECONDS = 15.0
"""The additional time that the files of an interrupted run need to arrive from another machine."""

KILL_SECONDS = 10.0
SILENCE_SECONDS = 1800.0
CHECK_SECONDS = 2.0
"""The time between two checks of the runs that other processes hold."""


def library(name: str) -> Any:
    """Import and return the library of a launcher. Raises: ValueError with the command that installs it."""
    try:
        return importlib.import_module(LIBRARIES[name])
    except ImportError as error:
        raise ValueError(
            f"--launcher {name}: {LIBRARIES[name]} is not installed: python -m pip install '.[{name}]'"
        ) from error


@dataclass(frozen=True, kw_only=True)
class RunSettings(ProcessSettings):
    """Settings of the execution of a run: those of its process, and its limits.

    Attributes:
        timeout_seconds: The longest time of one process of a run; None for no limit.
        silence_seconds: The time without progress after which a process counts as hung; None for no limit.
        retries: How often a run is restarted if its process hung or was killed from outside.
        grace_seconds: The time that an interrupted process has to write its checkpoint.
    """

    timeout_seconds: float | None = None
    silence_seconds: float | None = SILENCE_SECONDS
    retries: int = 1
    grace_seconds: float = GRACE_SECONDS


@dataclass
class Outcome:
    """The records of the runs that ended, and the signal that interrupted the set, if any."""

    records: list[RunRecord] = field(default_factory=list)
    signal: int | None = None


class NoRecord(ValueError):
    """A run ended without a usable record. The message is the reason for its new record."""


def save_record(results: Path, record: RunRecord, say: Callable[[str], None]) -> RunRecord:
    """Store and return a record; if that fails, report it with `say`."""
    try:
        run_store.save_record(results, record)
    except (OSError, ValueError) as error:
        say(f"{record.id}: its record cannot be written: {error}")
    return record


@dataclass(kw_only=True)
class RunHandle:
    """A run in progress: the base of the handles of all launchers."""

    spec: RunSpec


Handle = TypeVar("Handle", bound=RunHandle)


@dataclass(kw_only=True, eq=False)
class Launcher(ABC, Generic[Handle]):
    """Executes a set of runs. `execute` is the loop; subclasses start, poll and stop single runs.

    Attributes:
        stream: Where progress is shown.
        most_at_once: The largest number of simultaneous runs; None if the cluster decides.
        grace_seconds: The time that interrupted runs have to end before they are killed.
        listener: Receives the events of runs on this machine, and "ended" when the record of a run is final.
        names: A short name for each run id; empty to name what differs between `specs`.
        running: The runs in progress, by id.
        stopping: Whether the runs have been asked to end.
    """

    specs: Sequence[RunSpec]
    results: Path
    stream: TextIO
    settings: RunSettings = field(default_factory=RunSettings)
    forecast: Forecast = field(default_factory=lambda: Forecast({}, jobs=1))
    most_at_once: int | None = None
    grace_seconds: float = GRACE_SECONDS + NETWORK_SECONDS
    listener: Progress = silent
    names: Mapping[str, str] = field(default_factory=dict)

    holds_locks: ClassVar[bool] = False
    """Whether this process holds the lock of a run in progress. Otherwise the process of the run does."""

    def __post_init__(self) -> None:
        # A single run may be one of many for the launcher that sent it, which alone knows how many are done.
        are_all = len(self.specs) > 1
        names = self.names or names_by_id(self.specs)
        overall = self._overall if are_all else None
        self.display = Display(self.stream, names=names if are_all else None, overall=overall)
        self.running: dict[str, Handle] = {}
        self.stopping = False
        self._waiting, self._elsewhere = list(self.specs), list[RunSpec]()
        self._locks: dict[str, contextlib.ExitStack] = {}
        self._outcome = Outcome()
        self._checked = time.monotonic()

    @abstractmethod
    def start(self, spec: RunSpec) -> Handle:
        """Start a run. Raises: ValueError or OSError if it cannot be started."""

    @abstractmethod
    def poll(self) -> list[Handle]:
        """Wait a moment, show progress, and return the runs that have ended."""

    @abstractmethod
    def collect(self, handle: Handle) -> RunRecord | None:
        """Return the stored record of a run that has ended, or None to start it again. Its lock is held.

        Raises: NoRecord if it left no usable record; locks.Locked if its process found that another process holds the
        run; ValueError, OSError if its files are damaged or cannot be stored.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Ask all runs in progress to write their checkpoints and end."""

    def kill(self) -> None:
        """End all runs in progress immediately. Another thread may call this."""

    def has_started(self, handle: Handle) -> bool:
        """Return whether a run has begun to execute; a cluster may keep it waiting."""
        return True

    def show_remote(self, run: str, line: str) -> None:
        """Show a line that a node printed about a run, unless it says that the run failed: `_close` says it too."""
        if line.startswith(run) and not line.startswith(f"{run}: failed: "):
            self.display.line(line)

    def execute(self) -> Outcome:
        """Execute the runs and return their records.

        A failed run leaves a record with the reason, and the others continue. A run that another process holds is
        skipped, and waited for at the end. After a signal every run writes its checkpoint and ends; Ctrl-C after
        that kills them.

        Raises: ValueError if the file system of the results has no locks.
        """
        with SignalGuard(on_second_interrupt=self.kill) as guard, contextlib.closing(self.display):
            try:
                while self._is_unfinished and guard.received is None:
                    while self._waiting and (self.most_at_once is None or len(self.running) < self.most_at_once):
                        self._claim(self._waiting.pop(0))
                    for handle in self.poll():
                        self._finish(handle)
                    if time.monotonic() - self._checked >= CHECK_SECONDS:
                        self._check_elsewhere()
            finally:
                if self._is_unfinished:
                    self._outcome.signal = guard.received
                self._stop()
        return self._outcome

    @property
    def _is_unfinished(self) -> bool:
        return bool(self._waiting or self.running or self._elsewhere)

    def _claim(self, spec: RunSpec) -> None:
        """Start a run, unless another process holds it or has finished it."""
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(locks.hold(self.results, spec.id))
                record = run_store.finished(self.results, spec.id)
                if record is None:
                    run_store.remove_record(self.results, spec.id)
                    if self.holds_locks:
                        self._locks[spec.id] = stack.pop_all()
            if record is None:
                self.running[spec.id] = self.start(spec)
                self.forecast.start(spec.id)
            else:
                self._close_elsewhere(record)
        except locks.Locked as error:
            self._skip(spec, str(error))
        except locks.NoLocks:
            raise
        except (OSError, ValueError) as error:
            with self._locks.pop(spec.id, contextlib.nullcontext()):
                self._close(self._fail(spec, f"its process could not be started: {error}"))

    def _lock(self, run: str) -> contextlib.AbstractContextManager[object]:
        """Return the lock of a run as a context: the one that is held, or a new one."""
        return self._locks.pop(run, None) or locks.hold(self.results, run)

    def _skip(self, spec: RunSpec, reason: str) -> None:
        """Leave a run to the process that holds it."""
        self._elsewhere.append(spec)
        self.forecast.put_back(spec.id)
        self.display.line(f"{reason}; it is skipped, and waited for at the end")
        self.display(Event(run=spec.id, stage="elsewhere"))

    def _finish(self, handle: Handle) -> None:
        """Collect the record of a run that has ended, or put the run back to be started again."""
        spec = handle.spec
        del self.running[spec.id]
        self.display(Event(run=spec.id, stage="ended"))
        if self.stopping and not self.has_started(handle):
            return
        try:
            with self._lock(spec.id):
                try:
                    record = self.collect(handle)
                except NoRecord as error:
                    record = self._fail(spec, str(error))
        except locks.Locked as error:
            self._skip(spec, str(error))
            return
        except (OSError, ValueError) as error:
            record = self._fail(spec, f"its record cannot be stored: {error}")
        if record is None:
            self.forecast.put_back(spec.id)
            self._waiting.append(spec)
        else:
            self._close(record)

    def _check_elsewhere(self) -> None:
        """Take the records of runs that other processes have ended, and take over runs that they left unfinished."""
        self._checked = time.monotonic()
        for spec in list(self._elsewhere):
            try:
                with locks.hold(self.results, spec.id):
                    record = run_store.usable_record(self.results, spec.id)
            except locks.Locked:
                self.display(Event(run=spec.id, stage="elsewhere"))
                continue
            except (OSError, ValueError) as error:
                record = self._fail(spec, f"it cannot be locked: {error}")
            self._elsewhere.remove(spec)
            self.display(Event(run=spec.id, stage="ended"))
            if record is None or record.status == "interrupted":
                self.display.line(f"{spec.id}: the process that held it is gone and left it unfinished; resuming it")
                self._waiting.append(spec)
            else:
                self._close_elsewhere(record)

    def _fail(self, spec: RunSpec, reason: str) -> RunRecord:
        """Store and return the record of a run that left none: interrupted after a signal, otherwise failed."""
        status: Status = "interrupted" if self.stopping else "failed"
        return save_record(self.results, self.settings.new_record(spec, status, reason), self.display.line)

    def _close_elsewhere(self, record: RunRecord) -> None:
        self.display.line(f"{record.id}: {record.status} by another process")
        self._close(record)

    def _close(self, record: RunRecord) -> None:
        self.forecast.end(record.id, completed=record.status == "completed")
        self._outcome.records.append(record)
        self.listener(Event(run=record.id, stage="ended"))
        if record.status == "failed":
            log = run_store.log_path(self.results, record.id)
            self.display.line(f"{record.id}: failed: {record.reason} (its log: {log})")

    def _stop(self) -> None:
        """Interrupt all runs, collect their records, and kill those that do not end in time."""
        self.stopping = True
        self._waiting.clear()
        self._elsewhere.clear()
        if self.running:
            self.display.line(
                f"Stopping {count(len(self.running), 'run')}: each writes its checkpoint and ends, or is killed in "
                f"{duration(self.grace_seconds)}. Ctrl-C kills immediately."
            )
            self.interrupt()
            self._await_ends(self.grace_seconds)
        if self.running:
            self.kill()
            self._await_ends(KILL_SECONDS)
        for handle in filter(self.has_started, self.running.values()):
            spec = handle.spec
            with contextlib.suppress(locks.Locked), self._lock(spec.id):
                record = run_store.usable_record(self.results, spec.id)
                self._close(record or self._fail(spec, "interrupted; its process did not end in time"))
        for lock in self._locks.values():
            lock.close()

    def _await_ends(self, seconds: float) -> None:
        """Collect records until no run is in progress, at most for some seconds."""
        end = time.monotonic() + seconds
        while self.running and time.monotonic() < end:
            for handle in self.poll():
                self._finish(handle)

    def _overall(self) -> str:
        progress = f"{len(self._outcome.records)} of {len(self.specs)} runs done"
        if self._elsewhere and not (self._waiting or self.running):
            return f"{progress}, {len(self._elsewhere)} are run by other processes"
        seconds = self.forecast.seconds()
        return progress if seconds is None else f"{progress}, about {duration(seconds)} left"
