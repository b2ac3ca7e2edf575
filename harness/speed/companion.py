"""The driver's end of a subject's process: starts it, asks it one thing at a time, and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.experiments.serialization import canonical_json, to_json
from harness.processes import exit_status
from harness.processes.workers import ROOT, worker_environment
from harness.speed.plan import ModelJob

POLL_SECONDS = 0.2
LAST_LINES = 3
LAST_BYTES = 8_000
_GONE = ""


class Lost(Exception):
    """A subject cannot go on; the message says why, in one line."""


class Refused(Exception):
    """A subject does not do what it was asked, and can go on; the message says why, in one line."""


class JsonProcess:
    """The process of one subject.

    `check` is called while it works and may raise, as when a signal came. `timeout_seconds` is the most that one answer
    may take, None any time.

    Raises: Lost where it cannot be started.
    """

    def __init__(self, job: ModelJob, log: Path, check: Callable[[], None], timeout_seconds: float | None) -> None:
        self.job, self._log, self._check, self._timeout = job, log, check, timeout_seconds
        self.idle_seconds = self.idle_cpu_seconds = 0.0
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **worker_environment(job.spec), "PYTHONPATH": os.pathsep.join(paths)}
        try:
            with log.open("ab") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "harness.speed.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                    encoding="utf-8",
                    start_new_session=True,  # Ctrl-C reaches the driver alone, which then ends the others
                )
        except OSError as error:
            raise Lost(f"its process cannot be started: {error.strerror}") from error
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def start(self) -> dict[str, Any]:
        """Let it prepare and build; return what it says of itself. Raises: as `ask` does."""
        return self.ask("start", job=to_json(self.job))

    def ask(self, do: str, **told: Any) -> dict[str, Any]:
        """Let it do something and wait for the answer.

        Raises: Refused where it does not do that; Lost where it fails, ends or takes too long.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(canonical_json({"do": do, **told}) + "\n")
            self._process.stdin.flush()
        answer = self._answer()
        waited, worked = answer.pop("idle_seconds"), answer.pop("idle_cpu_seconds")
        if do != "start":
            self.idle_seconds += waited
            self.idle_cpu_seconds += worked
        if "refused" in answer:
            raise Refused(answer["refused"])
        if "failed" in answer:
            raise Lost(answer["failed"])
        return answer

    def _answer(self) -> dict[str, Any]:
        began = time.monotonic()
        while True:
            self._check()
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=POLL_SECONDS)
                break
            if self._timeout is not None and time.monotonic() - began > self._timeout:
                self.end()
                raise Lost(f"no answer within {self._timeout:.0f} s")
        if line == _GONE:
            raise Lost(f"{exit_status.words(self._process.wait())}: {self._last_words()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(_GONE)

    def _last_words(self) -> str:
        """Return the last lines that it wrote to its log."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - LAST_BYTES))
            lines = file.read().decode(errors="replace").strip().split("\n")
        return " | ".join(line.strip() for line in lines[-LAST_LINES:]) or "it wrote nothing"

    def end(self) -> None:
        """End the process and its children now."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL) if os.name == "posix" else self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()
