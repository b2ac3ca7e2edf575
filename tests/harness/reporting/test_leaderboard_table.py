"""The leaderboards of a report: order, intervals, marks, and the columns that are shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from record_factory import broken, record, runs, scored, with_digests
from scipy import stats

from harness.analysis.leaderboard import analyse_bench
from harness.reporting import bench_report, leaderboard_table
from harness.reporting.document import Cell, Figure, Items, Table, Text, find
from harness.reporting.render_html import sort_value
from harness.storage.records import RunRecord


def leaderboard(records: Sequence[RunRecord]) -> Table:
    (judged,) = analyse_bench(records).tables
    return leaderboard_table.leaderboard(judged)


def logarithmic(*values: float) -> tuple[float, float]:
    """Return the ends of the interval of a mean of logarithms."""
    logarithms = np.log(values)
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(logarithms)
    return math.exp(logarithms.mean() - half), math.exp(logarithms.mean() + half)


@pytest.mark.parametrize(
    ("field", "values", "head", "expected"),
    [
        ("scores.bleu_tutorial", (35.0, 36.0, 37.0), "tutorial BLEU", r"36\.00 \(33\.\d\d to 38\.\d\d\)"),
        ("scores.test_perplexity", (812.25, 830.5, 850.75), "test perplexity", r"831\.2 \(7\d\d\.\d to 8\d\d\.\d\)"),
        ("speed.training_tokens_per_second", (4e3, 4_010.0, 4_020.0), "training tokens/s", r"4,010 \(3,985 to 4,035\)"),
        (
            "speed.peak_memory_bytes",
            (2**20 * 500.0, 2**20 * 501.0, 2**20 * 502.0),
            "peak memory, MiB",
            r"501 \(499 to 503\)",
        ),
        ("speed.total_seconds", (5_400.0,) * 3, "whole run, minutes", r"90\.0"),
        (
            "speed.epoch_seconds",
            (1.0, 2.0, 4.0),
            "one epoch, s",
            r"2.33 \({:.2f} to {:.2f}\)".format(*logarithmic(1, 2, 4)),
        ),
    ],
)
def test_means_and_intervals_have_the_unit_and_digits_of_their_column(
    field: str, values: tuple[float, ...], head: str, expected: str
) -> None:
    part, name = field.split(".")
    records = [replace(run, **{part: {name: values[run.spec.seed]}}) for run in runs("paper", seeds=3)]
    table = leaderboard(records)
    cells = dict(zip(table.heads, map(str, table.rows[0]), strict=True))
    assert re.fullmatch(expected, cells[head])
    assert cells["seeds"] == "3"


def test_leaderboard_counts_the_seeds_of_completed_runs() -> None:
    completed, failed = runs("paper", seeds=2), broken(record("paper", 2))
    (row,) = (table := leaderboard([*completed, failed])).rows
    cells = dict(zip(table.heads, map(str, row), strict=True))
    assert (cells["seeds"], cells["runs"]) == ("2", "2 completed, 1 failed")


def test_leaderboard_cell_without_a_value_has_no_sort_key() -> None:
    diverged = replace(record("conv_ffn"), status="diverged", scores={})
    table = leaderboard([*scored({"paper": (9.5,), "plain": (10.5,)}, "test_perplexity"), diverged])
    column = table.heads.index("test perplexity")
    assert [sort_value(row[column]) for row in table.rows] == ["9.5", "10.5", ""]


@pytest.mark.parametrize(
    ("scores", "mark", "ranks"),
    [
        ({"learned_positions": (30, 30.1, 30, 30.1, 30), "paper": (35, 35.1, 35, 35.1, 35)}, "▼", ("1", "2")),
        (
            {"learned_positions": (30, 32, 28, 31, 29), "paper": (29, 31, 32, 28, 30.1)},
            "~",
            ("1–2", "1–2, tied with the best"),
        ),
    ],
)
def test_leaderboard_ranks_the_best_row_first_with_rank_intervals(
    scores: Mapping[str, Sequence[float]], mark: str, ranks: Sequence[str]
) -> None:
    table = leaderboard(scored(scores))
    assert [str(row[0]) for row in table.rows] == [f"paper (rank {ranks[0]})", f"learned_positions (rank {ranks[1]})"]
    assert [cell.mark for cell in (row[1] for row in table.rows) if isinstance(cell, Cell)] == ["", mark]


def on_machine(run: RunRecord, processor: str) -> RunRecord:
    return replace(run, environment={**run.environment, "machine": {"processor": processor, "cores": 2}})


def texts(records: Sequence[RunRecord]) -> list[str]:
    """Return the paragraphs and items of a report."""
    blocks = bench_report.document(records).blocks
    notes = [line for items in find(blocks, Items) for line in items.lines]
    return [*(block.text for block in find(blocks, Text)), *notes]


def test_speeds_are_compared_on_one_kind_of_machine_only() -> None:
    same = [on_machine(run, "A") for run in runs("learned_positions", "paper", seeds=2)]
    mixed = [on_machine(run, "B") if run.spec.variant == "paper" else run for run in same]
    for records, is_shown in ((same, True), (mixed, False)):
        heads = leaderboard(records).heads
        assert ("training tokens/s" in heads) is ("sentences/s" in heads) is ("one epoch, s" in heads) is is_shown
        assert "peak memory, MiB" in heads
        page = bench_report.document(records)
        assert any(figure.name.endswith("-speed") for figure in find(page.blocks, Figure)) is is_shown
        reason = "No speed columns: measured on different machines (A, 2 cores; B, 2 cores). runs.csv has the speeds."
        assert (reason in texts(records)) is not is_shown


def test_a_speed_that_a_completed_row_lacks_is_left_out_with_the_reason() -> None:
    name = "training_tokens_per_second"
    records = [
        replace(run, speed={key: value for key, value in run.speed.items() if key != name})
        if run.spec.variant == "paper"
        else run
        for run in runs("learned_positions", "paper", seeds=2)
    ]
    heads = leaderboard(records).heads
    assert "training tokens/s" not in heads
    assert "sentences/s" in heads
    assert any("No training tokens/s in this table: missing for paper." in text for text in texts(records))
    three = [*records, *runs("conv_ffn", seeds=2)]
    none = [replace(run, speed={}) if run.spec.variant == "paper" else run for run in three]
    for shown, has_chart in ((three, True), (none, False)):  # no chart of some rows only
        figures = find(bench_report.document(shown).blocks, Figure)
        assert any("speed" in figure.name for figure in figures) is has_chart
    failed = [replace(run, status="failed") if run.spec.variant == "paper" else run for run in records]
    assert "training tokens/s" in leaderboard(failed).heads


def test_perplexities_of_different_vocabularies_share_no_chart() -> None:
    records = runs("learned_positions", "paper", seeds=1, budget="source")
    for digest, caption in (("", "sacreBLEU and test perplexity"), ("1" * 64, "sacreBLEU on the test set")):
        changed = [with_digests(records[0], target_vocabulary=digest), records[1]] if digest else records
        page = bench_report.document(changed)
        (chart,) = (figure for figure in find(page.blocks, Figure) if figure.name.endswith("-scores"))
        assert caption in chart.caption


def test_perplexities_over_another_vocabulary_keep_their_interval_and_do_not_compare() -> None:
    records = scored({"learned_positions": (5.5, 5.6, 5.4), "conv_ffn": (5.9, 6.0, 5.8)}, "test_perplexity")
    subwords = scored({"paper": (4.5, 4.6, 4.4)}, "test_perplexity")
    runs = [*records, *(with_digests(run, target_vocabulary="1" * 64) for run in subwords)]
    runs = [replace(run, spec=replace(run.spec, budget="source")) for run in runs]
    assert any("another vocabulary than that of the rows without this mark" in text for text in texts(runs))
    table = leaderboard(runs)
    column = table.heads.index("test perplexity")
    cells = {str(row[0]).partition(" ")[0]: row[column] for row in table.rows}
    assert list(cells) == ["learned_positions", "conv_ffn", "paper"]
    marks = [(cell.mark, cell.tone) for cell in cells.values() if isinstance(cell, Cell)]
    assert marks == [("", "best"), ("▼", ""), (leaderboard_table.OTHER_VOCABULARY, "")]
    assert all(re.search(r"\d to \d", str(cell)) for cell in cells.values())
    ranked = [str(row[0]) for row in table.rows]
    assert ranked == ["learned_positions (rank 1)", "conv_ffn (rank 2)", "paper"]


@pytest.mark.parametrize(("seeds", "stated"), [(2, False), (3, True)])
def test_detectable_difference_is_stated_if_there_is_an_interval_over_seeds(seeds: int, stated: bool) -> None:
    values = {"learned_positions": (30.1, 30.4, 30.2)[:seeds], "paper": (31.2, 31.0, 31.3)[:seeds]}
    pattern = r"3 seeds find a true difference of \d+\.\d\d sacreBLEU in 80 % of cases"
    notes = [text for text in texts(scored(values)) if "find a true difference of" in text]
    assert [bool(re.match(pattern, note)) for note in notes] == [True] * stated
