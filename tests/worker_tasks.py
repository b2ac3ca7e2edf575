"""What tests ask of processes that hold one framework each: tasks, and the processes that do them, one after another.

The processes of one test session start together, at the first question, each with all tasks that the selected tests
will ask for, so that they compute side by side while tests read what is there already.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.experiments.specs import RunSpec
from harness.processes.workers import worker_environment
from impls.contract import Arrays

TESTS = Path(__file__).resolve().parent
PATIENCE_SECONDS = 3600.0


@dataclass(frozen=True)
class Task:
    """Something for one process: a function of `keras_worker` by name, and what it is about.

    `backend` is what Keras runs on, "keras-torch" for torch; "torch" is torch without Keras.
    """

    backend: str
    kind: str
    subject: str
    size: str = "small"
    plant: str = ""

    def __str__(self) -> str:
        words = [self.backend, self.kind, self.subject, self.size if self.size != "small" else "", self.plant]
        return " ".join(word for word in words if word)

    @property
    def file(self) -> str:
        """The name of the file that its arrays are written to."""
        return str(self).replace(" ", "_").replace(",", "_").replace("/", "_") + ".npz"

    @property
    def needs_multi30k(self) -> bool:
        """Whether it is about the sizes of Multi30k."""
        return self.kind == "parity" and self.size == "full"

    @property
    def torch_s(self) -> Task | None:
        """The task of torch's process that this one is compared with, if any."""
        if self.kind in ("parity", "nudged"):
            return Task("torch", "parity", self.subject, self.size)
        return Task("torch", "word", self.subject) if (self.kind, self.size) == ("laws", "small") else None

    @property
    def needs(self) -> tuple[Task, ...]:
        """This task and those of other processes that it is compared with."""
        return (self, self.torch_s) if self.torch_s else (self,)


def answer(folder: Path, task: Task, arrays: Arrays, remarks: dict[str, Any]) -> None:
    """Write what came of a task: arrays, and `remarks`, JSON."""
    half = folder / f"half of {task.file}"
    with half.open("wb") as file:
        named: dict[str, Any] = {**arrays, "remarks": np.array(json.dumps(remarks))}
        np.savez(file, **named)
    half.rename(folder / task.file)


def read(folder: Path, task: Task) -> tuple[Arrays, dict[str, Any]]:
    """Return what `answer` wrote. Raises: RuntimeError with the traceback where the task failed."""
    with np.load(folder / task.file, allow_pickle=False) as found:
        arrays = dict(found)
    remarks = json.loads(str(arrays.pop("remarks")))
    if "error" in remarks:
        raise RuntimeError(f"{task}: {remarks['error']}")
    return arrays, remarks


class Crew:
    """One process for each backend that the tasks name."""

    def __init__(self, folder: Path, tasks: Iterable[Task]) -> None:
        self.folder = folder
        self.tasks: dict[str, list[Task]] = {}
        for task in dict.fromkeys(tasks):
            self.tasks.setdefault(task.backend, []).append(task)
        self.processes = {backend: self._start(backend) for backend in self.tasks}

    def _start(self, backend: str) -> subprocess.Popen[bytes]:
        words = json.dumps([asdict(task) for task in self.tasks[backend]])
        (self.folder / f"{backend}.json").write_text(words, encoding="utf-8")
        command = [sys.executable, "-m", "keras_worker", str(self.folder), backend]
        with self._log(backend).open("wb") as log:
            # It ends when its standard input does, so also where this process is killed.
            return subprocess.Popen(command, env=environment(backend), stdin=subprocess.PIPE, stdout=log, stderr=log)

    def _log(self, backend: str) -> Path:
        return self.folder / f"{backend}.log"

    def result(self, task: Task | None) -> tuple[Arrays, dict[str, Any]]:
        """Wait for what came of a task. Raises: RuntimeError where it failed or its process is gone."""
        assert task is not None
        until = time.monotonic() + PATIENCE_SECONDS
        while not (self.folder / task.file).exists():
            # Asked before looking once more: the last answer may lie there since.
            gone = self.processes[task.backend].poll() is not None
            if (self.folder / task.file).exists():
                break
            if gone or time.monotonic() > until:
                lines = self._log(task.backend).read_text(encoding="utf-8", errors="replace").splitlines()
                raise RuntimeError(f"{task}: its process {'is gone' if gone else 'hangs'}: {' / '.join(lines[-3:])}")
            time.sleep(0.1)
        return read(self.folder, task)

    def end(self) -> None:
        """End the processes that still run."""
        for process in self.processes.values():
            process.kill()
            process.communicate()


def environment(backend: str) -> dict[str, str]:
    """Return the environment of a process that holds one framework, on one thread, as a run's is."""
    chosen: dict[str, Any] = {}
    if backend != "torch":
        chosen = {"framework": "keras", "backend": backend.removeprefix("keras-")}
    found = {**os.environ, **worker_environment(RunSpec(variant="", recipe=None, threads=1, **chosen))}
    found["TF_CPP_MIN_LOG_LEVEL"] = "3"
    found["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return found
