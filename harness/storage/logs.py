"""Logs of runs: limited in size, with their last lines for the record."""

from __future__ import annotations

import os
from pathlib import Path

from harness.storage import files

LOG_BYTES = 8_000_000
KEPT_BYTES = 1_000_000
LINES = 3
LINE_CHARACTERS = 200
CUT = " …"
"""The end of a line that was cut to `LINE_CHARACTERS` characters."""
_TAIL_BYTES = 20_000


def size(path: Path) -> int:
    """Return the size of a log in bytes; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def cut(path: Path) -> bool:
    """Cut a log of more than `LOG_BYTES` to its first and last `KEPT_BYTES`, and return whether it was cut.

    Processes that append to it continue at the new end. Output written during the cut may be lost.
    """
    length = size(path)
    if length <= LOG_BYTES:
        return False
    with path.open("r+b") as file:
        file.seek(-KEPT_BYTES, 2)
        last = file.read(KEPT_BYTES)
        file.seek(KEPT_BYTES)
        file.write(
            f"\n[the middle of this log, which was longer than {LOG_BYTES:,} bytes, has been removed]\n".encode()
        )
        file.write(last)
        file.truncate()
    return True


def last_lines(path: Path, *, since: int = 0) -> list[str]:
    """Return the last `LINES` lines after the first `since` bytes, of those that have a letter or digit.

    Control characters are removed, and lines are cut to `LINE_CHARACTERS` characters.
    """
    try:
        with files.reading(path) as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0 if length < since else since, length - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return []
    lines = map(_printable, text.split("\n"))
    return [line for line in lines if any(map(str.isalnum, line))][-LINES:]


def _printable(line: str) -> str:
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in line).split())
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}{CUT}"
