"""The records as two flat CSV files, for a spreadsheet, pandas or R: one line a run, and one line an epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.storage import files
from harness.storage.records import RunRecord
from harness.text import short_line

RUNS, CURVES = "runs.csv", "curves.csv"
LONGEST = 4_000
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a cell begins that a spreadsheet takes for a formula: also in full width. No tab or line end is left to begin."""


def save(records: Sequence[RunRecord], folder: Path) -> None:
    """Write `folder`/runs.csv and `folder`/curves.csv; a figure that is missing is an empty cell."""
    runs = [_run(record) for record in records]
    curves = [
        {**_name(record), **dataclasses.asdict(epoch), "kept": int(epoch.epoch in record.chosen_epochs)}
        for record in records
        for epoch in record.curve
    ]
    for name, lines in ((RUNS, runs), (CURVES, curves)):
        table(lines, folder / name)


def table(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Write lines as CSV, their keys as its columns; what is None or missing is an empty cell."""
    import pandas as pd

    written = [{cell(name): cell(value) for name, value in line.items()} for line in lines]
    files.write_bytes(path, pd.DataFrame(written).to_csv(index=False, lineterminator="\n").encode())


def cell(value: Any) -> Any:
    """Return a value for CSV: text on one line, with an apostrophe before what a spreadsheet would compute.

    Source: OWASP, CSV Injection.
    """
    if not isinstance(value, str):
        return value
    line = short_line(value, longest=LONGEST)
    return f"'{line}" if line.startswith(FORMULA) else line


def _name(record: RunRecord) -> dict[str, Any]:
    spec = record.spec
    return {"run": record.id, "variant": spec.variant, "budget": spec.budget, "seed": spec.seed}


def _run(record: RunRecord) -> dict[str, Any]:
    data = record.spec.data
    described = {"status": record.status, "corpus": data.corpus, "direction": data.direction, "test": data.test_split}
    return {**_name(record), **described, **record.scores, **record.decode, **record.sizes, **record.speed}
