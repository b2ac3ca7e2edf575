"""What a run is: JSON there and back, ids that tell settings apart, overrides that refuse what does not fit."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from small_runs import DATA, TINY, spec

from harness.experiments.specs import (
    ADDED_FIELDS,
    DataSpec,
    DecodingSpec,
    EpochRecord,
    FileSpec,
    RunRecord,
    RunSpec,
    epochs_from_json,
    override,
    record_from_json,
    spec_from_json,
    to_json,
)
from impls import registry
from impls.contract import GruRecipe, Training

EPOCH = EpochRecord(
    epoch=1,
    updates=7,
    tokens=100,
    learning_rate=0.1,
    training_loss=2.0,
    training_perplexity=None,
    validation_loss=2.5,
    validation_perplexity=12.0,
    largest_gradient_norm=1.0,
    training_seconds=3.0,
    validation_seconds=0.5,
)
FILES = FileSpec(train_source="a", validation_source="b", test_source="c")
SPECS = [
    *(
        RunSpec(variant=name, recipe=registry.recipe(name), training=registry.training(name))
        for name in registry.names()
    ),
    spec(),
    spec(data=DataSpec(corpus="files", files=FILES), updates=3),
]


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(to_json(value), allow_nan=False))


@pytest.mark.parametrize("one", SPECS, ids=lambda one: one.variant)
def test_a_spec_survives_json(one: RunSpec) -> None:
    assert spec_from_json(through_json(one)) == one
    assert spec_from_json(through_json(one)).id == one.id


def test_a_record_of_version_1_is_completed_and_keeps_its_id() -> None:
    earlier = {"training": {"batching": "length"}, "decoding": {"unknown": "allowed"}}
    kept = SPECS[0]
    kept = replace(kept, **{part: replace(getattr(kept, part), **fields) for part, fields in earlier.items()})
    value = through_json(RunRecord(id=kept.id, spec=kept, status="completed"))
    assert value["schema"] == 2
    value["schema"] = 1
    for part, name in ADDED_FIELDS:
        value["spec"][part].pop(name, None)
    record = record_from_json(value)
    assert record.spec == kept
    assert record.id == record.spec.id != SPECS[0].id


def test_a_record_survives_json() -> None:
    record = RunRecord(id="x", spec=SPECS[0], status="completed", curve=(EPOCH,), scores={"a": 1.5, "b": None})
    assert record_from_json(through_json(record)) == record
    assert epochs_from_json(through_json([EPOCH, EPOCH])) == [EPOCH, EPOCH]


def changes(settings: Any) -> list[tuple[str, Any]]:
    """Return each field's name with a value that is another one and allowed."""
    words = {"corpus": "multi30k", "direction": "en-de", "tokenizer": "moses", "case": "kept", "vocabulary": "joint"}
    words |= {"test_split": "test_2017_flickr", "budget": "source", "precision": "bfloat16", "device": "cuda"}
    words |= {"framework": "keras", "schedule": "inverse_sqrt", "variant": "paper", "positions": "none", "norm": "rms"}
    words |= {"embedding_scale": "none", "embedding_init": "normal", "norm_order": "pre", "ffn": "gated"}
    words |= {"activation": "gelu", "tying": "output", "batching": "tokens", "unknown": "allowed"}
    words |= {"length_formula": "power"}
    numbers = {"width": 32, "heads": 4, "head_width": 3, "norm_epsilon": 1e-3, "max_length": 90, "clip_norm": None}
    numbers |= {"training_pairs": 7, "updates": 3, "dropout": 0.3, "beta1": 0.5, "teacher_forcing": 0.5}
    numbers |= {"label_smoothing": 0.1, "averaged_epochs": 1, "beta2": 0.5}
    numbers |= {"attention_dropout": 0.3, "activation_dropout": 0.3}
    found = []
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.name in ("name", "source", "files", "recipe", "backend", "cuda_graphs") or is_dataclass(value):
            continue
        other = words.get(one.name, numbers.get(one.name, value + 1 if isinstance(value, int | float) else None))
        assert other != value, one.name
        found.append((one.name, other))
    return found


def test_every_field_changes_the_id() -> None:
    data = replace(DATA, max_length=80)
    base = spec("learned_positions", TINY, training=Training(warmup_updates=5), data=data)
    others = [replace(base, **{name: value}) for name, value in changes(base)]
    for part in ("recipe", "training", "data", "decoding"):
        inner = getattr(base, part)
        others += [replace(base, **{part: replace(inner, **{name: value})}) for name, value in changes(inner)]
    others += [replace(base, recipe=GruRecipe()), replace(base, framework="keras", backend="jax")]
    others.append(replace(base, device="cuda", cuda_graphs="on"))
    ids = [one.id for one in (base, *others)]
    assert len(set(ids)) == len(ids)


def test_a_seed_that_no_checkpoint_can_hold_is_refused() -> None:
    assert spec(seed=2**63 - 1).seed == 2**63 - 1
    with pytest.raises(ValueError, match=r"seed=9223372036854775808: allowed is a whole number below 2\^63"):
        spec(seed=2**63)


def test_a_name_and_a_source_change_no_id() -> None:
    base = spec("learned_positions", TINY)
    assert replace(base, recipe=replace(TINY, name="other", source="another")).id == base.id


def test_an_id_is_the_same_tomorrow() -> None:
    """Stored runs are found by their ids: a change here orphans every published record."""
    now = spec("learned_positions", TINY)
    earlier = {
        "training": replace(now.training, batching="length"),
        "decoding": replace(now.decoding, unknown="allowed"),
    }
    assert replace(now, **earlier).id == "learned_positions-captions-de-en-controlled-s0-748f3b67e9"
    assert now.id == "learned_positions-captions-de-en-controlled-s0-dbed3be44c"


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("recipe.dropout=0.3", "recipe.dropout", 0.3),
        ("recipe.width = 32", "recipe.width", 32),
        ("recipe.activation=gelu", "recipe.activation", "gelu"),
        ("recipe.head_width=5", "recipe.head_width", 5),
        ("training.clip_norm=none", "training.clip_norm", None),
        ("training.clip_norm=2", "training.clip_norm", 2.0),
        ("data.training_pairs=9", "data.training_pairs", 9),
        ("updates=5", "updates", 5),
        ("device=cuda:1", "device", "cuda:1"),
    ],
)
def test_an_override_changes_one_field(setting: str, path: str, value: Any) -> None:
    found: Any = override(spec("learned_positions", TINY), setting)
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("recipe.dropot=0.3", "there is no field 'dropot'; did you mean 'dropout'?"),
        ("recpie.dropout=0.3", "did you mean 'recipe'?"),
        ("recipe.dropout", "allowed is FIELD=VALUE"),
        ("recipe=3", "has fields of its own"),
        ("recipe.dropout=much", "'much' does not fit"),
        ("recipe.width=1.5", "'1.5' does not fit"),
        ("recipe.dropout=2", "dropout=2.0: allowed is"),
        ("recipe.dropout=nan", "dropout=nan: allowed is"),
        ("recipe.activation=gleu", "activation='gleu': allowed is 'relu'"),
        ("data.tokenizer=spicy", "did you mean 'spacy'?"),
        ("seed.x=3", "'seed' has no field 'x'"),
        ("training.averaged_epochs=9", "averaged_epochs=9: allowed is"),
        ("recipe.max_length=50", "data.max_length=100: allowed is at most recipe.max_length=50"),
        ("decoding.max_tokens=100", "decoding.max_tokens=100: allowed is less than recipe.max_length=100"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(setting: str, words: str) -> None:
    with pytest.raises(ValueError, match="allowed|mean|has") as caught:
        override(spec("learned_positions", TINY), setting)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value.pop("recipe"), "spec.recipe: missing"),
        (lambda value: value.update(sed=3), "spec.sed: there is no such field; did you mean 'seed'?"),
        (lambda value: value.update(seed="3"), "spec.seed='3': allowed is int"),
        (lambda value: value["recipe"].update(family="rnn"), "spec.recipe.family='rnn'"),
        (lambda value: value["training"].update(epochs=0), "epochs=0"),
        (lambda value: value["data"].update(files={"train_source": "x"}), "validation_source: missing"),
    ],
)
def test_foreign_json_is_refused_by_field(change: Any, words: str) -> None:
    value = through_json(spec("learned_positions", TINY))
    change(value)
    with pytest.raises(ValueError, match="spec|epochs") as caught:
        spec_from_json(value)
    assert words in str(caught.value)


def test_a_record_of_another_schema_is_refused() -> None:
    value = through_json(RunRecord(id="x", spec=SPECS[0], status="completed"))
    for schema in (0, None, "1"):
        with pytest.raises(ValueError, match="schema="):
            record_from_json({**value, "schema": schema})


def test_files_belong_to_the_corpus_files() -> None:
    with pytest.raises(ValueError, match="files"):
        DataSpec(corpus="files")
    with pytest.raises(ValueError, match="files"):
        DataSpec(corpus="captions", files=FILES)
    assert DecodingSpec().beam == 1
