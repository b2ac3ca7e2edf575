"""Power of a table: the smallest difference detected with 80 % probability, and the seeds needed for a difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.analysis.inference import DEGREES_EXPONENT, LEAST_ROWS, LEAST_SEEDS, MOST_DEGREES, student

POWER = 0.8
MOST_SEEDS = 1000
NORMAL_DEGREES = 1e4
"""From here on Student's t counts as normal."""


@dataclass(frozen=True)
class DifferenceNoise:
    """The noise of a difference between two rows, on the natural scale.

    `run_variance` is the variance of one run over seeds, so that a difference of paired runs has twice as much;
    `degrees` are its degrees of freedom. `sentence_variance` is what other test sentences add to a difference however
    many seeds there are.
    """

    run_variance: float
    degrees: float
    sentence_variance: float


def detectable(standard_error: float, degrees: float, comparisons: int, *, confidence: float = 0.95) -> float:
    """Return the true difference that is found significant with a probability of 80 %.

    It is tested at (1 − `confidence`) / `comparisons`, the first and strictest step of Holm's correction, so a table in
    which several differences are real detects smaller ones.
    """
    from scipy.special import nctdtr, ndtri

    limit = float(student(degrees, 1 - (1 - confidence) / max(1, comparisons)))
    if degrees >= NORMAL_DEGREES:
        return standard_error * (limit + float(ndtri(POWER)))
    low, high = 0.0, 2.0
    while float(nctdtr(degrees, high, limit)) > 1 - POWER:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(nctdtr(degrees, middle, limit)) > 1 - POWER else (low, middle)
    return standard_error * high


def detectable_with(noise: DifferenceNoise, seeds: int, rows: int, comparisons: int) -> float:
    """Return what a table of `rows` rows detects with this many seeds, on the natural scale."""
    from_seeds = 2 * noise.run_variance / seeds
    total = from_seeds + noise.sentence_variance
    if total == 0:
        return 0.0
    seed_degrees = (rows - 1) * (seeds - 1) if rows >= LEAST_ROWS else seeds - 1
    ratio = total / from_seeds if from_seeds else math.inf
    degrees = min(seed_degrees * ratio**DEGREES_EXPONENT, MOST_DEGREES)
    return detectable(math.sqrt(total), degrees, comparisons)


def seeds_needed(noise: DifferenceNoise, difference: float, rows: int, comparisons: int) -> int | None:
    """Return the smallest number of seeds, at least 3, that detects `difference`; None if 1,000 do not.

    Source: a search; what is detected falls with the number of seeds.
    """
    if detectable_with(noise, MOST_SEEDS, rows, comparisons) > difference:
        return None
    low, high = LEAST_SEEDS - 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        if detectable_with(noise, middle, rows, comparisons) > difference:
            low = middle
        else:
            high = middle
    return high


def upper_bound(noise: DifferenceNoise, confidence: float = 0.8) -> DifferenceNoise:
    """Return the noise with its variance over seeds at the upper end of a one-sided interval (chi-square)."""
    from scipy.special import gammaincinv

    least = 2 * gammaincinv(noise.degrees / 2, 1 - confidence) / noise.degrees
    return DifferenceNoise(noise.run_variance / float(np.maximum(least, 1e-12)), noise.degrees, noise.sentence_variance)
