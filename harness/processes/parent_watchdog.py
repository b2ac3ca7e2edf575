"""Shuts a worker process down cleanly when its parent process is gone."""

from __future__ import annotations

import os
import signal
import threading
import time

GRACE_SECONDS = 60.0
"""The time that a process has to write its checkpoint and exit before it is killed."""


def exit_with_parent(grace_seconds: float = GRACE_SECONDS) -> None:
    """Treat the end of standard input, whose other end the parent holds, as SIGTERM.

    Nothing else may read standard input afterwards. A process that is still running `grace_seconds` later is killed
    together with its children.
    """
    pipe = os.dup(0)
    with open(os.devnull, "rb") as null_device:
        os.dup2(null_device.fileno(), 0)  # otherwise children would inherit the pipe
    threading.Thread(target=_watch, args=(pipe, grace_seconds), daemon=True).start()


def _watch(pipe: int, grace_seconds: float) -> None:
    while os.read(pipe, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds)
    if os.name == "posix" and os.getsid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGTERM)
