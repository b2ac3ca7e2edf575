"""A run's process outlives nobody: it ends in order once whoever started it is gone, however that went."""

from __future__ import annotations

import os
import signal
import threading
import time

GRACE_SECONDS = 60.0
"""How long a process has, from then on, to write its checkpoint and end by itself."""


def follow_parent(grace_seconds: float = GRACE_SECONDS) -> None:
    """Take the end of standard input for SIGTERM: its other end is held by whoever started this process.

    Nothing else reads it from here on. A process that has not ended `grace_seconds` later is killed, its children too.
    """
    lifeline = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # children would else inherit it, and wait for words that never come
    threading.Thread(target=_watch, args=(lifeline, grace_seconds), daemon=True).start()


def _watch(lifeline: int, grace_seconds: float) -> None:
    while os.read(lifeline, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds)
    if os.name == "posix" and os.getsid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGTERM)
