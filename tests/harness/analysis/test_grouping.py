"""Runs as rows: which epoch of a run counts, which runs, and what tells tables apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evidence_factory import mean
from evidence_factory import rows as evidence_rows
from record_factory import narrow, record, run_spec, with_digests

from harness.analysis.grouping import RunTable, groups, measure, rows
from harness.analysis.statistics import compare_rows
from harness.experiments.overrides import override
from harness.experiments.specs import Budget, DataSpec
from harness.reporting import bench_report
from impls.recipes import RECIPES, TRAININGS


@pytest.mark.parametrize(("chosen", "expected"), [((4,), 4), ((3, 4), 4), ((), 10)])
def test_measure_of_the_curve_is_that_of_the_last_kept_epoch(chosen: tuple[int, ...], expected: int) -> None:
    run = replace(record(), chosen_epochs=chosen)
    losses = [epoch.validation_loss for epoch in run.curve]
    assert len(set(losses)) == len(losses) == 10
    assert measure(run, "validation_loss") == losses[expected - 1]
    assert measure(run, "epochs") == 10


def test_measure_of_a_run_that_reached_no_epoch_is_none() -> None:
    assert measure(replace(record(), curve=()), "validation_loss") is None


def test_row_has_the_record_that_was_started_last() -> None:
    run = record()
    again = replace(run, started="2026-03-01T00:00:00+00:00")
    for records in ([run, again], [again, run]):
        (row,) = rows(records)
        assert row.records == (again,)


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        (["recipe.dropout=0.3"], {"paper (dropout=0.1)", "paper (dropout=0.3)"}),
        (["framework=keras"], {"paper (torch)", "paper (keras on tensorflow)"}),
        (
            ["recipe.dropout=0.3 recipe.norm=rms"],
            {"paper (dropout=0.1, norm=layernorm)", "paper (dropout=0.3, norm=rms)"},
        ),
        (
            ["recipe.dropout=0.3 recipe.norm=rms matmul_precision=medium"],
            {"paper", "paper (dropout=0.3, norm=rms, matmul_precision=medium)"},
        ),
        (  # the variant's own search has beam 5
            ["decoding.beam=5 decoding.length_penalty=0 data.merges=500"],
            {"paper (beam=1)", "paper (merges=500, length_penalty=0.0)"},
        ),
        (
            ["recipe.dropout=0.3 recipe.norm=rms", "recipe.heads=4", "recipe.heads=4 recipe.norm=rms"],
            {"paper", "paper (dropout=0.3, norm=rms)", "paper (heads=4)", "paper (heads=4, norm=rms)"},
        ),
        (
            ["training.batch_size=64", "decoding.batch_size=64"],
            {
                "paper (training.batch_size=128, decoding.batch_size=128)",
                "paper (training.batch_size=64, decoding.batch_size=128)",
                "paper (training.batch_size=128, decoding.batch_size=64)",
            },
        ),
    ],
)
def test_labels_name_the_settings_that_tell_rows_of_a_variant_apart(settings: list[str], labels: set[str]) -> None:
    spec = run_spec("paper", budget="source")
    specs = [spec, *(override(spec, changes.split()) for changes in settings)]
    assert {row.label for row in rows(replace(record(), id=one.id, spec=one) for one in specs)} == labels


@pytest.mark.parametrize(
    ("budget", "dropout", "label"),
    [
        ("source", 0.2, "sinusoidal_handmade"),
        ("source", 0.1, "sinusoidal_handmade (dropout=0.1)"),
        ("controlled", 0.1, "sinusoidal_handmade"),
        ("controlled", 0.2, "sinusoidal_handmade (dropout=0.2)"),
    ],
)
def test_recipe_settings_of_the_source_are_the_variants_own_with_its_own_training(
    budget: Budget, dropout: float, label: str
) -> None:
    name = "sinusoidal_handmade"
    run = record(name, budget=budget, recipe=replace(RECIPES[name], dropout=dropout), training=TRAININGS[name])
    (table,) = groups([run])
    assert [row.label for row in table.rows] == [label]
    assert any("recipe settings" in reason for reason in table.departures) == (label != name)


def test_other_vocabulary_of_two_rows_is_that_of_the_later_one() -> None:
    digests = {"learned_positions": "0" * 64, "paper": "1" * 64}
    runs = [with_digests(record(name, budget="source"), target_vocabulary=digests[name]) for name in digests]
    assert RunTable("source", "", rows(runs)).other_vocabulary == {"paper"}


def test_row_counts_completed_runs_or_all_if_none_completed() -> None:
    completed, diverged = record(seed=0), replace(record(seed=1), status="diverged")
    (row,), (none,) = rows([completed, diverged]), rows([diverged])
    assert (row.counted, row.completed, none.counted) == ((completed,), 1, (diverged,))
    assert row.by_seed("validation_loss") == {0: completed.curve[-1].validation_loss}


def test_caveat_of_one_seed_is_about_completed_runs() -> None:
    (table,) = groups([record(seed=0), replace(record(seed=1), status="failed")])
    assert "One seed: seed noise is unknown." in table.caveats


@pytest.mark.parametrize(("sentences", "few"), [(1, "1 test sentence"), (49, "49 test sentences"), (50, "")])
def test_few_test_sentences_are_warned_of(sentences: int, few: str) -> None:
    run = record()
    (table,) = groups([replace(run, sizes={**run.sizes, "test_pairs": sentences})])
    warned = any(f"Only {few}: intervals are too narrow" in line for line in table.caveats)
    assert warned == bool(few)
    remarks = compare_rows(evidence_rows(2, 3, sentences=max(2, sentences)), mean).remarks
    assert any("test sentences: intervals are too narrow" in line for line in remarks) == bool(few)


@pytest.mark.parametrize(("repeated", "warned"), [(50, False), (51, True), (1_000, True)])
def test_test_pairs_in_the_training_text_are_warned_of(repeated: int, warned: bool) -> None:
    run = record()
    (table,) = groups([record(seed=1), replace(run, sizes={**run.sizes, "test_pairs_in_train": repeated})])
    warning = f"{repeated:,} of 1,000 test pairs are in the training text, so scores are too high"
    places = (" ".join(table.caveats), bench_report.document(table.records).headline.caveat)
    assert [f"{warning}." in text for text in places] == [warned, warned]


@pytest.mark.parametrize(
    ("width", "size"), [(128, "reduced size (width 128)"), (64, "reduced size"), (None, "reduced size")]
)
def test_title_names_the_width_only_if_all_rows_have_it(width: int | None, size: str) -> None:
    narrowed = narrow(RECIPES["learned_positions"])
    gru = replace(narrow(RECIPES["bahdanau_gru"]), width=width) if width else None
    other = record("bahdanau_gru" if gru else "mine:build", recipe=gru)
    (table,) = groups([record(recipe=narrowed), other])
    assert table.title == f"multi30k de-en, test_2016_flickr, {size}"
    assert "learned_positions" in {row.label for row in table.rows}  # the size is in the title alone


@pytest.mark.parametrize(("changes", "departs"), [({"averaged_epochs": 3}, False), ({"label_smoothing": 0.2}, True)])
def test_departures_from_the_source_do_not_include_averaged_epochs(changes: dict[str, Any], departs: bool) -> None:
    run = record("paper", budget="source", training=replace(TRAININGS["paper"], **changes))
    (table,) = groups([run])
    assert any(reason == "not trained as in its source" for reason in table.departures) == departs


def test_departures_name_rows_once_that_differ_in_recipe_and_training() -> None:
    recipe = replace(RECIPES["learned_positions"], heads=4)
    changed = record(budget="source", recipe=recipe, training=TRAININGS["paper"])
    (table,) = groups([record(budget="source"), changed])
    (reason,) = table.departures
    assert reason.startswith("training and recipe settings other than the variant's own (learned_positions (heads=4, ")


def test_groups_number_tables_of_one_title() -> None:
    budgets: tuple[Budget, ...] = ("controlled", "source")
    specs = [(DataSpec(corpus="captions", seed=seed), budget) for seed in (0, 1) for budget in budgets]
    tables = groups(record(data=data, budget=budget) for data, budget in specs)
    title = "captions de-en, its test split"
    assert [(table.budget, table.title) for table in tables] == [
        (budget, numbered) for budget in budgets for numbered in (title, f"{title} (2)")
    ]


@pytest.mark.parametrize(("heads", "named", "end"), [((1, 2, 4, 16), 4, ")"), ((1, 2, 4, 16, 32), 3, " and 2 more)")])
def test_departures_name_three_changed_rows_and_count_several_others(
    heads: tuple[int, ...], named: int, end: str
) -> None:
    recipe = RECIPES["learned_positions"]
    changed = [record(recipe=replace(recipe, heads=number, norm_order="pre")) for number in heads]
    (table,) = groups([record(recipe=recipe), *changed])
    (reason,) = (reason for reason in table.departures if "recipe settings" in reason)
    assert reason.count("norm_order=pre") == named
    assert reason.endswith(end)
    assert ("more" in reason) == (named < len(heads))


def test_departures_name_only_the_data_settings_that_differ() -> None:
    (table,) = groups([record(data=DataSpec(direction="en-de", minimum_frequency=1))])
    assert table.departures == ("data settings other than the published ones (direction, minimum_frequency)",)


def test_departures_of_a_recipe_with_fewer_positions_than_the_usual_length() -> None:
    recipe = replace(RECIPES["learned_positions"], max_length=60)
    (table,) = groups([record(recipe=recipe, data=DataSpec(max_length=60))])
    assert not any("data settings" in reason for reason in table.departures)


@pytest.mark.parametrize(("updates", "expected"), [(1, "at most 1 update"), (2_000, "at most 2,000 updates")])
def test_title_of_a_table_says_after_how_many_updates_its_runs_stop(updates: int, expected: str) -> None:
    (table,) = groups([record(updates=updates)])
    assert table.title.endswith(f", {expected}")
