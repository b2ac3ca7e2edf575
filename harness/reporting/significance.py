"""Tests and spreads of paired figures as arrays: what `statistics` makes its intervals and p values of.

Letters: P effects (weighted sums of rows), V rows, n seeds, N test sentences, K statistics of a sentence, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Metric = Callable[[Reals], Reals]
"""Turns sums of the statistics of sentences, [...,K], into figures, [...]."""

MOST_EXACT_SEEDS = 12
"""All 2 ** n flips of signs are tried up to here; beyond it random ones."""

ROUNDING = 1e-12
"""What two figures may differ by, as a share of them, and still be the same."""

_CHUNK = 4_000_000
_TIE = 1 - 1e-9
_MOST_DEGREES = 1e9


def least_p(n: int) -> float | None:
    """Return the least two-sided p that a sign-flip test over `n` seeds can give, 2 / 2 ** n; None without seeds."""
    return 2.0 ** (1 - n) if n else None


def holm(ps: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return `ps` after Holm's correction for the number of those that are there; None stays None.

    The ith smallest of m becomes the largest of (m - j + 1) * p[j] over j <= i, at most 1.

    Source: Holm 1979.
    """
    order = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    found: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        found[place] = largest
    return tuple(found)


def student(degrees: float | Reals, confidence: float) -> Any:
    """Return Student's t that is exceeded on both sides together in 1 - `confidence` of cases."""
    from scipy.special import stdtrit

    return stdtrit(np.minimum(degrees, _MOST_DEGREES), (1 + confidence) / 2)


def variances(values: Reals) -> Reals:
    """Return the variance over seeds of each row of `values` [P,n], divided by n - 1; 0 where all are equal."""
    if values.shape[1] < 2:
        return np.zeros(len(values))
    found: Reals = np.where(np.ptp(values, axis=1) > 0, values.var(axis=1, ddof=1), 0.0)
    return found


def paired_p(values: Reals) -> Reals:
    """Return the p of the two-sided paired t test of each row of `values` [P,n], n of at least 2.

    Where all seeds differ alike the test has no spread to go by, and p is the least that the sign-flip test can give.
    """
    from scipy.special import stdtr

    n, means, errors = values.shape[1], values.mean(axis=1), np.sqrt(variances(values) / values.shape[1])
    alike = np.where(means == 0, 1.0, 2.0 ** (1 - n))
    found: Reals = np.where(errors > 0, 2 * stdtr(n - 1, -np.abs(means) / np.where(errors > 0, errors, 1.0)), alike)
    return found


def joint_p(values: Reals, *, trials: int, seed: int) -> Reals:
    """Return the p of each row of `values` [P,n] under flips of the signs of whole seeds, corrected for all rows.

    It is the share of flips in which any row's statistic is at least this one's: |sum over seeds| / root of the sum of
    squares, which rises with |t|, and which no lack of spread makes infinite.

    Source: Westfall and Young 1993, section 2.3 (max-t).
    """
    rows, n = values.shape
    norms = np.sqrt((values**2).sum(axis=1))
    scaled = values / np.where(norms > 0, norms, 1.0)[:, None]
    observed = np.abs(scaled.sum(axis=1)) * _TIE
    if exact := n <= MOST_EXACT_SEEDS:
        signs = np.array(list(product((1.0, -1.0), repeat=n)))
    else:
        signs = np.random.default_rng(seed).choice((1.0, -1.0), size=(trials, n))
    counts = np.zeros(rows)
    for part in _chunks(len(signs), rows):
        largest = np.abs(signs[part] @ scaled.T).max(axis=1)
        counts += (largest[:, None] >= observed).sum(axis=0)
    found: Reals = counts / len(signs) if exact else (counts + 1) / (len(signs) + 1)
    return found


def randomisation_p(
    sums: npt.NDArray[Any], pairs: Sequence[tuple[int, int]], metric: Metric, *, trials: int, seed: int
) -> list[float]:
    """Return the p of approximate randomisation of `pairs` of single runs: is it more than the choice of sentences?

    In each trial every sentence's statistics change sides with probability 1/2. (c + 1) / (trials + 1) for c trials
    whose difference is at least as far from 0. That is sacreBLEU's paired test "ar", whose trials these are for its
    seed, but that ties count: a run against itself has p = 1. It says nothing about other seeds.

    Shapes: `sums` [V,N,K] of one run each; a pair is two places among V.

    Source: Riezler and Maxwell 2005; sacreBLEU's `significance.py`.
    """
    rows, sentences, width = sums.shape
    flat = np.asarray(sums, np.float64).transpose(1, 0, 2).reshape(sentences, -1)
    whole = flat.sum(axis=0).reshape(rows, width)
    observed = [abs(float(metric(whole[first]) - metric(whole[second]))) * _TIE for first, second in pairs]
    counts, generator = np.zeros(len(pairs), int), np.random.default_rng(seed)
    for part in _chunks(trials, max(flat.shape)):
        chosen = generator.integers(2, size=(part.stop - part.start, sentences), dtype=bool)
        ours = (chosen.astype(np.float64) @ flat).reshape(-1, rows, width)
        for place, (first, second) in enumerate(pairs):
            mixed = ours[:, first] + whole[second] - ours[:, second]
            found = np.abs(metric(mixed) - metric(whole[first] + whole[second] - mixed))
            counts[place] += int((found >= observed[place]).sum())
    return [(int(count) + 1) / (trials + 1) for count in counts]


def effect_size(values: Reals) -> float | None:
    """Return Cohen's d_z of differences over seeds, with Hedges' correction; None below three or where all are alike.

    mean / deviation * gamma(m / 2) / (sqrt(m / 2) * gamma((m - 1) / 2)) with m = n - 1.

    Source: Hedges 1981, equation 6e.
    """
    if len(values) < 3:
        return None
    if not np.ptp(values):
        return None if values.any() else 0.0
    half = (len(values) - 1) / 2
    correction = math.exp(math.lgamma(half) - math.lgamma(half - 0.5)) / math.sqrt(half)
    return float(correction * values.mean() / values.std(ddof=1))


def draw_sentences(sums: npt.NDArray[Any], metric: Metric, *, resamples: int, seed: int) -> Reals:
    """Return the figures with the sentences drawn with replacement, [R,V,n], each draw alike for all rows and seeds.

    A draw is how often each sentence is in it, so that the sums of many draws are one product of matrices.

    Shapes: `sums` [V,n,N,K].
    """
    runs, (sentences, width) = sums.shape[:2], sums.shape[2:]
    flat = np.asarray(sums, np.float64).transpose(2, 0, 1, 3).reshape(sentences, -1)
    generator, even = np.random.default_rng(seed), np.full(sentences, 1 / sentences)
    found = np.zeros((resamples, *runs))
    for part in _chunks(resamples, max(flat.shape)):
        times = generator.multinomial(sentences, even, size=part.stop - part.start)
        found[part] = metric((times.astype(np.float64) @ flat).reshape(-1, *runs, width))
    return found


def shared_variance(drawn: Reals, weights: Reals) -> Reals:
    """Return what drawing the sentences anew changes in all seeds alike, [P]; with one seed all that it changes.

    It is the mean covariance of two seeds, (n * variance of the mean over seeds - mean of the seeds' variances) /
    (n - 1), at least 0. Both are quadratic in the weights, so that covariances of rows, [V,V], serve all effects.

    Shapes: `drawn` [R,V,n], `weights` [P,V].
    """
    apart, n = drawn - drawn.mean(axis=0), drawn.shape[2]
    together, flat = apart.mean(axis=2), apart.transpose(1, 0, 2).reshape(drawn.shape[1], -1)
    each = flat @ flat.T / n
    covariance = each if n == 1 else (n * (together.T @ together) - each) / (n - 1)
    found = (weights @ covariance * weights).sum(axis=1)
    least = ROUNDING * (np.abs(weights) @ np.abs(each) * np.abs(weights)).sum(axis=1)
    shared: Reals = np.where(found > least, found, 0.0) / (len(drawn) - 1)
    return shared


def _chunks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of bounded size; a multiple of 32 rows, so that random bits are the same as drawn in one call."""
    size = max(32, _CHUNK // max(1, width) // 32 * 32)
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))
