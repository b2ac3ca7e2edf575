"""Estimates the noise of a planned table from existing runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis import inference, significance
from harness.analysis.grouping import TableRow, groups, measure
from harness.analysis.leaderboard import Sentences, metric_function, sentence_sums
from harness.analysis.metric_registry import scale_of
from harness.analysis.power import DifferenceNoise
from harness.analysis.statistics import METHOD, Method
from harness.storage.records import RunRecord


@dataclass(frozen=True)
class Pilot:
    """The noise of a figure in one table of runs, around `level`, in the figure's units.

    `paired`: several rows share their seeds, so that the variance is that of paired differences. `with_sentences`: what
    other test sentences add is known.
    """

    noise: DifferenceNoise
    level: float
    rows: int
    seeds: int
    title: str
    paired: bool
    with_sentences: bool


def best_pilot(
    records: Iterable[RunRecord], figure: str, sentences: Sentences, *, method: Method = METHOD
) -> Pilot | None:
    """Return the noise of the table whose variance over seeds has most degrees of freedom; None without two seeds."""
    found = [_pilot(group.title, group.rows, figure, sentences, method) for group in groups(records)]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.noise.degrees, default=None)


def _pilot(title: str, rows: Sequence[TableRow], figure: str, sentences: Sentences, method: Method) -> Pilot | None:
    figures = [_by_seed(row, figure) for row in rows]
    several = [place for place, one in enumerate(figures) if len(one) > 1]
    if not several:
        return None
    common = set.intersection(*(set(figures[place]) for place in several))
    if len(common) < 2:
        several = [max(several, key=lambda place: len(figures[place]))]
        common = set(figures[several[0]])
    seeds, scale = sorted(common), scale_of(figure)
    values = np.array([[figures[place][seed] for seed in seeds] for place in several])
    found = inference.prior(scale.forward(values))
    of_sentences = _of_sentences([rows[place] for place in several], seeds, figure, sentences, method)
    noise = DifferenceNoise(float(found.pooled), float(found.most_degrees), of_sentences or 0.0)
    return Pilot(
        noise=noise,
        level=float(np.median(values.mean(axis=1))),
        rows=len(several),
        seeds=len(seeds),
        title=title,
        paired=len(several) > 1,
        with_sentences=of_sentences is not None,
    )


def _by_seed(row: TableRow, figure: str) -> dict[int, float]:
    """Return the figure of each completed run that has it."""
    found = {one.spec.seed: measure(one, figure) for one in row.records if one.status == "completed"}
    return {seed: value for seed, value in found.items() if value is not None and np.isfinite(value)}


def _of_sentences(
    rows: Sequence[TableRow], seeds: Sequence[int], figure: str, sentences: Sentences, method: Method
) -> float | None:
    """Return the mean variance that other test sentences add to a difference of two rows; None where it is unknown."""
    sums = []
    for row in rows:
        records = [one for one in row.records if one.spec.seed in seeds and one.status == "completed"]
        found = sentence_sums(records, figure, sentences)
        if found is not None:
            sums.append(found)
    if len(sums) < 2 or len({one.shape for one in sums}) > 1:
        return None
    drawn = significance.draw_sentences(
        np.stack(sums), metric_function(figure), resamples=method.resamples, seed=method.seed
    )
    covariance = significance.shared_covariance(scale_of(figure).forward(drawn))
    return float(inference.quadratic(covariance, inference.all_pairs(len(sums))).mean())
