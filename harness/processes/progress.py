"""How far a run is: the events that a run tells, and how they are shown, on a terminal or in a log."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, TextIO, get_args

from harness import text as terminal

Stage = Literal["preparing", "training", "validating", "translating", "elsewhere", "ended"]
LINE_SECONDS = 12.0
UPDATE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Event:
    """Where a run is. `remark` is a line that is worth keeping, such as an epoch's figures, or who else runs it.

    `updates` of `all_updates` are done; `remaining_seconds` is what the run as a whole still needs, as far as known.
    """

    run: str
    stage: Stage
    epoch: int = 0
    epochs: int = 0
    updates: int = 0
    all_updates: int = 0
    tokens_per_second: float | None = None
    remaining_seconds: float | None = None
    remark: str = ""


Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """Show nothing."""


def to_line(event: Event) -> str:
    """Return an event as one line of JSON."""
    return json.dumps(asdict(event), allow_nan=False) + "\n"


def from_line(line: str) -> Event | None:
    """Read an event back; None where the line is something else."""
    try:
        found = Event(**json.loads(line))
    except (ValueError, TypeError):
        return None
    return found if found.stage in get_args(Stage) else None


def duration(seconds: float | None) -> str:
    """Return a time as a person says it: "8 s", "3 min 20 s", "2 h 05 min"."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def describe(event: Event) -> str:
    """Return where a run is, in words."""
    parts = [{"ended": "done", "elsewhere": "another process runs it"}.get(event.stage, event.stage)]
    if event.stage == "training":
        parts = [f"epoch {event.epoch}/{event.epochs}, update {event.updates:,}/{event.all_updates:,}"]
    if event.tokens_per_second is not None and event.stage == "training":
        parts.append(f"{event.tokens_per_second:,.0f} tokens/s")
    if event.remaining_seconds is not None and event.stage != "ended":
        parts.append(f"{duration(event.remaining_seconds)} left")
    return ", ".join(parts)


class Display:
    """Shows the runs that are under way: lines that update themselves on a terminal, plain lines elsewhere.

    `overall`, where given, says how far all runs together are; it is the last line of a terminal's block. Once the
    stream is gone, a closed terminal or pipe, nothing is shown any more, and the runs go on.
    """

    def __init__(self, stream: TextIO, *, overall: Callable[[], str] | None = None) -> None:
        self._stream, self._overall = stream, overall
        self._live = stream.isatty()
        self._events: dict[str, Event] = {}
        self._drawn = 0
        self._gone = False
        self._last: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Show an event, unless the run was shown a moment ago."""
        if event.remark:
            self.line(f"{event.run}: {event.remark}")
        if event.stage == "ended":
            self._events.pop(event.run, None)
            self._draw()
            return
        self._events[event.run] = event
        now = time.monotonic()
        if self._live:
            if now - self._last.get("", -math.inf) >= UPDATE_SECONDS:
                self._last[""] = now
                self._draw()
        elif event.remark:
            self._last[event.run] = now
        elif now - self._last.setdefault(event.run, now) >= LINE_SECONDS:
            self._last[event.run] = now
            overall = f"; {self._overall()}" if self._overall else ""
            self.line(f"{event.run}: {describe(event)}{overall}")

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self._clear()
        self._write(terminal.one_line(text) + "\n")
        self._draw()

    def close(self) -> None:
        """Remove the lines that update themselves."""
        self._events.clear()
        self._clear()
        self._write("")

    def _clear(self) -> None:
        if self._drawn:
            self._write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _write(self, text: str) -> None:
        if self._gone:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._gone = True

    def _draw(self) -> None:
        if not self._live:
            return
        self._clear()
        lines = [f"{_short(event.run)}: {describe(event)}" for event in self._events.values()]
        if lines and self._overall is not None:
            lines.append(self._overall())
        width = _columns(self._stream) - 1
        self._write("".join(f"{terminal.one_line(line)[:width]}\n" for line in lines))
        self._drawn = len(lines)


def _short(run: str) -> str:
    """Return the variant, the budget and the seed of an id, which is too long for a terminal's line."""
    parts = run.split("-")
    return f"{parts[0]} {parts[-3]} {parts[-2]}" if len(parts) >= 6 else run


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
