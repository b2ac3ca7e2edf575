"""Folders of thousands of runs: how much is compared, read and kept, counted instead of timed."""

from __future__ import annotations

import tracemalloc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages_factory import folder
from record_factory import record
from record_folders import write_set

from harness.analysis import comparison, leaderboard, selection, statistics
from harness.analysis.effects import Conclusion
from harness.analysis.grouping import RunTable, rows
from harness.audit import row_difference_rules, rules
from harness.audit.table_rules import ComparedRuns
from harness.reporting import bench_report, render_markdown, run_files, translation_explorer
from harness.reporting.document import Table, find
from harness.storage import run_store, stored_files
from harness.storage.stored_files import StoredFiles

# Files in memory ------------------------------------------------------------------------------------------------------


class Alive:
    """Counts the values of a function of `run_store` that are in memory at once, and its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.most = self.calls = 0
        self._read, self._alive = getattr(run_store, name), list[weakref.ref[Any]]()
        monkeypatch.setattr(run_store, name, self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        value = self._read(*arguments, **options)
        value = type("Kept", (type(value),), {})(value)  # unlike a list or dictionary, it can be referred to weakly
        self._alive = [other for other in self._alive if other() is not None] + [weakref.ref(value)]
        self.most, self.calls = max(self.most, len(self._alive)), self.calls + 1
        return value


def test_check_keeps_the_files_of_one_run(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path, seeds=3)
    alive = [Alive(monkeypatch, name) for name in ("load_hypotheses", "load_sentences")]
    assert not rules.check(tmp_path, with_corpus=False).failed
    assert [counted.calls for counted in alive] == [6, 6]
    assert max(counted.most for counted in alive) <= 2  # that of the last run while the next one is read


def test_report_keeps_few_files_and_shows_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = folder(tmp_path, ("learned_positions", "paper"), seeds=4, count=12)

    def page() -> str:
        stored = StoredFiles(tmp_path)
        for run in records:
            stored.check(run)
        return render_markdown.document(bench_report.document(records, results=stored))

    expected = page()
    monkeypatch.setattr(stored_files, "MOST_KEPT", 2)
    alive = [Alive(monkeypatch, name) for name in ("load_hypotheses", "sentences_of")]
    assert page() == expected
    assert sum(counted.most for counted in alive) <= 2 + 4


def test_compare_keeps_the_files_of_its_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = ("learned_positions", "paper", "sinusoidal_handmade", "conv_ffn", "torch_reference", "plain")
    folder(tmp_path, variants, seeds=3, count=12)
    sides = selection.find(variants[:2], tmp_path, complain=pytest.fail)
    others = comparison.other_rows(sides, tmp_path, run_store.records(tmp_path))
    assert len(others) == 4
    alive = Alive(monkeypatch, "load_sentences")
    result = comparison.compare(sides, (), None, examples=1, table_rows=others)
    assert any(metric.reported for metric in result.metrics)
    assert alive.most <= 3 * (2 + 1) + 1


def test_page_reads_the_translations_of_the_seeds_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = folder(tmp_path, ("learned_positions", "paper"), seeds=12, count=20)
    table = RunTable("controlled", "", rows(records))
    monkeypatch.setattr(run_files, "ROOM_BYTES", 1_500)
    alive = Alive(monkeypatch, "load_hypotheses")
    (widget,) = run_files.translations([table], StoredFiles(tmp_path), {})
    assert 2 <= alive.calls < 2 * 12
    assert any("Left out for the size of this page: seeds" in note for note in widget["notes"])


def test_disagreement_of_many_texts_needs_little_memory() -> None:
    noise = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in noise.integers(0, 2_000, 30)) for _ in range(150)]
    tracemalloc.start()
    try:
        translation_explorer._disagreement(texts)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


# Work for each run ----------------------------------------------------------------------------------------------------


def test_rows_with_one_difference_are_found_without_comparing_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = record().spec.recipe
    records = [record(recipe=replace(recipe, dropout=number / 1_000)) for number in range(100, 180)]
    table, calls, fields = rows(records), [], row_difference_rules._fields

    def count(row: Any) -> dict[str, Any]:
        calls.append(row)
        return fields(row)

    monkeypatch.setattr(row_difference_rules, "_fields", count)
    group = RunTable("controlled", "", table)
    assert list(row_difference_rules.differences(ComparedRuns(group, (), ()))) == []
    assert len(calls) < 5 * len(records)


# Many rows ------------------------------------------------------------------------------------------------------------


def test_table_of_too_many_rows_has_no_pairs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MOST_ROWS", 4)
    records = [record(f"v{number}", seed, final=1.5 + number / 50) for number in range(5) for seed in range(3)]
    few, many = (leaderboard.analyse_bench(part).tables[0].main for part in (records[:-3], records))
    assert len(few.comparisons.differences) == 6
    assert few.rank_interval("v0") is not None
    assert many.comparisons.differences == ()
    assert many.seeds == 3
    assert many.rank_interval("v0") is None
    assert {many.against_best(label) for label in many.ranking} == {None, Conclusion.NOT_TESTED}
    report = bench_report.document(records)
    assert "not compared pair by pair" in report.headline.finding
    assert not [table for table in find(report.blocks, Table) if table.kind == "matrix"]
    assert "Pairs of these 5 rows are not tested" in render_markdown.document(report)


def test_compare_in_a_table_of_too_many_rows_tests_its_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = ("learned_positions", "paper", "conv_ffn")
    folder(tmp_path, variants, seeds=3, count=12)
    sides = selection.find(variants[:2], tmp_path, complain=pytest.fail)
    assert len(comparison.other_rows(sides, tmp_path, run_store.records(tmp_path))) == 1
    monkeypatch.setattr(statistics, "MOST_ROWS", 2)
    assert comparison.other_rows(sides, tmp_path, run_store.records(tmp_path)) == ()
    main = comparison.compare(sides, (), None, examples=0).metric("bleu_sacre")
    assert main.difference("B", "A") is not None
    assert not main.reported
