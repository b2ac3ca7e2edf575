"""Timing: how one sample is taken, in which order samples are taken, and how a series of samples is summarised.

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
from typing import Any, TypeVar

import numpy as np

from harness.experiments.serialization import check_fields

Item = TypeVar("Item")

DERIVED = math.nan
"""The default of a number that follows from other fields."""


class Derived:
    """A frozen dataclass in which some fields follow from others: computed where missing, and checked where given.

    Raises:
        ValueError: A field does not have the type or range of its annotation, or differs from its derived value.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        try:
            derived = self.derived()
        except ArithmeticError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from error
        for name, expected in derived.items():
            value = getattr(self, name)
            if value is None or value != value:
                object.__setattr__(self, name, expected)
            elif not is_close(value, expected):
                raise ValueError(f"{name}={_brief(value)}: expected {_brief(expected)}, which follows from the samples")

    def derived(self) -> dict[str, Any]:
        """Return the derived fields: numbers, samples, or None for what cannot be computed."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Samples(Derived):
    """The samples of a series in the order of its rounds, with their median and quartiles.

    Quartiles are interpolated linearly between samples. A single sample is its own median and quartiles.

    Raises:
        ValueError: There is no sample, a sample is not finite and above 0, or the median or a quartile is wrong.
    """

    values: tuple[float, ...]
    median: float = DERIVED
    lower: float = DERIVED
    upper: float = DERIVED

    def derived(self) -> dict[str, float]:
        if not self.values:
            raise ValueError("values=(): at least one sample is required")
        for value in self.values:
            if not 0 < value < math.inf:
                raise ValueError(f"values: a sample is {value!r}; samples must be finite and above 0")
        quartiles = map(float, np.quantile(np.asarray(self.values, np.float64), (0.25, 0.5, 0.75)))
        return dict(zip(("lower", "median", "upper"), quartiles, strict=True))

    @classmethod
    def of(cls, values: Sequence[float]) -> Samples:
        """Return a series with its median and quartiles."""
        return cls(values=tuple(map(float, values)))

    def __len__(self) -> int:
        return len(self.values)


def is_close(value: Any, expected: Any) -> bool:
    """Return whether two numbers, two series, or None and None are equal except for rounding."""
    if isinstance(value, Samples) and isinstance(expected, Samples):
        return len(value) == len(expected) and all(map(is_close, value.values, expected.values))
    if isinstance(value, float | int) and isinstance(expected, float | int):
        return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)
    return value is expected


def _brief(value: Any) -> str:
    return repr(value.values) if isinstance(value, Samples) else repr(value)


def ratio(dividends: Sequence[float], divisors: Sequence[float]) -> Samples | None:
    """Return the ratio of two series in each round that both have, or None if there is no such round.

    What slows the machine down in a round affects both series and cancels.
    """
    pairs = list(zip(dividends, divisors, strict=False))
    return Samples.of([dividend / divisor for dividend, divisor in pairs]) if pairs else None


def growth(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float | None, float | None]:
    """Fit cost = c · size ** exponent, by least squares on logarithms.

    Returns:
        The exponent, None with fewer than two different sizes; and its standard error, None with fewer than three
        points, because any line fits two.

    Raises:
        ValueError: A size or a cost is not above 0.
    """
    smallest = min((*sizes, *costs), default=math.inf)
    if smallest <= 0:
        raise ValueError(f"{smallest!r}: sizes and costs must be above 0")
    if len(set(sizes)) < 2:
        return None, None
    x, y = np.log(sizes), np.log(costs)
    if len(x) == 2:
        return float(np.polyfit(x, y, 1)[0]), None
    (exponent, _), covariance = np.polyfit(x, y, 1, cov=True)
    return float(exponent), math.sqrt(covariance[0, 0])


def seconds(work: Callable[[], object], synchronize: Callable[[], object]) -> float:
    """Return the seconds that `work` takes, with the device synchronised before and after.

    Cyclic garbage is collected before, and objects that exist then are not searched again during the measurement, where
    that would hit one model by chance. New garbage is collected as usual: Keras on torch leaves gigabytes of it.
    """
    gc.collect()
    gc.freeze()
    try:
        synchronize()
        began = time.perf_counter()
        work()
        synchronize()
        return time.perf_counter() - began
    finally:
        gc.unfreeze()


def rotations(items: Sequence[Item], rounds: int) -> Iterator[list[Item]]:
    """Yield the items in the order of each round. Each round starts with the next item."""
    for number in range(rounds):
        first = number % len(items) if items else 0
        yield [*items[first:], *items[:first]]
