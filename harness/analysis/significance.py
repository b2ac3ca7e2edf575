"""Randomness of the test sentences, and Holm's correction, on arrays.

Letters: V rows, n seeds, N test sentences, K statistics of a sentence, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
MetricFunction = Callable[[Reals], Reals]
"""Turns sums of the statistics of sentences, [...,K], into figures, [...]."""

_CHUNK = 4_000_000
_TIE = 1 - 1e-9


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


def randomisation_p(
    sums: npt.NDArray[Any], pairs: Sequence[tuple[int, int]], metric: MetricFunction, *, trials: int, seed: int
) -> list[float]:
    """Return the p-values of paired approximate randomisation of `pairs` of single runs over the test sentences.

    In each trial every sentence's statistics change sides with probability 1/2. p = (c + 1) / (trials + 1) for c trials
    whose difference is at least as far from 0. That is sacreBLEU's paired test "ar", with the same trials for the same
    seed, except that ties count: a run against itself has p = 1. It says nothing about other seeds.

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


def draw_sentences(sums: npt.NDArray[Any], metric: MetricFunction, *, resamples: int, seed: int) -> Reals:
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


def shared_covariance(drawn: Reals) -> Reals:
    """Return the covariance of rows that drawing the sentences brings about in all seeds alike, [V,V].

    It is the mean covariance of two different seeds, (n * covariance of the means over seeds - mean of the seeds'
    covariances) / (n - 1); with one seed the whole covariance.

    Shapes: `drawn` [R,V,n].
    """
    apart, n = drawn - drawn.mean(axis=0), drawn.shape[2]
    together, flat = apart.mean(axis=2), apart.transpose(1, 0, 2).reshape(drawn.shape[1], -1)
    each = flat @ flat.T / n
    found: Reals = each if n == 1 else (n * (together.T @ together) - each) / (n - 1)
    return found / (len(drawn) - 1)


def _chunks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of bounded size; a multiple of 32 rows, so that random bits are the same as drawn in one call."""
    size = max(32, _CHUNK // max(1, width) // 32 * 32)
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))
