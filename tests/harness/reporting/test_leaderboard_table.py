"""The leaderboards of a report: order, intervals, marks, and the columns that are shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from record_factory import record, runs, with_digests
from scipy import stats

from harness.analysis.leaderboard import analyse_bench
from harness.analysis.metric_registry import METRICS
from harness.reporting import bench_report, leaderboard_table
from harness.reporting.document import Cell, Figure, Items, Table, Text, find
from harness.reporting.render_html import sort_value
from harness.storage.records import RunRecord


def leaderboard(records: Sequence[RunRecord]) -> Table:
    (judged,) = analyse_bench(records).tables
    return leaderboard_table.leaderboard(judged)


def scored(scores: Mapping[str, Sequence[float]], name: str = "bleu_sacre") -> list[RunRecord]:
    """Return runs of some variants with these scores, one for each seed."""
    return [
        replace(record(variant, seed), scores={name: score})
        for variant, same in scores.items()
        for seed, score in enumerate(same)
    ]


def test_leaderboard_shows_means_and_intervals() -> None:
    table = leaderboard(scored({"paper": (35.0, 36.0, 37.0)}, "bleu_tutorial"))
    (cells,) = (dict(zip(table.heads, row, strict=True)) for row in table.rows)
    bleu = cells["tutorial BLEU"]
    assert isinstance(bleu, Cell)
    assert (bleu.text, bleu.value) == ("36.00", pytest.approx(36.0, abs=0.01))
    assert re.fullmatch(r"33\.\d\d to 38\.\d\d", bleu.detail)
    assert str(cells["seeds"]) == "3"


def test_leaderboard_has_seven_columns_and_the_rest_on_request() -> None:
    table = leaderboard(runs("paper", "conv_ffn"))
    default = ("variant", "sacreBLEU", "test perplexity", "parameters", "training tokens/s", "sentences/s", "seeds")
    assert table.without_optional().heads == default
    assert {"chrF", "tutorial BLEU", "BLEU-4 cumulative", "peak memory, MiB"} <= set(table.heads)
    descending = {table.heads[index] for index in table.descending}
    assert descending >= {"sacreBLEU", "sentences/s"}
    assert not descending & {"test perplexity", "parameters", "updates"}


def test_leaderboard_counts_the_seeds_of_completed_runs() -> None:
    completed, failed = runs("paper", seeds=2), replace(record("paper", 2), status="failed", scores={}, curve=())
    (row,) = (table := leaderboard([*completed, failed])).rows
    cells = dict(zip(table.heads, map(str, row), strict=True))
    assert (cells["seeds"], cells["runs"]) == ("2", "2 completed, 1 failed")


def test_leaderboard_cell_without_a_value_has_no_sort_key() -> None:
    diverged = replace(record("conv_ffn"), status="diverged", scores={})
    table = leaderboard([*scored({"paper": (9.5,), "plain": (10.5,)}, "test_perplexity"), diverged])
    column = table.heads.index("test perplexity")
    assert [sort_value(row[column]) for row in table.rows] == ["9.5", "10.5", ""]


def test_leaderboard_ranks_the_best_row_first_with_rank_intervals() -> None:
    table = leaderboard(
        scored({"learned_positions": (30.0, 30.1, 30.0, 30.1, 30.0), "paper": (35.0, 35.1) * 2 + (35.0,)})
    )
    assert [str(row[0]) for row in table.rows] == ["paper (rank 1)", "learned_positions (rank 2)"]
    assert [cell.mark for cell in (row[1] for row in table.rows) if isinstance(cell, Cell)] == ["", "▼"]


def test_leaderboard_says_which_rows_are_tied_with_the_best() -> None:
    table = leaderboard(scored({"learned_positions": (30, 32, 28, 31, 29), "paper": (29, 31, 32, 28, 30.1)}))
    tied = ["paper (rank 1–2)", "learned_positions (rank 1–2, tied with the best)"]
    assert [str(row[0]) for row in table.rows] == tied


def test_leaderboard_costs_have_intervals_too() -> None:
    table = leaderboard(
        [
            replace(run, speed={"training_tokens_per_second": 4000.0 + 10 * run.spec.seed})
            for run in runs("paper", seeds=3)
        ]
    )
    assert str(table.rows[0][table.heads.index("training tokens/s")]) == "4,010 (3,985 to 4,035)"


def test_leaderboard_costs_have_intervals_of_their_logarithms() -> None:
    records = [replace(run, speed={"epoch_seconds": 2.0**run.spec.seed}) for run in runs("paper", seeds=3)]
    half = stats.t.ppf(0.975, 2) * stats.sem(np.log([1.0, 2.0, 4.0]))
    table = leaderboard(records)
    expected = f"2.33 ({2 * math.exp(-half):.2f} to {2 * math.exp(half):.2f})"
    assert str(table.rows[0][table.heads.index("one epoch, s")]) == expected


def test_leaderboard_costs_and_their_intervals_have_the_unit_of_their_column() -> None:
    table = leaderboard(
        [
            replace(run, speed={"peak_memory_bytes": 2**20 * (500.0 + run.spec.seed), "total_seconds": 60.0 * 90})
            for run in runs("paper", seeds=3)
        ]
    )
    cells = dict(zip(table.heads, map(str, table.rows[0]), strict=True))
    assert cells["peak memory, MiB"] == "501 (499 to 503)"
    assert cells["whole run, minutes"] == "90.0"


def test_large_perplexities_and_their_intervals_have_equally_few_digits() -> None:
    table = leaderboard(scored({"paper": (812.25, 830.5, 850.75)}, "test_perplexity"))
    cell = table.rows[0][table.heads.index("test perplexity")]
    assert re.fullmatch(r"831\.2 \(7\d\d\.\d to 8\d\d\.\d\)", str(cell))
    assert [METRICS["test_perplexity"].format(value) for value in (5.31642, 3.2e6)] == ["5.316", "3,200,000"]


def on_machine(run: RunRecord, processor: str) -> RunRecord:
    return replace(run, environment={**run.environment, "machine": {"processor": processor, "cores": 2}})


def texts(records: Sequence[RunRecord]) -> list[str]:
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
    page = bench_report.document(three)
    assert [figure for figure in find(page.blocks, Figure) if "speed" in figure.name]
    none = [replace(run, speed={}) if run.spec.variant == "paper" else run for run in three]
    page = bench_report.document(none)
    assert not [figure for figure in find(page.blocks, Figure) if "speed" in figure.name], "a chart of some rows only"
    failed = [replace(run, status="failed") if run.spec.variant == "paper" else run for run in records]
    assert "training tokens/s" in leaderboard(failed).heads


def test_perplexities_of_different_vocabularies_share_no_chart() -> None:
    records = runs("learned_positions", "paper", seeds=1, budget="source")
    for digest, caption in (("", "sacreBLEU and test perplexity"), ("1" * 64, "sacreBLEU on the test set")):
        changed = [with_digests(records[0], target_vocabulary=digest), records[1]] if digest else records
        page = bench_report.document(changed)
        (chart,) = (figure for figure in find(page.blocks, Figure) if figure.name.endswith("-scores"))
        assert caption in chart.caption


def test_another_vocabulary_is_marked_in_the_source_table() -> None:
    records = runs("learned_positions", "paper", "conv_ffn", seeds=1, budget="source")
    records[2] = with_digests(records[2], target_vocabulary="1" * 64)
    marked = {
        str(row[0]).partition(" ")[0]
        for row in leaderboard(records).rows
        for cell in row
        if isinstance(cell, Cell) and cell.mark == leaderboard_table.OTHER_VOCABULARY
    }
    assert marked == {"conv_ffn"}
    assert any("the vocabulary differs from that of most rows" in text for text in texts(records))


def test_perplexities_over_another_vocabulary_keep_their_interval_and_do_not_compare() -> None:
    records = scored({"learned_positions": (5.5, 5.6, 5.4), "conv_ffn": (5.9, 6.0, 5.8)}, "test_perplexity")
    subwords = scored({"paper": (4.5, 4.6, 4.4)}, "test_perplexity")
    table = leaderboard(
        [
            replace(run, spec=replace(run.spec, budget="source"))
            for run in [*records, *(with_digests(run, target_vocabulary="1" * 64) for run in subwords)]
        ]
    )
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
    notes = [text for text in texts(scored(values, "bleu_sacre")) if "find a true difference of" in text]
    assert len(notes) == stated
    assert all(
        re.match(r"3 seeds find a true difference of \d+\.\d\d sacreBLEU in 80 % of cases", note) for note in notes
    )
