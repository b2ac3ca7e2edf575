"""Baselines compute what our models compute from the same weights: losses of updates, and translations."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from baseline_cases import (
    SIZES,
    SMALL,
    SUPPRESSED,
    TRAINING,
    Taught,
    ctranslate2_beams,
    decided,
    our_updates,
    perturbed,
    random_batches,
    teach,
    with_weights,
    worth,
)
from small_models import GRU, REFERENCE, SOURCE_VOCABULARY_SIZE, one_thread, target_vocabulary_size, transformer_recipes

from harness.data.batches import training_batches
from harness.data.dataset import prepare
from harness.evaluation.search import suppressed, translate
from harness.experiments.specs import DataSpec, DecodingSpec
from impls import registry
from impls import weights as canonical
from impls.baselines.baseline_weights import TUTORIAL
from impls.baselines.protocol import Decodes, Trains
from impls.contract import PAD, SOS, UNK, Batch, Ids, Training
from impls.recipes import LEARNED_POSITIONS
from impls.recipes import TUTORIAL as TUTORIAL_TRAINING

SINUSOIDAL = replace(SMALL, positions="sinusoidal", embedding_scale="none", embedding_init="normal")
STEADY_EPSILON = 1e-4
"""With Adam's usual 1e-8, gradients that are only rounding make full steps, and losses differ by 1e-3."""
CONVERTED = {
    name: recipe
    for name, recipe in transformer_recipes().items()
    if recipe.positions in ("learned", "sinusoidal", "none") and recipe.norm != "none" and recipe.head_width is None
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def taught() -> Taught:
    return teach(SMALL)


def needs(name: str) -> str:
    reason = registry.missing_baseline(name)
    if reason:
        pytest.skip(reason)
    return name


def build(name: str, recipe: Any = SMALL, **changes: Any) -> Any:
    settings: dict[str, Any] = {"training": TRAINING, "weights": canonical.initial(recipe, *SIZES, 0), **changes}
    return registry.build_baseline(needs(name), recipe, *SIZES, **settings)


# The registry ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.baseline_names())
def test_baseline_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = registry.BASELINES[name].packages[-1]
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked: None if asked == package else True)
    reason = registry.missing_baseline(name)
    assert reason.startswith(f"{package!r} is not installed: python -m pip install 'bakeoff[")
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


@pytest.mark.parametrize("name", registry.baseline_names())
def test_baseline_wrong_weights_raise(name: str) -> None:
    weights = canonical.initial(SMALL, *SIZES, 0)
    weights["output.bias"] = weights["output.bias"][1:]
    with pytest.raises(ValueError, match="output.bias has shape"):
        build(name, weights=weights)


@pytest.mark.parametrize("name", ["plain", "nn_transformer", "marian"])
@pytest.mark.parametrize("field", TUTORIAL)
def test_torch_baseline_unsupported_recipe_raises(name: str, field: str) -> None:
    other = {
        "positions": "rotary",
        "norm": "rms",
        "norm_order": "pre",
        "ffn": "gated",
        "activation": "gelu",
        "tying": "output",
    }
    with pytest.raises(ValueError, match=f"baseline '{name}' with {field}='{other[field]}': it implements only '"):
        build(name, replace(SMALL, **{field: other[field]}), weights={})


@pytest.mark.parametrize("changes", [{"positions": "rotary"}, {"positions": "alibi"}, {"norm": "none"}])
def test_ctranslate2_unsupported_recipe_raises(changes: dict[str, str]) -> None:
    ((field, word),) = changes.items()
    with pytest.raises(ValueError, match=f"baseline 'ctranslate2' with {field}='{word}': it implements only "):
        build("ctranslate2", replace(SMALL, **changes), weights={})


@pytest.mark.parametrize("name", registry.baseline_names())
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


@pytest.mark.parametrize("name", registry.baseline_names())
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
    expected = our_updates(recipe, SIZES, batches, weights, training)
    assert expected.losses[-1] < 0.9 * expected.losses[0]
    assert min(expected.norms) < 1.5 < max(expected.norms), "clipping is at work in some updates and not in others"
    for name in ("plain", "nn_transformer"):
        actual = losses(build(name, recipe, training=training, weights=weights), batches)
        np.testing.assert_allclose(actual, expected.losses, rtol=1e-5, err_msg=name)


def test_changed_weight_changes_losses() -> None:
    batches, weights = random_batches(3) * 3, canonical.initial(SMALL, *SIZES, 0)
    expected = losses(build("plain", weights=weights), batches)
    changed = {name: value.copy() for name, value in weights.items()}
    changed["encoder.0.self.value.kernel"][3, 3] += 1e-3
    actual = losses(build("plain", weights=changed), batches)
    assert not np.allclose(actual, expected, rtol=1e-5, atol=0)


def test_torch_reference_recipe_is_accepted_as_transformer() -> None:
    recipes = (replace(REFERENCE, dropout=0.0), SMALL)
    first, second = (losses(build("plain", recipe), random_batches(2)) for recipe in recipes)
    assert first == second


def test_marian_loss_equals_ours_and_falls() -> None:
    """Its output bias and position vectors are not trained, so only the first loss is equal."""
    batches, weights = random_batches(4) * 10, canonical.initial(SMALL, *SIZES, 0)
    expected = our_updates(SMALL, SIZES, batches, weights, TRAINING).losses
    actual = losses(build("marian", weights=weights), batches)
    assert actual[0] == pytest.approx(expected[0], rel=1e-5)
    assert actual[-1] == pytest.approx(expected[-1], rel=0.1)


@pytest.mark.parametrize("name", ["plain", "nn_transformer", "marian"])
def test_baseline_dropout_acts_in_training_only(name: str) -> None:
    batch, weights = random_batches(1), perturbed(SMALL)
    dropped = build(name, replace(SMALL, dropout=0.3), weights=weights)
    assert len(set(losses(dropped, batch * 3, 0.0))) == 3
    kept = build(name, weights=weights)
    assert len(set(losses(kept, batch * 3, 0.0))) == 1
    sources = [np.array([SOS, 5, 6, 7, 3], np.int32)]
    requested = {"beam": 1, "batch_size": 1, "max_tokens": 10, "suppressed": SUPPRESSED}
    assert dropped.translate(sources, **requested) == kept.translate(sources, **requested)


@pytest.mark.parametrize("name", ["plain", "nn_transformer", "marian"])
def test_baseline_dropout_has_our_places(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the embedding, on attention weights, inside the feed-forward and before each residual sum."""
    import torch

    needs(name)
    rates: list[float] = []
    real, fused = torch.nn.functional.dropout, torch.nn.functional.scaled_dot_product_attention

    def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        rates.append(p)
        return real(x, p, training, inplace)

    def attention(*inputs: Any, dropout_p: float = 0.0, **settings: Any) -> Any:
        rates.append(inputs[4] if len(inputs) > 4 else dropout_p)
        return fused(*inputs, dropout_p=dropout_p, **settings) if len(inputs) < 5 else fused(*inputs, **settings)

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    build(name, replace(SMALL, dropout=0.25)).train_step(random_batches(1)[0], 0.0)
    each_encoder_layer, each_decoder_layer = 4, 6
    assert rates == [0.25] * (2 + SMALL.layers * (each_encoder_layer + each_decoder_layer))


@pytest.mark.slow
def test_baseline_losses_equal_ours_on_multi30k(multi30k_folder: Any) -> None:
    prepared = prepare(DataSpec(corpus="multi30k"))
    recipe, sizes = replace(LEARNED_POSITIONS, dropout=0.0), (len(prepared.source_words), len(prepared.target_words))
    weights = canonical.initial(recipe, *sizes, 0)
    stream = training_batches(prepared.train, TUTORIAL_TRAINING, seed=0, epoch=0)
    batches = [batch for _, batch in zip(range(100), stream, strict=False)]
    # A fifth of the tutorial's rate: at the whole, rounding grows to 1e-4 within 40 updates.
    training = replace(TUTORIAL_TRAINING, peak_rate=1e-4, epsilon=STEADY_EPSILON)
    expected = our_updates(recipe, sizes, batches, weights, training).losses
    for name in ("plain", "nn_transformer"):
        baseline: Any = registry.build_baseline(name, recipe, *sizes, training=training, weights=weights)
        actual = losses(baseline, batches, training.peak_rate)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, err_msg=name)


# Decoding -------------------------------------------------------------------------------------------------------------


def translated(
    baseline: Any, sources: list[Ids], *, beam: int = 1, max_tokens: int = 20, never: Sequence[int] = SUPPRESSED
) -> list[list[int]]:
    requested = {"beam": beam, "batch_size": 16, "max_tokens": max_tokens, "suppressed": never}
    result: list[list[int]] = baseline.translate(sources, **requested)
    return result


@pytest.mark.parametrize("name", registry.baseline_names())
def test_baseline_greedy_translations_equal_ours(name: str, taught: Taught) -> None:
    needs(name)
    expected = taught.ours()
    assert len({tuple(one) for one in expected}) > len(expected) / 2, (
        "the model says too little to tell baselines apart"
    )
    assert translated(taught.baseline(name), taught.sources) == expected


@pytest.mark.parametrize("name", registry.baseline_names())
def test_baseline_translations_stop_at_max_tokens(name: str, taught: Taught) -> None:
    needs(name)
    expected = taught.ours(max_tokens=3)
    assert expected != taught.ours()
    assert translated(taught.baseline(name), taught.sources, max_tokens=3) == expected


@pytest.mark.parametrize("unknown", ["never", "allowed"])
@pytest.mark.parametrize("name", registry.baseline_names())
def test_baseline_never_chooses_suppressed_tokens(name: str, unknown: Any, taught: Taught) -> None:
    needs(name)
    weights = taught.weights
    weights["output.bias"][[PAD, SOS]] += 100
    weights["output.bias"][UNK] += 5
    expected = taught.ours(weights=weights, unknown=unknown)
    assert any(UNK in one for one in expected) == (unknown == "allowed")
    never = suppressed(DecodingSpec(unknown=unknown))
    assert translated(taught.baseline(name, weights=weights), taught.sources, never=never) == expected


@pytest.mark.parametrize("name", registry.baseline_names())
def test_baseline_translates_empty_inputs(name: str, taught: Taught) -> None:
    needs(name)
    empty = replace(taught, sources=[np.array([SOS, 3], np.int32)])
    weights = taught.weights
    weights["output.bias"][3] += 100
    assert translated(taught.baseline(name, weights=weights), empty.sources) == empty.ours(weights=weights) == [[]]
    assert translated(taught.baseline(name), []) == []


@pytest.mark.parametrize("name", registry.baseline_names())
def test_baseline_too_many_positions_raises(name: str) -> None:
    baseline, long = build(name), np.array([SOS, *[5] * SMALL.max_length, 3], np.int32)
    with pytest.raises(
        ValueError, match=f"sources with {SMALL.max_length + 2} positions .*max_length={SMALL.max_length}"
    ):
        translated(baseline, [long])
    with pytest.raises(
        ValueError, match=f"max_tokens with {SMALL.max_length + 1} positions .*max_length={SMALL.max_length}"
    ):
        translated(baseline, [long[:5]], max_tokens=SMALL.max_length)


@pytest.mark.parametrize("name", CONVERTED)
def test_ctranslate2_converts_supported_recipes(name: str) -> None:
    needs("ctranslate2")
    recipe = replace(CONVERTED[name], dropout=0.0)
    sizes, weights = (SOURCE_VOCABULARY_SIZE, target_vocabulary_size(recipe)), perturbed(recipe)
    random = np.random.default_rng(1)
    sources = [np.array([SOS, *random.integers(4, SOURCE_VOCABULARY_SIZE, n), 3], np.int32) for n in range(1, 13)]
    spec = DecodingSpec(beam=1, max_tokens=12)
    expected = [list(one.tokens) for one in translate(with_weights(recipe, sizes, weights), sources, spec).translations]
    baseline = registry.build_baseline("ctranslate2", recipe, *sizes, training=TRAINING, weights=weights)
    assert translated(baseline, sources, max_tokens=12) == expected


def test_plain_baseline_beams_equal_ours(taught: Taught) -> None:
    some = replace(taught, sources=taught.sources[:12])
    assert some.ours(beam=5) != some.ours()
    assert translated(some.baseline("plain"), some.sources, beam=5) == some.ours(beam=5)
    assert translated(some.baseline("plain"), some.sources, beam=3, max_tokens=3) == some.ours(beam=3, max_tokens=3)


def test_ctranslate2_beams_follow_its_rule(taught: Taught) -> None:
    needs("ctranslate2")
    some = taught.sources[:12]
    for beam, most in ((5, 20), (3, 3)):
        expected = [ctranslate2_beams(taught.model, source, beam=beam, max_tokens=most) for source in some]
        assert translated(taught.baseline("ctranslate2"), some, beam=beam, max_tokens=most) == expected


@pytest.mark.parametrize("name", ["marian", "ctranslate2"])
def test_library_beams_score_above_greedy(name: str, taught: Taught) -> None:
    needs(name)
    result, ours = translated(taught.baseline(name), taught.sources, beam=5), taught.ours(beam=5)
    assert worth(taught, result).sum() > worth(taught, taught.ours()).sum()
    assert np.mean([one == other for one, other in zip(result, ours, strict=True)]) > 0.7


def test_nn_transformer_beam_raises(taught: Taught) -> None:
    with pytest.raises(ValueError, match=r"beam=5: the library has no beam search"):
        translated(taught.baseline("nn_transformer"), taught.sources, beam=5)
