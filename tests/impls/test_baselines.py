"""Baselines compute what our models compute from the same weights: losses of updates, and translations."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from baseline_cases import (
    SIZES,
    SMALL,
    SUPPRESSED,
    TRAINING,
    Trained,
    decided,
    our_updates,
    perturbed,
    random_batches,
    scores,
    train,
    with_weights,
)
from small_models import GRU, REFERENCE, SOURCE_VOCABULARY_SIZE, target_vocabulary_size, transformer_recipes

from harness.evaluation.search import suppressed, translate
from harness.experiments.specs import DecodingSpec
from impls import registry
from impls import weights as canonical
from impls.baselines.baseline_weights import TUTORIAL
from impls.baselines.protocol import Decodes, Search, Trains
from impls.contract import EOS, PAD, SOS, UNK, Batch, Ids, Training

pytestmark = pytest.mark.usefixtures("single_thread")

SINUSOIDAL = replace(SMALL, positions="sinusoidal", embedding_scale="none", embedding_init="normal")
STEADY_EPSILON = 1e-4
"""With Adam's usual 1e-8, gradients that are only rounding make full steps, and losses differ by 1e-3."""
CONVERTED = {
    name: recipe
    for name, recipe in transformer_recipes().items()
    if recipe.positions != "alibi" and recipe.norm != "none" and recipe.head_width is None
}


EXPRESSED = {
    name: recipe
    for name, recipe in CONVERTED.items()
    if recipe.positions != "rotary"
    and recipe.norm == "layernorm"
    and recipe.norm_epsilon is None
    and recipe.norm_order == "post"
    and recipe.ffn != "gated"
}

TRAINABLE = pytest.mark.parametrize("name", ["plain", "nn_transformer", "marian"])
ALL = pytest.mark.parametrize("name", registry.baseline_names())
ROUNDED = ("ctranslate2_bfloat16", "ctranslate2_int8")
EXACT = pytest.mark.parametrize("name", [name for name in registry.baseline_names() if name not in ROUNDED])


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train(SMALL)


def needs(name: str) -> str:
    reason = registry.missing_baseline(name)
    if reason:
        pytest.skip(reason)
    return name


def build(name: str, recipe: Any = SMALL, **changes: Any) -> Any:
    settings: dict[str, Any] = {"training": TRAINING, "weights": canonical.initial(recipe, *SIZES, seed=0), **changes}
    return registry.build_baseline(needs(name), recipe, *SIZES, **settings)


# The registry ---------------------------------------------------------------------------------------------------------


@ALL
def test_baseline_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = registry.BASELINES[name].packages[-1]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else True)
    reason = registry.missing_baseline(name)
    assert reason.startswith(f"{package!r} is not installed: python -m pip install '.[")
    with pytest.raises(ValueError, match=f"{package!r} is not installed"):
        registry.build_baseline(name, SMALL, *SIZES, training=TRAINING, weights={})


def test_baseline_unknown_name_suggests_nearest() -> None:
    with pytest.raises(ValueError, match=r"no baseline 'mariam'; did you mean 'marian'\? \(known: plain, "):
        registry.missing_baseline("mariam")


@pytest.mark.parametrize(("name", "trains"), [("plain", 1), ("nn_transformer", 1), ("marian", 1), ("ctranslate2", 0)])
def test_baseline_implements_its_protocol(name: str, trains: int) -> None:
    baseline = build(name)
    assert baseline.name == name
    assert isinstance(baseline, Decodes)
    assert isinstance(baseline, Trains) == bool(trains)
    baseline.synchronize()


@ALL
def test_baseline_wrong_weights_raise(name: str) -> None:
    weights = canonical.initial(SMALL, *SIZES, seed=0)
    weights["output.bias"] = weights["output.bias"][1:]
    with pytest.raises(ValueError, match="output.bias has shape"):
        build(name, weights=weights)


@TRAINABLE
@pytest.mark.parametrize("field", TUTORIAL)
def test_torch_baseline_unsupported_recipe_raises(name: str, field: str) -> None:
    unsupported = {"positions": "rotary", "norm": "rms", "norm_order": "pre", "ffn": "gated", "activation": "gelu"}
    value = {**unsupported, "tying": "output"}[field]
    with pytest.raises(ValueError, match=f"baseline '{name}' with {field}='{value}': it implements only '"):
        build(name, replace(SMALL, **{field: value}), weights={})


@pytest.mark.parametrize(("field", "value"), [("positions", "alibi"), ("norm", "none")])
def test_ctranslate2_unsupported_recipe_raises(field: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"baseline 'ctranslate2' with {field}='{value}': it implements only "):
        build("ctranslate2", replace(SMALL, **{field: value}), weights={})


@ALL
def test_baseline_other_family_or_head_width_raises(name: str) -> None:
    with pytest.raises(ValueError, match="implements Transformers, not the 'gru' recipe"):
        build(name, GRU, weights={})
    with pytest.raises(ValueError, match=r"head_width=6: it needs head_width = width / heads"):
        build(name, replace(SMALL, head_width=6), weights={})


def test_baseline_label_smoothing_or_norm_epsilon_raises() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing=0.1: baselines train without it"):
        build("plain", training=Training(label_smoothing=0.1))
    with pytest.raises(ValueError, match=r"'marian' with norm_epsilon=0.1: the library has only 1e-05"):
        build("marian", replace(SMALL, norm_epsilon=0.1))


@ALL
def test_baseline_unavailable_device_raises_in_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=r"^device 'cuda:99' is not available: .+$"):
        build(name, device="cuda:99")


# Training -------------------------------------------------------------------------------------------------------------


def losses(baseline: Any, batches: list[Batch], rate: float = TRAINING.peak_rate) -> list[float]:
    return [baseline.train_step(batch, rate) for batch in batches]


@pytest.mark.parametrize("recipe", [SMALL, replace(SINUSOIDAL, norm_epsilon=0.01)])
def test_baseline_losses_equal_ours(recipe: Any) -> None:
    training = replace(TRAINING, clip_norm=1.5, epsilon=STEADY_EPSILON)
    batches, weights = random_batches(10) * 10, decided(recipe)
    expected, norms = our_updates(recipe, batches, weights, training)
    assert expected[-1] < 0.9 * expected[0]
    assert min(norms) < 1.5 < max(norms), "clipping is at work in some updates and not in others"
    for name in ("plain", "nn_transformer"):
        actual = losses(build(name, recipe, training=training, weights=weights), batches)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, err_msg=name)


def test_torch_reference_recipe_is_accepted_as_transformer() -> None:
    recipes = (replace(REFERENCE, dropout=0.0), SMALL)
    first, second = (losses(build("plain", recipe), random_batches(2)) for recipe in recipes)
    assert first == second


def test_marian_loss_equals_ours_and_falls() -> None:
    """Its output bias and position vectors are not trained, so only the first loss is equal."""
    batches, weights = random_batches(4) * 10, canonical.initial(SMALL, *SIZES, seed=0)
    expected, _ = our_updates(SMALL, batches, weights, TRAINING)
    actual = losses(build("marian", weights=weights), batches)
    assert actual[0] == pytest.approx(expected[0], rel=1e-5)
    assert actual[-1] == pytest.approx(expected[-1], rel=0.1)


@TRAINABLE
def test_baseline_dropout_acts_in_training_only(name: str) -> None:
    batch, weights = random_batches(1), perturbed(SMALL)
    with_dropout, without = (build(name, replace(SMALL, dropout=rate), weights=weights) for rate in (0.3, 0.0))
    assert len(set(losses(with_dropout, batch * 3, 0.0))) == 3
    assert len(set(losses(without, batch * 3, 0.0))) == 1
    sources = [np.array([SOS, 5, 6, 7, 3], np.int32)]
    assert translated(with_dropout, sources) == translated(without, sources)


@TRAINABLE
def test_baseline_dropout_has_our_places(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the embedding, on attention weights, inside the feed-forward and before each residual sum."""
    import torch

    needs(name)
    rates: list[float] = []
    plain, fused = torch.nn.functional.dropout, torch.nn.functional.scaled_dot_product_attention

    def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        rates.append(p)
        return plain(x, p, training, inplace)

    def attention(*inputs: Any, dropout_p: float = 0.0, **settings: Any) -> Any:
        rates.append(inputs[4] if len(inputs) > 4 else dropout_p)
        return fused(*inputs, dropout_p=dropout_p, **settings) if len(inputs) < 5 else fused(*inputs, **settings)

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    build(name, replace(SMALL, dropout=0.25)).train_step(random_batches(1)[0], 0.0)
    places_per_encoder_layer, places_per_decoder_layer = 4, 6
    assert rates == [0.25] * (2 + SMALL.layers * (places_per_encoder_layer + places_per_decoder_layer))


# Decoding -------------------------------------------------------------------------------------------------------------


def translated(
    baseline: Any, sources: list[Ids], *, beam: int = 1, max_tokens: int = 20, never: Sequence[int] = SUPPRESSED
) -> list[list[int]]:
    result: list[list[int]] = baseline.translate(
        sources, beam=beam, batch_size=16, max_tokens=max_tokens, suppressed=never
    )
    return result


@pytest.mark.parametrize("max_tokens", [20, 3])
@EXACT
def test_baseline_greedy_translations_equal_ours(name: str, max_tokens: int, trained: Trained) -> None:
    needs(name)
    expected = trained.ours(max_tokens=max_tokens)
    if max_tokens == 3:
        assert expected != trained.ours()
    else:
        assert len(set(map(tuple, expected))) > len(expected) / 2, "translations must depend on the sources"
    assert translated(trained.baseline(name), trained.sources, max_tokens=max_tokens) == expected


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_ctranslate2_translations_mostly_equal_ours(name: str, trained: Trained) -> None:
    needs(name)
    baseline, expected = trained.baseline(name), trained.ours()
    assert baseline.translator.compute_type.startswith(name.removeprefix("ctranslate2_"))
    actual = translated(baseline, trained.sources)
    assert 0.5 < np.mean([their == our for their, our in zip(actual, expected, strict=True)]) < 1


def test_unsupported_compute_type_of_ctranslate2_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"int8", "float32"})
    reason = registry.missing_baseline("ctranslate2_bfloat16")
    assert reason == "CTranslate2 has no bfloat16 on this cpu (it has float32, int8)"
    assert registry.missing_baseline("ctranslate2_int8") == ""


@pytest.mark.parametrize("unknown", ["never", "allowed"])
@EXACT
def test_baseline_never_chooses_suppressed_tokens(name: str, unknown: Any, trained: Trained) -> None:
    needs(name)
    weights = trained.weights
    weights["output.bias"][[PAD, SOS]] += 100
    weights["output.bias"][UNK] += 5
    expected = trained.ours(weights=weights, unknown=unknown)
    assert any(UNK in words for words in expected) == (unknown == "allowed")
    never = suppressed(DecodingSpec(unknown=unknown))
    assert translated(trained.baseline(name, weights=weights), trained.sources, never=never) == expected


@ALL
def test_baseline_translates_empty_inputs(name: str, trained: Trained) -> None:
    needs(name)
    empty = replace(trained, sources=[np.array([SOS, 3], np.int32)])
    weights = trained.weights
    weights["output.bias"][3] += 100
    assert translated(trained.baseline(name, weights=weights), empty.sources) == empty.ours(weights=weights) == [[]]
    assert translated(trained.baseline(name), []) == []


@ALL
def test_baseline_too_many_positions_raises(name: str) -> None:
    baseline, long = build(name), np.array([SOS, *[5] * SMALL.max_length, 3], np.int32)
    most = SMALL.max_length
    with pytest.raises(ValueError, match=f"sources with {most + 2} positions .*max_length={most}"):
        translated(baseline, [long])
    with pytest.raises(ValueError, match=f"max_tokens with {most + 1} positions .*max_length={most}"):
        translated(baseline, [long[:5]], max_tokens=most)


def random_sources() -> list[Ids]:
    random = np.random.default_rng(1)
    return [np.array([SOS, *random.integers(4, SOURCE_VOCABULARY_SIZE, n), EOS], np.int32) for n in range(1, 13)]


def our_translations(recipe: Any, sizes: tuple[int, int], weights: Any) -> list[list[int]]:
    decoded = translate(with_weights(recipe, sizes, weights), random_sources(), DecodingSpec(beam=1, max_tokens=12))
    return [list(line.tokens) for line in decoded.translations]


@pytest.mark.parametrize("name", CONVERTED)
def test_ctranslate2_converts_supported_recipes(name: str) -> None:
    needs("ctranslate2")
    recipe = replace(CONVERTED[name], dropout=0.0)
    sizes, weights = (SOURCE_VOCABULARY_SIZE, target_vocabulary_size(recipe)), perturbed(recipe)
    baseline = registry.build_baseline("ctranslate2", recipe, *sizes, training=TRAINING, weights=weights)
    assert translated(baseline, random_sources(), max_tokens=12) == our_translations(recipe, sizes, weights)


@pytest.mark.parametrize("name", EXPRESSED)
def test_marian_exports_supported_recipes(name: str, tmp_path: Path) -> None:
    needs("marian")
    import torch
    from transformers import MarianMTModel

    recipe = replace(EXPRESSED[name], dropout=0.0)
    sizes, weights = (SOURCE_VOCABULARY_SIZE, target_vocabulary_size(recipe)), perturbed(recipe)
    vocabularies = tuple(tuple(map(str, range(size))) for size in sizes)
    search = Search(beam=1, max_tokens=12, length_penalty=0.6, suppressed=SUPPRESSED)
    registry.exporter("huggingface")(recipe, weights, vocabularies, str(tmp_path), search=search)
    model = MarianMTModel.from_pretrained(tmp_path)
    outputs = [model.generate(torch.from_numpy(source[None].astype(np.int64)))[0, 1:] for source in random_sources()]
    assert [output[output != EOS].tolist() for output in outputs] == our_translations(recipe, sizes, weights)


def test_plain_baseline_beams_equal_ours(trained: Trained) -> None:
    few = replace(trained, sources=trained.sources[:12])
    assert few.ours(beam=5) != few.ours()
    for beam, max_tokens in ((5, 20), (3, 3)):
        expected = few.ours(beam=beam, max_tokens=max_tokens)
        assert translated(few.baseline("plain"), few.sources, beam=beam, max_tokens=max_tokens) == expected


@pytest.mark.parametrize("name", ["marian", "ctranslate2"])
def test_library_beams_score_above_greedy(name: str, trained: Trained) -> None:
    needs(name)
    theirs, ours = translated(trained.baseline(name), trained.sources, beam=5), trained.ours(beam=5)
    assert scores(trained, theirs).sum() > scores(trained, trained.ours()).sum()
    assert np.mean([their == our for their, our in zip(theirs, ours, strict=True)]) > 0.7


def test_nn_transformer_beam_raises(trained: Trained) -> None:
    with pytest.raises(ValueError, match=r"beam=5: the library has no beam search"):
        translated(trained.baseline("nn_transformer"), trained.sources, beam=5)
