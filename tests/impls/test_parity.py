"""Every torch model agrees with the plain NumPy reference: logits, gradients and updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy_reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import BASE, GRU, PLAIN, REFERENCE, SOURCE_VOCABULARY_SIZE, all_recipes, build, one_thread, subject

import impls
from impls.contract import EOS, PAD, SOS, Arrays, Batch, GruRecipe, Recipe, Seq2SeqModel, Training

RECIPES = all_recipes()
UNCLIPPED = Training(clip_norm=None, label_smoothing=0.1)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def perturbed(recipe: Recipe, training: Training | None = None) -> Seq2SeqModel:
    """Return a model without dropout whose weights are all far from 0."""
    return subject(recipe).perturbed(training=training, dropout=0.0)


def words(row: Any) -> list[int]:
    return [int(word) for word in row if word != PAD]


def sentences(batch: Batch) -> list[tuple[list[int], list[int], list[int]]]:
    return [(words(a), words(b), words(c)) for a, b, c in zip(*vars(batch).values(), strict=True)]


def difference(model: Seq2SeqModel, weights: Arrays, batch: Batch) -> float:
    """Return the largest difference between the model's and the reference's logits at real positions."""
    actual = model.logits(batch.source, batch.target_in)
    expected = [numpy_reference.logits(model.recipe, weights, source, fed) for source, fed, _ in sentences(batch)]
    return max(float(np.abs(row[: len(one)] - one).max()) for row, one in zip(actual, expected, strict=True))


# Logits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_logits_equal_numpy_reference(name: str) -> None:
    model = perturbed(RECIPES[name])
    assert difference(model, model.weights(), subject(RECIPES[name]).batch()) < 1e-5


@pytest.mark.parametrize("recipe", [BASE, REFERENCE, GRU, replace(BASE, ffn="gated", norm="rms", tying="output")])
def test_relative_error_of_a_thousandth_in_one_weight_fails(recipe: Recipe) -> None:
    model, batch = perturbed(recipe), subject(recipe).batch()
    if recipe is GRU:  # livelier, or the encoder hardly reaches the logits
        model.set_weights({name: 3 * value for name, value in model.weights().items()})
    weights, slopes, unnoticed = model.weights(), gradient(model, batch, Training()), []
    for name, value in weights.items():
        if name.endswith(".key.bias"):
            continue  # the same for every key, so the softmax takes it away
        wrong = value.copy()
        wrong[np.unravel_index(np.abs(slopes[name]).argmax(), value.shape)] += 1e-3
        if difference(model, {**weights, name: wrong}, batch) < 1e-5:
            unnoticed.append(name)
    assert not unnoticed


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BASE, REFERENCE),
        (BASE, PLAIN),
        (BASE, replace(BASE, ffn="conv1d")),
        (replace(BASE, norm_epsilon=1e-3), replace(BASE, norm_epsilon=1e-3, norm="handmade")),
    ],
    ids=["torch_reference = learned_positions", "plain = learned_positions", "conv1d = linear", "handmade = layernorm"],
)
def test_equivalent_recipes_agree(first: Recipe, second: Recipe) -> None:
    one, other, batch = perturbed(first), build(second), subject(first).batch()
    assert one.weights().keys() == other.weights().keys()
    other.set_weights(one.weights())
    real = batch.target_in != PAD
    actual, expected = (model.logits(batch.source, batch.target_in)[real] for model in (one, other))
    assert np.abs(actual - expected).max() < 1e-5
    actual, expected = (model.cross_attention(batch.source, batch.target_in) for model in (one, other))
    assert np.abs(np.moveaxis(actual - expected, 3, 1)[real]).max() < 1e-5


def test_norm_epsilon_changes_logits() -> None:
    one, other, batch = perturbed(BASE), build(replace(BASE, norm_epsilon=0.1)), subject(BASE).batch()
    other.set_weights(one.weights())
    assert difference(other, one.weights(), batch) < 1e-5
    assert np.abs(one.logits(batch.source, batch.target_in) - other.logits(batch.source, batch.target_in)).max() > 1e-2


# Positions ------------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_rotary_keeps_norms_and_depends_on_distance(first: int, second: int, moved: int, seed: int) -> None:
    import torch

    from impls.pytorch.attention import rotate

    query, key = torch.from_numpy(np.random.default_rng(seed).standard_normal((2, 1, 1, 1, 8)))

    def score(at: int, to: int) -> float:
        return float((rotate(query, torch.tensor([at])) * rotate(key, torch.tensor([to]))).sum())

    assert float(rotate(query, torch.tensor([first])).norm()) == pytest.approx(float(query.norm()), rel=1e-5)
    assert score(first + moved, second + moved) == pytest.approx(score(first, second), abs=1e-4)


@pytest.mark.parametrize(
    ("positions", "moves"), [("none", False), ("rotary", True), ("alibi", True), ("learned", True)]
)
def test_only_positions_distinguish_word_order(positions: Any, moves: bool) -> None:
    model = perturbed(replace(BASE, positions=positions))
    present = np.array([[SOS, 5, 6, 7, EOS]], np.int32)
    back = np.array([[SOS, 7, 6, 5, EOS]], np.int32)
    target_in = np.array([[SOS, 8]], np.int32)
    apart = np.abs(model.logits(present, target_in) - model.logits(back, target_in)).max()
    assert apart > 1e-3 if moves else apart < 1e-5


def test_alibi_slopes_equal_paper() -> None:
    import torch

    from impls.pytorch.attention import linear_biases

    bias = linear_biases(8, torch.arange(4), torch.arange(6))
    assert bias.shape == (1, 8, 4, 6)
    assert bias[0, :, 0, 1].tolist() == [-(0.5**h) for h in range(1, 9)]
    assert bias[0, 0, 3].tolist() == [-1.5, -1.0, -0.5, 0.0, -0.5, -1.0]


# Gradients and updates ------------------------------------------------------------------------------------------------


def mean_objective(
    recipe: Recipe, weights: Arrays, batch: Batch, training: Training, teacher_forced: list[bool]
) -> float:
    """Return the reference's objective: the mean over the batch's target tokens."""
    total = 0.0
    for source, fed, out in sentences(batch):
        if isinstance(recipe, GruRecipe):
            result = numpy_reference.gru(recipe, weights, source, fed, teacher_forced)
        else:
            result = numpy_reference.logits(recipe, weights, source, fed)
        total += numpy_reference.objective(result, out, training.label_smoothing)
    return total / batch.tokens


def gradient(model: Seq2SeqModel, batch: Batch, training: Training) -> Arrays:
    """Return the gradient of one update from zero moments."""
    model.train_step(batch, 0.0)
    state = model.training_state()
    return {name: state[f"first_moment/{name}"] / np.float32(1 - training.beta1) for name in model.weights()}


@pytest.mark.parametrize(
    ("recipe", "training"),
    [
        (BASE, UNCLIPPED),
        (replace(BASE, tying="all", norm="rms", ffn="gated", activation="silu", positions="rotary"), UNCLIPPED),
        (replace(BASE, norm_order="pre", norm="handmade", ffn="conv1d", activation="gelu"), UNCLIPPED),
        (replace(BASE, tying="output", positions="alibi", activation="tanh"), replace(UNCLIPPED, label_smoothing=0.0)),
        (REFERENCE, UNCLIPPED),
        (PLAIN, UNCLIPPED),
        (GRU, UNCLIPPED),
        (GRU, replace(UNCLIPPED, teacher_forcing=0.5)),
    ],
    ids=[
        "base",
        "tied rms gated rotary",
        "pre handmade conv1d",
        "tied alibi",
        "torch_reference",
        "plain",
        "gru",
        "gru teacher_forced",
    ],
)
def test_gradients_equal_finite_differences_of_reference(recipe: Recipe, training: Training) -> None:
    model, batch = perturbed(recipe, training), subject(recipe).batch(sentences=2)
    weights = {name: value.astype(np.float64) for name, value in model.weights().items()}
    teacher_forced = training.teacher_forcing_mask(0, 1, batch.target_in.shape[1]).tolist()
    generator = np.random.default_rng(0)
    for name, actual in gradient(model, batch, training).items():
        largest = np.unravel_index(np.abs(actual).argmax(), actual.shape)
        for place in (largest, tuple(generator.integers(0, actual.shape))):
            expected = _slope(
                lambda moved: mean_objective(recipe, moved, batch, training, teacher_forced), weights, name, place
            )
            assert actual[place] == pytest.approx(expected, rel=1e-3, abs=1e-3 * float(np.abs(actual).max()) + 1e-7), (
                name
            )


def _slope(function: Any, weights: Arrays, name: str, place: Any, step: float = 1e-5) -> float:
    values = []
    for sign in (1, -1):
        moved = weights[name].copy()
        moved[place] += sign * step
        values.append(function({**weights, name: moved}))
    return (values[0] - values[1]) / (2 * step)


def test_teacher_forcing_0_feeds_own_tokens() -> None:
    """The mask of the first update decides what the decoder reads; it changes the loss as the reference says."""
    training = Training(teacher_forcing=0.0)
    model, batch = perturbed(GRU, training), subject(GRU).batch()
    model.train_step(batch, 0.0)
    result = model.take_totals().nats / batch.tokens
    own = mean_objective(GRU, model.weights(), batch, training, [False] * 20)
    message = mean_objective(GRU, model.weights(), batch, training, [True] * 20)
    assert result == pytest.approx(own, rel=1e-5)
    assert abs(own - message) > 1e-3


@pytest.mark.parametrize("coefficients", [{}, {"beta1": 0.8, "beta2": 0.98, "epsilon": 1e-3}])
def test_updates_equal_adam(coefficients: dict[str, float]) -> None:
    training = Training(clip_norm=None, **coefficients)
    model, batches = perturbed(BASE, training), [subject(BASE).batch(seed) for seed in range(3)]
    start, gradients = model.weights(), []
    for batch in batches:
        probe = build(BASE, training=training)
        probe.set_weights(model.weights())
        gradients.append(gradient(probe, batch, training))
        model.train_step(batch, 1e-3)
    used = {name: getattr(training, name) for name in ("beta1", "beta2", "epsilon")}
    for name, actual in model.weights().items():
        own = [one[name].astype(np.float64) for one in gradients]
        expected = numpy_reference.adam(start[name].astype(np.float64), own, rate=1e-3, **used)
        # Where a gradient is nothing but rounding, Adam makes a step of it that no two computations share.
        real = np.abs(own).min(axis=0) > 1e-6
        assert np.abs(actual - expected)[real].max(initial=0) < 2e-6, name


def test_clipping_scales_all_gradients_to_norm() -> None:
    batch = subject(BASE).batch()
    free = gradient(perturbed(BASE, UNCLIPPED), batch, UNCLIPPED)
    norm = float(np.sqrt(sum((value.astype(np.float64) ** 2).sum() for value in free.values())))
    for clip_norm, scale in ((norm / 4, 0.25), (norm * 4, 1.0)):
        training = replace(UNCLIPPED, clip_norm=clip_norm)
        model = perturbed(BASE, training)
        clipped = gradient(model, batch, training)
        assert model.take_totals().largest_gradient_norm == pytest.approx(norm, rel=1e-5)
        for name, value in free.items():
            assert clipped[name] == pytest.approx(scale * value, rel=1e-4, abs=1e-8), name


def test_tied_embedding_gradient_sums_all_uses() -> None:
    """The gradient of a tied tensor is the sum of the gradients of its uses."""
    batch = subject(replace(BASE, tying="all")).batch()
    tied = perturbed(replace(BASE, tying="all"), UNCLIPPED)
    parts = gradient(_untied(tied), batch, UNCLIPPED)
    actual = gradient(tied, batch, UNCLIPPED)["target.embedding"]
    expected = parts["source.embedding"] + parts["target.embedding"] + parts["output.kernel"].T
    assert np.abs(actual - expected).max() < 1e-6


def _untied(tied: Seq2SeqModel) -> Seq2SeqModel:
    """Return an untied model of the same function."""
    recipe, shared = replace(tied.recipe, tying="none"), tied.weights()["target.embedding"]
    model = impls.build(recipe, SOURCE_VOCABULARY_SIZE, SOURCE_VOCABULARY_SIZE, training=UNCLIPPED)
    model.set_weights({**tied.weights(), "source.embedding": shared, "output.kernel": shared.T})
    return model
