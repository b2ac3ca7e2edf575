"""`--set field=value` changes one field, and refuses invalid values in one line."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import GRU
from small_runs import TINY, spec

from harness.experiments.overrides import check_used, override


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
def test_override_changes_one_field(setting: str, path: str, value: Any) -> None:
    changed: Any = override(spec("learned_positions", TINY), [setting])
    for name in path.split("."):
        changed = getattr(changed, name)
    assert changed == value
    assert type(changed) is type(value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("recipe.dropot=0.3", "there is no setting 'recipe.dropot'; did you mean 'recipe.dropout'?"),
        ("recpie.dropout=0.3", "did you mean 'recipe.dropout'?"),
        ("recpie.dropot=0.3", "did you mean 'recipe.dropout'?"),
        ("decoding.batch_sise=3", "did you mean 'decoding.batch_size'?"),
        ("recipe.zzz=1", "there is no setting 'recipe.zzz'; `settings` lists all of them"),
        ("recipe.dropout", "expected FIELD=VALUE"),
        ("recipe=3", "has settings of its own; name one, such as recipe."),
        ("recipe.dropout=much", "'much' does not fit: expected a number"),
        ("recipe.width=1.5", "'1.5' does not fit: expected an integer"),
        ("recipe.dropout=2", "dropout=2.0: expected"),
        ("recipe.dropout=nan", "dropout=nan: 'nan' does not fit: expected a finite number"),
        (f"updates={10**40}", "does not fit: expected at most 40 digits"),  # no record with more could be read
        ("recipe.activation=gleu", "activation='gleu': expected 'relu'"),
        ("data.tokenizer=spicy", "did you mean 'spacy'?"),
        ("seed.x=3", "there is no setting 'seed.x'; did you mean 'seed'?"),
        ("training.averaged_epochs=9", "averaged_epochs=9: expected"),
        ("recipe.max_length=50", "data.max_length=100: expected at most recipe.max_length=50"),
        ("decoding.max_tokens=100", "decoding.max_tokens=100: expected less than recipe.max_length=100"),
    ],
)
def test_override_misfit_is_refused(setting: str, words: str) -> None:
    with pytest.raises(ValueError, match="=") as caught:
        override(spec("learned_positions", TINY), [setting])
    assert words in str(caught.value)
    assert "--set" not in str(caught.value), "the API has no such option"
    assert "\n" not in str(caught.value)


def test_recipe_setting_of_a_builder_says_that_it_has_no_recipe() -> None:
    with pytest.raises(
        ValueError, match=r"^recipe\.width=32: mine:build is a builder and has no recipe; change its code$"
    ):
        override(spec("mine:build"), ["recipe.width=32"])


def test_settings_that_fit_only_together_are_changed_together() -> None:
    run = spec("learned_positions", TINY)
    changes = ["recipe.width=30", "recipe.heads=10", "data.max_length=40", "decoding.max_tokens=30"]
    for settings in ([*changes, "recipe.max_length=40"], ["recipe.max_length=40", *reversed(changes)]):
        changed: Any = override(run, settings)
        assert (changed.recipe.width, changed.recipe.heads, changed.recipe.max_length) == (30, 10, 40)
        assert (changed.data.max_length, changed.decoding.max_tokens) == (40, 30)


def test_last_setting_of_a_field_wins() -> None:
    run = spec("learned_positions", TINY)
    changed: Any = override(run, ["framework=keras", "recipe.dropout=0.3", "framework=torch", "recipe.dropout=0.2"])
    assert changed == override(run, ["recipe.dropout=0.2"])


@pytest.mark.parametrize(
    ("setting", "use"),
    [
        ("data.minimum_frequency", "data.tokenizer=spacy"),
        ("data.vocabulary_size", "data.tokenizer=sentencepiece-bpe"),
        ("data.merges", "data.tokenizer=moses-bpe"),
        ("data.seed", "data.corpus=captions"),
        ("data.seed", "data.tokenizer=sentencepiece-unigram"),
        ("decoding.length_penalty", "decoding.beam=2"),
        ("decoding.length_formula", "decoding.beam=2"),
        ("recipe.norm_epsilon", "recipe.norm=rms"),
        ("training.batch_size", "training.batching=length"),
        ("training.batch_tokens", "training.batching=tokens"),
    ],
)
def test_setting_that_no_run_uses_is_refused(setting: str, use: str) -> None:
    others = ["data.corpus=multi30k", "data.tokenizer=moses-bpe", "recipe.norm=none", "training.batching=tokens"]
    without = override(spec("learned_positions", TINY), others)
    if setting in ("data.merges", "training.batch_tokens"):
        without = override(without, ["data.tokenizer=spacy", "training.batching=random"])
    with pytest.raises(ValueError, match=f"^{setting} has no effect here: only .* uses it$"):
        check_used([without], setting)
    check_used([without, override(without, [use])], setting)


def test_only_recurrent_models_use_teacher_forcing() -> None:
    runs = [spec("learned_positions", TINY), spec("bahdanau_gru", GRU)]
    check_used(runs, "training.teacher_forcing")
    with pytest.raises(ValueError, match="only a recurrent model uses it"):
        check_used(runs[:1], "training.teacher_forcing")
    check_used([], "training.teacher_forcing")
