"""The scales on which metrics are analysed: logit for scores, logarithm for positive values, or identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]

SCORE_MARGIN = 0.001
"""Scores of 0 and 100 are moved this far into the range, which is less than the reports show."""
SMALLEST_POSITIVE = 1e-9
END_OF_SCORES = 0.1
"""Scores this close to 0 or 100 are not analysed as logits, whose size there depends on a few n-grams."""


@dataclass(frozen=True)
class Scale:
    """A monotone map of a metric to the real line, and its inverse, so that no interval leaves the valid range.

    A difference is estimated as the difference of two means on this scale. To show it in the units of the metric, the
    two ends are placed around the middle of the two means: `shown(d, middle) = inverse(middle + d/2) −
    inverse(middle − d/2)`. It has the sign of `d`, and swapping the two rows changes its sign only. A difference of
    scores that are analysed as they are is shown as it is: if an end left the range and were moved back, intervals of
    differences from a score of 0 would be too narrow.
    """

    name: Literal["logit", "score", "log", "identity"]
    forward: Callable[[npt.ArrayLike], Reals]
    inverse: Callable[[npt.ArrayLike], Reals]

    def shown(self, difference: npt.ArrayLike, middle: npt.ArrayLike) -> Reals:
        """Return a difference on this scale in the units of the metric, around `middle` on this scale."""
        half, centre = np.asarray(difference, np.float64) / 2, np.asarray(middle, np.float64)
        if self.name == "identity":
            return 2 * half
        if self.name == "score":
            return np.clip(2 * half, -100, 100)
        return self.inverse(centre + half) - self.inverse(centre - half)

    def suited_to(self, values: npt.ArrayLike) -> Scale:
        """Return this scale, or `SCORE` if it is the logit and a score lies within `END_OF_SCORES` of an end."""
        scores = np.asarray(values, np.float64)
        at_end = (scores < END_OF_SCORES) | (scores > 100 - END_OF_SCORES)
        return SCORE if self.name == "logit" and at_end.any() else self

    def natural(self, difference: float, level: float) -> float:
        """Return a difference in the units of the metric on this scale, around `level` in the units of the metric.

        Raises:
            ValueError: The difference leaves the range of the metric.
        """
        if self.name == "identity":
            return difference
        ends = np.array([level - difference / 2, level + difference / 2])
        largest = 100.0 if self.name in ("logit", "score") else np.inf
        if ends[0] <= 0 or ends[1] >= largest:
            raise ValueError(f"a difference of {difference:g} does not fit around a level of {level:.4g}")
        low, high = self.forward(ends)
        return float(high - low)


def _logit(scores: npt.ArrayLike) -> Reals:
    shares = np.clip(np.asarray(scores, np.float64), SCORE_MARGIN, 100 - SCORE_MARGIN) / 100
    return np.log(shares) - np.log1p(-shares)


def _expit(values: npt.ArrayLike) -> Reals:
    return 50 * (1 + np.tanh(np.asarray(values, np.float64) / 2))


def _log(values: npt.ArrayLike) -> Reals:
    return np.log(np.maximum(np.asarray(values, np.float64), SMALLEST_POSITIVE))


def _exp(values: npt.ArrayLike) -> Reals:
    with np.errstate(over="ignore"):
        return np.exp(np.asarray(values, np.float64))


def _identity(values: npt.ArrayLike) -> Reals:
    return np.asarray(values, np.float64)


def _in_range(values: npt.ArrayLike) -> Reals:
    return np.clip(np.asarray(values, np.float64), 0, 100)


LOGIT = Scale("logit", _logit, _expit)
SCORE = Scale("score", _identity, _in_range)
LOG = Scale("log", _log, _exp)
IDENTITY = Scale("identity", _identity, _identity)
