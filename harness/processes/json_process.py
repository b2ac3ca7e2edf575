"""A Python module in a child process that answers requests: lines of JSON on its standard input and output.

The parent creates a `JsonProcess`; the module calls `serve`. A request is `{"command": …, "arguments": {…}}`. An answer
is `{"value": …}`, `{"refused": message}` for a ValueError, or `{"failed": message}` for any other exception.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from harness.processes import exit_status

ROOT = Path(__file__).resolve().parents[2]
"""The folder that the packages `harness` and `impls` are imported from."""

POLL_SECONDS = 0.2
LAST_LINES = 3
LAST_BYTES = 8_000
MESSAGE_CHARACTERS = 2_000
"""The longest error message that is passed on."""

_END = ""


class RequestRefused(ValueError):
    """The process refused a request, and can answer others. The message is that of its ValueError."""


class ProcessFailed(RuntimeError):
    """A request failed, or the process ended or did not answer in time. The message has one line."""


def start_module(
    module: str,
    *arguments: str,
    stderr: IO[Any],
    environment: Mapping[str, str] | None = None,
    safe_path: bool = False,
) -> subprocess.Popen[str]:
    """Start `python -m module arguments` in a session of its own, with pipes to its standard input and output.

    Its own session keeps Ctrl-C in a terminal from reaching it: the parent decides how it ends. `environment` is added
    to the variables of this process; `safe_path` keeps the current folder out of its module search path.

    Raises: OSError.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
    return subprocess.Popen(
        [sys.executable, *(["-P"] if safe_path else []), "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=variables,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that `start_module` started, and its children. It must not have been waited for."""
    if os.name != "posix":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class JsonProcess:
    """A child process that answers requests. Leaving its context, or `close`, kills it and its children.

    Args:
        module: The module to run, which calls `serve`.
        environment, safe_path: As in `start_module`.
        log: The file that its standard error is appended to; None for a temporary one.
        check: Called while an answer is awaited; may raise, as for a signal.
        timeout_seconds: The most that one answer may take; None for no limit.

    Attributes:
        idle_seconds: How long it has waited for requests since the first.
        idle_cpu_seconds: The CPU time that it used meanwhile.

    Raises: ProcessFailed if it cannot be started.
    """

    def __init__(
        self,
        module: str,
        *,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        check: Callable[[], object] = lambda: None,
        timeout_seconds: float | None = None,
        safe_path: bool = False,
    ) -> None:
        self._check, self._timeout = check, timeout_seconds
        self.idle_seconds = self.idle_cpu_seconds = 0.0
        self._answered = False
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else log.open("a+b")  # noqa: SIM115
        try:
            self._process = start_module(module, stderr=self._log, environment=environment, safe_path=safe_path)
        except OSError as error:
            self._log.close()
            raise ProcessFailed(f"its process cannot be started: {error.strerror}") from error
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def request(self, command: str, **arguments: Any) -> Any:
        """Send a request and return the value of its answer. Raises: RequestRefused, ProcessFailed."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; the answer says so
            self._process.stdin.write(json.dumps({"command": command, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._next_line())
        if self._answered:
            self.idle_seconds += answer["idle_seconds"]
            self.idle_cpu_seconds += answer["idle_cpu_seconds"]
        self._answered = True
        if "refused" in answer:
            raise RequestRefused(answer["refused"])
        if "failed" in answer:
            raise ProcessFailed(answer["failed"])
        return answer["value"]

    def _next_line(self) -> str:
        began = time.monotonic()
        while True:
            self._check()
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=POLL_SECONDS)
                break
            if self._timeout is not None and time.monotonic() - began > self._timeout:
                self.close()
                raise ProcessFailed(f"no answer within {self._timeout:.0f} s")
        if line == _END:
            self._lines.put(_END)  # for later requests, which would otherwise wait for ever
            raise ProcessFailed(f"{exit_status.describe(self._process.wait())}: {self._last_lines()}")
        return line

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(_END)

    def _last_lines(self) -> str:
        """Return the last lines that it wrote to standard error."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LAST_BYTES))
        lines = self._log.read().decode(errors="replace").strip().split("\n")
        return " | ".join(line.strip() for line in lines[-LAST_LINES:]) or "it wrote nothing"

    def close(self) -> None:
        """Kill the process and its children."""
        if self._process.poll() is None:
            kill_group(self._process)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()

    def __enter__(self) -> JsonProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(commands: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests until standard input ends, then exit, even in the middle of a request.

    What anything prints to standard output goes to standard error.

    Args:
        commands: The functions that answer, by the name of the command; they return what JSON can hold.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        waiting, working = time.perf_counter(), time.process_time()
        request = json.loads(requests.get())
        idle = {
            "idle_seconds": time.perf_counter() - waiting,
            "idle_cpu_seconds": time.process_time() - working,
        }
        answer = _answer(commands, request)
        try:
            answers.write(json.dumps({**answer, **idle}, allow_nan=False) + "\n")
        except BrokenPipeError:
            return


def _answer(commands: Mapping[str, Callable[..., Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": commands[request["command"]](**request["arguments"])}
    except Exception as error:
        message = " ".join(str(error).split())[:MESSAGE_CHARACTERS]
        if isinstance(error, ValueError):
            return {"refused": message}
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {message}"}


def _listen(requests: queue.SimpleQueue[str]) -> None:
    """Queue the lines of standard input; exit when it ends, because the parent is gone or wants no more answers."""
    with contextlib.suppress(OSError):
        for line in sys.stdin:
            requests.put(line)
    os._exit(0)


def request_once(module: str, command: str, arguments: Mapping[str, Any], **settings: Any) -> Any:
    """Start a `JsonProcess` with these settings, return its answer to one request, and end it."""
    with JsonProcess(module, **settings) as process:
        return process.request(command, **arguments)
