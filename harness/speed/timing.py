"""How one sample is taken, and how a series of samples is summarised: by median and quartiles, and round by round."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.experiments.serialization import check_fields

SMALLEST, LARGEST = 1e-12, 1e12
"""The limits of a sample. What lies outside was not measured, and could overflow."""


class Checked:
    """A frozen dataclass whose fields have the types and ranges of their annotations, or ValueError is raised."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Samples(Checked):
    """The samples of a series in the order of its rounds. Quartiles are interpolated linearly between samples.

    Raises: ValueError if there is no sample, or a sample is not from 1e-12 to 1e12.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.values:
            raise ValueError("values=(): at least one sample is required")
        for value in self.values:
            if not SMALLEST <= value <= LARGEST:
                raise ValueError(f"values: a sample is {value!r}; samples must be from {SMALLEST:g} to {LARGEST:g}")

    @classmethod
    def of(cls, values: Sequence[float]) -> Samples:
        return cls(values=tuple(map(float, values)))

    @property
    def lower(self) -> float:
        return float(np.quantile(self.values, 0.25))

    @property
    def median(self) -> float:
        return float(np.quantile(self.values, 0.5))

    @property
    def upper(self) -> float:
        return float(np.quantile(self.values, 0.75))

    def __len__(self) -> int:
        return len(self.values)


def ratio(dividends: Sequence[float], divisors: Sequence[float]) -> Samples | None:
    """Return the ratio of two series in each round that both have, or None if there is no such round.

    What slows the machine down in a round affects both series and cancels.
    """
    pairs = list(zip(dividends, divisors, strict=False))
    return Samples.of([dividend / divisor for dividend, divisor in pairs]) if pairs else None


def growth(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float | None, float | None]:
    """Fit cost = c · size ** exponent to positive values, by least squares on logarithms.

    Returns:
        The exponent, None with fewer than two different sizes; and its standard error, None with fewer than three
        points, because any line fits two.
    """
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
