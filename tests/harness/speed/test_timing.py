"""Samples, ratios, and the fit of exponents."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
from scipy import stats

from harness.speed import timing
from harness.speed.timing import Samples

SAMPLES = (4.0, 1.0, 3.0, 2.0, 10.0)


def test_samples_of_values_keep_order_and_have_quartiles() -> None:
    samples = Samples.of(SAMPLES)
    assert samples.values == SAMPLES
    assert (samples.lower, samples.median, samples.upper) == (2.0, 3.0, 4.0)
    single = Samples.of([7.0])
    assert (single.lower, single.median, single.upper) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((), "at least one sample"),
        ((1.0, math.inf), "inf; samples must be from 1e-12 to 1e"),
        ((1.0, 0.0), "0.0; samples"),
    ],
)
def test_samples_empty_infinite_or_zero_are_rejected(values: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Samples.of(values)


def test_ratio_is_of_rounds_and_not_of_medians() -> None:
    """Round 2 was disturbed for both: the ratio of medians would be 4 / 3, that of rounds is 2 throughout."""
    ratio = timing.ratio([2.0, 20.0, 4.0, 5.0], [1.0, 10.0, 3.0])
    assert ratio.values == (2.0, 2.0, 4.0 / 3.0)
    assert timing.ratio([1.0], []) is None


class Cycle:
    """An object that only the collector of cyclic garbage frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("fails", [False, True])
def test_seconds_of_work_that_leaves_cycles_keeps_few_of_them(fails: bool) -> None:
    cycles: weakref.WeakSet[Cycle] = weakref.WeakSet()
    most = 0

    def work() -> None:
        nonlocal most
        for _ in range(20_000):
            cycles.add(Cycle())
            most = max(most, len(cycles))
        if fails:
            raise ValueError("no longer timed")

    try:
        timing.seconds(work, lambda: None)
    except ValueError:
        assert fails
    assert most < 10_000
    assert gc.get_freeze_count() == 0


def test_seconds_synchronizes_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: (events.append("clock"), 2.5 * len(events))[1])
    assert timing.seconds(lambda: events.append("work"), lambda: events.append("wait")) == 2.5 * 3
    assert events == ["wait", "clock", "work", "wait", "clock"]


def test_growth_is_the_fit_of_scipy_and_has_no_standard_error_for_two_sizes() -> None:
    random = np.random.default_rng(3)
    sizes = 2.0 ** np.arange(6)
    costs = sizes**1.3 * np.exp(0.1 * random.standard_normal(6))
    oracle = stats.linregress(np.log(sizes), np.log(costs))
    assert timing.growth(sizes.tolist(), costs.tolist()) == pytest.approx((oracle.slope, oracle.stderr), rel=1e-9)
    assert timing.growth([2, 8], [1, 16]) == (pytest.approx(2.0), None)
    assert timing.growth([2.0, 2.0], [1.0, 3.0]) == timing.growth([], []) == (None, None)
