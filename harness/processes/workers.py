"""The process of one run: started from a few words of JSON, heard while it works, ended with all its children.

What runs many of them, on this machine or others, is built on this: it gives a `Payload`, hears `Event`s and one
`Ended`, and reads the record that the process left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from harness.processes.progress import Event, from_line
from harness.storage import run_store

ROOT = Path(__file__).resolve().parents[2]
LINE_LETTERS = 100_000
"""No event is longer; what is was not told by a run."""

READER_SECONDS = 5.0
GPU_QUESTIONS = {
    "torch": "import torch, sys; sys.exit(not torch.cuda.is_available())",
    "tensorflow": "import tensorflow, sys; sys.exit(not tensorflow.config.list_physical_devices('GPU'))",
    "jax": "import jax, sys; sys.exit(all(one.platform != 'gpu' for one in jax.devices()))",
}


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
        # Else the first process of these takes most of a GPU's memory, and the next that is to share it gets none.
        if spec.backend == "tensorflow":
            found["TF_FORCE_GPU_ALLOW_GROWTH"] = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        if spec.backend == "jax":
            found["XLA_PYTHON_CLIENT_PREALLOCATE"] = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return found


def gpu_usable(computes: str) -> bool:
    """Return whether the framework that computes can use a GPU here, asked in a process of its own."""
    question = GPU_QUESTIONS.get(computes)
    if question is None:
        return False
    try:
        return subprocess.run([sys.executable, "-c", question], capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


@dataclass(frozen=True, kw_only=True)
class Payload:
    """All that the process of a run is told, in one line of JSON on standard input.

    `checkpoint_seconds`: how often it writes what an interrupted run goes on from (None: as it thinks right).
    """

    spec: RunSpec
    command: str = ""
    note: str = ""
    checkpoint_seconds: float | None = None

    def line(self) -> str:
        """Return the line; `follow` asks the process to end when its standard input does."""
        told = {"spec": to_json(self.spec), "command": self.command, "note": self.note, "follow": True}
        if self.checkpoint_seconds is not None:
            told["checkpoint_seconds"] = self.checkpoint_seconds
        return canonical_json(told) + "\n"


@dataclass(frozen=True)
class Ended:
    """The process of a run is gone, and every child of it. `code` is that of `subprocess`, negative for a signal."""

    run: str
    code: int


class Worker:
    """The process of one run.

    `tell` is called from another thread: with every event of the run, then once with how the process ended. `gpu` is
    the one that it is to see (None: those that this process sees).

    Raises: OSError where it cannot be started.
    """

    def __init__(
        self, payload: Payload, results: Path, tell: Callable[[Event | Ended], None], *, gpu: str | None = None
    ) -> None:
        spec = payload.spec
        self.run, self._tell = spec.id, tell
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **worker_environment(spec), "PYTHONPATH": os.pathsep.join(paths)}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        with run_store.open_log(results, spec.id) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness", "run", "--spec", "-", "--results", str(results)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others in order
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once; its log says why
            # It stays open: its end, when this process is gone, is what the other ends by.
            self._process.stdin.write(payload.line())
            self._process.stdin.flush()
        self._alive = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        try:
            self._reader.start()
            threading.Thread(target=self._wait, daemon=True).start()
        except RuntimeError as error:
            self._kill_group()
            raise OSError(str(error)) from error

    @property
    def process_id(self) -> int:
        """The number that the system knows the process by."""
        return self._process.pid

    def ask_to_end(self) -> None:
        """Ask the process to write a checkpoint and end."""
        with self._alive:
            if self._process.returncode is None:
                os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process and its children now."""
        with self._alive:
            if self._process.returncode is None:
                self._kill_group()

    def _kill_group(self) -> None:
        if os.name != "posix":
            self._process.kill()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        """Pass on the events of the process."""
        assert self._process.stdout is not None
        for line in iter(lambda: self._process.stdout.readline(LINE_LETTERS), ""):  # type: ignore[union-attr]
            event = from_line(line)
            if event is not None and event.run == self.run:
                self._tell(event)
        self._process.stdout.close()

    def _wait(self) -> None:
        """Wait for the end of the process, and end what it leaves behind."""
        if hasattr(os, "waitid"):
            # Not reaped yet, it keeps its number, which is its children's group: nobody else's is killed.
            with contextlib.suppress(ChildProcessError):  # this process was started deaf to SIGCHLD: the system reaped
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._alive:
            self._kill_group()
            code = self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.join(READER_SECONDS)  # a child that left the session may keep the pipe open for ever
        self._tell(Ended(self.run, code))
