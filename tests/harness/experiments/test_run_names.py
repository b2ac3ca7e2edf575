"""Short names of runs."""

from __future__ import annotations

from dataclasses import replace

from small_runs import TINY, spec

from harness.experiments.overrides import override
from harness.experiments.run_names import flat_settings, run_names
from harness.experiments.specs import DataSpec, FileSpec

BASE = spec("learned_positions", TINY)


def test_flat_settings_have_the_fields_of_a_recipe_but_not_its_labels() -> None:
    settings = flat_settings(BASE)
    assert settings["recipe.norm"] == "layernorm"
    assert not {"recipe.name", "recipe.source", "recipe.family"} & settings.keys()


def test_run_names_two_frameworks_name_framework_and_backend_without_none() -> None:
    keras = replace(BASE, framework="keras", backend="jax")
    assert run_names([BASE, keras]) == ["framework=torch s0", "framework=keras backend=jax s0"]


def test_run_names_leave_out_settings_that_follow_from_the_budget() -> None:
    source = replace(BASE, budget="source", training=replace(BASE.training, peak_rate=0.5, batch_size=7))
    assert run_names([BASE, source]) == ["budget=controlled s0", "budget=source s0"]
    other = replace(source, training=replace(source.training, peak_rate=0.25))
    assert run_names([BASE, source, other])[1:] == ["peak_rate=0.5 s0", "peak_rate=0.25 s0"]


def test_run_names_have_what_differs_from_most_runs_and_the_seed() -> None:
    settings = (["recipe.norm=rms"], ["recipe.norm=none", "recipe.activation=silu"], ["recipe.activation=gelu"])
    runs = [BASE, replace(BASE, seed=1), *(override(BASE, changes) for changes in settings)]
    assert run_names(runs) == [
        "learned_positions s0",
        "learned_positions s1",
        "norm=rms s0",
        "norm=none activation=silu s0",
        "activation=gelu s0",
    ]


def test_run_names_tell_settings_whose_names_end_alike_apart() -> None:
    settings = (["training.batch_size=9"], ["decoding.batch_size=9"], ["recipe.norm=rms"])
    runs = [BASE, *(override(BASE, changes) for changes in settings)]
    assert run_names(runs)[1:] == ["training.batch_size=9 s0", "decoding.batch_size=9 s0", "norm=rms s0"]


def test_run_names_on_own_texts_have_the_files_that_differ() -> None:
    paths = {f"{split}_source": f"/texts/{split}.tsv" for split in ("train", "validation", "test")}
    base = replace(BASE, data=DataSpec(corpus="files", files=FileSpec(**paths)))
    news = replace(base, data=replace(base.data, files=FileSpec(**paths | {"test_source": "/texts/news.tsv"})))
    assert run_names([base, replace(base, seed=1), news])[2] == "test_source=/texts/news.tsv s0"


def test_run_names_of_several_variants_begin_with_them() -> None:
    assert run_names([BASE, replace(BASE, variant="paper", seed=3)]) == ["learned_positions s0", "paper s3"]
    assert run_names([BASE]) == ["learned_positions s0"]
    assert run_names([]) == []
