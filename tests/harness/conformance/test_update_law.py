"""Laws about updates: the learning rates of law 10, and the directions and step lengths of law 14."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_models import BASE, subject

import impls
from examples.lstm_attention import LstmAttention
from harness.conformance import update_law
from harness.conformance.assertions import LawViolated
from harness.conformance.dropout_law import MaskReader, _rates
from harness.conformance.law_runner import check
from harness.conformance.models_under_test import named
from impls import registry
from impls.contract import Seq2SeqModel, Training

pytestmark = pytest.mark.usefixtures("single_thread")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_update_law_moves_tensors_of_one_number_along_their_gradient(sign: float) -> None:
    """A scale of a norm may be one number, whose random half is as long as its gradient."""
    gradient = {"norm.scale": np.array([sign]), "gain": np.array(-sign)}
    direction = update_law._direction(gradient, list(gradient))
    assert all(direction[name] == pytest.approx(gradient[name] / 2**0.5) for name in gradient)


def test_update_law_accepts_a_model_of_the_tutorials_size() -> None:
    """Its loss is so curved that the longer steps of finite differences disagree with the gradient."""
    wide = subject(registry.recipe("learned_positions"))
    assert not update_law._loss_gradient(wide, wide.probes()[0], update_law.SUBLAYER)


def build_narrow_lstm(*sizes: int, dropout: float | None = None, **settings: Any) -> Seq2SeqModel:
    return impls.wrap(lambda: LstmAttention(*sizes, width=32, dropout=dropout or 0.0), *sizes, **settings)


def test_law_10_accepts_a_narrow_model() -> None:
    assert [result.passed for result in check(named("test_update_law:build_narrow_lstm", fast=True), laws={10})] == [
        True
    ]


def build_with_fixed_smoothing(
    *sizes: int, training: Training, dropout: float | None = None, **settings: Any
) -> Seq2SeqModel:
    recipe = replace(BASE, layers=1, dropout=dropout or 0.0)
    return impls.build(recipe, *sizes, training=replace(training, label_smoothing=0.1), **settings)


def test_label_smoothing_other_than_the_configured_one_breaks_law_1() -> None:
    (result,) = check(named("test_update_law:build_with_fixed_smoothing", fast=True), laws={1})
    assert not result.passed
    assert "totals.objective_nats" in result.detail


def test_dropout_law_leaves_out_updates_that_show_no_mask_of_the_encoder() -> None:
    masks, random = MaskReader(replace(BASE, dropout=0.3), {}), np.random.default_rng(0)
    for update in range(200):
        masks.reached.append(update % 4 > 0)
        for site in masks.sites:
            shown = masks.reached[-1] or site.gradient.startswith("decoder.")
            site.masks.append((random.random(site.units.max() + 1) >= site.rate) & shown)
        for side, kept in masks.embedding.items():
            kept.append((random.random(BASE.width) >= 0.3) & (masks.reached[-1] or side == "target"))
    _rates(masks)
    masks.reached = [True] * 200
    with pytest.raises(LawViolated, match="share of dropped units"):
        _rates(masks)
    masks.reached = [False] * 200
    with pytest.raises(LawViolated, match="no update has a gradient in the encoder"):
        _rates(masks)
