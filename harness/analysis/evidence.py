"""Runs as arrays: `Evidence` is a row of runs, `Sample` a table of rows at their common seeds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis import significance
from harness.analysis.caveats import FEW_SENTENCES, few_sentences
from harness.analysis.grouping import digests_of, measure
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.metric_registry import METRICS
from harness.analysis.scales import END_OF_SCORES, Reals, Scale
from harness.analysis.significance import MetricFunction
from harness.evaluation import metrics
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import named_seeds
from impls.contract import Arrays

LEAST_SENTENCES = 2
"""The fewest test sentences with an interval over sentences: resampling a single one changes nothing."""

END_REMARK = (
    f"A score of the table lies within {END_OF_SCORES} of 0 or 100, where logits mislead: "
    "scores are analysed as they are."
)

Sentences = Callable[[RunRecord], Arrays | None]
"""Returns the statistics of each test sentence of a run, by score; None if they are not stored."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The runs of one row: the metric of each seed and, if stored, the statistics of its test sentences.

    Attributes:
        values: The metric of each run; None, infinite or NaN for a run that diverged or lacks the metric.
        sums: The statistics of each sentence, [n,N,K] for n seeds and N test sentences, which are the same sentences in
            the same order in all rows; arbitrary for a run without a value.
        weights: The digests of the trained weights of its runs.
    """

    label: str
    seeds: tuple[int, ...]
    values: tuple[float | None, ...]
    sums: npt.NDArray[Any] | None = field(default=None, repr=False)
    weights: frozenset[str] = frozenset()

    @property
    def diverged(self) -> tuple[int, ...]:
        """The seeds whose runs have no value."""
        return tuple(
            seed for seed, value in zip(self.seeds, self.values, strict=True) if math.isnan(number_or_nan(value))
        )

    def at(self, seeds: Iterable[int]) -> Evidence:
        """Return the runs of these seeds, in their order."""
        if (seeds := tuple(seeds)) == self.seeds:
            return self
        indices = [self.seeds.index(seed) for seed in seeds]
        sums = self.sums[indices] if self.sums is not None and indices else None
        return replace(self, seeds=seeds, values=tuple(self.values[index] for index in indices), sums=sums)


def row_evidence(label: str, records: Iterable[RunRecord], metric: str, sentences: Sentences | None) -> Evidence:
    """Return the finished runs among the records as evidence; diverged runs have no value.

    Without `sentences` intervals cover the seeds alone.
    """
    finished = [record for record in records if record.status in run_store.FINISHED]
    values = tuple(measure(record, metric) if record.status == "completed" else None for record in finished)
    sums = sentence_sums(finished, metric, sentences) if sentences else None
    seeds = tuple(record.spec.seed for record in finished)
    return Evidence(label, seeds, values, sums, digests_of("trained_weights", finished))


# Sentence statistics --------------------------------------------------------------------------------------------------


def sentence_sums(records: Sequence[RunRecord], metric: str, sentences: Sentences) -> Reals | None:
    """Return the sentence statistics of a metric, [n,N,K]; None unless every completed run has them."""
    arrays: list[npt.NDArray[Any] | None] = []
    for record in records:
        if record.status != "completed":
            arrays.append(None)
            continue
        stored = sentences(record) or {}
        if metric in ("test_loss", "test_perplexity") and stored:
            arrays.append(np.stack([stored["nats"], stored["tokens"].astype(np.float64)], axis=-1))
        elif (score := "bleu_tutorial" if _is_order(metric) else metric) in stored:
            arrays.append(stored[score])
        else:
            return None
    shapes = {array.shape for array in arrays if array is not None}
    if len(shapes) != 1:
        return None
    zeros = np.zeros(shapes.pop())
    return np.stack([zeros if array is None else array for array in arrays])


def metric_function(metric: str) -> MetricFunction | None:
    """Return the function from summed sentence statistics to a metric; None if no statistics determine the metric."""
    if metric == "test_loss":
        return lambda sums: sums[..., 0] / sums[..., 1]
    if metric == "test_perplexity":
        return lambda sums: metrics.perplexity_from_sums(sums[..., 0], sums[..., 1])
    if _is_order(metric):
        _, order, kind = metric.split("_")
        return functools.partial(bleu_of_order, order=int(order), individual=kind == "individual")
    if metric in ("bleu_sacre", "chrf", "bleu_tokenised", "bleu_tutorial"):
        return functools.partial(metrics.score_from_sums, metric)
    return None


def bleu_of_order(sums: Reals, order: int, *, individual: bool) -> Reals:
    """Return BLEU with n-grams of 1 to `order`, or of `order` alone, without smoothing.

    Shapes: `sums` [...,10] as `metrics.bleu_from_sums` takes them; the scores [...].
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = sums[..., 2 : 2 + len(metrics.ORDERS)] / sums[..., 2 + len(metrics.ORDERS) :]
        mean = precisions[..., order - 1] if individual else np.exp(np.log(precisions[..., :order]).mean(axis=-1))
        return np.nan_to_num(100 * metrics.brevity_from_sums(sums) * mean)


def _is_order(metric: str) -> bool:
    return metric in METRICS and METRICS[metric].kind == "orders"


# Tables ---------------------------------------------------------------------------------------------------------------


class Sample:
    """The rows of a table, which have different labels, at their common seeds, on the natural scale.

    Attributes:
        evidence: The rows at these `seeds`.
        values: The metric of each run, [V,n]; NaN for a run without a value.
        complete: Whether a row has a value at every common seed, [V].
        scale: The scale of the analysis: that of the metric, unless `Scale.suited_to` the values is another.
        natural: The values on this scale.
        independent: Whether a row has weights of its own, [V]; of rows that share some, the one with the highest mean.
        has_sums: Whether the sentence statistics of a row are usable, [V].
        sentences: The number of test sentences; 0 without statistics.
        shared: The covariance of rows that the test sentences cause in all seeds alike, [V,V]; 0 without statistics.
        remarks: What restricts the sample, in sentences.

    Raises:
        ValueError: The rows differ in the number of test sentences.
    """

    def __init__(self, evidence: Sequence[Evidence], metric: MetricFunction | None, scale: Scale) -> None:
        shapes = {row.label: row.sums.shape[1:] for row in evidence if row.sums is not None}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"sentences and statistics differ between rows: {shapes}; compare rows of one test set")
        self.sentences = next(iter(shapes.values()))[0] if shapes else 0
        self.seeds = tuple(sorted(set.intersection(*(set(row.seeds) for row in evidence)))) if evidence else ()
        self.evidence, self.metric = tuple(row.at(self.seeds) for row in evidence), metric
        rows = len(evidence)
        values = np.array([[number_or_nan(value) for value in row.values] for row in self.evidence])
        self.values: Reals = values.reshape(rows, len(self.seeds))
        self.complete: npt.NDArray[np.bool_] = np.asarray(np.isfinite(self.values).all(axis=1) & bool(self.seeds))
        self.scale = scale.suited_to(self.values)
        self.natural = self.scale.forward(self.values)
        self.independent = _independent(self.evidence, self.natural)
        self.has_sums, mismatched = _usable(self.evidence, metric)
        self.shared = np.zeros((rows, rows))
        if metric is not None and self.has_sums.any():
            pairs = zip(self.evidence, self.has_sums, strict=True)
            sums = [row.sums for row, fits in pairs if fits and row.sums is not None]
            left_out = self.scale.forward(significance.without_each_sentence(sums, metric))
            self.shared[np.ix_(self.has_sums, self.has_sums)] = significance.shared_covariance(left_out)
        remarks = _remarks(evidence, self.evidence, self.has_sums, mismatched)
        self.remarks = (*remarks, *([END_REMARK] if self.scale is not scale else []))

    def why_empty(self, used: npt.NDArray[np.bool_]) -> str:
        """Return why an effect of these rows has no value."""
        if not self.seeds:
            return "No common seed."
        rows = [row for row, is_used in zip(self.evidence, used, strict=True) if is_used and row.diverged]
        return f"{'; '.join(map(missing_values, rows))}."


def _independent(rows: Sequence[Evidence], natural: Reals) -> npt.NDArray[np.bool_]:
    independent: npt.NDArray[np.bool_] = np.zeros(len(rows), bool)
    seen: set[str] = set()
    for index in np.argsort(-natural.sum(axis=1), kind="stable"):  # an order that does not depend on that of the rows
        independent[index] = seen.isdisjoint(rows[index].weights)
        seen |= rows[index].weights
    return independent


def _usable(rows: Sequence[Evidence], metric: MetricFunction | None) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Return which rows have sentence statistics that reproduce their metric, and the labels of those that do not."""
    usable: npt.NDArray[np.bool_] = np.zeros(len(rows), bool)
    mismatched = []
    for index, row in enumerate(rows):
        if metric is None or row.sums is None or row.sums.shape[1] < LEAST_SENTENCES or row.diverged:
            continue
        values = metric(row.sums.sum(axis=1, dtype=np.float64))
        usable[index] = np.allclose(values, np.array(row.values, np.float64), rtol=1e-4, atol=1e-9)
        if not usable[index]:
            mismatched.append(row.label)
    return usable, mismatched


def _remarks(
    evidence: Sequence[Evidence], rows: Sequence[Evidence], usable: npt.NDArray[np.bool_], mismatched: Sequence[str]
) -> tuple[str, ...]:
    """Return the remarks on a sample; `rows` are `evidence` restricted to the common seeds."""
    seeds = rows[0].seeds if rows else ()
    remarks = [] if seeds or len(rows) < 2 else ["No seed is common to all rows: nothing can be compared."]
    for row in evidence if seeds else ():
        if unused := [seed for seed in row.seeds if seed not in seeds]:
            remarks.append(f"{row.label}: {named_seeds(unused)} left out of the differences: not present in every row.")
    if len(seeds) == 1:
        tested = "p-values are over these test sentences alone" if usable.any() else "nothing is tested"
        remarks.append(f"One seed: seed noise is unknown; {tested}.")
    if len(seeds) == 2:
        remarks.append("Two seeds: both values are shown; there is no interval and no test.")
    sentences = min((row.sums.shape[1] for row in rows if row.sums is not None), default=FEW_SENTENCES)
    if usable.any() and sentences < FEW_SENTENCES:
        remarks.append(few_sentences(sentences))
    without = [row.label for row, fits in zip(rows, usable, strict=True) if not (fits or row.diverged)]
    if mismatched:
        remarks.append(f"The stored statistics of {', '.join(mismatched)} do not give their scores and are not used.")
    if without and len(seeds) >= LEAST_SEEDS:
        labels = "" if len(without) == len(rows) else f" of {', '.join(without)}"
        remarks.append(f"Intervals{labels} cover other seeds, not other test sentences.")
    return tuple(remarks)


def missing_values(row: Evidence) -> str:
    """Return a clause on the runs of a row without a value."""
    return f"{row.label}: no value for {named_seeds(row.diverged)} (diverged or missing)"


def number_or_nan(value: float | None) -> float:
    """Return a value, or NaN if it is missing or not finite."""
    return value if value is not None and math.isfinite(value) else math.nan
