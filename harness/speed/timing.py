"""How anything is timed: what is one sample, in which order samples are taken, and how a series of them is summed up.

Each subject is timed in a process of its own, its warm-up apart, with the device synchronised on both sides of the
clock; subjects take turns, round by round, so that what the machine does meanwhile falls on all of them. All samples
are kept: a series is its values, their median and their quartiles, and two series are compared round by round.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Subject = TypeVar("Subject")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a series in the order of its rounds, their median and their quartiles.

    Quartiles are interpolated linearly between samples; with one sample all three figures are that one.

    Raises: ValueError where there is no sample, one is not finite, or a figure is not that of the values.
    """

    values: tuple[float, ...]
    median: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("values=(): allowed is at least one sample")
        for one in self.values:
            if not math.isfinite(one):
                raise ValueError(f"values: {one!r} is not finite: allowed are finite numbers")
        for name, expected in zip(("lower", "median", "upper"), _quartiles(self.values), strict=True):
            value = getattr(self, name)
            if not math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-300):
                raise ValueError(f"{name}={value!r}: allowed is that of the values, {expected!r}")

    @classmethod
    def of(cls, values: Sequence[float]) -> Samples:
        """Return a series with its median and quartiles. Raises: as the class."""
        countable = values and all(map(math.isfinite, values))
        lower, median, upper = _quartiles(values) if countable else (math.nan,) * 3
        return cls(values=tuple(map(float, values)), median=median, lower=lower, upper=upper)

    def __len__(self) -> int:
        return len(self.values)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    lower, median, upper = (float(one) for one in np.quantile(np.asarray(values, np.float64), (0.25, 0.5, 0.75)))
    return lower, median, upper


def ratio(first: Samples, second: Samples) -> Samples:
    """Return first / second of each round: what the machine did in a round falls on both and cancels.

    Raises: ValueError where the series are not of the same rounds, or `second` has a sample that is not above 0.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} samples: allowed are two series of the same rounds")
    if min(second.values) <= 0:
        raise ValueError(f"a sample of {min(second.values)!r}: allowed is a number above 0 to divide by")
    return Samples.of([one / other for one, other in zip(first.values, second.values, strict=True)])


def seconds(work: Callable[[], object], synchronize: Callable[[], object]) -> float:
    """Return how long `work` takes, with the device synchronised on both sides of the clock.

    Python's collector of cyclic garbage runs before, and not while the clock does: it would fall on whom it finds.
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


def interleaved(subjects: Sequence[Subject], rounds: int) -> Iterator[tuple[int, Subject]]:
    """Yield (round, subject) for every round and subject; each round begins with another subject than the last."""
    for number in range(rounds):
        first = number % len(subjects) if subjects else 0
        for subject in (*subjects[first:], *subjects[:first]):
            yield number, subject


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How a cost grows: cost = c · size ** exponent, fitted to logarithms by least squares.

    `standard_error` is the exponent's; None with two points, which every line fits.
    """

    exponent: float
    standard_error: float | None


def growth(sizes: Sequence[float], costs: Sequence[float]) -> Growth:
    """Fit the exponent of a cost.

    Formula: slope of log cost on log size; standard error sqrt(residual sum of squares / (n - 2) / sum of (x - mean)²).
    Raises: ValueError with fewer than two sizes that differ, or where a number is not above 0.
    """
    if len(sizes) != len(costs) or len(set(sizes)) < 2:
        raise ValueError(f"{len(set(sizes))} sizes, {len(costs)} costs: allowed are at least two sizes, a cost each")
    if min(*sizes, *costs) <= 0:
        raise ValueError(f"{min(*sizes, *costs)!r}: allowed are sizes and costs above 0")
    x, y = np.log(np.asarray(sizes, np.float64)), np.log(np.asarray(costs, np.float64))
    spread = float(((x - x.mean()) ** 2).sum())
    exponent = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    residuals = y - y.mean() - exponent * (x - x.mean())
    if len(x) == 2:
        return Growth(exponent=exponent, standard_error=None)
    return Growth(exponent=exponent, standard_error=math.sqrt(float((residuals**2).sum()) / (len(x) - 2) / spread))
