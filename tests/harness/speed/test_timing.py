"""Samples, ratios, turns and the fit of exponents."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from harness.speed import timing
from harness.speed.timing import Samples

SAMPLES = (4.0, 1.0, 3.0, 2.0, 10.0)


def test_samples_of_values_keep_order_and_have_quartiles() -> None:
    found = Samples.of(SAMPLES)
    assert found.values == SAMPLES
    assert (found.lower, found.median, found.upper) == (2.0, 3.0, 4.0)
    assert Samples.of([7.0]) == Samples(values=(7.0,), lower=7.0, median=7.0, upper=7.0)


@pytest.mark.parametrize("field", ["lower", "median", "upper"])
def test_samples_with_a_wrong_quartile_are_refused(field: str) -> None:
    figures = {"lower": 2.0, "median": 3.0, "upper": 4.0}
    with pytest.raises(ValueError, match=f"{field}=.* does not follow from the samples"):
        Samples(values=SAMPLES, **{**figures, field: figures[field] + 1e-6})


@pytest.mark.parametrize(("values", "message"), [((), "at least one sample"), ((1.0, math.inf), "not finite")])
def test_samples_empty_or_infinite_are_refused(values: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Samples.of(values)


def test_ratio_is_of_rounds_and_not_of_medians() -> None:
    """Round 2 was disturbed for both: the ratio of medians would be 4 / 3, that of rounds is 2 throughout."""
    first, second = Samples.of([2.0, 20.0, 4.0]), Samples.of([1.0, 10.0, 3.0])
    found = timing.ratio(first, second)
    assert found.values == (2.0, 2.0, 4.0 / 3.0)
    assert found.median == 2.0 != first.median / second.median


@pytest.mark.parametrize(("second", "message"), [([1.0], "of the same rounds"), ([1.0, 0.0], "must be above 0")])
def test_ratio_of_unpaired_series_is_refused(second: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timing.ratio(Samples.of([1.0, 2.0]), Samples.of(second))


def test_interleaved_each_round_starts_with_the_next_item() -> None:
    found = list(timing.interleaved("abc", 4))
    assert ["".join(name for number, name in found if number == one) for one in range(4)] == [
        "abc",
        "bca",
        "cab",
        "abc",
    ]


def test_seconds_synchronizes_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    moments = iter([5.0, 7.5])

    def moment() -> float:
        happened.append("clock")
        return next(moments)

    monkeypatch.setattr(timing.time, "perf_counter", moment)
    took = timing.seconds(lambda: happened.append("work"), lambda: happened.append("wait"))
    assert took == 2.5
    assert happened == ["wait", "clock", "work", "wait", "clock"]


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 1.0, 2.0])
def test_growth_of_a_power_has_its_exponent(exponent: float) -> None:
    sizes = [1.0, 2.0, 8.0, 64.0]
    found = timing.growth(sizes, [3.0 * size**exponent for size in sizes])
    assert found.exponent == pytest.approx(exponent, abs=1e-12)
    assert found.standard_error == pytest.approx(0, abs=1e-7)


def test_growth_standard_error_is_that_of_scipy() -> None:
    random = np.random.default_rng(3)
    sizes = 2.0 ** np.arange(6)
    costs = sizes**1.3 * np.exp(0.1 * random.standard_normal(6))
    oracle = stats.linregress(np.log(sizes), np.log(costs))
    found = timing.growth(sizes.tolist(), costs.tolist())
    assert (found.exponent, found.standard_error) == pytest.approx((oracle.slope, oracle.stderr), rel=1e-9)


def test_growth_of_two_sizes_has_no_standard_error() -> None:
    found = timing.growth([2, 8], [1, 16])
    assert (found.exponent, found.standard_error) == (pytest.approx(2.0), None)


@pytest.mark.parametrize(("sizes", "costs"), [([2.0], [1.0]), ([2.0, 2.0], [1.0, 3.0]), ([1.0, 2.0], [0.0, 1.0])])
def test_growth_without_two_sizes_or_positive_costs_is_refused(sizes: list[float], costs: list[float]) -> None:
    with pytest.raises(ValueError, match="a fit needs|must be above 0"):
        timing.growth(sizes, costs)
