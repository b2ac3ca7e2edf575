"""Quality over cost: the epochs and operations of training that each row of a table needs for the same quality."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.analysis.grouping import RunTable, TableRow
from harness.analysis.metric_registry import Metric
from harness.storage.records import RunRecord
from impls.flops import Tokens, training_operations

LEAST_EPOCHS = 3
"""Shorter curves are too coarse to interpolate."""

MeanCurve = list[tuple[float, float]]
"""The epochs that all runs of a row have measured, the last one possibly a part, and the best mean up to there."""


CURVE_METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="validation_perplexity", title="perplexity", kind="quality", digits=2, direction="lower"),
        Metric(name="validation_bleu", title="BLEU", kind="quality", digits=1, direction="higher"),
    )
}
"""The metrics of the validation set; `digits` are the decimals of their targets."""


@dataclass(frozen=True)
class RowCost:
    """The cost of a row.

    Attributes:
        operations: The floating-point operations of an epoch of training; None without a recipe.
        epochs: By metric, the epochs until its mean over seeds reaches the target; None if it does not.
        at_equal_cost: By metric, the best mean within `TableCost.operations`; None if that is unknown.
    """

    operations: float | None
    epochs: Mapping[str, float | None]
    at_equal_cost: Mapping[str, float | None]


@dataclass(frozen=True)
class TableCost:
    """The targets of a table by metric, the smallest number of operations that a run was trained for, and the rows."""

    targets: Mapping[str, float]
    operations: float | None
    rows: Mapping[str, RowCost]


def table_cost(table: RunTable) -> TableCost | None:
    """Return the cost of each row by label; None for a table of one row, or if a row has too few measured epochs.

    The target of a metric is the median over rows of their best mean, rounded to the easier side.
    """
    rows = [row for row in table.rows if row.completed]
    curves = {name: [_mean_curve(row, name) for row in rows] for name in CURVE_METRICS}
    curves = {name: all_rows for name, all_rows in curves.items() if min(map(len, all_rows), default=0) >= LEAST_EPOCHS}
    if len(rows) < 2 or not curves:
        return None
    operations = [epoch_operations(row.counted[0]) for row in rows]
    totals = [each * min(map(_epochs, row.counted)) for row, each in zip(rows, operations, strict=True) if each]
    equal = min(totals, default=None)
    targets, costs = {}, {}
    for name, all_rows in curves.items():
        sign, scale = CURVE_METRICS[name].sign, 10 ** CURVE_METRICS[name].digits
        best = [sign * curve[-1][1] for curve in all_rows]
        targets[name] = sign * math.floor(statistics.median_low(best) * scale) / scale
    for index, row in enumerate(rows):
        each = operations[index]
        costs[row.label] = RowCost(
            each,
            {
                name: _epochs_to(curves[name][index], target, CURVE_METRICS[name].sign)
                for name, target in targets.items()
            },
            {name: _value_at(curves[name][index], equal / each if equal and each else None) for name in targets},
        )
    return TableCost(targets, equal, costs)


def epoch_operations(record: RunRecord) -> float | None:
    """Return the operations of a complete epoch of training, or None if recipe or vocabulary sizes are unknown.

    They are those of the matrix products with kernels, with as many source as target tokens.
    """
    sizes = [record.sizes.get(name, 0) for name in ("source_words", "target_words", "train_pairs")]
    if record.spec.recipe is None or not record.curve or not all(0 < size < 2**32 for size in sizes):
        return None
    source, target, pairs = map(int, sizes)
    tokens = Tokens(sentence=pairs, source=record.curve[0].tokens, target=record.curve[0].tokens)
    return float(training_operations(record.spec.recipe, (source, target), tokens))


def _epochs(record: RunRecord) -> float:
    """Return the length of a run in epochs; a limit of updates may end the last one early."""
    return sum(epoch.tokens for epoch in record.curve) / record.curve[0].tokens


def _mean_curve(row: TableRow, name: str) -> MeanCurve:
    sign = CURVE_METRICS[name].sign
    values = [{epoch.epoch: getattr(epoch, name) for epoch in record.curve} for record in row.counted]
    means: MeanCurve = []
    best = -math.inf
    for epoch in sorted(values[0]):
        of_seeds = [value for by_epoch in values if (value := by_epoch.get(epoch)) is not None]
        if len(of_seeds) == len(values):
            best = max(best, sign * statistics.fmean(of_seeds))
            means.append((min(float(epoch), _epochs(row.counted[0])), sign * best))
    return means


def _epochs_to(curve: MeanCurve, target: float, sign: int) -> float | None:
    """Return the epoch at which a curve first reaches the target, interpolated linearly; None if it does not."""
    for index, (epoch, value) in enumerate(curve):
        if sign * value >= sign * target:
            if index == 0:
                return epoch
            before, worse = curve[index - 1]
            return before + (target - worse) / (value - worse) * (epoch - before)
    return None


def _value_at(curve: MeanCurve, epoch: float | None) -> float | None:
    """Return the value at a fractional epoch, interpolated linearly; None outside of the curve."""
    if epoch is None or not curve[0][0] <= epoch <= curve[-1][0] + 1e-9:
        return None
    epochs, values = zip(*curve, strict=True)
    return float(np.interp(epoch, epochs, values))
