"""The number of seeds that a planned table needs, from the noise of existing runs."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from harness.analysis import inference
from harness.analysis.evidence import Sample, Sentences, metric_function, row_evidence
from harness.analysis.grouping import RunTable, groups
from harness.analysis.inference import LEAST_ROWS, LEAST_SEEDS, chi_square_share, combined_degrees, detectable
from harness.analysis.metric_registry import METRICS
from harness.analysis.scales import Scale
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
        rows: The number of rows, which share their `seeds`. The variance of several is that of paired differences.
        with_sentences: Whether the variance that the test sentences add is known.
    """

    noise: DifferenceNoise
    scale: Scale
    level: float
    rows: int
    seeds: int
    title: str
    with_sentences: bool


def estimate_noise(records: Iterable[RunRecord], metric: str, sentences: Sentences) -> NoiseEstimate | None:
    """Return the noise of the table whose variance over seeds has most degrees of freedom; None without two seeds."""
    estimates = [_table_noise(table, metric, sentences) for table in groups(records)]
    available = [estimate for estimate in estimates if estimate is not None]
    return max(available, key=lambda estimate: estimate.noise.degrees, default=None)


def detectable_with(noise: DifferenceNoise, seeds: int, rows: int, comparisons: int) -> float:
    """Return the difference that a table of `rows` rows detects with this number of seeds, on the natural scale."""
    from_seeds = 2 * noise.run_variance / seeds
    total = from_seeds + noise.sentence_variance
    seed_degrees = (rows - 1) * (seeds - 1) if rows >= LEAST_ROWS else seeds - 1
    return detectable(math.sqrt(total), float(combined_degrees(seed_degrees, from_seeds, total)), comparisons)


def seeds_needed(noise: DifferenceNoise, difference: float, rows: int, comparisons: int) -> int | None:
    """Return the smallest number of seeds, at least 3, that detects `difference`; None if 1,000 do not."""
    numbers = range(LEAST_SEEDS, MOST_SEEDS + 1)
    index = bisect.bisect_left(
        numbers, True, key=lambda seeds: detectable_with(noise, seeds, rows, comparisons) <= difference
    )
    return numbers[index] if index < len(numbers) else None


def upper_bound(noise: DifferenceNoise) -> DifferenceNoise:
    """Return the noise with its variance over seeds at the upper end of a one-sided 80 % chi-square interval."""
    share = float(chi_square_share(noise.degrees, 0.2))
    return replace(noise, run_variance=noise.run_variance / max(share, 1e-12))


def _table_noise(table: RunTable, metric: str, sentences: Sentences) -> NoiseEstimate | None:
    """Return the noise of a table, over the seeds that its rows with several seeds share; None without two seeds."""
    excluded = table.other_vocabulary if METRICS[metric].token_based else frozenset()
    rows_compared = [row for row in table.rows if row.label not in excluded]
    evidence = [row_evidence(row.label, row.records, metric, None) for row in rows_compared]
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
        for row in (rows_compared[index] for index in several)
    ]
    sample = Sample(rows, metric_function(metric), METRICS[metric].scale)
    prior = inference.prior(sample.natural[sample.independent])
    with_sums = sample.has_sums & sample.independent
    shared = sample.shared[np.ix_(with_sums, with_sums)]
    of_sentences = inference.quadratic(shared, inference.all_pairs(len(shared)))
    noise = DifferenceNoise(
        run_variance=float(prior.pooled),
        degrees=float(prior.most_degrees),
        sentence_variance=float(of_sentences.mean()) if len(shared) > 1 else 0.0,
    )
    return NoiseEstimate(
        noise=noise,
        scale=sample.scale,
        level=float(np.median(sample.values.mean(axis=1))),
        rows=int(sample.independent.sum()),
        seeds=len(common),
        title=table.title,
        with_sentences=len(shared) > 1,
    )
