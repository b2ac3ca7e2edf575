"""The suites: their runs, budgets and sizes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.data.dataset import prepare
from harness.experiments import suites
from harness.experiments.overrides import override
from harness.experiments.specs import DataSpec
from harness.training import load
from impls import registry
from impls.contract import Recipe, TransformerRecipe
from impls.recipes import BAHDANAU_GRU, LEARNED_POSITIONS, TORCH_REFERENCE, TUTORIAL


@pytest.mark.parametrize("variant", ["conv_ffn", pytest.param("tuned", marks=pytest.mark.slow)])
def test_source_budget_multi30k_has_a_vocabulary_of_the_chosen_size(
    variant: str, multi30k_folder: Path, own_cache: None
) -> None:
    spec = suites.spec(suites.SUITES["standard"], variant, budget="source", seed=0, data=DataSpec())
    data = prepare(spec.data)
    assert min(len(data.source_words), len(data.target_words)) > 4
    if "vocabulary_size" in " ".join(suites.AS_SOURCE[variant]):
        assert {len(data.source_words), len(data.target_words)} == {spec.data.vocabulary_size}


@pytest.mark.parametrize("suite", suites.SUITES.values(), ids=lambda suite: suite.name)
@pytest.mark.parametrize("corpus", ["multi30k", "captions"])
def test_every_suite_has_distinct_runs_with_one_controlled_training(suite: suites.Suite, corpus: str) -> None:
    data = DataSpec(corpus=corpus)  # type: ignore[arg-type]
    specs = [
        suites.spec(suite, variant, budget=budget, seed=seed, data=data)
        for budget in ("controlled", "source")
        for seed in suite.seeds
        for variant in suite.variants
    ]
    assert len({spec.id for spec in specs}) == len(specs)
    controlled = [spec for spec in specs if spec.budget == "controlled"]
    assert len({(spec.training, spec.data, spec.decoding) for spec in controlled}) == 1
    for spec in specs:
        updates = spec.training.epochs * 29_000 / spec.training.batch_size
        assert spec.training.warmup_updates < updates, "the warm-up ends before the training"


def test_only_the_source_budget_has_the_settings_of_the_source() -> None:
    standard, data = suites.SUITES["standard"], DataSpec()
    specs = {
        (variant, budget): suites.spec(standard, variant, budget=budget, seed=0, data=data)
        for variant in suites.VARIANTS
        for budget in ("controlled", "source")
    }
    for variant in suites.VARIANTS:
        source, controlled = specs[variant, "source"], specs[variant, "controlled"]
        assert source.training == registry.training(variant)
        assert controlled.recipe == registry.recipe(variant)
        assert controlled.training == TUTORIAL
        assert (source.recipe == registry.recipe(variant)) == (variant != "sinusoidal_handmade")
        assert (source.data == data) == (variant != "conv_ffn")
        assert source.decoding.beam == (5 if variant == "paper" else 1)
        assert controlled.decoding.unknown == "never"
        assert source.decoding.unknown == ("never" if variant in ("paper", "conv_ffn") else "allowed")


@pytest.mark.usefixtures("cache")
def test_captions_have_enough_words_for_every_source_vocabulary() -> None:
    data = DataSpec(corpus="captions", training_pairs=500)
    for variant in suites.VARIANTS:
        spec = suites.spec(suites.SUITES["quick"], variant, budget="source", seed=0, data=data)
        if spec.data.tokenizer != "spacy":
            assert len(prepare(spec.data).source_words) == spec.data.vocabulary_size


def test_quick_suite_is_small_and_short_in_both_budgets() -> None:
    quick = suites.SUITES["quick"]
    for variant in quick.variants:
        source, controlled = (
            suites.spec(quick, variant, budget=budget, seed=0, data=DataSpec()) for budget in ("source", "controlled")
        )
        assert controlled.recipe is not None
        assert (controlled.recipe.width, getattr(controlled.recipe, "layers", 2)) == (128, 2)
        assert (controlled.training.batch_size, controlled.training.peak_rate) == (64, 1e-3)
        assert source.training.epochs == controlled.training.epochs == 2
        assert source.training.warmup_updates < 3 * 29_000 / source.training.batch_size


@pytest.mark.parametrize(
    ("recipe", "size"),
    [
        (LEARNED_POSITIONS, {"width": 128, "layers": 2, "ffn_width": 256}),
        (replace(LEARNED_POSITIONS, layers=6), {"width": 128, "layers": 6, "ffn_width": 256}),
        (replace(LEARNED_POSITIONS, width=64, ffn_width=96), {"width": 64, "layers": 2, "ffn_width": 96}),
        (replace(BAHDANAU_GRU, dropout=0.1), {"width": 128, "embedding_width": 128}),
        (replace(BAHDANAU_GRU, embedding_width=64), {"width": 512, "embedding_width": 64}),
        (replace(BAHDANAU_GRU, width=64), {"width": 64, "embedding_width": 256}),
        (replace(TORCH_REFERENCE, dropout=0.2), {"width": 128, "layers": 2}),
    ],
)
def test_own_recipe_has_the_size_of_a_suite_or_keeps_one_that_is_not_the_tutorials(
    recipe: Recipe, size: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(MINE=recipe))
    run = suites.spec(suites.SUITES["quick"], "mine:MINE", budget="controlled", seed=0, data=DataSpec())
    assert {name: getattr(run.recipe, name) for name in size} == size


def test_own_recipe_with_few_positions_gets_sentences_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(LEARNED_POSITIONS, name="mine", max_length=20)
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(MINE=recipe))
    run = suites.spec(suites.SUITES["quick"], "mine:MINE", budget="source", seed=0, data=DataSpec(max_length=15))
    assert (run.data.max_length, run.decoding.max_tokens) == (15, 19)
    for suite in ("quick", None):
        same = load.base_spec(recipe, suite, DataSpec(), 1)
        assert (same.data.max_length, same.decoding.max_tokens) == (20, 19)
    with pytest.raises(ValueError, match="data.max_length=21: expected at most recipe.max_length=20"):
        override(run, ["data.max_length=21"])


def test_recipe_of_a_derived_class_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Windowed(TransformerRecipe):
        window: int = 5

    monkeypatch.setitem(sys.modules, "windowed", SimpleNamespace(RECIPE=Windowed()))
    for find in (lambda: suites.resolve("windowed:RECIPE"), lambda: load.base_spec(Windowed(), None, DataSpec(), 1)):
        with pytest.raises(ValueError, match="Windowed is none of the classes of recipes, .* write a builder"):
            find()
