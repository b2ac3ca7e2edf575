"""The leaderboard of a table: each metric of each row with its interval, all differences, and ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis import statistics
from harness.analysis.effects import LEGEND, Conclusion, Difference, assumption
from harness.analysis.fairness import other_vocabulary
from harness.analysis.grouping import RunTable, TableRow, measure
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.metric_registry import LEADERBOARD, Metric, scale_of
from harness.analysis.significance import Reals
from harness.analysis.statistics import Comparisons, Evidence, Interval, Method, MetricFunction
from harness.evaluation import metrics
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import count
from impls.contract import Arrays

SYMBOLS = f"{LEGEND}."
"""The foot of every table of comparisons."""

Sentences = Callable[[RunRecord], Arrays | None]
"""Returns what each test sentence of a run adds to its scores, or None where that is not stored."""


@dataclass(frozen=True)
class MetricLeaderboard:
    """One metric of a table: the interval of each row, by label, and the differences of all pairs of rows."""

    name: str
    intervals: dict[str, Interval]
    comparisons: Comparisons

    @property
    def metric(self) -> Metric:
        return LEADERBOARD[self.name]

    @property
    def ranking(self) -> list[str]:
        """The labels of the rows that have a mean, the best first."""
        sign = 1 if self.metric.less_is_better else -1
        found = [
            (sign * one.mean, place, label)
            for place, (label, one) in enumerate(self.intervals.items())
            if one.mean is not None
        ]
        return [label for *_, label in sorted(found)]

    @property
    def seeds(self) -> int:
        """How many seeds the differences rest on."""
        return len(self.comparisons.seeds)

    def conclusion(self, difference: Difference) -> Conclusion:
        """Return the conclusion from a difference of two rows."""
        return difference.conclusion(less_is_better=self.metric.less_is_better)

    def against_best(self, label: str) -> Conclusion | None:
        """Return the conclusion from comparing a row with the best one; None for the best row itself."""
        ranking = self.ranking
        if label not in ranking or label == ranking[0]:
            return None
        return self.conclusion(self.comparisons.between(label, ranking[0]))

    def tied_with_best(self, label: str) -> bool:
        """Whether a test over seeds cannot tell a row from the one with the best mean."""
        return self.seeds >= LEAST_SEEDS and self.against_best(label) is Conclusion.INCONCLUSIVE

    def rank_interval(self, label: str) -> tuple[int, int] | None:
        """Return the best and the worst rank that a row may have; None if nothing is tested over seeds.

        Ranks of significantly better rows are above it, those of significantly worse rows below.
        Holm's correction makes all intervals of the table hold together with a probability of 95 %.

        Source: Mogstad et al. 2024, Inference for ranks, section 3.
        """
        ranking = self.ranking
        if label not in ranking or self.seeds < LEAST_SEEDS or len(ranking) < 2:
            return None
        found = [self.conclusion(self.comparisons.between(label, other)) for other in ranking if other != label]
        return 1 + found.count(Conclusion.WORSE), len(ranking) - found.count(Conclusion.BETTER)

    @property
    def notes(self) -> list[str]:
        """Remarks on the tests of this metric, in sentences."""
        table = self.comparisons
        if not table.tests:
            return []
        if self.seeds < LEAST_SEEDS:
            return [f"{self.metric.title}: {table.tests} comparisons, tested {Conclusion.SENTENCES_ONLY.label}."]
        said = f"{self.metric.title}: {count(table.tests, 'comparison')} over {self.seeds} seeds"
        said += assumption(self.seeds)
        if table.detectable is not None:
            said += f"; a true difference of {table.detectable:.{self.metric.digits}f} is found with 80 % probability"
        return [f"{said}.", *([table.moderation] if table.moderation else [])]


def judge(
    group: RunTable, labels: Sequence[str], sentences: Sentences, *, method: Method
) -> dict[str, MetricLeaderboard]:
    """Return the leaderboard of each metric of a table whose runs are comparable.

    Token-based metrics are compared only between equal vocabularies. `labels` are the distinct labels of the rows.
    """
    mixed = group.budget == "source" and bool(other_vocabulary(group.records))
    found = {}
    for name, one in LEADERBOARD.items():
        if mixed and one.token_based:
            continue
        rows = [
            (label, row)
            for label, row in zip(labels, group.rows, strict=True)
            if _evidence(label, row, name, sentences).seeds
        ]
        evidence = [_evidence(label, row, name, sentences) for label, row in rows]
        if not any(value is not None for each in evidence for value in each.figures):
            continue
        metric = metric_function(name)
        scale = scale_of(name)
        intervals = {each.label: statistics.interval(each, metric, scale=scale, method=method) for each in evidence}
        found[name] = MetricLeaderboard(
            name, intervals, statistics.compare_all(evidence, metric, scale=scale, method=method)
        )
    return found


def distinct(labels: Sequence[str]) -> list[str]:
    """Return labels of which no two are equal: of equal ones, the further get a number."""
    found: list[str] = []
    for label in labels:
        number, name = 2, label
        while name in found:
            name, number = f"{label} ({number})", number + 1
        found.append(name)
    return found


def stored_sentences(results: Path | None) -> Sentences:
    """Return a function that reads the sentence statistics of runs under `results`, each file once.

    It returns None for a run without them.

    Raises:
        ValueError: the returned function reads a damaged file.
    """

    @functools.cache
    def load(run_id: str, digest: str | None) -> Arrays | None:
        if results is None or not run_store.has_sentences(results, run_id):
            return None
        return run_store.load_sentences(results, run_id, digest)

    return lambda record: load(record.id, record.fingerprints.get("sentences"))


def _evidence(label: str, row: TableRow, name: str, sentences: Sentences) -> Evidence:
    """Return the finished runs of a row as evidence; diverged ones have no value."""
    ended = [record for record in row.records if record.status in run_store.FINISHED]
    figures = tuple(measure(record, name) if record.status == "completed" else None for record in ended)
    return Evidence(label, tuple(record.spec.seed for record in ended), figures, sentence_sums(ended, name, sentences))


def sentence_sums(records: Sequence[RunRecord], name: str, sentences: Sentences) -> Reals | None:
    """Return the sentence statistics of a metric, [seeds,sentences,K]; None unless every completed run has them."""
    found: list[npt.NDArray[Any] | None] = []
    for record in records:
        stored = sentences(record) if record.status == "completed" else None
        if stored is None and record.status == "completed":
            return None
        if stored is None:
            found.append(None)
        elif name == "test_perplexity":
            found.append(np.stack([stored["nats"], stored["tokens"].astype(np.float64)], axis=-1))
        elif name in stored:
            found.append(stored[name])
        else:
            return None
    shapes = {one.shape for one in found if one is not None}
    if len(shapes) != 1:
        return None
    (shape,) = shapes
    return np.stack([np.zeros(shape) if one is None else one for one in found])


def metric_function(name: str) -> MetricFunction:
    """Return the function from the summed statistics of a metric to the metric."""
    if name == "test_perplexity":
        return lambda sums: metrics.perplexity_from_sums(sums[..., 0], sums[..., 1])
    return functools.partial(metrics.score_from_sums, name)
