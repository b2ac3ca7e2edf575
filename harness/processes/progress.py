"""Progress events of runs: as JSON lines between processes, and as text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from harness.storage.records import EpochRecord

Stage = Literal["preparing", "training", "validating", "translating", "elsewhere", "ended"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """The state of a run, by id. Rates and times are None if they are unknown.

    Attributes:
        epoch: The current epoch, from 1.
        updates: The number of finished updates.
        remark: A line to keep, such as the metrics of an epoch.
        learning_rate: That of the last update, while training.
        training_loss: The minimised loss since the last event with one, in nats per target token; None if it is unknown
            or not finite.
        finished_epoch: The metrics of an epoch: at its end, and again after the run has resumed from a checkpoint.
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
    learning_rate: float | None = None
    training_loss: float | None = None
    finished_epoch: EpochRecord | None = None


Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """Show nothing."""


def to_line(event: Event) -> str:
    """Return an event as one line of JSON."""
    return json.dumps(asdict(event), allow_nan=False) + "\n"


def from_line(line: str) -> Event | None:
    """Return the event in a line of JSON, or None if there is none."""
    try:
        value = json.loads(line)
        epoch = value.pop("finished_epoch", None)
        event = Event(**value, finished_epoch=epoch and EpochRecord(**epoch))
    except (ValueError, TypeError, AttributeError):
        return None
    return event if event.stage in get_args(Stage) else None


def duration(seconds: float | None) -> str:
    """Return a time as text: "8 s", "3 min 20 s", "2 h 05 min"; "unknown" for None and infinity."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    if minutes == 0:
        return f"{seconds} s"
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def describe(event: Event) -> str:
    """Return the state of a run as text."""
    parts = [{"ended": "done", "elsewhere": "another process runs it"}.get(event.stage, event.stage)]
    if event.stage == "training":
        parts = [f"epoch {event.epoch}/{event.epochs}, update {event.updates:,}/{event.all_updates:,}"]
        if event.tokens_per_second is not None:
            parts.append(f"{event.tokens_per_second:,.0f} tokens/s")
    if event.remaining_seconds and event.stage != "ended":  # at 0, translations are still to be scored
        parts.append(f"{duration(event.remaining_seconds)} left")
    return ", ".join(parts)
