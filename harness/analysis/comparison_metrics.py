"""The metrics of the sides of a comparison, with differences, intervals and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis import statistics
from harness.analysis.comparability import differ_in_target_vocabulary, machine
from harness.analysis.effects import Comparisons, Conclusion, Difference, Interval
from harness.analysis.evidence import Evidence, metric_function, row_evidence
from harness.analysis.grouping import measure
from harness.analysis.metric_registry import COMPARISON, Metric
from harness.analysis.selection import Side


@dataclass(frozen=True)
class MetricComparison:
    """One metric of all sides.

    Attributes:
        figure: The metric.
        intervals: The mean of each side with its interval.
        table: The differences of all pairs; None if nothing is compared.
        reported: Whether the table has all rows of the report's table, not only the sides.
        silent: The reason why nothing is compared.
        unjudged: The reason why differences are shown but not tested.
    """

    figure: Metric
    intervals: tuple[Interval, ...]
    table: Comparisons | None = None
    reported: bool = False
    silent: str = ""
    unjudged: str = ""

    def difference(self, letter: str, base: str) -> Difference | None:
        """Return the metric of side `letter` minus that of side `base`."""
        return None if self.table is None else self.table.between(letter, base)

    def conclusion(self, difference: Difference | None) -> Conclusion:
        """Return the conclusion from a difference."""
        if difference is None or self.unjudged or self.figure.direction == "neither":
            return Conclusion.NOT_TESTED
        return difference.conclude(less_is_better=self.figure.less_is_better)


def compare_metrics(sides: Sequence[Side], *, paired: bool, table_rows: Sequence[Side] = ()) -> list[MetricComparison]:
    """Return every metric that a side has.

    Args:
        sides: The sides.
        paired: Whether the sides have the same test sentences.
        table_rows: The other rows of the report's table, which are corrected for together with the sides.
    """
    other_vocabulary = differ_in_target_vocabulary(sides)
    row_with_other_vocabulary = differ_in_target_vocabulary([*sides, *table_rows])
    comparisons = []
    for metric in COMPARISON.values():
        if all(measure(run.record, metric.name) is None for side in sides for run in side.completed.values()):
            continue
        silent = "the sides have different target words" if other_vocabulary and metric.token_based else ""
        further = () if row_with_other_vocabulary and metric.token_based else table_rows
        comparisons.append(_compare(sides, metric, silent, paired=paired, table_rows=further))
    return comparisons


def _compare(
    sides: Sequence[Side], metric: Metric, silent: str, *, paired: bool, table_rows: Sequence[Side]
) -> MetricComparison:
    def evidence_of(group: Sequence[Side]) -> list[Evidence]:
        return [
            row_evidence(side.letter, side.records, metric.name, side.sentences if paired else None) for side in group
        ]

    evidence, function, unjudged = evidence_of(sides), metric_function(metric.name), _unjudged(sides, metric)
    intervals = tuple(statistics.interval(row, function, scale=metric.scale) for row in evidence)
    incomplete = [side.letter for side in sides if not side.completed]
    lacking = [
        side.letter
        for side in sides
        if any(measure(run.record, metric.name) is None for run in side.completed.values())
    ]
    if lacking:
        silent = f"not in every record of {', '.join(lacking)}"
    elif incomplete:
        silent = f"no run of {', '.join(incomplete)} completed"
    seeds = set.intersection(*(set(side.seeds) for side in sides))
    if not seeds and all(len(side.seeds) == 1 for side in sides):
        # Two single runs: tested over sentences, which need no common seed.
        evidence, table_rows = [replace(row, seeds=sides[0].seeds) for row in evidence], ()
    elif not seeds:
        silent = silent or "the sides have no seed in common"
    if silent:
        return MetricComparison(metric, intervals, silent=silent, unjudged=unjudged)
    rows = [row for row in evidence_of(table_rows) if row.seeds]
    reported = bool(rows) and not unjudged and all(seeds <= set(row.seeds) for row in rows)
    table = statistics.compare_rows([*evidence, *rows] if reported else evidence, function, scale=metric.scale)
    return MetricComparison(metric, intervals, table, reported, unjudged=unjudged)


def _unjudged(sides: Sequence[Side], metric: Metric) -> str:
    """Return the reason why differences in a metric are not tested; empty if they are."""
    if metric.name == "parameters":
        return "counted, not measured"
    if metric.direction == "neither":
        return "neither more nor less is better"
    if metric.kind != "cost":
        return ""
    if len({machine(record) for side in sides for record in side.records}) > 1:
        return "measured on different machines"
    return "not known whether the machine did other work"
