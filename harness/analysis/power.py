"""The number of seeds that a planned table needs, from the noise of existing runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from harness.analysis import inference
from harness.analysis.effects import METHOD, Method
from harness.analysis.evidence import Sample, Sentences, metric_function, row_evidence
from harness.analysis.grouping import RunTable, groups
from harness.analysis.inference import DEGREES_EXPONENT, LEAST_ROWS, LEAST_SEEDS, MOST_DEGREES, detectable
from harness.analysis.metric_registry import scale_of
from harness.storage.records import RunRecord

MOST_SEEDS = 1000


@dataclass(frozen=True)
class DifferenceNoise:
    """The noise of a difference between two rows, on the natural scale.

    Attributes:
        run_variance: The variance of one run over seeds, with `degrees` degrees of freedom; a difference of paired runs
            has twice as much.
        sentence_variance: The variance that the test sentences add to a difference at any number of seeds.
    """

    run_variance: float
    degrees: float
    sentence_variance: float


@dataclass(frozen=True)
class NoiseEstimate:
    """The noise of a metric in one table of runs.

    Attributes:
        level: The median of the rows, in the units of the metric.
        rows: The number of rows; `seeds` that of seeds.
        paired: Whether several rows share their seeds, so that the variance is that of paired differences.
        with_sentences: Whether the variance that the test sentences add is known.
    """

    noise: DifferenceNoise
    level: float
    rows: int
    seeds: int
    title: str
    paired: bool
    with_sentences: bool


def estimate_noise(
    records: Iterable[RunRecord], metric: str, sentences: Sentences, *, method: Method = METHOD
) -> NoiseEstimate | None:
    """Return the noise of the table whose variance over seeds has most degrees of freedom; None without two seeds."""
    estimates = [_table_noise(table, metric, sentences, method) for table in groups(records)]
    available = [estimate for estimate in estimates if estimate is not None]
    return max(available, key=lambda estimate: estimate.noise.degrees, default=None)


def detectable_with(noise: DifferenceNoise, seeds: int, rows: int, comparisons: int) -> float:
    """Return the difference that a table of `rows` rows detects with this number of seeds, on the natural scale."""
    from_seeds = 2 * noise.run_variance / seeds
    total = from_seeds + noise.sentence_variance
    if total == 0:
        return 0.0
    seed_degrees = (rows - 1) * (seeds - 1) if rows >= LEAST_ROWS else seeds - 1
    ratio = total / from_seeds if from_seeds else math.inf
    degrees = min(seed_degrees * ratio**DEGREES_EXPONENT, MOST_DEGREES)
    return detectable(math.sqrt(total), degrees, comparisons)


def seeds_needed(noise: DifferenceNoise, difference: float, rows: int, comparisons: int) -> int | None:
    """Return the smallest number of seeds, at least 3, that detects `difference`; None if 1,000 do not."""
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
    """Return the noise with its variance over seeds at the upper end of a one-sided chi-square interval."""
    from scipy.special import gammaincinv

    share = 2 * gammaincinv(noise.degrees / 2, 1 - confidence) / noise.degrees
    return replace(noise, run_variance=noise.run_variance / float(np.maximum(share, 1e-12)))


def _table_noise(table: RunTable, metric: str, sentences: Sentences, method: Method) -> NoiseEstimate | None:
    """Return the noise of a table, over the seeds that its rows with several seeds share; None without two seeds."""
    evidence = [row_evidence(row.label, row.records, metric, None) for row in table.rows]
    seeds = [set(row.seeds) - set(row.diverged) for row in evidence]
    several = [index for index in range(len(seeds)) if len(seeds[index]) > 1]
    if not several:
        return None
    common = set.intersection(*(seeds[index] for index in several))
    if len(common) < 2:
        several = [max(several, key=lambda index: len(seeds[index]))]
        common = seeds[several[0]]
    rows = [
        row_evidence(row.label, (run for run in row.records if run.spec.seed in common), metric, sentences)
        for row in (table.rows[index] for index in several)
    ]
    sample = Sample.of(rows, metric_function(metric), scale_of(metric), method)
    prior = inference.prior(sample.natural)
    shared = sample.shared[np.ix_(sample.has_sums, sample.has_sums)]
    of_sentences = inference.quadratic(shared, inference.all_pairs(len(shared)))
    noise = DifferenceNoise(
        run_variance=float(prior.pooled),
        degrees=float(prior.most_degrees),
        sentence_variance=float(of_sentences.mean()) if len(shared) > 1 else 0.0,
    )
    return NoiseEstimate(
        noise=noise,
        level=float(np.median(sample.values.mean(axis=1))),
        rows=len(rows),
        seeds=len(common),
        title=table.title,
        paired=len(rows) > 1,
        with_sentences=len(shared) > 1,
    )
