"""On packed rows, models compute the same values as on padded batches, from real positions only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from parity_cases import gradients
from small_models import BASE, GRU, MAX_LENGTH, SOURCE_VOCABULARY_SIZE, all_recipes, batch_of, build, subject
from torch import nn

from harness.conformance.assertions import token_nats
from impls.contract import PAD, Arrays, Batch, Recipe, Training, TransformerRecipe
from impls.pytorch import matmul_precision, torch_adapter
from impls.pytorch.cpu_kernels import output_loss
from impls.pytorch.dropout import Dropout
from impls.pytorch.torch_adapter import TorchModel
from impls.pytorch.torch_packing import GROUP_ROWS, ROW_MULTIPLE, Packing, pack

pytestmark = pytest.mark.usefixtures("single_thread")

RECIPES = all_recipes()
UNCLIPPED = Training(clip_norm=None, label_smoothing=0.1)
CLOSE = 1e-6
"""The rounding error of float32, relative to the largest value."""


def random_batch(rows: int = 2 * GROUP_ROWS + 6) -> Batch:
    """Return unordered sentences of up to 20 words, some empty."""
    random = np.random.default_rng(0)
    sources, targets = (
        [random.integers(4, SOURCE_VOCABULARY_SIZE, random.integers(0, 12)).tolist() for _ in range(rows)]
        for _ in range(2)
    )
    sources[5], targets[3] = [6] * 20, [7] * 20
    return batch_of(sources, targets)


def model(recipe: Recipe) -> TorchModel:
    """Return a model without dropout whose weights are all far from 0."""
    return subject(recipe).perturbed(training=UNCLIPPED, dropout=0.0)  # type: ignore[return-value]


def padded_gradients(model: TorchModel, batch: Batch) -> Arrays:
    """Return the gradients of the mean objective, computed on the padded batch."""
    model.module.eval()
    features = model.module(torch.from_numpy(batch.source), torch.from_numpy(batch.target_in)).flatten(0, 1)
    target = torch.from_numpy(batch.target_out.astype(np.int64)).flatten()
    output, real = model.module.output, target != PAD
    objective, _ = output_loss(features[real], output.weight, output.bias, target[real], UNCLIPPED.label_smoothing)
    model.module.zero_grad()
    (objective / batch.tokens).backward()
    gradients = {name: (slot, slot.parameter.grad) for name, slot in model._slots.items()}
    return {
        name: slot.read(torch.zeros_like(slot.parameter) if gradient is None else gradient)
        for name, (slot, gradient) in gradients.items()
    }


def differences(model: TorchModel, batch: Batch) -> tuple[float, float]:
    """Return the differences of packed and padded nats and gradients, relative to the largest values."""
    plain = token_nats(model.logits(batch.source, batch.target_in), batch.target_out)
    nats = float(np.abs(model.token_nats(batch) - plain).max() / np.abs(plain).max())
    expected = padded_gradients(model, batch)
    largest = max(float(np.abs(gradient).max()) for gradient in expected.values())
    actual = gradients(model, batch, UNCLIPPED)
    return nats, max(float(np.abs(actual[name] - gradient).max()) for name, gradient in expected.items()) / largest


def packed_rows(monkeypatch: pytest.MonkeyPatch, **changes: int) -> list[int]:
    """Let models pack batches with changed settings, and return a list to which the rows of both sides are added."""
    rows: list[int] = []

    def pack_and_count(batch: Batch, **settings: Any) -> Packing:
        packing = pack(batch, **settings | changes)
        rows.extend((len(packing.source.tokens), len(packing.target.tokens)))
        return packing

    monkeypatch.setattr(torch_adapter, "pack", pack_and_count)
    return rows


# Packed results are the padded ones -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_packed_losses_and_gradients_equal_padded(name: str) -> None:
    """Also with a sentence that is only padding, and real positions without a target."""
    batch = Batch(*(np.pad(ids, ((0, 1), (0, 0)), constant_values=PAD) for ids in vars(random_batch()).values()))
    batch.target_out[2, 0] = batch.target_out[3, 4] = PAD
    recipe = RECIPES[name]
    if getattr(recipe, "embedding_init", "") == "normal":
        # Unit variance times sqrt(D) makes attention scores so large that rounding depends on the processor.
        recipe = replace(recipe, embedding_scale="none")
    # Without norms the activations grow from layer to layer, and rounding with them.
    close = 10 * CLOSE if getattr(recipe, "norm", "") == "none" else CLOSE
    assert max(differences(model(recipe), batch)) < close


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_filling_changes_no_loss_and_no_gradient(positions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, multiple = replace(BASE, positions=positions), MAX_LENGTH + 10
    filled = packed_rows(monkeypatch, multiple=multiple)
    assert max(differences(model(recipe), random_batch())) < CLOSE
    assert filled
    assert all(rows % multiple == 0 for rows in filled)


@pytest.mark.parametrize("setting", ["highest", "medium"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_rows_are_filled_up_where_onednn_multiplies(
    precision: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 always, in float32 in training, and in small batches too: oneDNN keeps kernels for each number."""
    monkeypatch.setattr(matmul_precision, "_fastest_float32", lambda: setting)
    rows = packed_rows(monkeypatch)
    small = build(BASE, precision=precision)
    for batch in (random_batch(7), random_batch()):
        small.train_step(batch, 0.0)
        small.token_nats(batch)
        counts = [int((ids != PAD).sum()) for ids in (batch.source, batch.target_in)] * 2
        filled = [row > count for row, count in zip(rows, counts, strict=True)]
        assert filled == [precision == "bfloat16" or setting == "medium"] * 2 + [precision == "bfloat16"] * 2
        assert all(row == count or row % ROW_MULTIPLE == 0 for row, count in zip(rows, counts, strict=True))
        rows.clear()


# Only real words are computed on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [BASE, replace(BASE, ffn="conv1d", norm="handmade")])
def test_packed_layers_compute_real_positions_only(recipe: TransformerRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_precision, "_fastest_float32", lambda: "highest")  # so that no rows are filled up
    small, batch = model(recipe), random_batch()
    source, target = int((batch.source != PAD).sum()), int((batch.target_in != PAD).sum())
    rows: set[int] = set()

    def count_rows(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        width = recipe.ffn_width if inputs[0].shape[-1] == recipe.ffn_width else recipe.width
        rows.add(inputs[0].numel() // width)

    for module in small.module.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Conv1d | Dropout):
            module.register_forward_pre_hook(count_rows)
    small.train_step(batch, 0.0)
    conv_channels = {n * recipe.ffn_width // recipe.width for n in (source, target)}
    assert {source, target} <= rows <= {source, target} | conv_channels


def test_gru_decoder_drops_finished_sentences() -> None:
    small, batch = model(GRU), random_batch()
    steps: list[int] = []
    small.module.decoder_hidden.register_forward_pre_hook(lambda module, inputs: steps.append(len(inputs[0])))
    small.train_step(batch, 0.0)
    assert sum(steps) == (batch.target_in != PAD).sum()
    assert steps == sorted(steps, reverse=True)


def test_random_batches_have_little_attention_padding() -> None:
    batch = random_batch(4 * GROUP_ROWS)
    packing = pack(batch, heads=1, group_rows=GROUP_ROWS, to_device=torch.from_numpy)
    scores = sum(group.shape[0] * group.shape[2] * group.shape[3] for group in packing.cross_groups)
    assert scores < 0.45 * len(batch.source) * batch.source.shape[1] * batch.target_in.shape[1]
