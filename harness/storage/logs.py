"""What the process of a run printed: kept within bounds on the disk, and its last lines for the record."""

from __future__ import annotations

import os
from pathlib import Path

from harness.storage import files

LOG_BYTES = 8_000_000
KEPT_BYTES = 1_000_000
LINES = 3
LINE_LETTERS = 200
_TAIL_BYTES = 20_000


def size(path: Path) -> int:
    """Return the bytes of a log; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def cut(path: Path) -> bool:
    """Shorten a log that has outgrown `LOG_BYTES` to its first and last `KEPT_BYTES`, and return whether it had.

    Whoever has it open to append goes on at its new end; what is written while it is cut may be lost.
    """
    length = size(path)
    if length <= LOG_BYTES:
        return False
    with path.open("r+b") as file:
        file.seek(-KEPT_BYTES, 2)
        last = file.read(KEPT_BYTES)
        file.seek(KEPT_BYTES)
        file.write(f"\n[here stood what made this log longer than {LOG_BYTES:,} bytes]\n".encode())
        file.write(last)
        file.truncate()
    return True


def last_lines(path: Path, *, since: int = 0) -> list[str]:
    """Return the last `LINES` lines with any letter or digit of what was written after the first `since` bytes.

    Without control characters, which would command a terminal, and none longer than `LINE_LETTERS`.
    """
    try:
        with files.reading(path) as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0 if length < since else since, length - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return []
    shown = (_shown(line) for line in text.split("\n"))
    return [line for line in shown if any(map(str.isalnum, line))][-LINES:]


def _shown(line: str) -> str:
    line = " ".join("".join(one if one.isprintable() else " " for one in line).split())
    return line if len(line) <= LINE_LETTERS else f"{line[:LINE_LETTERS]} …"
