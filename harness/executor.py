"""Runs many specs, one process each, so many at once, and says honestly how long it takes."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from harness import store
from harness.forecast import Forecast
from harness.progress import Display, Event, duration, from_line
from harness.specs import RunRecord, RunSpec, Status, canonical_json, to_json

GRACE_SECONDS = 5.0
LOG_LINES = 3
ROOT = Path(__file__).resolve().parent.parent


def worker_environment(spec: RunSpec) -> dict[str, str]:
    """Return the environment variables that the process of a run is started with."""
    threads = str(spec.threads)
    found = {
        # One count of threads for every library: 1 or 2 changes the last digits of a gradient.
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        # Else every large tensor is mapped and returned to the system at each update, page faults and all.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "4294967296",
    }
    if spec.backend is not None:
        found["KERAS_BACKEND"] = spec.backend
    if spec.backend == "tensorflow":
        found |= {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": "1", "TF_DETERMINISTIC_OPS": "1"}
    if spec.backend == "jax":
        found["NPROC"] = threads  # the size of XLA's pool of threads
    if spec.device.startswith("cuda"):
        # cuBLAS gives the same bits twice only with a fixed workspace.
        found["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return found


GPU_QUESTIONS = {
    "torch": "import torch, sys; sys.exit(not torch.cuda.is_available())",
    "tensorflow": "import tensorflow, sys; sys.exit(not tensorflow.config.list_physical_devices('GPU'))",
    "jax": "import jax, sys; sys.exit(all(one.platform != 'gpu' for one in jax.devices()))",
}


def gpu_usable(computes: str) -> bool:
    """Return whether the framework that computes can use a GPU here, asked in a process of its own."""
    question = GPU_QUESTIONS.get(computes)
    if question is None:
        return False
    try:
        return subprocess.run([sys.executable, "-c", question], capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


@dataclass
class Outcome:
    """What came of a set of runs: a record of each that ended, and whether Ctrl-C broke the set off."""

    records: list[RunRecord] = field(default_factory=list)
    interrupted: bool = False


def execute(
    specs: Sequence[RunSpec],
    results: Path,
    *,
    jobs: int,
    stream: TextIO,
    forecast: Forecast | None = None,
    command: str = "",
    note: str = "",
) -> Outcome:
    """Run each spec in a process of its own, `jobs` at once, and show how far they are on `stream`.

    A run that fails leaves a record that says why, and the others go on. Ctrl-C ends all of them.
    """
    crew = _Crew(results, stream, forecast or Forecast({}, jobs), len(specs), {"command": command, "note": note})
    waiting = list(specs)
    try:
        while waiting or crew.children:
            while waiting and len(crew.children) < jobs:
                crew.start(waiting.pop(0))
            crew.attend()
    except KeyboardInterrupt:
        crew.outcome.interrupted = True
        crew.stop()
    finally:
        crew.kill()
        crew.display.close()
    return crew.outcome


@dataclass
class _Child:
    spec: RunSpec
    process: subprocess.Popen[str]
    reader: threading.Thread


class _Crew:
    """The processes under way."""

    def __init__(self, results: Path, stream: TextIO, forecast: Forecast, runs: int, extra: dict[str, Any]) -> None:
        self.results, self.forecast, self.runs, self.extra = results, forecast, runs, extra
        self.display = Display(stream, overall=self._overall)
        self.children: dict[str, _Child] = {}
        self.events: queue.Queue[Event | str] = queue.Queue()
        self.outcome = Outcome()

    def start(self, spec: RunSpec) -> None:
        """Start the process of a run and hand it its spec."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **worker_environment(spec), "PYTHONPATH": os.pathsep.join(paths)}
        store.remove_record(self.results, spec.id)
        with store.open_log(self.results, spec.id) as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "harness", "run", "--spec", "-", "--results", str(self.results)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others in order
            )
        reader = threading.Thread(target=self._read, args=(spec.id, process), daemon=True)
        self.children[spec.id] = _Child(spec, process, reader)
        self.forecast.start(spec.id)
        reader.start()
        assert process.stdin is not None
        try:
            with process.stdin as stdin:
                stdin.write(canonical_json({"spec": to_json(spec), **self.extra}))
        except BrokenPipeError:
            pass  # it ended at once; its log says why

    def _read(self, run: str, process: subprocess.Popen[str]) -> None:
        """Pass on the events of a process, and its id when it has ended."""
        assert process.stdout is not None
        for line in process.stdout:
            event = from_line(line)
            if event is not None:
                self.events.put(event)
        process.wait()
        self.events.put(run)

    def attend(self) -> None:
        """Wait for the next event, or the end of a process, and show it."""
        try:
            found = self.events.get(timeout=1.0)
        except queue.Empty:
            return
        if isinstance(found, Event):
            self.forecast.note(found)
            self.display(found)
            return
        self._finish(found, "failed")

    def _finish(self, run: str, otherwise: Status) -> None:
        """Take the record of a process that has ended; write one, with the status `otherwise`, where it left none."""
        child = self.children.pop(run)
        self.forecast.end(run)
        self.display(Event(run=run, stage="ended"))
        code = child.process.returncode
        record = self._record(run)
        fits = record is not None and (record.status in ("completed", "diverged")) == (code == 0)
        if record is None or not fits:
            reason = " / ".join(store.log_lines(self.results, run, LOG_LINES)) or "it printed nothing"
            record = RunRecord(
                id=run,
                spec=child.spec,
                status=otherwise,
                reason=f"its process ended with code {code}: {reason}",
                **self.extra,
            )
            store.save_record(self.results, record)
        if record.status == "failed":
            self.display.line(f"{run}: failed: {record.reason} (its log: {store.log_path(self.results, run)})")
        self.outcome.records.append(record)

    def _record(self, run: str) -> RunRecord | None:
        try:
            return store.load_record(self.results, run)
        except ValueError:
            return None

    def stop(self) -> None:
        """Ask every process to end, and wait a little while for their records."""
        for child in self.children.values():
            child.process.terminate()  # a run takes it for Ctrl-C, also where this process was started deaf to that
        until = time.monotonic() + GRACE_SECONDS
        try:
            for child in self.children.values():
                child.process.wait(timeout=max(0.0, until - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            return

    def kill(self) -> None:
        """End every process that is left, and take the records."""
        for child in self.children.values():
            child.process.kill()
        for run in list(self.children):
            self.children[run].process.wait()
            self._finish(run, "interrupted")

    def _overall(self) -> str:
        done = len(self.outcome.records)
        return f"{done} of {self.runs} runs done, about {duration(self.forecast.seconds())} left in all"
