"""The metrics of the sides of a comparison, with differences, intervals and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.analysis import statistics
from harness.analysis.comparability import machine, other_words
from harness.analysis.effects import Conclusion
from harness.analysis.grouping import measure
from harness.analysis.leaderboard import metric_function, sentence_sums
from harness.analysis.metric_registry import COMPARISON, MAIN, Metric, scale_of
from harness.analysis.selection import Side
from harness.analysis.significance import Reals
from harness.analysis.statistics import Comparisons, Difference, Evidence, Interval, MetricFunction
from harness.evaluation.metrics import ORDERS
from harness.storage import run_store

COUNTED = "counted, not measured"
NEITHER_BETTER = "neither more nor less is better"


@dataclass(frozen=True)
class MetricComparison:
    """One metric of all sides: the mean of each with its interval, and the differences of all pairs.

    `table` has the other rows of the report too if `reported` is true, otherwise only the sides. It is None if nothing
    is compared, and `silent` says why. `unjudged` says why differences are shown but not tested.
    """

    figure: Metric
    intervals: tuple[Interval, ...]
    table: Comparisons | None = None
    reported: bool = False
    silent: str = ""
    unjudged: str = ""

    def difference(self, letter: str, base: str) -> Difference | None:
        """Return side `letter` less side `base`."""
        return None if self.table is None else self.table.between(letter, base)

    def conclusion(self, difference: Difference | None) -> Conclusion:
        """Return the conclusion from a difference."""
        if difference is None or self.unjudged or self.figure.direction == "neither":
            return Conclusion.NOT_TESTED
        return difference.conclusion(less_is_better=self.figure.less_is_better)


def compare(sides: Sequence[Side], *, paired: bool, others: Sequence[Side] = ()) -> list[MetricComparison]:
    """Return every metric that a side has.

    `paired`: the sides have the same test sentences. `others` are the other rows of the report's table.
    """
    other, machines = other_words(sides), dict.fromkeys(machine(record) for side in sides for record in side.records)
    found = []
    for figure in COMPARISON.values():
        if all(measure(run.record, figure.name) is None for side in sides for run in side.completed.values()):
            continue
        unjudged = ""
        if figure.name == "parameters":
            unjudged = COUNTED
        elif figure.direction == "neither":
            unjudged = NEITHER_BETTER
        elif figure.kind == "cost":
            many = len(machines) > 1
            unjudged = "measured on different machines" if many else "not known whether the machine did other work"
        silent = "the sides have different target words" if other and figure.token_based else ""
        further = () if figure.token_based and other_words([*sides, *others]) else others
        found.append(_compare(sides, figure, silent, unjudged, paired=paired, others=further))
    return found


def _compare(
    sides: Sequence[Side], figure: Metric, silent: str, unjudged: str, *, paired: bool, others: Sequence[Side]
) -> MetricComparison:
    evidence = [_evidence(side, figure.name, with_sums=paired) for side in sides]
    metric, scale = _metric(figure.name), scale_of(figure.name)
    intervals = tuple(statistics.interval(one, metric, scale=scale) for one in evidence)
    lacking = [
        side.letter
        for side in sides
        if any(measure(run.record, figure.name) is None for run in side.completed.values())
    ]
    if lacking:
        silent = f"not in every record of {', '.join(lacking)}"
    elif not all(side.completed for side in sides):
        silent = f"no run of {', '.join(side.letter for side in sides if not side.completed)} completed"
    seeds = set.intersection(*(set(side.seeds) for side in sides))
    if not seeds and all(len(side.seeds) == 1 for side in sides):
        # Two models as they are: tested over sentences, which need no common seed.
        evidence, others = [replace(one, seeds=sides[0].seeds) for one in evidence], ()
    elif not seeds:
        silent = silent or "the sides have no seed in common"
    if silent:
        return MetricComparison(figure, intervals, silent=silent, unjudged=unjudged)
    rows = [one for side in others if (one := _evidence(side, figure.name, with_sums=paired)).seeds]
    reported = bool(rows) and not unjudged and all(seeds <= set(one.seeds) for one in rows)
    table = statistics.compare_all([*evidence, *rows] if reported else evidence, metric, scale=scale)
    return MetricComparison(figure, intervals, table, reported, unjudged=unjudged)


def _evidence(side: Side, name: str, *, with_sums: bool) -> Evidence:
    """Return the finished runs of a side as evidence; diverged ones have no value."""
    ended = side.ended
    figures = tuple(measure(run.record, name) if run.record.status == "completed" else None for run in ended)
    stored = {id(run.record): run for run in ended}
    records = [run.record for run in ended]
    sums = sentence_sums(records, _counts(name), lambda one: stored[id(one)].sentences) if with_sums else None
    return Evidence(side.letter, side.seeds, figures, sums if _metric(name) else None)


# What sentences add ---------------------------------------------------------------------------------------------------


def _counts(name: str) -> str:
    """Return the score whose sentence statistics determine a metric."""
    if name in ("test_loss", "test_perplexity"):
        return "test_perplexity"
    return "bleu_tutorial" if COMPARISON[name].kind == "orders" else name


def _metric(name: str) -> MetricFunction | None:
    """Return the function from summed statistics to a metric; None if no statistics are stored for it."""
    if name == "test_loss":
        return lambda sums: sums[..., 0] / sums[..., 1]
    if COMPARISON[name].kind == "orders":
        order, kind = int(name.split("_")[1]), name.split("_")[2]
        return lambda sums: _of_order(sums, order, individual=kind == "individual")
    return (
        metric_function(name) if name in (MAIN, "chrf", "bleu_tokenised", "bleu_tutorial", "test_perplexity") else None
    )


def _of_order(sums: npt.NDArray[np.float64], order: int, *, individual: bool) -> Reals:
    """Return BLEU with n-grams of 1 to `order`, or of `order` alone, not smoothed.

    Shapes: `sums` [...,10] as `scoring.bleu_from_sums` takes them; the scores [...].
    """
    words, reference_words = sums[..., 0], sums[..., 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = sums[..., 2 : 2 + len(ORDERS)] / sums[..., 2 + len(ORDERS) :]
        brevity = np.exp(np.minimum(0.0, 1 - reference_words / words))
        chosen = shares[..., order - 1] if individual else np.exp(np.log(shares[..., :order]).mean(axis=-1))
        found: Reals = np.nan_to_num(100 * brevity * chosen)
    return found


def common(sides: Sequence[Side]) -> tuple[int, ...]:
    """Return the seeds that completed on every side."""
    return tuple(sorted(set.intersection(*(set(side.completed) for side in sides))))


def lost(sides: Sequence[Side]) -> list[str]:
    """Return a line for each run that did not complete."""
    return [
        f"{side.letter}, seed {run.record.spec.seed}: {run.record.status}"
        + (f" after {len(run.record.curve)} epochs" if run.record.curve else "")
        + (f": {run.record.reason}" if run.record.reason else "")
        + ("" if run.record.status in run_store.FINISHED else " (counts for nothing here)")
        for side in sides
        for run in side.runs
        if run.record.status != "completed"
    ]
