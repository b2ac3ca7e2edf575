"""The uncertainty that the test sentences cause, and Holm's correction, on arrays.

Letters in shapes: V rows, n seeds, N test sentences, K statistics per sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis.scales import Reals

MetricFunction = Callable[[Reals], Reals]
"""Maps the summed statistics of sentences, [...,K], to values of a metric, [...]."""

TRIALS = 10_000
"""The number of trials of approximate randomisation."""
SEED = 0
"""The seed of the randomisation."""

_CHUNK = 4_000_000
_TIE = 1 - 1e-9


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return p-values after Holm's correction for the number of those that are not None.

    The ith smallest of m becomes the largest of (m − j + 1) · p[j] over j <= i, at most 1.

    Source: Holm 1979.
    """
    tested = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        corrected[index] = largest
    return tuple(corrected)


def randomisation_p(sums: npt.NDArray[Any], pairs: Sequence[tuple[int, int]], metric: MetricFunction) -> list[float]:
    """Return the p-values of paired approximate randomisation of pairs of single runs over the test sentences.

    In each trial the statistics of every sentence change sides with probability 1/2. p = (c + 1) / (`TRIALS` + 1) for
    c trials whose difference is at least as far from 0 as the observed one. This is sacreBLEU's paired test "ar", with
    the same trials for the same `SEED`, except that ties count: a run against itself has p = 1. The p-value does not
    cover other seeds.

    Args:
        sums: The statistics of one run per row, [V,N,K].
        pairs: The indices of two rows each.
        metric: Maps summed statistics to the metric.

    Source: Riezler and Maxwell 2005; sacreBLEU's `significance.py`.
    """
    rows, sentences, width = sums.shape
    flat = np.asarray(sums, np.float64).transpose(1, 0, 2).reshape(sentences, -1)
    totals = flat.sum(axis=0).reshape(rows, width)
    observed = [abs(float(metric(totals[first]) - metric(totals[second]))) * _TIE for first, second in pairs]
    counts, generator = np.zeros(len(pairs), int), np.random.default_rng(SEED)
    # In steps of a multiple of 32 trials the random bits are those of one call for all trials.
    step = max(32, _CHUNK // max(1, *flat.shape) // 32 * 32)
    for start in range(0, TRIALS, step):
        selected = generator.integers(2, size=(min(step, TRIALS - start), sentences), dtype=bool)
        parts = (selected.astype(np.float64) @ flat).reshape(-1, rows, width)
        for index, (first, second) in enumerate(pairs):
            mixed = parts[:, first] + totals[second] - parts[:, second]
            differences = np.abs(metric(mixed) - metric(totals[first] + totals[second] - mixed))
            counts[index] += int((differences >= observed[index]).sum())
    return [(int(count) + 1) / (TRIALS + 1) for count in counts]


def without_each_sentence(sums: Sequence[npt.NDArray[Any]], metric: MetricFunction) -> Reals:
    """Return the metric of each run without one test sentence, for every sentence.

    Shapes: `sums` [n,N,K] for each row; the result [N,V,n].
    """
    seeds, sentences, _ = sums[0].shape
    values = np.empty((sentences, len(sums), seeds))
    for row, of_row in enumerate(sums):  # a row at a time: thousands of runs have gigabytes of statistics
        statistics = np.asarray(of_row, np.float64)
        values[:, row] = metric(statistics.sum(axis=1, keepdims=True) - statistics).T
    return values


def shared_covariance(left_out: Reals) -> Reals:
    """Return the jackknife estimate of the covariance of rows that the test sentences cause in all seeds alike.

    It is the mean covariance of two different seeds, (n · covariance of the means over seeds − mean of the covariances
    of the seeds) / (n − 1). With one seed it is the full covariance.

    Args:
        left_out: The values of `without_each_sentence`, on the scale of the analysis.

    Shapes: `left_out` [N,V,n]; the result [V,V].

    Source: Efron and Stein 1981.
    """
    deviations, n = left_out - left_out.mean(axis=0), left_out.shape[2]
    of_means, flat = deviations.mean(axis=2), deviations.transpose(1, 0, 2).reshape(left_out.shape[1], -1)
    of_seeds = flat @ flat.T / n
    products: Reals = of_seeds if n == 1 else (n * (of_means.T @ of_means) - of_seeds) / (n - 1)
    return products * (len(left_out) - 1) / len(left_out)
