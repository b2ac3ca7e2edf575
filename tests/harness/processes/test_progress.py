"""Progress events as JSON lines and as text."""

from __future__ import annotations

import pytest

from harness.processes.progress import Event, describe, duration, from_line, to_line


def test_event_round_trips_through_a_line() -> None:
    event = Event(run="x", stage="training", epoch=1, tokens_per_second=5.5, remark="ä\u2028")
    assert to_line(event).count("\n") == 1
    assert from_line(to_line(event)) == event
    assert describe(event).startswith("epoch 1/0")


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.0, "translating, 8 s left"), (0.0, "translating"), (None, "translating")]
)
def test_describe_without_a_remaining_time_names_none(seconds: float | None, text: str) -> None:
    assert describe(Event(run="x", stage="translating", remaining_seconds=seconds)) == text


@pytest.mark.parametrize("line", ["", "a warning of a library", "{}", '{"run": "x", "stage": "resting"}', "[1]"])
def test_from_line_ignores_other_lines(line: str) -> None:
    assert from_line(line) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (float("inf"), "unknown"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (60, "1 min 00 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_duration_uses_the_largest_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
