"""The records as two CSV files, for a spreadsheet, pandas or R: one row per run, and one row per epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.analysis.grouping import groups, measure
from harness.analysis.metric_registry import DEFAULT_COLUMNS, LEADERBOARD, METRICS
from harness.experiments.serialization import canonical_json, leaves, to_json
from harness.reporting.formatting import long_line
from harness.storage import files
from harness.storage.records import RunRecord

RUNS, CURVES = "runs.csv", "curves.csv"
MOST_COLUMNS = 40
"""The columns of runs.csv, unless its settings and the metrics of leaderboards are more."""
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The beginnings of cells that spreadsheets take for formulas, also in full width."""


def save(records: Sequence[RunRecord], folder: Path) -> None:
    """Write `folder`/runs.csv and `folder`/curves.csv; missing values are empty cells.

    The mean over the completed runs of a `table` and `label` is the value of the page's table. If the page splits a
    table by seeds, `table` is the name of the whole table; average over the seeds of the part.
    """
    records = sorted(records, key=lambda record: record.id)
    settings = {record.id: _settings(record) for record in records}
    for table in groups(records, pilots=True):
        for row in table.rows:
            for record in row.records:
                settings[record.id] |= {"table": table.heading, "label": row.label}
    for run, differing in _differing(records).items():
        settings[run] |= differing
    width = len(next(iter(settings.values()), {})) + 1
    metrics = _metrics(MOST_COLUMNS - width)
    epochs = [epoch for record in records for epoch in record.curve]
    unused = set() if any(epoch.validation_bleu is not None for epoch in epochs) else {"validation_bleu"}
    runs, curves = [], []
    for record in records:
        values = {_column(name): measure(record, name) for name in metrics}
        runs.append({**settings[record.id], "status": record.status, **values})
        for epoch in record.curve:
            line = {_column(name): value for name, value in asdict(epoch).items() if name not in unused}
            curves.append({**settings[record.id], **line, "kept": int(epoch.epoch in record.chosen_epochs)})
    write_table(runs, folder / RUNS)
    write_table(curves, folder / CURVES)


def _metrics(room: int) -> list[str]:
    """Return the metrics of leaderboards, and others while there is room, in the order of tables."""
    names = [name for name, metric in METRICS.items() if metric.kind != "orders"]
    shown = {*DEFAULT_COLUMNS, *LEADERBOARD}
    others = [name for name in names if name not in shown]
    kept = shown | set(others[: max(room - len(shown), 0)])
    return [name for name in names if name in kept]


def _column(name: str) -> str:
    return f"{name}_nats" if name in METRICS and METRICS[name].unit == "nats" else name


def write_table(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write rows as CSV with their keys as columns: missing values are empty, whole numbers without ".0"."""
    import pandas as pd

    cells = [{cell(name): cell(value) for name, value in row.items()} for row in rows]
    files.write_bytes(path, pd.DataFrame(cells).convert_dtypes().to_csv(index=False, lineterminator="\n").encode())


def cell(value: Any) -> Any:
    """Return a value for CSV: text on one line, formulas with an apostrophe in front.

    Source: OWASP, CSV Injection.
    """
    if not isinstance(value, str):
        return value
    line = long_line(value)
    return f"'{line}" if line.startswith(FORMULA) else line


def _settings(record: RunRecord) -> dict[str, Any]:
    spec = record.spec
    return {
        "run": record.id,
        "label": spec.variant,
        "table": "",
        **{name: getattr(spec, name) for name in ("variant", "budget", "seed")},
        **{name: getattr(spec.data, name) for name in ("corpus", "direction")},
        "test_split": spec.data.test_set if spec.data.files else spec.data.test_split,
        **{name: getattr(spec, name) or "" for name in ("framework", "backend", "device", "threads", "precision")},
    }


def _differing(records: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    present = {"recipe.name", "recipe.source", "data.corpus", "data.direction", "data.test_split"}
    present |= _settings(records[0]).keys() if records else set()
    flat = {record.id: dict(leaves(to_json(record.spec))) for record in records}
    names = dict.fromkeys(name for settings in flat.values() for name in settings if name not in present)
    values = {name: {canonical_json(run.get(name)) for run in flat.values()} for name in names}
    # A lower precision of matrix products is shown even if all runs have it: the fixed columns do not have it.
    lowered = values.get("matmul_precision", set()) - {'"highest"'}
    differing = [name for name in names if len(values[name]) > 1 or (name == "matmul_precision" and lowered)]
    return {run: {name: settings.get(name) for name in differing} for run, settings in flat.items()}
