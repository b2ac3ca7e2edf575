"""Run specs: JSON in both directions, and ids that distinguish all settings."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from small_runs import DATA, TINY, spec, through_json

from harness.experiments.specs import DataSpec, DecodingSpec, FileSpec, RunSpec, spec_from_json
from impls import registry
from impls.contract import GruRecipe, Training

FILES = FileSpec(train_source="a", validation_source="b", test_source="c")
SPECS = [
    *(
        RunSpec(variant=name, recipe=registry.recipe(name), training=registry.training(name))
        for name in registry.names()
    ),
    spec(),
    spec(data=DataSpec(corpus="files", files=FILES), updates=3),
    spec(
        recipe=replace(TINY, dropout=0, norm_epsilon=1),
        training=Training(peak_rate=1),
        decoding=DecodingSpec(length_penalty=1),
    ),
]


@pytest.mark.parametrize("run", SPECS, ids=lambda run: run.variant)
def test_spec_survives_json(run: RunSpec) -> None:
    assert spec_from_json(through_json(run)) == run
    assert spec_from_json(through_json(run)).id == run.id


def changes(settings: Any) -> list[tuple[str, Any]]:
    """Return the name of each field with another valid value."""
    words = {"corpus": "multi30k", "direction": "en-de", "tokenizer": "moses", "case": "kept", "vocabulary": "joint"}
    words |= {"test_split": "test_2017_flickr", "budget": "source", "precision": "bfloat16", "device": "cuda"}
    words |= {"framework": "keras", "schedule": "inverse_sqrt", "variant": "paper", "positions": "none", "norm": "rms"}
    words |= {"embedding_scale": "none", "embedding_init": "normal", "norm_order": "pre", "ffn": "gated"}
    words |= {"activation": "gelu", "tying": "output", "batching": "tokens", "unknown": "allowed"}
    words |= {"length_formula": "power", "matmul_precision": "high"}
    numbers = {"width": 32, "heads": 4, "head_width": 3, "norm_epsilon": 1e-3, "max_length": 90, "clip_norm": None}
    numbers |= {"training_pairs": 7, "updates": 3, "dropout": 0.3, "beta1": 0.5, "teacher_forcing": 0.5}
    numbers |= {"label_smoothing": 0.1, "averaged_epochs": 1, "beta2": 0.5, "patience": 2}
    numbers |= {"attention_dropout": 0.3, "activation_dropout": 0.3}
    pairs = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in ("name", "source", "files", "recipe", "backend", "cuda_graphs") or is_dataclass(value):
            continue
        new = words.get(field.name, numbers.get(field.name, value + 1 if isinstance(value, int | float) else None))
        assert new != value, field.name
        pairs.append((field.name, new))
    return pairs


def test_run_id_depends_on_every_field() -> None:
    data = replace(DATA, max_length=80)
    base = spec("learned_positions", TINY, training=Training(warmup_updates=5), data=data)
    specs = [replace(base, **{name: value}) for name, value in changes(base)]
    for part in ("recipe", "training", "data", "decoding"):
        inner = getattr(base, part)
        specs += [replace(base, **{part: replace(inner, **{name: value})}) for name, value in changes(inner)]
    specs += [replace(base, recipe=GruRecipe()), replace(base, framework="keras", backend="jax")]
    specs.append(replace(base, device="cuda", cuda_graphs="on"))
    ids = [changed.id for changed in (base, *specs)]
    assert len(set(ids)) == len(ids)


def test_run_spec_seed_beyond_a_checkpoint_is_refused() -> None:
    assert spec(seed=2**63 - 1).seed == 2**63 - 1
    with pytest.raises(ValueError, match=r"^seed=9223372036854775808: expected less than 9223372036854775808$"):
        spec(seed=2**63)


def test_run_id_is_stable_and_ignores_name_and_source_of_the_recipe() -> None:
    """Stored runs are found by their ids: a changed id orphans every published record."""
    now = spec("learned_positions", replace(TINY, name="other", source="another"))
    training, decoding = replace(now.training, batching="length"), replace(now.decoding, unknown="allowed")
    earlier = spec("learned_positions", TINY, training=training, decoding=decoding)
    assert earlier.id == "learned_positions-captions-de-en-controlled-s0-748f3b67e9"
    assert now.id == "learned_positions-captions-de-en-controlled-s0-dbed3be44c"


def test_data_spec_files_without_corpus_files_are_refused() -> None:
    with pytest.raises(ValueError, match="files"):
        DataSpec(corpus="files")
    with pytest.raises(ValueError, match="files"):
        DataSpec(corpus="captions", files=FILES)


def test_test_set_is_named_for_readers() -> None:
    names = FileSpec(train_source="a", validation_source="b", test_source="my folder/test.tsv")
    assert DataSpec(test_split="test_2017_flickr").test_set == "test_2017_flickr"
    assert DataSpec(corpus="captions").test_set == "its test split"
    assert DataSpec(corpus="files", files=names).test_set == "test.tsv"


@pytest.mark.parametrize("direction", ["EN-ZH", "En-zh", "en-en", "en", "en-", "en_zh"])
def test_direction_that_names_no_two_languages_is_refused(direction: str) -> None:
    """sacreBLEU's tokenizer and the rules of spaCy and Moses are found by codes in lower case."""
    with pytest.raises(ValueError, match="^direction='.*': expected two languages in lower case, such as 'de-en'$"):
        DataSpec(direction=direction)
