"""What a torch model reports of its updates, and the random numbers of its dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import BASE, GRU, batch_of_lengths, build

from impls.contract import Training
from impls.pytorch.dropout import DropoutSource

pytestmark = pytest.mark.usefixtures("single_thread")
BATCH = batch_of_lengths((3, 2), (5, 4))


def test_model_is_not_built_with_another_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match="default dtype is torch.float64: models compute in float32"):
            build(BASE)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_update_with_a_gradient_that_is_not_finite_is_reported_though_its_loss_is_finite(value: float) -> None:
    model: Any = build(BASE)
    next(model.module.parameters()).register_hook(lambda gradient: torch.full_like(gradient, value))
    model.train_step(BATCH, 1e-3)
    totals = model.take_totals()
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
    build(GRU, dropout=0.1, training=Training(teacher_forcing=0.0)).train_step(BATCH, 1e-3)
    width = GRU.embedding_width
    assert shapes == [(*BATCH.source.shape, width), (6, width), (2, width), (1, width), (1, width)]


def test_dropout_depends_on_seed_and_update() -> None:
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
