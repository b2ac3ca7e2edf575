"""The format of numbers, intervals and lists in reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from harness.reporting import formatting


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (partial(formatting.number, digits=2), None, "–"),
        (partial(formatting.number, digits=2), math.inf, "–"),
        (partial(formatting.signed, digits=2), math.nan, "–"),
        (partial(formatting.signed, digits=2), 0.25, "+0.25"),
        (partial(formatting.signed, digits=2), -1_234.5, "−1,234.50"),
        (partial(formatting.signed, digits=2), -0.001, "0.00"),
        (formatting.significant_digits, 0, "0.000"),
        (formatting.significant_digits, 0.00123, "0.0012"),
        (formatting.significant_digits, 0.1234, "0.123"),
        (formatting.significant_digits, 1.234, "1.23"),
        (formatting.significant_digits, 123.4, "123"),
        (formatting.significant_digits, 12_345.6, "12,346"),
        (formatting.quantity, 0.05, "0.05"),
        (formatting.quantity, 12_000, "12,000"),
        (formatting.quantity, 2e6, "2 M"),
        (formatting.quantity, 9_038_341, "9.04 M"),
        (formatting.p_value, None, "–"),
        (formatting.p_value, 0.00099, "<0.001"),
        (formatting.p_value, 0.001, "0.001"),
        (formatting.p_value, 0.0496, "<0.050"),
        (formatting.p_value, 0.05, "0.050"),
        (formatting.percent, 0.009, "< 1 %"),
        (formatting.percent, 0.01, "1 %"),
        (formatting.percent, 0.99, "99 %"),
        (formatting.percent, 0.991, "> 99 %"),
        (formatting.mebibytes, None, "unknown"),
        (formatting.mebibytes, 3 * 2**30, "3,072"),
        (formatting.listed, ["a"], "a"),
        (formatting.listed, ["a", "b", "c"], "a, b and c"),
    ],
)
def test_format_of_a_value(function: Callable[[Any], str], value: Any, expected: str) -> None:
    assert function(value) == expected


def estimate(low: float | None, high: float | None, *values: float) -> Any:
    return SimpleNamespace(low=low, high=high, values=values)


@pytest.mark.parametrize(
    ("interval", "bounds", "between", "words"),
    [
        (estimate(-4, 36, 1, 2, 3), "−4.0 to +36.0", "-4.0 to 36.0", "95 % interval -4.0 to 36.0"),
        (estimate(33, 36, 34.5), "+33.0 to +36.0", "33.0 to 36.0", "95 % interval over test sentences 33.0 to 36.0"),
        (estimate(None, None, -35, 36), "seeds: −35.0; +36.0", "-35.0; 36.0", "-35.0 and 36.0"),
        (estimate(None, None, 35), "–", "", ""),
    ],
    ids=["three seeds", "one seed", "two seeds", "no interval"],
)
def test_interval_depends_on_the_number_of_seeds(interval: Any, bounds: str, between: str, words: str) -> None:
    assert formatting.bounds(interval, 1) == bounds
    assert formatting.between(interval, 1) == between
    assert formatting.interval_words(interval, 1) == words
    thousands = estimate(*(end and 1_000 * end for end in (interval.low, interval.high)), *interval.values)
    if interval.low is not None:
        assert formatting.bounds(thousands, 1, divisor=1_000) == bounds
        assert formatting.between(thousands, 1, divisor=1_000) == between
