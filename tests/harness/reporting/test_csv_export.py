"""The CSV files of a report: every run, every epoch, and every setting that differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from record_factory import broken, record, runs
from test_leaderboard_table import leaderboard

from harness.analysis.metric_registry import DEFAULT_COLUMNS, LEADERBOARD
from harness.experiments.specs import DataSpec, FileSpec
from harness.reporting import csv_export
from harness.storage.records import RunRecord
from impls.recipes import RECIPES, TUTORIAL


def saved(records: list[RunRecord], folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of runs and of epochs of some records."""
    csv_export.save(records, folder)
    return pd.read_csv(folder / csv_export.RUNS), pd.read_csv(folder / csv_export.CURVES)


def test_csv_files_hold_every_run_and_every_epoch(tmp_path: Path) -> None:
    records = [record(), record("evil.mod:$\\frac{x}_y"), broken(record("paper"))]
    table, curves = saved(records, tmp_path)
    assert dict(zip(table["run"], table["status"], strict=True)) == {run.id: run.status for run in records}
    assert table["parameters"].isna().any()
    assert f",{records[0].sizes['parameters']}," in (tmp_path / csv_export.RUNS).read_text(encoding="utf-8")
    for run in records:
        losses = curves[curves["run"] == run.id].sort_values("epoch")["validation_loss_nats"]
        assert losses.tolist() == pytest.approx([epoch.validation_loss for epoch in run.curve])


def test_csv_grouped_by_label_gives_the_leaderboard(tmp_path: Path) -> None:
    records = runs("learned_positions", "paper", "conv_ffn", seeds=3)
    table, _ = saved(records, tmp_path)
    means = table[table.status == "completed"].groupby("label")[["parameters", "training_tokens_per_second"]].mean()
    board = leaderboard(records)
    for row in board.rows:
        cells = dict(zip(board.heads, row, strict=True))
        label = cells["variant"].value
        for name, head in (("parameters", "parameters"), ("training_tokens_per_second", "training tokens/s")):
            assert cells[head].value == pytest.approx(means.loc[label, name])


def test_csv_of_own_text_names_its_test_file(tmp_path: Path) -> None:
    files = FileSpec(train_source="train.tsv", validation_source="valid.tsv", test_source="/texts/news.tsv")
    tables = saved([record(data=DataSpec(corpus="files", files=files)), record(seed=1)], tmp_path)
    assert all(set(table["test_split"]) == {"news.tsv", "test_2016_flickr"} for table in tables)


def test_csv_keeps_every_setting_that_differs_and_drops_other_metrics_first(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"norm": "rms", "norm_order": "pre", "positions": "rotary", "activation": "gelu"}
    recipe |= {"dropout": 0.3, "layers": 2, "heads": 4, "ffn_width": 64, "tying": "output", "norm_epsilon": 1e-3}
    training = {"epochs": 3, "peak_rate": 1e-4, "clip_norm": 2.0, "batch_size": 64, "label_smoothing": 0.2}
    training |= {"warmup_updates": 7, "averaged_epochs": 2, "epsilon": 1e-3, "teacher_forcing": 0.5}
    changed = {"recipe": replace(RECIPES["learned_positions"], **recipe), "training": replace(TUTORIAL, **training)}
    tables = saved([record(), record(seed=1, **changed)], tmp_path)
    settings = {*(f"training.{name}" for name in training), *(f"recipe.{name}" for name in recipe)}
    assert all(settings <= set(table.columns) for table in tables)
    few = saved([record(), record(seed=1, data=DataSpec(training_pairs=10_000))], tmp_path)
    assert all("data.training_pairs" in table.columns and len(table.columns) <= 40 for table in few)
    assert {*DEFAULT_COLUMNS, *LEADERBOARD} <= set(tables[0].columns)
    assert "total_seconds" not in tables[0].columns
