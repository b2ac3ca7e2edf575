"""Writes to standard output and standard error, without control characters that a terminal would obey."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from harness import text
from harness.storage import run_store

LONGEST_WARNING = 1_600
"""Warnings are cut to this length, because they may quote input of any length. Units: characters."""


def say(message: str = "") -> None:
    """Write one or more lines to standard output. Raises: OSError that names standard output if that fails."""
    try:
        sys.stdout.write(text.printable(message) + "\n")
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # the interpreter would try to flush the rest at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "standard output") from error


def say_json(value: Any) -> None:
    """Write a value to standard output as JSON; numbers that are not finite become null."""
    say(json.dumps(run_store.finite(value), indent=1, ensure_ascii=False, allow_nan=False))


def warn(message: str) -> None:
    """Write one line to standard error; a closed standard error is ignored."""
    line = text.one_line(message)
    if len(line) > LONGEST_WARNING:
        line = f"{line[: LONGEST_WARNING // 2]} … {line[-LONGEST_WARNING // 4 :]}"
    with contextlib.suppress(OSError):
        sys.stderr.write(f"bakeoff: {line}\n")
        sys.stderr.flush()
