"""Effects, main effects and interactions of ablations, compared with calculations by hand on synthetic records."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from ablation_factory import (
    ACTIVATIONS,
    FACTORS,
    LOSS,
    LOSS_CHANGES,
    Levels,
    additive,
    analysed,
    base_spec,
    by_activation,
    effect_of,
    noise,
    not_completed,
    run,
    runs,
    terminal,
)
from record_factory import record as synthetic_record
from scipy import stats

from harness.analysis import inference
from harness.analysis.ablation import analyse
from harness.analysis.ablation_study import studies
from harness.analysis.contrasts import detectable
from harness.analysis.effects import Conclusion
from harness.analysis.fairness import find_mismatches
from harness.analysis.grouping import groups
from harness.experiments.ablation_grids import levels
from harness.experiments.specs import DataSpec
from harness.reporting import ablation_findings
from harness.reporting.ablation_tables import field_rows
from harness.storage.records import RunRecord
from impls.recipes import LEARNED_POSITIONS, RECIPES


def test_effect_interval_and_p_value() -> None:
    analysis = analysed(runs(ACTIVATIONS, by_activation))
    gelu, tanh = (effect_of(analysis.studies[0].fields, "activation", level) for level in ("gelu", "tanh"))
    half_width = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert gelu.mean == pytest.approx(0.2)
    assert (gelu.low, gelu.high) == (pytest.approx(0.2 - half_width), pytest.approx(0.2 + half_width))
    p_gelu, p_tanh = (stats.ttest_1samp(LOSS_CHANGES[level], 0).pvalue for level in ("gelu", "tanh"))
    assert (gelu.p, gelu.p_holm) == (pytest.approx(p_gelu), pytest.approx(p_gelu))
    assert (tanh.p, tanh.p_holm) == (pytest.approx(p_tanh), pytest.approx(2 * p_tanh))
    assert (gelu.significant, tanh.significant) == (False, True)
    assert (gelu.conclusion, tanh.conclusion) == (Conclusion.INCONCLUSIVE, Conclusion.WORSE)
    assert gelu.contrast.seeds == (0, 1, 2)
    text = "with 80 % probability, assuming normally distributed seed noise: validation loss 0."
    assert text in terminal(analysis)


def test_detectable_effect_is_around_the_mean_of_the_base_on_the_scale_of_the_metric() -> None:
    study = (effects := analysed(runs(ACTIVATIONS, by_activation)).studies[0]).study
    (field,) = effects.fields
    on_perplexity = field.effects["test_perplexity"]
    base = np.mean([run.scores["test_perplexity"] for run in study.cells[0].records.values()])
    largest = max(effect.standard_error or 0.0 for effect in on_perplexity)
    factor = math.exp(inference.detectable(largest, 2, 2) / 2)
    assert detectable(study, on_perplexity) == pytest.approx(base * (factor - 1 / factor))


def test_detectable_effect_is_in_points_of_bleu_if_a_level_collapses() -> None:
    scores = {"relu": 30.0, "gelu": 31.0, "tanh": 0.01}
    records = [
        replace(run, scores={"bleu_sacre": scores[run.spec.recipe.activation] * (1 + 0.01 * run.spec.seed)})
        for run in runs(ACTIVATIONS, by_activation)
    ]
    study = (effects := analysed(records).studies[0]).study
    on_bleu = effects.fields[0].effects["bleu_sacre"]
    largest = max(effect.standard_error or 0.0 for effect in on_bleu)
    assert detectable(study, on_bleu) == pytest.approx(inference.detectable(largest, 2, 2))


def test_field_with_the_largest_effect_ranks_first() -> None:
    losses = {"gelu": 0.1, "none": -0.6, "rms": 0.3}

    def loss(levels: Levels, seed: int) -> float:
        return 2 + sum(losses.get(level, 0.0) for level in levels.values()) + noise(levels, seed)

    records = [
        *runs({"activation": ("gelu",)}, loss, seeds=5),
        *runs({"positions": ("none",)}, loss, seeds=5),
        *runs({"norm": ("layernorm", "rms")}, loss, seeds=5),
    ]
    analysis = analysed(records)
    ranks = analysis.rankings["learned_positions"][LOSS]
    assert [rank.field for rank in ranks] == ["positions", "norm", "activation"]
    finding = ablation_findings.headline(analysis).finding
    assert "positions has the largest effect on the validation loss: −0." in finding
    assert ") with none instead of learned" in finding
    few_seeds = ablation_findings.headline(analysed(record for record in records if record.spec.seed < 4)).finding
    assert "has the largest effect" not in few_seeds
    assert "4 seeds are too few for a claim, which needs 5" in few_seeds


def test_effects_share_the_variance_of_all_recipes_of_their_study() -> None:
    records = runs(FACTORS, lambda levels, seed: additive(levels, seed) + noise(levels, seed))
    values = np.reshape([run.curve[-1].validation_loss or 0.0 for run in records], (8, 3))
    weights = np.zeros((1, 8))
    weights[0, [0, 1]] = -1.0, 1.0  # tanh instead of relu
    expected = inference.infer(values, weights)
    effect = effect_of(analysed(records).studies[0].fields, "activation", "tanh")
    assert effect.standard_error == pytest.approx(expected.standard_error[0])
    assert effect.degrees == pytest.approx(expected.degrees[0])
    assert expected.degrees[0] == 7 * 2, "the degrees of 8 rows over 3 seeds"


def test_interactions_are_averaged_over_the_other_field() -> None:
    def loss(levels: Levels, seed: int) -> float:
        pair = levels["positions"] == "none" and levels["norm"] == "rms"
        triple = pair and levels["activation"] == "tanh"
        return additive(levels, seed) + 0.4 * pair + 0.2 * triple + noise(levels, seed)

    records = runs(FACTORS, loss)
    factorial = analysed(records).studies[0].factorial
    losses = np.reshape([record.curve[-1].validation_loss for record in records], (2, 2, 2, 3))
    of_positions = losses[1] - losses[0]  # none instead of learned, by norm, activation and seed
    by_seed = (of_positions[1] - of_positions[0]).mean(axis=0)
    assert (factorial.fields, factorial.missing, factorial.left_out) == (("positions", "norm", "activation"), (), ())
    pairs = {effect.contrast.label: effect for effect in factorial.interactions[LOSS]}
    effect = pairs["positions=none with norm=rms"]
    assert effect.mean == pytest.approx(np.mean(by_seed))
    assert effect.mean == pytest.approx(0.4 + 0.2 / 2, abs=0.03)
    assert effect.p < stats.ttest_1samp(by_seed, 0).pvalue, "8 rows estimate the variance together"
    assert effect.contrast.combinations == 2
    assert effect.significant
    assert pairs["positions=none with activation=tanh"].mean == pytest.approx(0.2 / 2, abs=0.03)
    main = effect_of(factorial.main, "positions", "none")
    assert main.mean == pytest.approx(0.5 + 0.4 / 2 + 0.2 / 4, abs=0.03)
    assert main.contrast.combinations == 4


def test_missing_cells_of_a_factorial_are_named_and_left_out_of_averages() -> None:
    choices = {"positions": ("learned", "none", "rotary"), "norm": ("layernorm", "rms")}
    records = runs(choices, lambda levels, seed: 2 + 0.3 * (levels["positions"] == "none") + noise(levels, seed))

    def is_at(record: RunRecord, positions: str, norm: str) -> bool:
        return (record.spec.recipe.positions, record.spec.recipe.norm) == (positions, norm)

    incomplete = [
        not_completed(record) if is_at(record, "none", "rms") and record.spec.seed == 1 else record
        for record in records
        if not is_at(record, "rotary", "rms")
    ]
    factorial = analysed(incomplete).studies[0].factorial
    assert factorial.missing == ("positions=rotary, norm=rms",)
    assert factorial.left_out == ("positions=none, norm=rms",)
    effect = effect_of(factorial.main, "positions", "none")
    assert effect.contrast.combinations == 1
    assert effect.mean == effect_of(analysed(incomplete).studies[0].fields, "positions", "none").mean
    label = "positions=rotary with norm=rms"
    unknown = [effect.mean for effect in factorial.interactions[LOSS] if effect.contrast.label == label]
    assert unknown == [None]


def test_factorial_with_a_recipe_that_lacks_a_seed_states_the_seeds_of_its_averages() -> None:
    choices = {"positions": ("learned", "none", "rotary"), "norm": ("layernorm", "rms")}
    records = runs(choices, noise)
    incomplete = [run for run in records if (run.spec.recipe.positions, run.spec.seed) != ("none", 2)]
    (effects,) = (analysis := analysed(incomplete)).studies
    assert [row.seeds for row in field_rows(effects.study, effects.factorial.main)] == [3, 2, 2]
    assert "6 combinations, 2 to 3 seeds.\n" in terminal(analysis)
    assert "6 combinations, 3 seeds.\n" in terminal(analysed(records))


def test_diverged_run_is_reported_and_its_level_keeps_the_other_seeds() -> None:
    records = [
        not_completed(record) if record.spec.seed == 2 and record.spec.recipe.activation == "gelu" else record
        for record in runs(ACTIVATIONS, by_activation)
    ]
    analysis = analysed(records)
    study = analysis.studies[0]
    effect = effect_of(study.fields, "activation", "gelu")
    assert effect.contrast.seeds == (0, 1)
    assert effect.mean == pytest.approx(0.15)
    assert (effect.low, effect.p, effect.conclusion) == (None, None, Conclusion.NOT_TESTED)
    assert effect.values == pytest.approx((0.1, 0.2))
    assert effect_of(study.fields, "activation", "tanh").contrast.seeds == (0, 1, 2)
    (row,) = [row for row in field_rows(study.study, study.fields) if row.level == "gelu"]
    assert (row.status, row.seeds) == ("1 of 3 diverged", 2)
    assert "1 of 3 diverged" in terminal(analysis)
    assert "activation=gelu (1 of 3 diverged)" in "\n".join(ablation_findings.warnings(analysis))


def test_base_is_the_center_of_the_grid_unless_given() -> None:
    star = runs({"positions": ("rotary",), "norm": levels("norm")}, noise, seeds=1)
    star += runs({"positions": [level for level in levels("positions") if level != "rotary"]}, noise, seeds=1)
    (study,) = studies(star)
    assert (study.base["positions"], study.base["norm"]) == ("rotary", "layernorm")
    (study,) = studies(star, base=base_spec())
    assert study.base["positions"] == "learned"
    (study,) = studies(runs({"activation": ("gelu", "relu")}, noise, seeds=1))
    assert study.base["activation"] == "relu"


def test_study_is_runs_that_differ_in_levels_only() -> None:
    records = [synthetic_record(name, seed) for name in RECIPES for seed in (0, 1)]
    assert studies(records) == ()
    wide = [run(replace(LEARNED_POSITIONS, activation=level, width=512), 0, 2.0) for level in ("relu", "gelu")]
    tied = [
        run(replace(LEARNED_POSITIONS, tying=level), 0, 2.0, data=DataSpec(vocabulary="joint"))
        for level in levels("tying")
    ]
    all_studies = studies([*records, *wide, *tied])
    assert [(study.joint, len(study.cells)) for study in all_studies] == [(False, 2), (True, 3)]
    assert all("=" in cell.label for study in all_studies for cell in study.cells[1:])
    assert all_studies[1].title.endswith("joint vocabulary")
    tables = groups([record for study in all_studies for record in study.records])
    assert [group.title.endswith("joint vocabulary") for group in tables] == [False, True]
    assert [find_mismatches(group.records, "controlled") for group in tables] == [[], []]


def test_stored_sentences_widen_the_interval_of_a_score() -> None:
    random = np.random.default_rng(0)
    tokens = random.integers(5, 20, 200).astype(np.int32)
    harder_for_tanh, sentences = random.normal(size=200) * 5, {}
    records = runs(ACTIVATIONS, by_activation)
    for number, record in enumerate(records):
        activation = record.spec.recipe.activation
        nats = tokens * (1.5 + LOSS_CHANGES[activation][record.spec.seed]) + random.normal(size=200)
        nats += harder_for_tanh * (activation == "tanh")
        sentences[record.id] = {"nats": nats, "tokens": tokens}
        perplexity = math.exp(nats.sum() / tokens.sum())
        records[number] = replace(record, scores={**record.scores, "test_perplexity": perplexity})
    with_sentences, without = analyse(records, lambda record: sentences[record.id]), analysed(records)
    effects = [
        effect_of(analysis.studies[0].fields, "activation", "tanh", "test_perplexity")
        for analysis in (with_sentences, without)
    ]
    assert [effect.basis for effect in effects] == ["seeds and sentences", "seeds"]
    assert effects[0].mean == pytest.approx(effects[1].mean)
    wide, narrow = ((effect.high or 0.0) - (effect.low or 0.0) for effect in effects)
    assert wide > narrow > 0
    assert effect_of(with_sentences.studies[0].fields, "activation", "tanh").basis == "seeds"
