"""Law 14: an update follows the definitions of Adam, clipping, loss and dropout, judged by the training state.

Moments and weights before and after an update determine the applied gradient; its direction and length are compared
with finite differences of the loss, computed from the logits.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from harness.conformance.assertions import assert_close, assert_near, objective_nats, require
from harness.conformance.dropout_law import dropout
from harness.conformance.models_under_test import ModelUnderTest, Probe
from harness.text import first_few
from impls.contract import Arrays, Batch, Seq2SeqModel, Training

Reals = npt.NDArray[np.float64]
Gradient = dict[str, Reals]

ADAM = Training(beta1=0.8, beta2=0.95, epsilon=1e-3, label_smoothing=0.1)
"""Not the defaults, so that ignored settings are detected; epsilon is as large as the gradients."""

RATES = (1e-3, 3e-2, 2e-4)
MOMENTS = 1e-4
"""Tolerance of second moments, relative to the largest of the tensor."""

STEPS = (1e-2, 2.5e-3, 6e-4)
"""Step lengths of finite differences; a shorter one is used if the longer ones disagree, as in wide models."""

DIFFERENCE = 2e-2
"""Relative tolerance between a gradient along a direction and a finite difference."""

FLOOR = 3e-4
"""Absolute tolerance of the same: float32 rounding of a loss divided by the step."""

TENSOR, SUBLAYER, LAYER = r".*", r"(encoder|decoder)\.\d+\.\w+|[^.]+", r"(encoder|decoder)\.\d+|[^.]+"
"""Patterns of the names of tensors whose gradients are tested together; with `LAYER` also all tensors at once."""


def update(subject: ModelUnderTest) -> str:
    """14: an update is one Adam step along the clipped gradient of the mean loss, with dropout at the right rates."""
    _adam(subject)
    small, real = subject.probes()
    unused = _loss_gradient(subject, small, SUBLAYER if subject.fast else TENSOR)
    unused &= _loss_gradient(subject, real, LAYER)
    _clipping(subject, real.batch)
    remark = f"the loss does not depend on {first_few(sorted(unused), 4)}" if unused else ""
    return "; ".join(filter(None, [remark, dropout(subject)]))


# Adam -----------------------------------------------------------------------------------------------------------------


def _adam(subject: ModelUnderTest) -> None:
    """Require that moments and weights follow the formulas at every rate.

    Source: Kingma and Ba 2015, algorithm 1.
    """
    model = subject.perturbed(training=ADAM)
    before = model.training_state()
    for count, rate in enumerate(RATES, start=1):
        model.train_step(subject.realistic_batch(count) if count % 2 else subject.batch(count), rate)
        after = model.training_state()
        require(int(after["updates"]) == count, f"updates is {after['updates']} after {count} updates")
        for name in model.weights():
            _adam_step(name, before, after, count, rate)
        before = after


def _adam_step(name: str, before: Arrays, after: Arrays, count: int, rate: float) -> None:
    old, new = (
        [state[f"{kind}/{name}"].astype(np.float64) for kind in ("weights", "first_moment", "second_moment")]
        for state in (before, after)
    )
    gradient = (new[1] - ADAM.beta1 * old[1]) / (1 - ADAM.beta1)
    second = ADAM.beta2 * old[2] + (1 - ADAM.beta2) * gradient**2
    where = f"of {name} after update {count}"
    assert_close(f"second moment {where}", new[2], second, MOMENTS * float(second.max(initial=0.0)))
    corrected = new[1] / (1 - ADAM.beta1**count), new[2] / (1 - ADAM.beta2**count)
    change = -rate * corrected[0] / (np.sqrt(corrected[1]) + ADAM.epsilon)
    rounding = 4 * np.finfo(np.float32).eps * (np.abs(old[0]).max(initial=0.0) + rate)
    tolerance = float(rounding + 1e-4 * np.abs(change).max(initial=0.0))
    assert_close(f"change {where} at rate {rate:g}", new[0] - old[0], change, tolerance)


# The gradient ---------------------------------------------------------------------------------------------------------


def applied(model: Seq2SeqModel, batch: Batch, training: Training) -> Gradient:
    """Make a model's first update, at rate 0, and return its gradient in float64."""
    model.train_step(batch, 0.0)
    state = model.training_state()
    share = 1 - training.beta1
    return {name: state[f"first_moment/{name}"].astype(np.float64) / share for name in model.weights()}


def norm(arrays: Gradient) -> float:
    """Return the norm of all arrays as one vector."""
    return float(np.sqrt(sum(float((array**2).sum()) for array in arrays.values())))


def grouped(names: list[str], pattern: str) -> dict[str, list[str]]:
    """Group tensors by the part of their names that matches a pattern."""
    parts: dict[str, list[str]] = {}
    for name in names:
        match = re.match(pattern, name)
        parts.setdefault(match[0] if match else name, []).append(name)
    return parts


def _loss_gradient(subject: ModelUnderTest, probe: Probe, pattern: str) -> set[str]:
    """Require that the gradient agrees with finite differences of the mean loss, and its norm with the totals.

    Returns the names of the weights whose gradient is 0.
    """
    training = Training(clip_norm=None, label_smoothing=0.1)
    model = subject.perturbed(training=training, dropout=0.0)
    weights, gradient = model.weights(), applied(model, probe.batch, training)
    length, reported = norm(gradient), model.take_totals().largest_gradient_norm
    assert_near(f"totals.largest_gradient_norm of {probe.name}", reported, length, 1e-4 * length)

    def loss(shift: Gradient, step: float) -> float:
        moved = {name: (weights[name] + step * shift[name]).astype(np.float32) for name in shift}
        model.set_weights({**weights, **moved})
        logits = model.logits(probe.batch.source, probe.batch.target_in)
        return objective_nats(logits, probe.batch.target_out, training.label_smoothing) / probe.batch.tokens

    moving = [name for name in weights if gradient[name].any()]
    parts = ({"all weights": moving} if pattern == LAYER else {}) | grouped(moving, pattern)
    parts |= {name: [name] for name in weights if name not in moving}  # separately, so that no other tensor hides them
    shifts = {part: _direction(gradient, names) for part, names in parts.items()}
    if pattern == LAYER:  # on a realistic batch, which has every ordinary token
        shifts |= _still_elements({name: gradient[name] for name in moving})
    for part, shift in shifts.items():
        slope = sum(float((gradient[name] * direction).sum()) for name, direction in shift.items())
        for step in STEPS:
            expected = (loss(shift, step) - loss(shift, -step)) / (2 * step)
            tolerance = DIFFERENCE * max(abs(expected), abs(slope)) + FLOOR
            if abs(slope - expected) <= tolerance:
                break
        else:
            require(slope != 0, f"{part} gets no gradient, although the loss of {probe.name} depends on it")
        assert_near(f"gradient of {part} along a direction, {probe.name},", slope, expected, tolerance)
    return weights.keys() - moving


def _direction(gradient: Gradient, names: list[str]) -> Gradient:
    """Return a unit vector: in every tensor half along its gradient, if that is not 0, and half random.

    The random half never points against the gradient: in a tensor of one number it would cancel the other half.
    """
    generator, directions = np.random.default_rng(len(names)), {}
    for name in names:
        along, across = gradient[name], generator.standard_normal(gradient[name].shape)
        across *= -1 if (along * across).sum() < 0 else 1
        directions[name] = along / max(float(np.linalg.norm(along)), 1e-30) + across / float(np.linalg.norm(across))
    length = norm(directions)
    return {name: direction / length for name, direction in directions.items()}


def _still_elements(gradient: Gradient) -> dict[str, Gradient]:
    """Return a direction along the elements of each tensor that get no gradient, such as the row of a `padding_idx`."""
    shifts = {}
    for name, values in gradient.items():
        still = values == 0
        if still.any():
            direction = np.where(still, np.random.default_rng(values.size).standard_normal(values.shape), 0.0)
            shifts[f"a part of {name}"] = {name: direction / float(np.linalg.norm(direction))}
    return shifts


def _clipping(subject: ModelUnderTest, batch: Batch) -> None:
    """Require that a gradient longer than the limit is scaled to it, and a shorter one is unchanged.

    The norm in the totals is that before clipping.
    """

    def at(limit: float | None) -> tuple[Gradient, float]:
        training = replace(Training(label_smoothing=0.1), clip_norm=limit)
        model = subject.perturbed(training=training, dropout=0.0)
        return applied(model, batch, training), model.take_totals().largest_gradient_norm

    free, _ = at(None)
    length = norm(free)
    for share in (0.4, 2.5):
        expected = min(1.0, share)
        where = f"with clip_norm {share:g} times the norm"
        gradient, reported = at(share * length)
        for name, clipped in gradient.items():
            scale = float(np.abs(free[name]).max(initial=0.0))
            tolerance = 1e-3 * scale + 1e-6 * length
            assert_close(f"gradient of {name} {where}", clipped, expected * free[name], tolerance)
        assert_near(f"totals.largest_gradient_norm {where}, before clipping,", reported, length, 1e-4 * length)
