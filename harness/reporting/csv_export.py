"""The records as two flat CSV files, for a spreadsheet, pandas or R: one line a run, and one line an epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.analysis.grouping import groups, measure
from harness.analysis.leaderboard import distinct
from harness.analysis.metric_registry import METRICS
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from harness.storage import files
from harness.storage.records import RunRecord
from harness.text import short_line

RUNS, CURVES = "runs.csv", "curves.csv"
LONGEST, MOST_COLUMNS = 4_000, 40
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a cell begins that a spreadsheet takes for a formula: also in full width. No tab or line end is left to begin."""
UNITS = {"training_loss": "nats", "validation_loss": "nats"}
"""The units of the columns of curves.csv whose names do not end with theirs."""


def save(records: Sequence[RunRecord], folder: Path) -> None:
    """Write `folder`/runs.csv and `folder`/curves.csv; a figure that is missing is an empty cell.

    A mean over the lines of one `table` and `label` whose status is completed is the figure of the page's table.
    """
    records = sorted(records, key=lambda record: record.id)
    named = {record.id: _name(record) for record in records}
    for table in groups(records, pilots=True):
        for label, row in zip(distinct([row.label for row in table.rows]), table.rows, strict=True):
            for record in row.records:
                named[record.id] |= {"table": table.heading, "label": label}
    settings = _differing([record.spec for record in records])
    names = {record.id: {**named[record.id], **settings[record.spec.id]} for record in records}
    fields = len(next(iter(names.values()), {})) + 1
    metrics = [name for name, metric in METRICS.items() if metric.kind != "orders"][: MOST_COLUMNS - fields]
    runs = [
        {**names[record.id], "status": record.status, **{_column(name): measure(record, name) for name in metrics}}
        for record in records
    ]
    curves = [
        {**names[record.id], **_epoch(dataclasses.asdict(epoch)), "kept": int(epoch.epoch in record.chosen_epochs)}
        for record in records
        for epoch in record.curve
    ]
    for name, lines in ((RUNS, runs), (CURVES, curves)):
        write_table(lines, folder / name)


def _epoch(values: dict[str, Any]) -> dict[str, Any]:
    return {_column(name): value for name, value in values.items()}


def _column(name: str) -> str:
    """Return a metric's name with its unit, where the name does not end with it."""
    unit = METRICS[name].stored_unit if name in METRICS else UNITS.get(name, "")
    return f"{name}_{unit}" if unit in ("nats",) else name


def write_table(lines: Sequence[dict[str, Any]], path: Path) -> None:
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
    spec, data = record.spec, record.spec.data
    return {
        "run": record.id,
        "label": spec.variant,
        "table": "",
        "variant": spec.variant,
        "budget": spec.budget,
        "seed": spec.seed,
        "corpus": data.corpus,
        "direction": data.direction,
        "test_split": data.test_split,
        "framework": spec.framework,
        "backend": spec.backend or "",
        "device": spec.device,
        "threads": spec.threads,
        "precision": spec.precision,
    }


def _differing(specs: Sequence[RunSpec]) -> dict[str, dict[str, Any]]:
    """Return by run id the further settings in which the runs differ, at most as many as the file has room for."""
    shown = {"variant", "budget", "seed", "framework", "backend", "device", "threads", "precision", "recipe.name"}
    shown |= {"recipe.source", "data.corpus", "data.direction", "data.test_split"}
    flat = {spec.id: _flat(to_json(spec)) for spec in specs}
    names = dict.fromkeys(name for settings in flat.values() for name in settings if name not in shown)
    differing = [name for name in names if len({canonical_json(one.get(name)) for one in flat.values()}) > 1]
    return {
        run: {name: settings.get(name) for name in differing[: MOST_COLUMNS // 3]} for run, settings in flat.items()
    }


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = canonical_json(value) if isinstance(value, list) else value
    return flat
