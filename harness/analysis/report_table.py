"""The table of the report that compared sides stand in: its other rows, so that both judge a pair alike."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.fairness import differences
from harness.analysis.grouping import groups
from harness.analysis.selection import Run, Side
from harness.storage import run_store


def other_rows(sides: tuple[Side, ...], results: Path) -> tuple[Side, ...]:
    """Return the further rows of the report's table that has each side as a row; none where no table does.

    `results` is the folder that the report is made from. A table whose runs are not comparable judges nothing.
    """
    wanted = [{run.folder.resolve() for run in side.runs} for side in sides]
    if not all(folder.parent == results.resolve() for one in wanted for folder in one):
        return ()
    for group in groups(run_store.records(results, complain=lambda line: None)):
        rows = [[Run(record, run_store.run_folder(results, record.id)) for record in row.records] for row in group.rows]
        folders = [{run.folder.resolve() for run in row} for row in rows]
        if all(one in folders for one in wanted):
            if differences(group):
                return ()
            return tuple(
                Side(f"row {place}", row.label, tuple(runs))
                for place, (row, runs, own) in enumerate(zip(group.rows, rows, folders, strict=True), start=1)
                if own not in wanted
            )
    return ()
