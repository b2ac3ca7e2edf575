"""Every torch model agrees with the plain NumPy reference: logits and gradients. Law 14 tests Adam and clipping."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy_reference
import pytest
from parity_cases import gradients
from small_models import BASE, GRU, PLAIN, REFERENCE, all_recipes, build, subject

from impls.contract import PAD, Arrays, Batch, GruRecipe, Recipe, Seq2SeqModel, Training

pytestmark = pytest.mark.usefixtures("single_thread")

RECIPES = all_recipes()
UNCLIPPED = Training(clip_norm=None, label_smoothing=0.1)
TIED = replace(BASE, tying="all", norm="rms", ffn="gated", activation="silu", positions="rotary")


def perturbed(recipe: Recipe, training: Training | None = None) -> Seq2SeqModel:
    """Return a model without dropout whose weights are all far from 0."""
    return subject(recipe).perturbed(training=training, dropout=0.0)


def sentences(batch: Batch) -> list[list[list[int]]]:
    rows = zip(batch.source, batch.target_in, batch.target_out, strict=True)
    return [[ids[ids != PAD].tolist() for ids in row] for row in rows]


def difference(model: Seq2SeqModel, weights: Arrays, batch: Batch) -> float:
    """Return the largest difference between the model's and the reference's logits at real positions."""
    actual = model.logits(batch.source, batch.target_in)
    expected = [numpy_reference.logits(model.recipe, weights, source, fed) for source, fed, _ in sentences(batch)]
    return max(float(np.abs(row[: len(logits)] - logits).max()) for row, logits in zip(actual, expected, strict=True))


@pytest.mark.parametrize("name", RECIPES)
def test_logits_equal_numpy_reference(name: str) -> None:
    model = perturbed(RECIPES[name])
    assert difference(model, model.weights(), subject(RECIPES[name]).batch()) < 1e-5


@pytest.mark.parametrize(
    "recipe",
    [REFERENCE, PLAIN, replace(BASE, ffn="conv1d"), replace(BASE, norm="handmade", norm_epsilon=1e-5)],
    ids=["torch_reference", "plain", "conv1d", "handmade"],
)
def test_cross_attention_of_equivalent_recipes_is_equal(recipe: Recipe) -> None:
    base, equivalent, batch = perturbed(BASE), build(recipe), subject(BASE).batch()
    assert base.weights().keys() == equivalent.weights().keys()
    equivalent.set_weights(base.weights())
    actual, expected = (model.cross_attention(batch.source, batch.target_in) for model in (equivalent, base))
    assert np.abs(np.moveaxis(actual - expected, 3, 1)[batch.target_in != PAD]).max() < 1e-5


def mean_objective(
    recipe: Recipe, weights: Arrays, batch: Batch, training: Training, teacher_forced: list[bool]
) -> float:
    """Return the reference's objective: the mean over the batch's target tokens."""
    total = 0.0
    for source, fed, target in sentences(batch):
        if isinstance(recipe, GruRecipe):
            logits = numpy_reference.gru(recipe, weights, source, fed, teacher_forced)
        else:
            logits = numpy_reference.logits(recipe, weights, source, fed)
        total += numpy_reference.objective(logits, target, training.label_smoothing)
    return total / batch.tokens


@pytest.mark.parametrize(
    ("recipe", "training"),
    [
        pytest.param(BASE, UNCLIPPED, id="base"),
        pytest.param(TIED, UNCLIPPED, id="tied rms gated rotary"),
        pytest.param(
            replace(BASE, norm_order="pre", norm="handmade", ffn="conv1d", activation="gelu"), UNCLIPPED, id="conv1d"
        ),
        pytest.param(
            replace(BASE, tying="output", positions="alibi", activation="tanh"), Training(clip_norm=None), id="alibi"
        ),
        pytest.param(REFERENCE, UNCLIPPED, id="torch_reference"),
        pytest.param(PLAIN, UNCLIPPED, id="plain"),
        pytest.param(GRU, UNCLIPPED, id="gru"),
        pytest.param(GRU, replace(UNCLIPPED, teacher_forcing=0.5), id="gru fed half its own tokens"),
    ],
)
def test_gradients_equal_finite_differences_of_reference(recipe: Recipe, training: Training) -> None:
    model, batch = perturbed(recipe, training), subject(recipe).batch(sentences=2)
    weights = {name: value.astype(np.float64) for name, value in model.weights().items()}
    teacher_forced = training.teacher_forcing_mask(0, 1, batch.target_in.shape[1]).tolist()
    generator = np.random.default_rng(0)

    def slope(name: str, index: Any) -> float:
        step, values = 1e-5, []
        for sign in (1, -1):
            moved = weights[name].copy()
            moved[index] += sign * step
            values.append(mean_objective(recipe, {**weights, name: moved}, batch, training, teacher_forced))
        return (values[0] - values[1]) / (2 * step)

    for name, actual in gradients(model, batch, training).items():
        largest = np.unravel_index(np.abs(actual).argmax(), actual.shape)
        tolerance = 1e-3 * float(np.abs(actual).max()) + 1e-7
        for index in (largest, tuple(generator.integers(0, actual.shape))):
            assert actual[index] == pytest.approx(slope(name, index), rel=1e-3, abs=tolerance), name
