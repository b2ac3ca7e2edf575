"""Timing: what one sample is, the order in which samples are taken, and how a series of samples is summarised.

Each model is timed in its own process, after a warm-up, with the device synchronised before and after. The models take
turns in every round, so that other load on the machine affects all of them. All samples are kept. A series is described
by its median and quartiles, and two series are compared round by round.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a series in the order of its rounds, with their median and quartiles.

    Quartiles are interpolated linearly between samples. A single sample is its own median and quartiles.

    Raises:
        ValueError: There is no sample, a sample is not finite, or the median or a quartile is wrong.
    """

    values: tuple[float, ...]
    median: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("values=(): at least one sample is required")
        for value in self.values:
            if not math.isfinite(value):
                raise ValueError(f"values: a sample is {value!r}, which is not finite")
        for name, expected in zip(("lower", "median", "upper"), _quartiles(self.values), strict=True):
            given = getattr(self, name)
            if not math.isclose(given, expected, rel_tol=1e-9, abs_tol=1e-300):
                raise ValueError(f"{name}={given!r} does not follow from the samples, which give {expected!r}")

    @classmethod
    def of(cls, values: Sequence[float]) -> Samples:
        """Return a series with its median and quartiles. Raises: as the class."""
        valid = values and all(map(math.isfinite, values))
        lower, median, upper = _quartiles(values) if valid else (math.nan,) * 3
        return cls(values=tuple(map(float, values)), median=median, lower=lower, upper=upper)

    def __len__(self) -> int:
        return len(self.values)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    lower, median, upper = (float(value) for value in np.quantile(np.asarray(values, np.float64), (0.25, 0.5, 0.75)))
    return lower, median, upper


def ratio(first: Samples, second: Samples) -> Samples:
    """Return first / second of each round. What slows the machine down in a round affects both and cancels.

    Raises:
        ValueError: The series have different numbers of rounds, or `second` has a sample that is not above 0.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} samples: a ratio needs two series of the same rounds")
    if min(second.values) <= 0:
        raise ValueError(f"a sample is {min(second.values)!r}: the divisor of a ratio must be above 0")
    return Samples.of([dividend / divisor for dividend, divisor in zip(first.values, second.values, strict=True)])


def seconds(work: Callable[[], object], synchronize: Callable[[], object]) -> float:
    """Return the seconds that `work` takes, with the device synchronised before and after.

    Cyclic garbage is collected before and not during the measurement, where it would hit one model by chance.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        synchronize()
        began = time.perf_counter()
        work()
        synchronize()
        return time.perf_counter() - began
    finally:
        if was_enabled:
            gc.enable()


def interleaved(items: Sequence[Item], rounds: int) -> Iterator[tuple[int, Item]]:
    """Yield (round, item) for every round and item. Each round starts with the next item."""
    for number in range(rounds):
        first = number % len(items) if items else 0
        for item in (*items[first:], *items[:first]):
            yield number, item


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How a cost grows: cost = c · size ** exponent, a log–log fit by least squares.

    `standard_error` is that of the exponent; None with two points, which any line fits.
    """

    exponent: float
    standard_error: float | None


def growth(sizes: Sequence[float], costs: Sequence[float]) -> Growth:
    """Fit the exponent of a cost.

    Formula: slope of log cost on log size; standard error sqrt(residual sum of squares / (n - 2) / sum of (x - mean)²).

    Raises:
        ValueError: There are fewer than two different sizes, or a number is not above 0.
    """
    if len(sizes) != len(costs) or len(set(sizes)) < 2:
        raise ValueError(
            f"{len(set(sizes))} sizes and {len(costs)} costs: a fit needs two different sizes and a cost for each"
        )
    if min(*sizes, *costs) <= 0:
        raise ValueError(f"{min(*sizes, *costs)!r}: sizes and costs must be above 0")
    x, y = np.log(np.asarray(sizes, np.float64)), np.log(np.asarray(costs, np.float64))
    spread = float(((x - x.mean()) ** 2).sum())
    exponent = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    residuals = y - y.mean() - exponent * (x - x.mean())
    if len(x) == 2:
        return Growth(exponent=exponent, standard_error=None)
    return Growth(exponent=exponent, standard_error=math.sqrt(float((residuals**2).sum()) / (len(x) - 2) / spread))
