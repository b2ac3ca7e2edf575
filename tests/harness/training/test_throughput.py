"""The seconds and tokens that count for the throughput, on a clock that the test sets."""

from __future__ import annotations

import time
from typing import Any

import pytest

from harness.training.checkpoint import TrainingState
from harness.training.throughput import ThroughputMeter
from impls.contract import Compilation


class Compiling:
    """The part of a model that the meter uses."""

    seconds = 0.0

    def synchronize(self) -> None:
        pass

    def compilation(self) -> Compilation:
        return Compilation("nothing", False, 0, self.seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list with the time in seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_meter_leaves_out_the_first_update_and_compiling_ones(clock: list[float]) -> None:
    state, model = TrainingState("today", "digest"), Compiling()
    meter = ThroughputMeter(state, model)  # type: ignore[arg-type]
    meter.start()
    for seconds, compiling, tokens in ((5, 0, 100), (7, 0, 10), (11, 3, 99), (12, 0, 20)):
        clock[0], model.seconds = seconds, model.seconds + compiling
        meter.add_update(tokens)
    assert (meter.updates, meter.tokens, meter.seconds) == (2, 30, 12 - 5 - 3)
    clock[0] = 13
    meter.stop()
    assert (state.first_update_seconds, state.training_seconds) == (5, 13)
    assert (state.steady_updates, state.steady_tokens, state.steady_seconds) == (2, 30, 13 - 5 - 3)


def test_meter_of_a_resumed_run_keeps_the_first_update_of_its_first_process(clock: list[float]) -> None:
    state = TrainingState("today", "digest", first_update_seconds=5.0)
    meter = ThroughputMeter(state, Compiling())  # type: ignore[arg-type]
    meter.start()
    clock[0] = 2
    meter.add_update(100)
    meter.stop()
    assert (state.first_update_seconds, state.training_seconds, state.steady_updates) == (5, 2, 0)


def test_meter_started_again_adds_all_updates_and_no_pause(clock: list[float]) -> None:
    state, model = TrainingState("today", "digest"), Compiling()
    meter: Any = ThroughputMeter(state, model)  # type: ignore[arg-type]
    meter.start()
    clock[0] = 1
    meter.add_update(100)
    meter.stop()
    clock[0] = 20
    assert meter.seconds == 0
    meter.stop()
    meter.start()
    clock[0] = 22
    meter.add_update(7)
    meter.stop()
    assert (state.first_update_seconds, state.training_seconds) == (1, 1 + 2)
    assert (state.steady_updates, state.steady_tokens, state.steady_seconds) == (1, 7, 2)
