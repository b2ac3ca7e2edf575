"""What a torch model reports of its updates, and the random numbers of its dropout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import BASE, GRU, SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, batch_of_lengths

import impls
from impls.contract import Recipe, Totals, Training
from impls.pytorch.dropout import DropoutSource
from impls.pytorch.torch_adapter import TorchModel

pytestmark = pytest.mark.usefixtures("single_thread")
BATCH = batch_of_lengths((3, 2), (5, 4))


def built(recipe: Recipe, clip_norm: float | None = None) -> TorchModel:
    sizes, training = (SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE), Training(clip_norm=clip_norm)
    model = impls.build(replace(recipe, dropout=0.0), *sizes, training=training)
    assert isinstance(model, TorchModel)
    return model


def after_an_update(model: TorchModel) -> Totals:
    model.train_step(BATCH, 1e-3)
    return model.take_totals()


@pytest.mark.parametrize("recipe", [BASE, GRU], ids=["transformer", "gru"])
def test_largest_gradient_norm_is_that_before_clipping(recipe: Recipe) -> None:
    free = after_an_update(built(recipe)).largest_gradient_norm
    assert after_an_update(built(recipe, free / 100)).largest_gradient_norm == pytest.approx(free)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_update_with_a_gradient_that_is_not_finite_is_reported_though_its_loss_is_finite(value: float) -> None:
    model = built(BASE, clip_norm=1.0)
    next(model.module.parameters()).register_hook(lambda gradient: torch.full_like(gradient, value))
    totals = after_an_update(model)
    assert 0 < totals.objective_nats < float("inf")
    assert not totals.finite


def test_gru_drops_units_of_its_own_tokens_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sentences of 2 and 4 target tokens: the sources, the references, and its own tokens at 3 positions."""
    shapes: list[tuple[int, ...]] = []
    keep_mask = DropoutSource.keep_mask

    def recorded(self: DropoutSource, shape: tuple[int, ...], rate: float) -> torch.Tensor:
        shapes.append(tuple(shape))
        return keep_mask(self, shape, rate)

    monkeypatch.setattr(DropoutSource, "keep_mask", recorded)
    sizes = SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE
    impls.build(replace(GRU, dropout=0.1), *sizes, training=Training(teacher_forcing=0.0)).train_step(BATCH, 1e-3)
    width = GRU.embedding_width
    assert shapes == [(*BATCH.source.shape, width), (6, width), (2, width), (1, width), (1, width)]


def test_dropout_of_another_seed_or_update_is_another() -> None:
    masks = []
    for seed, update in ((0, 2), (1, 1), (2, 0), (1, 2)):
        source = DropoutSource(torch.device("cpu"))
        source.restart(seed, update)
        masks.append(tuple(source.keep_mask((64,), 0.5).tolist()))
    assert len(set(masks)) == len(masks)


@pytest.mark.parametrize("rate", [0.5, 0.99, 1 - 2**-17, 1 - 2**-30])
def test_dropout_keeps_the_share_of_its_rate_up_to_the_largest_one(rate: float) -> None:
    source = DropoutSource(torch.device("cpu"))
    source.restart(0, 1)
    kept = float(source.keep_mask((1_000, 1_000), rate).mean())
    assert kept == pytest.approx(1 - rate, abs=2e-3)
