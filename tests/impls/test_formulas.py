"""Schedules, sinusoids, activations and masks against directly written formulas."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from harness.training.schedules import learning_rate
from impls import formulas
from impls.contract import Activation, Training


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (Training(peak_rate=5e-4), {1: 5e-4, 2: 5e-4, 999: 5e-4, 10**6: 5e-4}),
        (Training(peak_rate=2e-3, warmup_updates=4), {1: 5e-4, 2: 1e-3, 3: 1.5e-3, 4: 2e-3, 5: 2e-3, 100: 2e-3}),
        (Training(schedule="inverse_sqrt", peak_rate=0.0, warmup_updates=9), {3: 0.0}),
    ],
    ids=["constant", "constant after warm-up", "peak of 0"],
)
def test_learning_rate_known_values(training: Training, expected: dict[int, float]) -> None:
    assert {update: learning_rate(training, update) for update in expected} == pytest.approx(expected)


def test_inverse_sqrt_schedule_equals_vaswani_equation_3() -> None:
    width, warmup = 256, 1_267
    training = Training(schedule="inverse_sqrt", peak_rate=(width * warmup) ** -0.5, warmup_updates=warmup)
    for update in (1, 17, warmup - 1, warmup, warmup + 1, 5_000):
        expected = width**-0.5 * min(update**-0.5, update * warmup**-1.5)
        assert learning_rate(training, update) == pytest.approx(expected, rel=1e-12)


def test_sinusoids_interleave_sine_and_cosine() -> None:
    angles = [[position / 10_000 ** (2 * pair / 6) for pair in range(3)] for position in range(7)]
    expected = [[wave(angle) for angle in row for wave in (math.sin, math.cos)] for row in angles]
    np.testing.assert_allclose(formulas.sinusoids(7, 6), expected, rtol=0, atol=1e-15)


def test_activation_known_values() -> None:
    assert formulas.activation("relu", [-2.0, 0.0, 3.0]).tolist() == [0, 0, 3]
    assert formulas.activation("gelu", [-1.0, 0.0, 1.0]) == pytest.approx([-0.15865525393, 0, 0.84134474607])
    assert formulas.activation("silu", [-1.0, 0.0, 1.0]) == pytest.approx([-1 / (1 + math.e), 0, math.e / (1 + math.e)])
    assert formulas.activation("tanh", 1.0) == pytest.approx((math.e**2 - 1) / (math.e**2 + 1))


@pytest.mark.parametrize("name", get_args(Activation))
def test_activation_derivative_equals_slope_and_large_input_stays_finite(name: Activation) -> None:
    x, step = np.linspace(-5, 5, 100), 1e-6  # an even count: 0, where relu has no slope, is not among them
    slopes = (formulas.activation(name, x + step) - formulas.activation(name, x - step)) / (2 * step)
    assert formulas.activation_derivative(name, x) == pytest.approx(slopes, abs=1e-8)
    for function in (formulas.activation, formulas.activation_derivative):
        assert np.isfinite(function(name, np.array([-1e4, 1e4]))).all()


def test_masks_follow_rule() -> None:
    sources, targets = np.array([2, 4, 1]), np.array([3, 1, 2])
    masks = formulas.masks(sources.tolist(), targets.tolist())
    positions = np.arange(4)
    visible = positions < sources[:, None]
    causal = (positions[:3] <= positions[:3, None]) & (positions[:3] < targets[:, None, None])
    assert np.array_equal(masks.encoder, visible)
    assert np.array_equal(masks.cross, np.repeat(visible[:, None], 3, axis=1))
    assert np.array_equal(masks.decoder, causal)
