"""On packed rows, models compute the same values as on padded batches, from real positions only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import (
    BASE,
    GRU,
    MAX_LENGTH,
    REFERENCE,
    SOURCE_VOCABULARY_SIZE,
    all_recipes,
    one_thread,
    target_vocabulary_size,
)
from torch import nn

import impls
from harness.conformance.models_under_test import padded, with_dropout
from impls.contract import EOS, PAD, SOS, Arrays, Batch, Recipe, Training, TransformerRecipe
from impls.pytorch import torch_adapter, torch_packing
from impls.pytorch.cpu_kernels import output_loss
from impls.pytorch.cuda_graph_training import GraphModel
from impls.pytorch.dropout import Dropout, DropoutSource
from impls.pytorch.torch_adapter import TorchModel
from impls.pytorch.torch_packing import GROUP_ROWS, Group, pack, pack_by_position

RECIPES = all_recipes()
UNCLIPPED = Training(clip_norm=None, label_smoothing=0.1)
CLOSE, EXACT = 1e-6, 1e-11
"""Rounding errors of float32 and float64, relative to the largest value."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def random_batch(rows: int = 2 * GROUP_ROWS + 6, *, empty_row: bool = False, seed: int = 0) -> Batch:
    """Return unordered sentences of 1 to 20 tokens, some empty and one of full length.

    With `empty_row` the last row is padding on both sides.
    """
    random = np.random.default_rng(seed)
    words = [random.integers(4, SOURCE_VOCABULARY_SIZE, random.integers(0, 12)).tolist() for _ in range(rows)]
    others = [random.integers(4, SOURCE_VOCABULARY_SIZE, random.integers(0, 12)).tolist() for _ in range(rows)]
    words[5], others[3] = [6] * 20, [7] * 20
    nothing: list[list[int]] = [[]] if empty_row else []
    return Batch(
        padded([*([SOS, *one, EOS] for one in words), *nothing]),
        padded([*([SOS, *one] for one in others), *nothing]),
        padded([*([*one, EOS] for one in others), *nothing]),
    )


def model(recipe: Recipe, training: Training = UNCLIPPED) -> TorchModel:
    """Return a model without dropout whose weights are all far from 0."""
    result = impls.build(
        with_dropout(recipe, 0.0), SOURCE_VOCABULARY_SIZE, target_vocabulary_size(recipe), training=training
    )
    assert isinstance(result, TorchModel)
    random = np.random.default_rng(1)
    weights = result.weights()
    for one in weights.values():
        one += 0.05 * random.standard_normal(one.shape).astype(np.float32)
    result.set_weights(weights)
    return result


def padded_nats(of: TorchModel, batch: Batch) -> np.ndarray[Any, Any]:
    """Return the result of `token_nats`, computed from the logits of the padded batch."""
    logits = torch.from_numpy(of.logits(batch.source, batch.target_in)).double()
    target = torch.from_numpy(batch.target_out.astype(np.int64))[..., None]
    nats = -torch.log_softmax(logits, dim=-1).gather(2, target)[..., 0].numpy()
    return np.where(batch.target_out != PAD, nats, 0)


def padded_gradients(of: TorchModel, batch: Batch) -> Arrays:
    """Return the gradients of the mean objective, computed on the padded batch."""
    of.module.eval()
    features = of.module(torch.from_numpy(batch.source), torch.from_numpy(batch.target_in)).flatten(0, 1)
    target = torch.from_numpy(batch.target_out.astype(np.int64)).flatten()
    output, real = of.module.output, target != PAD
    objective, _ = output_loss(features[real], output.weight, output.bias, target[real], UNCLIPPED.label_smoothing)
    of.module.zero_grad()
    (objective / batch.tokens).backward()
    empty = {name: torch.zeros_like(slot.parameter) for name, slot in of._slots.items()}
    result = {n: empty[n] if slot.parameter.grad is None else slot.parameter.grad for n, slot in of._slots.items()}
    return {name: slot.read(result[name]) for name, slot in of._slots.items()}


def packed_gradients(of: TorchModel, batch: Batch) -> Arrays:
    of.train_step(batch, 0.0)
    state = of.training_state()
    return {name: state[f"first_moment/{name}"] / (1 - UNCLIPPED.beta1) for name in of.weights()}


def differences(of: TorchModel, batch: Batch) -> tuple[float, float]:
    """Return the differences of packed and padded nats and gradients, relative to the largest values."""
    plain = padded_nats(of, batch)
    nats = float(np.abs(of.token_nats(batch) - plain).max() / np.abs(plain).max())
    expected = padded_gradients(of, batch)
    largest = max(float(np.abs(one).max()) for one in expected.values())
    actual = packed_gradients(of, batch)
    return nats, max(float(np.abs(actual[name] - one).max()) for name, one in expected.items()) / largest


# Packed results are the padded ones -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_packed_losses_and_gradients_equal_padded(name: str) -> None:
    nats, gradients = differences(model(RECIPES[name]), random_batch())
    # Without norms the activations grow from layer to layer, and rounding with them.
    close = 10 * CLOSE if getattr(RECIPES[name], "norm", "") == "none" else CLOSE
    assert nats < close
    assert gradients < close


COMBINED = [
    replace(BASE, positions=positions, norm=norm, norm_order=order, ffn=ffn)
    for positions in ("learned", "sinusoidal", "rotary", "alibi", "none")
    for norm, order in (("layernorm", "post"), ("handmade", "pre"), ("rms", "post"), ("none", "pre"))
    for ffn in ("linear", "conv1d", "gated")
]


@pytest.mark.parametrize("recipe", COMBINED, ids=lambda one: f"{one.positions}-{one.norm}-{one.norm_order}-{one.ffn}")
def test_packed_features_equal_padded_in_double_precision(recipe: TransformerRecipe) -> None:
    """float64 shows differences of formulas rather than rounding; includes the gradients of all weights."""
    of, batch = model(recipe), random_batch(GROUP_ROWS + 3)
    module = of.module.double().eval()
    packing = pack(batch, heads=recipe.heads, group_rows=GROUP_ROWS, to_device=of.to_device)
    real = torch.from_numpy(packing.indices)
    features = module(of.to_device(batch.source), of.to_device(batch.target_in)).flatten(0, 1)[real]
    directions = torch.from_numpy(np.random.default_rng(0).standard_normal(features.shape))
    weights = list(module.parameters())
    packed = module.packed(packing)
    assert float((packed - features).detach().abs().max()) < EXACT * float(features.detach().abs().max())
    expected = torch.autograd.grad((features * directions).sum(), weights, allow_unused=True)
    actual = torch.autograd.grad((packed * directions).sum(), weights, allow_unused=True)
    largest = max(float(one.abs().max()) for one in expected if one is not None)
    for one, other in zip(actual, expected, strict=True):
        if other is not None:
            assert float((one - other).abs().max()) < EXACT * largest


@pytest.mark.parametrize("recipe", [BASE, GRU, REFERENCE], ids=["transformer", "gru", "torch_reference"])
def test_packed_rows_of_padding_change_nothing(recipe: Recipe) -> None:
    of, bare, more = model(recipe), random_batch(30), random_batch(30, empty_row=True)
    assert (bare.target_in[:, 1] == PAD).any(), "there is a sentence of one word, <sos>"
    actual = of.token_nats(more)
    np.testing.assert_allclose(actual[:-1], of.token_nats(bare), atol=CLOSE)
    assert not actual[-1].any()
    expected = packed_gradients(model(recipe), bare)
    for name, gradient in packed_gradients(of, more).items():
        np.testing.assert_allclose(gradient, expected[name], atol=CLOSE, err_msg=name)


@pytest.mark.parametrize("recipe", [BASE, GRU, REFERENCE], ids=["transformer", "gru", "torch_reference"])
def test_packed_batch_of_one_sentence_or_only_padding(recipe: Recipe) -> None:
    one = Batch(*(ids[5:6] for ids in vars(random_batch()).values()))
    of = model(recipe)
    np.testing.assert_allclose(of.token_nats(one), padded_nats(of, one), atol=1e-5)
    before = of.weights()
    nothing = np.full((3, 4), PAD, np.int32)
    of.train_step(Batch(nothing, nothing, nothing), 1e-3)
    totals = of.take_totals()
    assert (totals.nats, totals.tokens, totals.finite) == (0.0, 0, True)
    assert all(np.array_equal(value, before[name]) for name, value in of.weights().items())


@pytest.mark.parametrize("recipe", [BASE, REFERENCE], ids=["transformer", "torch_reference"])
def test_group_size_changes_only_rounding(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, result = random_batch(), []
    for rows in (1, 7, GROUP_ROWS, 500):
        monkeypatch.setattr(torch_adapter, "GROUP_ROWS", rows)
        result.append(packed_gradients(model(recipe), batch))
    for other in result[1:]:
        for name, gradient in result[0].items():
            np.testing.assert_allclose(other[name], gradient, atol=CLOSE, err_msg=name)


def test_packed_loss_excludes_positions_without_target() -> None:
    batch = random_batch(9)
    batch.target_out[2, 0] = batch.target_out[3, 4] = PAD
    for recipe in (BASE, GRU, REFERENCE):
        nats, gradients = differences(model(recipe), batch)
        assert nats < CLOSE
        assert gradients < CLOSE


# Only real words are computed on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [BASE, replace(BASE, ffn="conv1d", norm="handmade")])
def test_packed_layers_see_real_positions_only(recipe: TransformerRecipe) -> None:
    of, batch = model(recipe), random_batch()
    source, target = int((batch.source != PAD).sum()), int((batch.target_in != PAD).sum())
    seen: set[int] = set()

    def see(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.add(inputs[0].numel() // (recipe.ffn_width if inputs[0].shape[-1] == recipe.ffn_width else recipe.width))

    for module in of.module.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Conv1d | Dropout):
            module.register_forward_pre_hook(see)
    of.train_step(batch, 0.0)
    conv_channels = {n * recipe.ffn_width // recipe.width for n in (source, target)}
    assert seen <= {source, target} | conv_channels
    assert {source, target} <= seen


def test_gru_decoder_drops_finished_sentences() -> None:
    of, batch = model(GRU), random_batch()
    steps: list[int] = []
    of.module.decoder_hidden.register_forward_pre_hook(lambda module, inputs: steps.append(len(inputs[0])))
    of.train_step(batch, 0.0)
    assert sum(steps) == (batch.target_in != PAD).sum()
    assert steps == sorted(steps, reverse=True)


def test_random_batches_have_little_attention_padding() -> None:
    batch = random_batch(4 * GROUP_ROWS)
    packing = pack(batch, heads=1, group_rows=GROUP_ROWS, to_device=torch.from_numpy)
    scores = sum(group.shape[0] * group.shape[2] * group.shape[3] for group in packing.cross_groups)
    assert scores < 0.45 * len(batch.source) * batch.source.shape[1] * batch.target_in.shape[1]


# Layouts --------------------------------------------------------------------------------------------------------------


def test_packed_tokens_and_positions_equal_batch() -> None:
    batch = random_batch()
    packing = pack(batch, heads=2, group_rows=GROUP_ROWS, to_device=torch.from_numpy)
    assert np.array_equal(np.sort(packing.indices), np.flatnonzero(batch.target_in != PAD))
    assert np.array_equal(packing.target.tokens, batch.target_in.reshape(-1)[packing.indices])
    assert np.array_equal(packing.target.positions, packing.indices % batch.target_in.shape[1])
    assert np.array_equal(np.sort(packing.source.tokens), np.sort(batch.source[batch.source != PAD]))
    starts = packing.source.tokens[packing.source.positions == 0]
    assert (starts == SOS).all()
    assert len(starts) == len(batch.source)
    by_position = pack_by_position(batch, to_device=torch.from_numpy)
    assert np.array_equal(np.sort(by_position.indices), np.sort(packing.indices))
    assert by_position.sizes == (batch.target_in != PAD).sum(axis=0).tolist()
    assert np.array_equal(by_position.tokens, batch.target_in.reshape(-1)[by_position.indices])


# Planted faults -------------------------------------------------------------------------------------------------------


def _shifted_positions(packing: Any) -> Any:
    target = packing.target
    return replace(packing, target=replace(target, positions=(target.positions + 1) % MAX_LENGTH))


def _changed(name: str, change: Callable[[Group], Group]) -> Callable[[Any], Any]:
    return lambda packing: replace(packing, **{name: [change(group) for group in getattr(packing, name)]})


def _rolled(field: str) -> Callable[[Group], Group]:
    return lambda group: group._replace(**{field: getattr(group, field).roll(1)})


PLANTED: dict[str, Callable[[Any], Any]] = {
    "positions shifted by one": _shifted_positions,
    "indices shifted": lambda packing: replace(packing, indices=np.roll(packing.indices, 1)),
    "sentences in another order": lambda packing: replace(
        packing, source=replace(packing.source, tokens=packing.source.tokens.flip(0))
    ),
    **{
        f"{name}: wrong {field}": _changed(name, _rolled(field))
        for name in ("source_groups", "target_groups", "cross_groups")
        for field in ("query", "key", "value", "output", "from_queries", "from_keys")
    },
    "padding of the source visible": _changed(
        "source_groups", lambda group: group._replace(visible=torch.ones_like(group.visible))
    ),
    "padding of the source visible to the target": _changed(
        "cross_groups", lambda group: group._replace(visible=torch.ones_like(group.visible))
    ),
    "later words visible": _changed(
        "target_groups", lambda group: group._replace(visible=torch.ones_like(group.visible))
    ),
    "padding queries": _changed("target_groups", lambda group: group._replace(real=torch.ones_like(group.real))),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_packing_wrong_index_is_detected(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch_packing.pack
    monkeypatch.setattr(torch_adapter, "pack", lambda *given, **settings: PLANTED[fault](right(*given, **settings)))
    nats, gradients = differences(model(BASE), random_batch())
    assert nats > 1e-3 or gradients > 1e-3


@pytest.mark.parametrize("fault", ["tokens", "sizes", "lengths"])
def test_gru_packing_wrong_layout_is_detected(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(batch: Batch, **settings: Any) -> Any:
        result = pack_by_position(batch, **settings)
        if fault == "sizes":
            sizes = [*result.sizes[:-2], sum(result.sizes[-2:])]
            return replace(result, sizes=sizes)
        return replace(result, **{fault: getattr(result, fault).roll(1)})

    monkeypatch.setattr(torch_adapter, "pack_by_position", wrong)
    try:
        nats, gradients = differences(model(GRU), random_batch())
    except (RuntimeError, ValueError, IndexError):
        return
    assert nats > 1e-4 or gradients > 1e-3


# Dropout --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["packed", "graphs"])
def test_dropout_rates_per_place(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(BASE, dropout=0.1, attention_dropout=0.2, activation_dropout=0.3)
    drawn: list[tuple[int, float]] = []
    kept = DropoutSource.keep_mask

    def noted(self: DropoutSource, shape: tuple[int, ...], rate: float) -> torch.Tensor:
        drawn.append((int(np.prod(shape)), rate))
        return kept(self, shape, rate)

    monkeypatch.setattr(DropoutSource, "keep_mask", noted)
    settings: dict[str, Any] = {"training": Training(batch_size=9), "seed": 0, "precision": "float32", "device": "cpu"}
    classes = {"packed": torch_adapter.TransformerModel, "graphs": GraphModel}
    of = torch_adapter.build_transformer(
        recipe, SOURCE_VOCABULARY_SIZE, SOURCE_VOCABULARY_SIZE, kind=classes[kind], **settings
    )
    batch = random_batch(9)
    of.train_step(batch, 1e-3)
    words = {int((ids != PAD).sum()) for ids in (batch.source, batch.target_in)}
    if kind == "graphs":
        words = {len(batch.source) * 24}
    for units, rate in drawn:
        if rate == 0.1:
            assert units // recipe.width in words
        elif rate == 0.3:
            assert units // recipe.ffn_width in words
        else:
            assert rate == 0.2
            assert units % recipe.heads == 0
    count = [sum(rate == one for _, rate in drawn) for one in (0.1, 0.2, 0.3)]
    assert count == [2 + 5 * recipe.layers, 3 * recipe.layers, 2 * recipe.layers]


def test_dropout_rates_default_to_dropout() -> None:
    recipe = replace(BASE, dropout=0.25)
    of = impls.build(recipe, SOURCE_VOCABULARY_SIZE, SOURCE_VOCABULARY_SIZE)
    assert isinstance(of, TorchModel)
    assert {one.rate for one in of.module.modules() if isinstance(one, Dropout)} == {0.25}
    assert replace(REFERENCE, dropout=0.25).as_transformer().attention_rate == 0.25


def test_dropout_rate_0_at_one_place_keeps_others() -> None:
    """An update with dropout at one place differs from one without dropout and from the other places."""
    result = []
    for rates in ((0, None, None), (0.3, 0, 0), (0, 0.3, None), (0, None, 0.3)):
        dropout, attention, activation = rates
        recipe = replace(BASE, dropout=dropout or 0.0, attention_dropout=attention, activation_dropout=activation)
        of = impls.build(recipe, SOURCE_VOCABULARY_SIZE, SOURCE_VOCABULARY_SIZE, seed=1)
        of.train_step(random_batch(9), 0.0)
        result.append(of.take_totals().nats)
    assert len(set(result)) == 4
