"""Conclusions, their symbols, and the ranks of a leaderboard."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages_factory import save_run, translations
from record_factory import record, runs, with_digests

from harness.analysis.contrasts import AblationEffect, Contrast
from harness.analysis.effects import LEGEND, Conclusion
from harness.analysis.grouping import groups
from harness.analysis.leaderboard import MetricLeaderboard, analyse_bench, leaderboards
from harness.experiments.specs import Budget
from harness.reporting.ablation_tables import cell
from harness.storage.stored_files import StoredFiles
from impls.recipes import TUTORIAL


def test_conclusion_every_one_has_its_own_symbol_and_label() -> None:
    assert len({conclusion.symbol for conclusion in Conclusion}) == len(Conclusion) == 5
    assert all(f"{conclusion.symbol} {conclusion.label}" in LEGEND for conclusion in Conclusion)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"mean": 0.5, "low": 0.4, "high": 0.6, "significant": True}, "+0.500 ▼ (+0.400 to +0.600)"),
        ({"mean": -0.5, "low": -0.6, "high": -0.4, "significant": True}, "−0.500 ▲ (−0.600 to −0.400)"),
        ({"mean": 0.5, "low": -0.4, "high": 0.6}, "+0.500 ~ (−0.400 to +0.600)"),
        ({"mean": 0.5, "significant": True, "tested": "sentences"}, "+0.500 †"),
        ({"mean": 0.5, "tested": "sentences"}, "+0.500 ~"),
        ({"mean": 0.5, "values": (0.4, 0.6), "tested": "nothing"}, "+0.500 ? (seeds: +0.400; +0.600)"),
        ({"tested": "nothing"}, "–"),
    ],
)
def test_effect_cell_has_the_symbol_of_its_conclusion(fields: dict[str, Any], expected: str) -> None:
    contrast = Contrast((("norm", "rms"),), (("norm", "layernorm"),), {}, (0, 1), 1)
    effect = AblationEffect(label=contrast.label, metric="validation_loss", contrast=contrast, tested="seeds")
    assert str(cell(replace(effect, **fields))) == expected


def leaderboard(*levels: float, seeds: int = 4) -> MetricLeaderboard:
    """Return the leaderboard of BLEU of variants at these levels above 30."""
    variants = ("learned_positions", "conv_ffn", "paper", "torch_reference", "sinusoidal_handmade")
    generator, records = np.random.default_rng(5), []
    for variant, level in zip(variants, levels, strict=False):
        for seed in range(seeds):
            records.append(record(variant, seed))
            records[-1].scores["bleu_sacre"] = 30 + level + 0.1 * generator.standard_normal()
    (run_table,) = groups(records)
    return leaderboards(run_table, lambda run: None)["bleu_sacre"]


def test_rank_interval_covers_rows_that_are_not_significantly_different() -> None:
    board = leaderboard(5.0, 4.98, 4.96, 0.0, -3.0)
    assert [board.rank_interval(label) for label in board.ranking] == [(1, 3), (1, 3), (1, 3), (4, 4), (5, 5)]
    assert [board.tied_with_best(label) for label in board.ranking] == [False, True, True, False, False]
    assert board.against_best(board.ranking[-1]) is Conclusion.WORSE


def test_one_seed_with_equal_sentences_has_no_tie_and_no_rank_interval(tmp_path: Path) -> None:
    """Other seeds might differ, so that the sentences of one seed show no tie."""
    records = [
        save_run(tmp_path, record(variant, 0), translations("paper", 0, 20)) for variant in ("paper", "conv_ffn")
    ]
    (run_table,) = groups(records)
    board = leaderboards(run_table, StoredFiles(tmp_path).sentences)["bleu_sacre"]
    assert board.against_best(board.ranking[1]) is Conclusion.INCONCLUSIVE
    assert not board.tied_with_best(board.ranking[1])
    assert board.rank_interval(board.ranking[1]) is None


def test_leaderboard_note_names_detectable_difference_and_moderation() -> None:
    tests, moderation = leaderboard(0.0, 0.1, 0.2, 0.3, 0.4).note.split("probability. ")
    assert re.fullmatch(
        r"sacreBLEU: 10 comparisons over 4 seeds, assuming normally distributed seed noise; "
        r"a true difference of 0\.\d\d is found with 80 % ",
        tests,
    )
    assert "empirical Bayes" in moderation
    assert ["assuming" in leaderboard(0.0, 0.1, 0.2, seeds=seeds).note for seeds in (5, 6)] == [True, False]


# Unequal seeds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", ["controlled", "source"])
@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        (
            {"learned_positions": (0, 1, 2), "paper": (0, 1, 2), "conv_ffn": (0,)},
            [
                ("seeds 0, 1, 2", {"learned_positions": 3, "paper": 3}),
                ("seed 0", {"learned_positions": 1, "conv_ffn": 1, "paper": 1}),
            ],
        ),
        (
            {"learned_positions": (0, 1), "paper": (1, 2)},
            [
                ("seed 1", {"learned_positions": 1, "paper": 1}),
                ("seeds 0, 1", {"learned_positions": 2}),
                ("seeds 1, 2", {"paper": 2}),
            ],
        ),
        ({"learned_positions": (0,), "paper": (1,)}, [("seed 0", {"learned_positions": 1}), ("seed 1", {"paper": 1})]),
    ],
    ids=["nested", "overlapping", "disjoint"],
)
def test_analyse_bench_rows_with_other_seeds_are_compared_at_common_seeds(
    budget: Budget, seeds: dict[str, tuple[int, ...]], expected: list[tuple[str, dict[str, int]]]
) -> None:
    analysis = analyse_bench([record(variant, seed, budget=budget) for variant in seeds for seed in seeds[variant]])
    tables, (whole,) = analysis.tables, analysis.charted
    assert [
        (judged.table.title.rpartition("2016_flickr, ")[2], {row.label: len(row.records) for row in judged.table.rows})
        for judged in tables
    ] == expected
    assert all(judged.leaderboards and not judged.mismatches for judged in tables)
    assert {row.label: tuple(run.spec.seed for run in row.records) for row in whole.table.rows} == seeds
    assert not whole.mismatches
    for judged, (_, rows) in zip(tables, expected, strict=True):
        assert judged.leaderboards["bleu_sacre"].seeds == max(rows.values())


def test_analyse_bench_interrupted_runs_have_no_table_of_their_own() -> None:
    """A controlled table has the seeds that its rows completed; the interrupted runs stay with their rows."""
    interrupted = runs("learned_positions", seeds=3)[2:] + runs("paper", seeds=2)[1:] + runs("conv_ffn", seeds=1)
    interrupted = [replace(run, status="interrupted", reason="interrupted by SIGINT", scores={}) for run in interrupted]
    completed = runs("learned_positions", seeds=2) + runs("paper", seeds=1)
    first, second = (judged.table for judged in analyse_bench([*completed, *interrupted]).tables)
    assert [table.title.rpartition("flickr, ")[2] for table in (first, second)] == ["seed 0", "seeds 0, 1"]
    of_first = [("learned_positions", 1, 2), ("conv_ffn", 0, 1), ("paper", 1, 2)]
    assert [(row.label, row.completed, len(row.records)) for row in first.rows] == of_first
    assert [(row.label, row.completed) for row in second.rows] == [("learned_positions", 2), ("conv_ffn", 0)]


def test_analyse_bench_diverged_run_is_a_result_and_leaves_its_differences_empty() -> None:
    """Comparing the other seeds alone would hide that a variant diverges."""
    records = [record(variant, seed) for variant in ("learned_positions", "paper") for seed in range(4)]
    records[-1] = replace(records[-1], status="diverged", reason="loss is not finite", scores={"bleu_sacre": None})
    (judged,) = analyse_bench(records).tables
    board = judged.leaderboards["bleu_sacre"]
    assert board.intervals["paper"].n == 3
    assert [difference.mean for difference in board.comparisons.differences] == [None]


def test_analyse_bench_rows_with_other_seeds_and_settings_stay_refused() -> None:
    clipped = replace(TUTORIAL, clip_norm=0.5)
    records = [record("learned_positions", 0), record("learned_positions", 1), record("paper", 0, training=clipped)]
    (judged,) = analyse_bench(records).tables
    assert len(judged.mismatches) == 2
    assert not judged.leaderboards


def test_vocabulary_of_most_rows_is_compared_however_many_runs_another_has() -> None:
    seeds = {"learned_positions": 1, "paper": 3, "conv_ffn": 1}
    records = [record(name, seed, budget="source") for name, number in seeds.items() for seed in range(number)]
    changed = []
    for run in records:
        digest = ("b" if run.spec.variant == "paper" else "a") * 64
        changed.append(with_digests(run, target_vocabulary=digest))
    (table,) = groups(changed)
    assert table.other_vocabulary == {"paper"}
    boards = leaderboards(table, lambda run: None)
    assert set(boards["bleu_sacre"].ranking) == {"learned_positions", "paper", "conv_ffn"}
    perplexity = boards["test_perplexity"]
    assert set(perplexity.ranking) == {"learned_positions", "conv_ffn"}
    assert set(perplexity.intervals) == {"learned_positions", "paper", "conv_ffn"}
    assert perplexity.against_best("paper") is None
    assert perplexity.rank_interval("paper") is None
