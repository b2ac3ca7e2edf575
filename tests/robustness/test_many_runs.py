"""Folders of thousands of runs: how much is compared, read and kept, counted instead of timed."""

from __future__ import annotations

import itertools
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence_factory import plain_row
from pages_factory import folder
from record_factory import record
from record_folders import write_set

from harness.analysis import comparison, leaderboard, selection, statistics
from harness.analysis.effects import Conclusion
from harness.analysis.grouping import RunTable, rows
from harness.audit import copy_rules, row_difference_rules, rules
from harness.audit.run_folder import AuditContext, StoredRun
from harness.audit.sentence_traces import SentenceTraces
from harness.audit.table_rules import ComparedRuns
from harness.reporting import bench_report, provenance, render_markdown, run_files, translation_explorer
from harness.reporting.document import Table, find
from harness.storage import run_store, stored_files
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles

SENTENCES = 200


# Copies ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[SentenceTraces]], list[tuple[str, str]]]:
    """Return the rule against copies, on runs with these traces; it returns the pairs of runs that it reports."""

    def apply(of_runs: Sequence[SentenceTraces]) -> list[tuple[str, str]]:
        by_name = {f"run{number}": traces for number, traces in enumerate(of_runs)}
        monkeypatch.setattr(copy_rules, "traces", lambda stored: by_name[stored.name])
        runs = [StoredRun(Path(), name, AuditContext(), parsed=_run(seed)) for seed, name in enumerate(by_name)]
        table = RunTable("controlled", "", ())
        lines = copy_rules.copies(ComparedRuns(table, tuple(runs), ()))
        return [(words[0], words[2]) for words in map(str.split, lines)]

    return apply


def _run(seed: int) -> RunRecord:
    """Return the record of a run with seconds of its own, except that those of runs 30 and 330 are equal."""
    run, seconds = record(seed=seed), 100.0 + (30 if seed == 330 else seed)
    return replace(run, curve=(replace(run.curve[0], training_seconds=seconds),), scores={"bleu_tutorial": 30.0})


def _traces(noise: np.random.Generator) -> SentenceTraces:
    """Return losses of their own and translations that are often those of other runs, and sometimes repeated."""
    usual, own = np.arange(SENTENCES), noise.integers(10**6, 10**12, SENTENCES)
    texts = np.where(noise.random(SENTENCES) < 0.5, usual, own)
    texts[noise.random(SENTENCES) < 0.1] = -1
    return SentenceTraces(texts, noise.uniform(5.0, 50.0, SENTENCES), {})


def test_copies_among_many_runs_compares_few_pairs(
    copies: Callable[[Sequence[SentenceTraces]], list[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0)
    runs = [_traces(noise) for _ in range(400)]
    losses, texts = runs[7].nats, runs[20].texts
    assert losses is not None
    assert texts is not None
    runs[300] = replace(runs[300], nats=losses * (1 + 5e-7))
    runs[301] = replace(runs[301], nats=losses * (1 + 2e-7))
    runs[5] = replace(runs[5], texts=np.where(np.arange(SENTENCES) % 10, texts, -2 - np.arange(SENTENCES)))
    compared, same_results = [], copy_rules._same_results

    def count(first: Any, second: Any) -> Iterator[str]:
        compared.append((first, second))
        return same_results(first, second)

    monkeypatch.setattr(copy_rules, "_same_results", count)
    expected = [("run5", "run20"), ("run7", "run300"), ("run7", "run301"), ("run30", "run330"), ("run300", "run301")]
    assert copies(runs) == expected
    assert len(compared) < 100


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_those_of_comparing_all_pairs(
    copies: Callable[[Sequence[SentenceTraces]], list[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The shares of copied losses and translations are around the limits of the rule, and some arrays are missing."""
    noise = np.random.default_rng(seed)
    runs = [_traces(noise) for _ in range(30)]
    for number in range(1, len(runs)):
        donor, run = runs[int(noise.integers(number))], runs[number]
        if run.nats is not None and donor.nats is not None:
            copied = noise.random(SENTENCES) < noise.choice([0.0, 0.005, 0.01, 0.02])
            run = replace(run, nats=np.where(copied, donor.nats * (1 + noise.choice([0, 9e-7, 1.1e-6])), run.nats))
        if run.texts is not None and donor.texts is not None:
            run = replace(run, texts=np.where(noise.random(SENTENCES) < noise.uniform(0, 0.7), donor.texts, run.texts))
        runs[number] = replace(run, nats=None) if noise.random() < 0.1 else run
    found = copies(runs)
    monkeypatch.setattr(copy_rules, "_suspects", lambda runs: set(itertools.combinations(range(len(runs)), 2)))
    assert found == copies(runs)
    assert 5 < len(found) < 100


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
    records = [record(recipe=replace(recipe, dropout=number / 1_000)) for number in range(100, 180)]  # type: ignore[type-var]
    table, calls, fields = rows(records), [], row_difference_rules._fields

    def count(row: Any) -> dict[str, Any]:
        calls.append(row)
        return fields(row)

    monkeypatch.setattr(row_difference_rules, "_fields", count)
    group = RunTable("controlled", "", table)
    assert list(row_difference_rules.differences(ComparedRuns(group, (), ()))) == []
    assert len(calls) < 5 * len(records)


def test_differing_values_are_found_with_one_look_at_each_run() -> None:
    looks = []

    class Looked:
        def __init__(self, number: int) -> None:
            self.run = record(f"variant{number % 3}", number)

        @property
        def spec(self) -> Any:
            looks.append(self)
            return self.run.spec

    records: list[Any] = [Looked(number) for number in range(60)]
    values = [f"value {number % 4}" for number in range(60)]
    assert len(provenance._by_value(records, values)) == 4
    assert len(looks) <= 6 * len(records)


def test_difference_of_two_rows_is_looked_up_in_one_pass() -> None:
    class Passes(tuple[Any, ...]):
        passes = 0

        def __iter__(self) -> Iterator[Any]:
            Passes.passes += 1
            return super().__iter__()

    names = [f"r{number}" for number in range(20)]
    table = statistics.compare_rows([plain_row(name, *np.random.default_rng(0).random(3)) for name in names])
    table = replace(table, differences=Passes(table.differences))
    for first, second in itertools.permutations(names, 2):
        assert (table.between(first, second).first, table.between(first, second).second) == (first, second)
    assert Passes.passes == 1


# Many rows ------------------------------------------------------------------------------------------------------------


def test_table_of_too_many_rows_has_no_pairs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MOST_ROWS", 4)
    records = [record(f"v{number}", seed, final=1.5 + number / 50) for number in range(5) for seed in range(3)]
    few, many = (leaderboard.analyse_bench(part).tables[0].main for part in (records[:-3], records))
    assert few is not None
    assert many is not None
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
    assert main is not None
    assert main.difference("B", "A") is not None
    assert not main.reported
