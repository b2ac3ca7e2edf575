"""Progress events of runs, as JSON lines between processes and as words for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, get_args

Stage = Literal["preparing", "training", "validating", "translating", "elsewhere", "ended"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """The state of a run.

    Args:
        run: the run's id.
        stage: what the run is doing.
        epoch: the current epoch, from 1, of `epochs`.
        updates: how many of `all_updates` are done.
        remaining_seconds: the estimated time until the run ends; None while it is unknown.
        remark: a line worth keeping, such as the metrics of an epoch.
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
    """Return the event that a line of JSON holds; None if it holds none."""
    try:
        event = Event(**json.loads(line))
    except (ValueError, TypeError):
        return None
    return event if event.stage in get_args(Stage) else None


def duration(seconds: float | None) -> str:
    """Return a time in words: "8 s", "3 min 20 s", "2 h 05 min"; "unknown" for None and infinity."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def describe(event: Event) -> str:
    """Return the state of a run in words."""
    parts = [{"ended": "done", "elsewhere": "another process runs it"}.get(event.stage, event.stage)]
    if event.stage == "training":
        parts = [f"epoch {event.epoch}/{event.epochs}, update {event.updates:,}/{event.all_updates:,}"]
    if event.tokens_per_second is not None and event.stage == "training":
        parts.append(f"{event.tokens_per_second:,.0f} tokens/s")
    if event.remaining_seconds is not None and event.stage != "ended":
        parts.append(f"{duration(event.remaining_seconds)} left")
    return ", ".join(parts)
