"""Ensembles against their formula: one model, equal models, any order, any batch, and runs that do not fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from record_factory import record
from small_models import BASE, FAMILIES, TARGET_VOCABULARY_SIZE, batch_of, build
from table_model import TableModel, Words, from_prefixes, from_seed

from harness.evaluation.ensemble import Ensemble, Translator, check_members, joint, shared_decoding
from harness.evaluation.search import Decoded, translate
from harness.experiments.specs import DecodingSpec
from harness.storage.records import RunRecord
from impls.contract import EOS, SOS, Ids, Recipe

A, B, C = 4, 5, 6
WORDS = 6
SEARCHES = [DecodingSpec(max_tokens=6, batch_size=4), DecodingSpec(max_tokens=6, batch_size=4, beam=3)]
SENTENCES: list[Ids] = [np.array([SOS, *[A] * (1 + index % 4), 10 + index, EOS], np.int32) for index in range(10)]


def tables(*models: TableModel) -> Any:
    return Ensemble(models, WORDS)


def small(recipe: Recipe, seed: int) -> Any:
    """Return a small model whose translations depend on its seed."""
    model, random = build(recipe), np.random.default_rng(seed)
    model.set_weights(
        {name: value + 0.3 * random.standard_normal(value.shape) for name, value in model.weights().items()}
    )
    return model


def small_sentences() -> list[Ids]:
    random = np.random.default_rng(3)
    return [np.array([SOS, *random.integers(4, 37, 1 + index % 6), EOS], np.int32) for index in range(9)]


def words_of(decoded: Decoded) -> list[Words]:
    return [translation.tokens for translation in decoded.translations]


def test_ensemble_step_has_the_logarithm_of_the_mean_probability() -> None:
    first, second = {A: 0.5, B: 0.4, EOS: 0.1}, {A: 0.1, B: 0.8, EOS: 0.1}
    models = (from_prefixes({(): first}, words=WORDS), from_prefixes({(): second}, words=WORDS))
    candidates = tables(*models).begin_decoding(SENTENCES[0][None]).step(np.array([SOS], np.int32), 3)
    assert candidates.tokens.tolist() == [[B, A, EOS]]
    np.testing.assert_allclose(np.exp(candidates.log_probabilities), [[0.6, 0.3, 0.1]], rtol=1e-6)
    assert candidates.tokens.dtype == np.int32
    assert candidates.log_probabilities.dtype == np.float32


@pytest.mark.parametrize("spec", SEARCHES, ids=["greedy", "beam"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ensemble_of_equal_models_equals_the_model(spec: DecodingSpec, count: int) -> None:
    expected = translate(from_seed(0, WORDS), SENTENCES, spec)
    assert translate(tables(*(from_seed(0, WORDS) for _ in range(count))), SENTENCES, spec) == expected


def test_ensemble_asks_each_model_once_per_step_with_its_cache() -> None:
    models = [from_seed(seed, WORDS) for seed in range(2)]
    translate(tables(*models), SENTENCES, SEARCHES[0])
    assert models[0].steps == models[1].steps <= 3 * (SEARCHES[0].max_tokens + 1)
    assert models[0].widths == models[1].widths


@pytest.mark.parametrize("spec", SEARCHES, ids=["greedy", "beam"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ensemble_of_each_family_equals_its_formula(family: str, spec: DecodingSpec) -> None:
    models = [small(FAMILIES[family], seed) for seed in range(2)]
    sentences, ensemble = small_sentences(), Ensemble(models, TARGET_VOCABULARY_SIZE)
    decoded = translate(ensemble, sentences, replace(spec, unknown="allowed"))
    assert words_of(decoded) == words_of(translate(Ensemble(models[::-1], TARGET_VOCABULARY_SIZE), sentences, spec))
    for source, translation in zip(sentences, decoded.translations, strict=True):
        target_in: Ids = np.array([[SOS, *translation.tokens]], np.int32)
        logits = np.stack([model.logits(source[None], target_in)[0] for model in models]).astype(np.float64)
        chances = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True))).mean(axis=0)
        tokens = [*translation.tokens, *[EOS] * translation.finished]
        expected = np.log(chances[np.arange(len(tokens)), tokens]).sum()
        assert translation.log_probability == pytest.approx(expected, abs=1e-4)


def test_ensemble_token_nats_are_those_of_the_mean_probability() -> None:
    models = [small(BASE, seed) for seed in range(3)]
    batch = batch_of([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]])
    expected = -np.log(np.mean([np.exp(-model.token_nats(batch)) for model in models], axis=0))
    actual = Ensemble(models, TARGET_VOCABULARY_SIZE).token_nats(batch)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)
    assert actual[0, 3] == 0, "padding"
    np.testing.assert_array_equal(
        Ensemble(models[:1], TARGET_VOCABULARY_SIZE).token_nats(batch), models[0].token_nats(batch)
    )


def test_joint_returns_one_model_as_it_is() -> None:
    model: Translator = build(BASE)
    assert joint([model], TARGET_VOCABULARY_SIZE) is model
    assert isinstance(joint([model, model], TARGET_VOCABULARY_SIZE), Ensemble)


# Runs -----------------------------------------------------------------------------------------------------------------


def changed(**settings: Any) -> RunRecord:
    first = record("learned_positions")
    return replace(first, id="other", spec=replace(first.spec, **settings))


def test_run_that_is_given_twice_is_refused() -> None:
    twice = record("paper")
    with pytest.raises(ValueError, match=f"^run {twice.id} is given twice; an ensemble needs different runs$"):
        check_members([record("learned_positions"), twice, twice])


def test_members_of_one_corpus_and_framework_are_accepted() -> None:
    check_members([record("learned_positions"), record("paper"), record("learned_positions", seed=1)])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (changed(framework="keras", backend="jax"), "framework differs ('torch' and 'keras')"),
        (changed(data=replace(record("paper").spec.data, tokenizer="moses")), "data.tokenizer differs ("),
        (changed(data=replace(record("paper").spec.data, training_pairs=7)), "data.training_pairs differs ("),
        (replace(changed(), fingerprints={"target_vocabulary": "0" * 64}), "SHA-256 of "),
    ],
)
def test_members_that_differ_are_refused(other: RunRecord, message: str) -> None:
    with pytest.raises(ValueError, match="cannot translate together: .* an ensemble needs runs of one corpus") as error:
        check_members([record("learned_positions"), other])
    assert message in str(error.value)


def test_decoding_settings_that_differ_need_an_option() -> None:
    wide = changed(decoding=DecodingSpec(beam=5, batch_size=7))
    greedy = changed(decoding=DecodingSpec())
    assert shared_decoding([greedy, greedy]) == DecodingSpec()
    assert shared_decoding([greedy, wide], beam=2) == DecodingSpec(beam=2, batch_size=7)
    assert shared_decoding([greedy, wide], beam=np.arange(3)[2]) == DecodingSpec(beam=2, batch_size=7)
    with pytest.raises(ValueError, match=r"decoding.beam=1, 5: give --beam"):
        shared_decoding([greedy, wide])
    longer = changed(decoding=DecodingSpec(max_tokens=60))
    with pytest.raises(ValueError, match=r"decoding.max_tokens=50, 60$"):
        shared_decoding([greedy, longer], beam=2)


def test_greedy_search_needs_no_common_length_penalty() -> None:
    greedy = changed(decoding=DecodingSpec())
    power = changed(decoding=DecodingSpec(beam=5, length_formula="power", length_penalty=1.0))
    assert shared_decoding([greedy, power], beam=1) == DecodingSpec()
    with pytest.raises(ValueError, match=r"decoding.length_penalty=0.6, 1.0$"):
        shared_decoding([greedy, power], beam=5)
