"""The table of epochs and operations that the variants of a table need for the same quality."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.cost import CURVE_METRICS, RowCost, TableCost, table_cost
from harness.analysis.leaderboard import TableAnalysis
from harness.reporting.document import Block, Cell, Disclosure, Table, Text
from harness.reporting.formatting import MISSING, significant_digits

TERA = 1e12
NOTE = (
    "On the validation set, interpolated on the mean curve over seeds. A target is the median of the variants' best "
    "values, the worse of two middle ones, rounded to the easier side. The last columns are the best values within "
    "the operations of the cheapest variant. A TFLOP is 10¹² multiplications and additions, those of all matrix "
    "products with weights, forward and backward, without padding, counted as if a source had as many tokens as its "
    "target. A dash: not reached, or not known."
)


def disclosures(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return the table of each controlled, comparable table of two or more rows."""
    blocks: list[Block] = []
    for judged in tables:
        cost = table_cost(judged.table) if judged.table.budget == "controlled" and not judged.mismatches else None
        if cost is not None:
            blocks.append(
                Disclosure(f"Cost of equal quality, {judged.table.heading}", (_table(cost), Text(NOTE, "aside")))
            )
    return blocks


def _table(cost: TableCost) -> Table:
    heads = ["variant", "TFLOP per epoch"]
    for name, target in cost.targets.items():
        metric = CURVE_METRICS[name]
        goal = f"{metric.title} {target:.{metric.digits}f}"
        heads += [f"epochs to {goal}", f"TFLOP to {goal}"]
    if cost.operations is not None:
        size = cost.operations / TERA
        written = significant_digits(size) if size < 1 else f"{size:.0f}"
        heads += [f"{CURVE_METRICS[name].title} at {written} TFLOP" for name in cost.targets]
    rows: list[tuple[str | Cell, ...]] = [(label, *_cells(row, cost)) for label, row in cost.rows.items()]
    return Table("l" + "r" * (len(heads) - 1), tuple(heads), tuple(rows))


def _cells(row: RowCost, cost: TableCost) -> list[Cell]:
    each = None if row.operations is None else row.operations / TERA
    cells = [_cell(each)]
    for name in cost.targets:
        epochs = row.epochs[name]
        cells += [_cell(epochs, 1), _cell(None if epochs is None or each is None else epochs * each)]
    if cost.operations is not None:
        cells += [_cell(row.at_equal_cost[name], CURVE_METRICS[name].digits) for name in cost.targets]
    return cells


def _cell(value: float | None, digits: int | None = None) -> Cell:
    if value is None:
        return Cell(MISSING)
    return Cell(significant_digits(value) if digits is None else f"{value:.{digits}f}", value=value)
