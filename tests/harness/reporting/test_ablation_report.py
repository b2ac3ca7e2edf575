"""Reports of ablations: what they warn of, their limits, and reproducible pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ablation_factory import (
    ACTIVATIONS,
    FACTORS,
    LOSS,
    Levels,
    additive,
    analysed,
    by_activation,
    effect_of,
    markdown,
    noise,
    not_completed,
    run,
    runs,
    terminal,
)
from record_factory import narrow, with_digests

from harness.reporting import ablation_findings, ablation_report, bench_report
from harness.reporting.document import Heading, find
from impls.recipes import LEARNED_POSITIONS, TUTORIAL


def test_runs_that_stop_early_are_not_said_to_have_the_same_updates() -> None:
    recipes = [replace(LEARNED_POSITIONS, activation=activation) for activation in ("relu", "gelu")]
    full = [run(recipe, seed, 2.0, training=replace(TUTORIAL, patience=2)) for recipe in recipes for seed in range(3)]
    records = [with_digests(record, batches={str(record.curve[0].updates): "1" * 64}) for record in full]
    (effects,) = (analysis := analysed(records)).studies
    assert effects.study.differences == ()
    assert "Runs stop early, so they differ in updates" in "\n".join(ablation_findings.limits(analysis))
    assert "3 layers, at most 10 epochs, 3 seeds" in "\n".join(ablation_findings.limits(analysis))
    assert ", the batches of the first epoch of each" in ablation_findings.agreement(effects.study)


@pytest.mark.parametrize(
    ("changes", "seed", "expected"),
    [
        ({"positions": "rotary"}, 0, True),
        ({"positions": "rotary"}, 1, False),
        ({"positions": "rotary", "norm": "rms"}, 0, False),
    ],
    ids=["one field", "no common seed", "two fields"],
)
def test_report_of_two_recipes_has_an_ablation_if_they_differ_in_one_field(
    changes: dict[str, Any], seed: int, expected: bool
) -> None:
    other = run(replace(LEARNED_POSITIONS, **changes), seed, 1.9)
    blocks = bench_report.document([run(LEARNED_POSITIONS, 0, 2.0), other]).blocks
    assert ("Ablation" in [block.text for block in find(blocks, Heading)]) == expected


def test_level_whose_runs_all_diverged_ranks_its_field_first(tmp_path: Path) -> None:
    records = [
        *runs(
            {"activation": ("relu", "tanh")},
            lambda levels, seed: 2 + 0.9 * (levels["activation"] == "tanh") + noise(levels, seed),
        ),
        *map(not_completed, runs({"norm": ("none",)}, lambda levels, seed: 2.0)),
    ]
    analysis = analysed(records)
    ranks = analysis.rankings["learned_positions"][LOSS]
    assert [(rank.field, rank.lost) for rank in ranks] == [("norm", ("none",)), ("activation", ())]
    assert ranks[0].effect is None
    page = markdown(analysis, tmp_path)
    assert "| 1 | norm | none: diverged |" in page
    assert "| 3 of 3 diverged |" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source_vocabulary": "1" * 64}, "source vocabulary"),
        ({"stream": "1" * 64}, "stream of batches, seed 1"),
        ({"weights": {}}, "initial weights, seed 1: missing in learned_positions (activation=gelu)"),
    ],
)
def test_runs_that_are_not_comparable_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    records = [
        with_digests(record, **change) if record.spec.seed == 1 and record.spec.recipe.activation == "gelu" else record
        for record in runs(ACTIVATIONS, by_activation)
    ]
    analysis = analysed(records)
    (study,) = analysis.studies
    assert any(message in line for line in study.study.differences)
    assert (study.fields, study.factorial) == ((), None)
    page = markdown(analysis, tmp_path)
    assert "not comparable" in page
    assert message.split(":")[0] in page
    assert "not comparable" in terminal(analysis)
    assert ablation_findings.limits(analysis) == []
    assert "Learning curves" not in page


def test_one_seed_gives_no_interval_and_a_warning() -> None:
    analysis = analysed(runs(ACTIVATIONS, by_activation, seeds=1))
    effect = effect_of(analysis.studies[0].fields, "activation", "tanh")
    assert effect.mean == pytest.approx(0.5)
    assert (effect.low, effect.high, effect.significant) == (None, None, False)
    assert any(
        "seed noise is unknown and no effect is tested over seeds" in line
        for line in ablation_findings.limits(analysis)
    )
    assert "1 seed is too few for a claim, which needs 5" in ablation_findings.headline(analysis).finding


def test_limits_name_the_seeds_of_the_intervals_not_all_seeds() -> None:
    five, two = (analysed(runs(ACTIVATIONS, lambda levels, seed: 2 + noise(levels, seed), seeds=n)) for n in (5, 2))
    limits = ablation_findings.limits(two)
    assert "There is no interval and no test: they need 3 seeds of the base and a recipe." in limits
    assert not any("rest on" in line for line in limits)
    some = [run for run in five.studies[0].study.records if run.spec.recipe.activation == "relu" or run.spec.seed < 4]
    assert any("rest on 4 seeds" in line for line in ablation_findings.limits(analysed(some)))


def test_mean_effect_that_deviates_from_those_of_the_seeds_is_explained() -> None:
    analysis = analysed(runs(ACTIVATIONS, by_activation, seeds=2))
    assert "logit or log scale, so they can deviate from the mean over seeds" in terminal(analysis)


def test_interaction_that_has_another_sign_than_the_shown_effects_is_explained() -> None:
    def loss(levels: Levels, seed: int) -> float:
        return 2 + 0.5 * (levels["positions"] == "none") + 0.1 * (levels["norm"] == "rms") + 0.01 * noise(levels, seed)

    def joint(levels: Levels, seed: int) -> float:
        return loss(levels, seed) - 0.02 * ("none" in levels.values() and "rms" in levels.values())

    analysis = analysed(runs({name: FACTORS[name] for name in ("positions", "norm")}, joint))
    (factorial,) = (study.factorial for study in analysis.studies)
    (effect,) = factorial.interactions["test_perplexity"]
    assert effect.mean < 0 < min(effect.values)
    assert "logit or log scale: from the shown effects, it can have another size and sign" in terminal(analysis)


def test_limits_of_few_and_many_seeds_have_the_assumption_of_few_and_name_a_small_test_set() -> None:
    few, many = (runs(ACTIVATIONS, lambda levels, seed: 2 + noise(levels, seed), seeds=seeds) for seeds in (3, 6))
    small = [replace(run, sizes={**run.sizes, "test_pairs": 20, "test_pairs_in_train": 5}) for run in few]
    studies = (*analysed(small).studies, *analysed(many).studies)
    limits = "\n".join(ablation_findings.limits(replace(analysed(few), studies=studies)))
    assert "rest on 3 to 6 seeds, assuming normally distributed seed noise" in limits
    assert "cover other seeds, not other test sentences" in limits
    assert "Only 20 test sentences: intervals are too narrow, and p-values too small." in limits
    assert "5 of 20 test pairs are in the training text, so scores are too high." in limits
    assert ("one at a time" in limits, "three fields" in limits) == (True, False)


def test_headline_on_another_than_the_largest_effect_does_not_call_it_the_largest() -> None:
    noisy = (1.5, -1.0, 0.9, -0.8, 0.4)

    def loss(levels: Levels, seed: int) -> float:
        changes = {"tanh": 0.5 + noisy[seed], "rms": 0.2}
        return 2 + sum(changes.get(level, 0.0) for level in levels.values()) + noise(levels, seed)

    records = [*runs({"activation": ("relu", "tanh")}, loss, seeds=5), *runs({"norm": ("rms",)}, loss, seeds=5)]
    analysis = analysed(records)
    assert [rank.field for rank in analysis.rankings["learned_positions"][LOSS]] == ["activation", "norm"]
    finding = ablation_findings.headline(analysis).finding
    assert "norm has the largest effect on the validation loss that can be claimed: +0." in finding


@pytest.mark.parametrize(("second", "is_named"), [(0.495, True), (0.3, False)])
def test_headline_names_a_second_field_that_may_have_as_large_an_effect(second: float, is_named: bool) -> None:
    def loss(levels: Levels, seed: int) -> float:
        changes = {"tanh": 0.5, "none": -second}
        return 2 + sum(changes.get(level, 0.0) for level in levels.values()) + noise(levels, seed)

    records = [*runs({"activation": ("relu", "tanh")}, loss, seeds=5), *runs({"norm": ("none",)}, loss, seeds=5)]
    finding = ablation_findings.headline(analysed(records)).finding
    assert "activation has the largest effect on the validation loss: +0." in finding
    assert ("with tanh instead of relu. That of norm may be as large: −0.4" in finding) == is_named
    assert finding.endswith("with none instead of layernorm.") == is_named


def test_headline_names_the_settings_of_the_study_that_measured_the_effect() -> None:
    norms = [replace(LEARNED_POSITIONS, norm=level) for level in ("layernorm", "rms")]
    positions = [replace(narrow(LEARNED_POSITIONS), positions=level) for level in ("learned", "none")]
    records = [run(recipe, seed, 2 + 0.1 * index) for index, recipe in enumerate(norms) for seed in range(3)]
    records += [run(recipe, seed, 3 + 0.5 * index) for index, recipe in enumerate(positions) for seed in range(4)]
    headline = ablation_findings.headline(analysis := analysed(records))
    assert "the largest effect on the validation loss is that of positions: +0.500 nats" in headline.finding
    assert headline.finding.endswith("4 seeds are too few for a claim, which needs 5.")
    assert "width 128, 3 layers, 10 epochs, 4 seeds, one learning rate for all recipes" in headline.caveat
    table = "learned_positions, multi30k de-en, test_2016_flickr"
    different = f"positions in {table}, reduced size (width 128); norm in {table}."
    assert f"Measured in different settings: {different}" in terminal(analysis)
    assert "Measured in different settings" not in terminal(analysed(records[:6]))


def test_headline_claims_no_effect_that_is_not_significant() -> None:
    def loss(levels: Levels, seed: int) -> float:
        return 2 + (levels.get("activation") == "gelu") * (0.1 if seed % 2 else -0.08)

    records = [*runs({"activation": ("relu", "gelu")}, loss, seeds=5), *runs({"norm": ("rms",)}, loss, seeds=5)]
    finding = ablation_findings.headline(analysed(records)).finding
    assert finding.startswith("In learned_positions, the largest effect on the validation loss is that of activation: ")
    assert ", inconclusive) with gelu instead of relu" in finding
    assert "too few for a claim" not in finding


@pytest.mark.parametrize("seeds", [4, 5])
def test_effect_of_the_only_field_is_not_ranked(seeds: int) -> None:
    def loss(levels: Levels, seed: int) -> float:
        return 2 + (levels["activation"] == "gelu") * 0.1 + noise(levels, seed)

    analysis = analysed(runs({"activation": ("relu", "gelu")}, loss, seeds=seeds))
    finding = ablation_findings.headline(analysis).finding
    assert finding.startswith("In learned_positions, the effect of activation on the validation loss is +0.")
    assert ("4 seeds are too few for a claim, which needs 5." in finding) == (seeds == 4)
    assert "argest effect" not in terminal(analysis)


def test_report_does_not_depend_on_the_order_of_records(tmp_path: Path) -> None:
    records = runs(FACTORS, lambda levels, seed: additive(levels, seed) + noise(levels, seed))
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, ordered in ((first, records), (second, records[::-1])):
        markdown(analysed(ordered), folder)
    names = {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()}
    assert names >= {"index.html", "effects.csv", "runs.csv", "figures/ablation-1.svg", "figures/ablation-1-main.svg"}
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    limits = "\n".join(ablation_findings.limits(analysed(records)))
    assert ("one at a time" in limits, "three fields" in limits) == (False, True)
    effects = pd.read_csv(first / "effects.csv")
    kinds = effects[effects.figure == LOSS].groupby("kind").size().to_dict()
    assert kinds["interaction"] == kinds["main effect"] == kinds["level"] == 3
    row = effects[(effects.figure == LOSS) & (effects.kind == "main effect") & (effects.changed == "positions=none")]
    assert row.effect.item() == pytest.approx(0.5, abs=0.03)


def test_studies_of_one_table_are_told_apart_by_their_settings() -> None:
    recipes = (LEARNED_POSITIONS, replace(LEARNED_POSITIONS, norm_order="pre"))
    short = replace(TUTORIAL, epochs=4)
    brief = [run(recipe, seed, 2.0 + n, training=short) for n, recipe in enumerate(recipes) for seed in range(3)]
    page = terminal(analysed([*runs(ACTIVATIONS, by_activation), *brief]))
    table = "multi30k de-en, test_2016_flickr"
    first, second = (f"learned_positions (epochs={epochs}), {table}" for epochs in (4, 10))
    assert f"Measured in different settings: norm_order in {first}; activation in {second}." in page


def test_report_without_an_ablation_is_empty() -> None:
    analysis = analysed(run(LEARNED_POSITIONS, seed, 2.0) for seed in range(3))
    assert analysis.studies == ()
    assert ablation_findings.warnings(analysis) == [
        "No ablation: no two runs differ only in the levels of their recipes."
    ]
    report = ablation_report.document(analysis)
    assert (report.blocks, report.warnings) == ((), ())
    assert terminal(analysis).count("No ablation") == 1
