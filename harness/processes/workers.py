"""The process of one run: it gets a spec as JSON, reports events, and is ended together with its children."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from harness.processes.environment_variables import worker_environment
from harness.processes.json_process import kill_group, start_module
from harness.processes.progress import Event, from_line
from harness.storage import checkpoint_files, run_store
from harness.storage.records import RunRecord, Status
from harness.text import brief

LINE_CHARACTERS = 100_000
"""The longest line that is read as an event."""

READER_SECONDS = 5.0

MARK = "BAKEOFF_RUN_PROCESS"
"""The environment variable that marks every process that a run starts, also those that leave its session."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """How the process of a run executes it. Only `resume_anyway` can change weights and scores.

    Attributes:
        command: The command line, for the record.
        note: Free text for the record.
        checkpoint_seconds: Seconds between two checkpoints within an epoch; 0 for checkpoints at the ends of epochs
            only.
        resume_anyway: Whether a run resumes from a checkpoint that was written in another environment.
        score_every: The number of epochs between two translations of the validation set; 0 for none.
        report_loss: Whether events have the training loss, for which the run waits for the device.
    """

    command: str = ""
    note: str = ""
    checkpoint_seconds: float = checkpoint_files.SECONDS
    resume_anyway: bool = False
    score_every: int = 0
    report_loss: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a text that no record can hold: it would be missed at the end of the training."""
        for name in ("command", "note"):
            text = getattr(self, name)
            if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
                raise ValueError(f"{name}={brief(text)}: expected text in UTF-8")

    def payload(self, spec: RunSpec) -> str:
        """Return the line of JSON from which a process reads its run: these settings and the `spec`."""
        settings = {field.name: getattr(self, field.name) for field in fields(ProcessSettings)}
        return canonical_json({**settings, "spec": to_json(spec)}) + "\n"

    def new_record(self, spec: RunSpec, status: Status, reason: str) -> RunRecord:
        """Return the record of a run that left none itself."""
        return RunRecord(id=spec.id, spec=spec, status=status, reason=reason, command=self.command, note=self.note)


@dataclass(frozen=True)
class Ended:
    """The process of a run and all its children have ended. `code` is as in `subprocess`: negative for a signal."""

    run: str
    code: int


class Worker:
    """The process of one run.

    Args:
        report: Called in another thread with every event of the run, and with `Ended` at the end.
        gpu: The GPU that it sees, as in CUDA_VISIBLE_DEVICES; None for those of this process.

    Raises: OSError if it cannot be started.
    """

    def __init__(
        self,
        spec: RunSpec,
        settings: ProcessSettings,
        results: Path,
        report: Callable[[Event | Ended], None],
        *,
        gpu: str | None = None,
    ) -> None:
        self.run, self._report = spec.id, report
        self._mark = uuid.uuid4().hex
        environment = {**worker_environment(spec), MARK: self._mark}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        arguments = ("run", "--spec", "-", "--results", str(results))
        with run_store.open_log(results, spec.id) as log:
            self._process = start_module("harness", *arguments, stderr=log, environment=environment)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended already; its log has the reason
            # The pipe stays open: the process ends when it is closed, for example by the end of this process.
            self._process.stdin.write(settings.payload(spec))
            self._process.stdin.flush()
        self._alive = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        try:
            self._reader.start()
            threading.Thread(target=self._wait, daemon=True).start()
        except RuntimeError as error:
            kill_group(self._process)
            raise OSError(str(error)) from error

    def ask_to_end(self) -> None:
        """Ask the process to write a checkpoint and end."""
        with self._alive:
            if self._process.returncode is None:
                os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process and its children now."""
        with self._alive:
            if self._process.returncode is None:
                kill_group(self._process)

    def _read(self) -> None:
        """Report the events of the process."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            while line := lines.readline(LINE_CHARACTERS):
                event = from_line(line)
                if event is not None and event.run == self.run:
                    self._report(event)

    def _wait(self) -> None:
        """Wait for the end of the process, and kill its remaining children."""
        if hasattr(os, "waitid"):
            # Until the process is reaped its id is not reused, so that the group with this id is its own.
            with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored, and the system has reaped it
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._alive:
            kill_group(self._process)
            code = self._process.wait()
        _kill_marked(self._mark)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.join(READER_SECONDS)  # a child that could not be found may keep the pipe open
        self._report(Ended(self.run, code))


def _kill_marked(mark: str) -> None:
    """Kill the processes that a run has started and that outlived it, in any session."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            if process.environ().get(MARK) == mark:
                process.kill()
