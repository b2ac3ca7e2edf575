"""Confounds of an ablation: the size of embeddings relative to positions, and batches that differ on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ablation_factory import analysed
from record_factory import record, with_digests
from small_runs import TINY, spec

from harness.analysis.ablation_study import studies
from harness.analysis.confounds import confounds
from harness.analysis.fairness import find_mismatches
from harness.analysis.grouping import groups
from harness.audit.rules import check
from harness.data.dataset import prepare
from harness.reporting import ablation_findings
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import train
from impls import weights
from impls.contract import Training
from impls.recipes import LEARNED_POSITIONS

WARNING = "positions also changes the size of word embeddings relative to position vectors."
RMS = ("source_embedding_rms", "target_embedding_rms", "position_rms")
POSITION_RMS = {"learned": 0.075, "sinusoidal": 0.707}
EMBEDDING_RMS = {"xavier": 0.016, "width": 1 / 16, "normal": 1.0}
"""Approximate values at width 256, embeddings before they are scaled."""
UPDATES = {"random": 227, "length": 227, "tokens": 61}
POSITIONS = {"positions": ("learned", "sinusoidal")}
BATCHINGS = {"batching": ("random", "tokens")}


def run(levels: Mapping[str, str], seed: int = 0) -> RunRecord:
    """Return a synthetic run with these levels; its batches depend on seed and batching."""
    fields = {name: level for name, level in levels.items() if name != "batching"}
    batching: Any = levels.get("batching", "random")
    recipe = replace(LEARNED_POSITIONS, **fields)
    loss = 2.0 + 0.01 * len("".join(levels.values()))
    made = record("learned_positions", seed, final=loss, training=Training(batching=batching), recipe=recipe)
    embedding = EMBEDDING_RMS[recipe.embedding_init] * (16 if recipe.embedding_scale == "sqrt_width" else 1)
    rms = zip(RMS, (embedding, 0.9 * embedding, POSITION_RMS.get(recipe.positions, 0.0)), strict=True)
    made = with_digests(replace(made, sizes={**made.sizes, **dict(rms)}), stream=f"{batching} {seed}")
    return with_updates(made, UPDATES[batching])


def with_updates(run: RunRecord, per_epoch: int) -> RunRecord:
    return replace(run, curve=tuple(replace(epoch, updates=epoch.epoch * per_epoch) for epoch in run.curve))


def grid(levels: Mapping[str, tuple[str, ...]]) -> list[RunRecord]:
    """Return the runs of every combination of levels, with two seeds."""
    combinations = itertools.product(*levels.values())
    return [run(dict(zip(levels, words, strict=True)), seed) for words in combinations for seed in range(2)]


# The size of embeddings relative to positions -------------------------------------------------------------------------


def test_confounds_field_that_changes_the_ratio_is_warned_of() -> None:
    analysis = analysed(grid({"positions": ("learned", "sinusoidal", "none")}))
    (confound,) = analysis.studies[0].confounds
    assert (confound.field, list(confound.ratios)) == ("positions", ["sinusoidal", "learned"])
    (warning,) = (line for line in ablation_findings.warnings(analysis) if WARNING in line)
    assert "0.36 with sinusoidal, 3.41 with learned" in warning


@pytest.mark.parametrize(
    ("grids", "warned"),
    [
        ([{"positions": ("learned", "rotary", "alibi", "none")}], []),
        ([{"norm": ("layernorm", "rms", "none")}, {"ffn": ("gated",)}, {"activation": ("tanh",)}], []),
        ([{**POSITIONS, "embedding_init": ("xavier", "width")}], []),
        ([{**POSITIONS, "embedding_scale": ("sqrt_width", "none")}], []),
        ([POSITIONS, {"embedding_init": ("width", "normal")}], ["positions"]),
        ([{**POSITIONS, "norm": ("layernorm", "rms")}], ["positions"]),
    ],
    ids=["one ratio", "other fields", "crossed with init", "with scale", "not crossed", "crossed with another field"],
)
def test_confounds_are_fields_that_change_the_ratio_and_are_not_crossed_with_it(
    grids: list[dict[str, tuple[str, ...]]], warned: list[str]
) -> None:
    (effects,) = analysed([record for levels in grids for record in grid(levels)]).studies
    assert [confound.field for confound in effects.confounds] == warned
    assert (effects.factorial is not None) == any(len(levels) > 1 for levels in grids)


def test_confounds_one_recipe_with_all_changes_does_not_cross_its_fields() -> None:
    records = [*grid(POSITIONS), *grid({"norm": ("rms",)}), *grid({"embedding_init": ("normal",)})]
    records += grid({"positions": ("sinusoidal",), "norm": ("rms",), "embedding_init": ("normal",)})
    (effects,) = analysed(records).studies
    assert ([confound.field for confound in effects.confounds], effects.factorial) == (["positions"], None)


@pytest.mark.parametrize(("change", "warned"), [(1.9, False), (2.1, True)])
def test_confounds_recorded_ratios_are_compared_with_a_limit_of_2(change: float, warned: bool) -> None:
    base, tanh = run({}), run({"activation": "tanh"})
    sizes = {**tanh.sizes, "position_rms": tanh.sizes["position_rms"] / change}
    (study,) = studies([base, replace(tanh, sizes=sizes)])
    assert bool(confounds(study, ())) is warned
    assert confounds(study, ("activation", "embedding_init")) == ()


@pytest.mark.usefixtures("cache", "clean_commit")
def test_train_stores_the_sizes_and_check_recomputes_them(tmp_path: Path) -> None:
    settings = spec("learned_positions", replace(TINY, positions="sinusoidal", embedding_init="width"), updates=2)
    trained = train.run(settings, tmp_path)
    prepared = prepare(settings.data)
    initial = weights.initial(settings.recipe, *prepared.vocabulary_sizes, seed=0)
    assert {name: trained.sizes[name] for name in RMS} == weights.embedding_rms(settings.recipe, initial)
    assert not check(tmp_path).failed
    wrong = [{**trained.sizes, name: trained.sizes[name] * 1.01} for name in RMS]
    missing = {name: size for name, size in trained.sizes.items() if name != "position_rms"}
    for sizes in (*wrong, missing):
        run_store.save_record(tmp_path, replace(trained, sizes=sizes))
        assert {outcome.rule.code for outcome in check(tmp_path).failed} == {"C28"}


# Batching -------------------------------------------------------------------------------------------------------------


def test_analyse_batching_is_compared_although_batches_and_updates_differ() -> None:
    analysis = analysed(grid({"batching": tuple(UPDATES)}))
    (effects,) = analysis.studies
    assert effects.study.differences == ()
    assert effects.fields[0].levels == ("random", "length", "tokens")
    assert all(effect.mean is not None for effect in effects.fields[0].effects["validation_loss"])
    assert (
        "Batching is compared at equal epochs (10): every level sees each training pair once per epoch. The number of "
        "updates differs: 2,270 with random, 2,270 with length, 610 with tokens."
    ) in ablation_findings.warnings(analysis)
    (norm_effects,) = analysed(grid({"norm": ("layernorm", "rms")})).studies
    stated = [ablation_findings.agreement(study) for study in (effects.study, norm_effects.study)]
    assert ["training settings apart from batching" in text for text in stated] == [True, False]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda run: with_digests(run, stream="another"), "stream of batches, seed 1, batching=tokens"),
        (lambda run: with_digests(run, weights={}), "initial weights, seed 1"),
        (lambda run: with_updates(run, 60), "updates, batching=tokens"),
    ],
    ids=["stream", "weights", "updates"],
)
def test_studies_runs_with_one_batching_that_differ_are_not_comparable(
    change: Callable[[RunRecord], RunRecord], expected: str
) -> None:
    records = grid({**BATCHINGS, "norm": ("layernorm", "rms")})
    factorial = analysed(records).studies[0].factorial
    assert (factorial.fields, factorial.missing) == (("norm", "batching"), ())
    changed = change(run({"batching": "tokens", "norm": "rms"}, 1))
    (study,) = studies(changed if record.id == changed.id else record for record in records)
    assert any(line.startswith(expected) for line in study.differences)


def test_studies_other_settings_of_batches_are_no_level_of_batching() -> None:
    base, tokens = run({}), run({"batching": "tokens"})
    larger = replace(tokens.spec, training=replace(tokens.spec.training, batch_tokens=2_000))
    assert len(studies([base, tokens])) == 1
    assert studies([base, replace(tokens, spec=larger, id=larger.id)]) == ()


def test_groups_runs_with_different_batching_are_in_separate_tables() -> None:
    tables = groups(grid({"batching": tuple(UPDATES)}))
    titles = {table.title.rpartition(", ")[2] for table in tables}
    assert titles == {"test_2016_flickr", "batches of similar length", "batches by tokens"}
    assert [find_mismatches(table.records, "controlled") for table in tables] == [[], [], []]
    assert find_mismatches(grid(BATCHINGS), "controlled")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(50, "at an equal number of updates (50), not of epochs"), (100, "neither epochs nor updates equal")],
)
def test_warnings_with_a_limit_on_updates_name_the_basis_of_the_comparison(limit: int, expected: str) -> None:
    records = []
    for full in grid(BATCHINGS):
        limited = replace(full.spec, updates=limit)
        curve = (replace(full.curve[0], updates=min(limit, UPDATES[full.spec.training.batching])),)
        records.append(replace(full, spec=limited, id=limited.id, curve=curve, chosen_epochs=(1,)))
    assert expected in "\n".join(ablation_findings.warnings(analysed(records)))
    assert "All runs have the same training text, but" in "\n".join(ablation_findings.limits(analysed(records)))
