"""The scales on which metrics are analysed: logit for bounded scores, logarithm for positive values, or identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
ScaleName = Literal["logit", "log", "identity"]

LEAST_SCORE = 0.001
"""A score of 0 or 100 is analysed as if it were this far inside the range: less than what is shown."""
LEAST_POSITIVE = 1e-9


@dataclass(frozen=True)
class Scale:
    """A monotone map of a metric to the real line, and its inverse, so that no interval leaves the valid range.

    A difference is estimated as the difference of two means on this scale. To show it in the figure's own units, the
    two ends are placed around the middle of the two means: `shown(d, middle) = inverse(middle + d/2) −
    inverse(middle − d/2)`. It has the sign of `d`, and exchanging the two rows changes its sign alone.
    """

    name: ScaleName
    forward: Callable[[npt.ArrayLike], Reals]
    inverse: Callable[[npt.ArrayLike], Reals]

    def shown(self, difference: npt.ArrayLike, middle: npt.ArrayLike) -> Reals:
        """Return a difference on this scale in the figure's units, around `middle` on this scale."""
        half, centre = np.asarray(difference, np.float64) / 2, np.asarray(middle, np.float64)
        if self.name == "identity":
            return 2 * half
        return self.inverse(centre + half) - self.inverse(centre - half)

    def natural(self, difference: float, level: float) -> float:
        """Return a difference in the figure's units on this scale, around `level` in the figure's units.

        Raises:
            ValueError: the difference does not fit into the figure's range.
        """
        if self.name == "identity":
            return difference
        ends = np.array([level - difference / 2, level + difference / 2])
        most = 100.0 if self.name == "logit" else np.inf
        if ends[0] <= 0 or ends[1] >= most:
            raise ValueError(f"a difference of {difference:g} does not fit around a level of {level:.4g}")
        low, high = self.forward(ends)
        return float(high - low)


def _logit(scores: npt.ArrayLike) -> Reals:
    shares = np.clip(np.asarray(scores, np.float64), LEAST_SCORE, 100 - LEAST_SCORE) / 100
    found: Reals = np.log(shares) - np.log1p(-shares)
    return found


def _expit(values: npt.ArrayLike) -> Reals:
    found: Reals = 50 * (1 + np.tanh(np.asarray(values, np.float64) / 2))
    return found


def _log(values: npt.ArrayLike) -> Reals:
    found: Reals = np.log(np.maximum(np.asarray(values, np.float64), LEAST_POSITIVE))
    return found


def _exp(values: npt.ArrayLike) -> Reals:
    with np.errstate(over="ignore"):
        found: Reals = np.exp(np.asarray(values, np.float64))
    return found


def _same(values: npt.ArrayLike) -> Reals:
    return np.asarray(values, np.float64)


LOGIT = Scale("logit", _logit, _expit)
LOG = Scale("log", _log, _exp)
IDENTITY = Scale("identity", _same, _same)
