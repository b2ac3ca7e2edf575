"""Law 14: one update does what Adam, clipping, the loss and dropout are defined to do, seen through the training state.

Moments and weights before and after an update say which gradient was applied; its direction and length are compared
with finite differences of the loss, computed from the logits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from harness.conformance.assertions import hold, near, objective_nats
from harness.conformance.dropout_law import dropout
from harness.conformance.models_under_test import ModelUnderTest, Probe
from impls.contract import Arrays, Batch, Seq2SeqModel, Training

Reals = npt.NDArray[np.float64]
Gradient = dict[str, Reals]

ADAM = Training(beta1=0.8, beta2=0.95, epsilon=1e-3, label_smoothing=0.1)
"""Not the defaults, so that a default used in place of a setting shows; epsilon is as large as the gradients."""

RATES = (1e-3, 3e-2, 2e-4)
MOMENTS = 1e-4
"""How far, relative to a tensor's largest, a second moment may be from its formula."""

STEPS = (1e-2, 2.5e-3)
"""Lengths of the steps of finite differences; the shorter one is tried where the longer one does not agree."""

DIFFERENCE = 2e-2
"""How far, relatively, a gradient along a direction may be from a finite difference."""

FLOOR = 3e-4
"""The same, absolutely: rounding of a loss in float32 divided by the step."""


def update(subject: ModelUnderTest) -> str:
    """14: an update is one Adam step along the clipped gradient of the mean loss, with dropout at the right rates."""
    _adam(subject)
    small, real = subject.probes()
    _loss_gradient(subject, small, by_sublayer if subject.fast else by_tensor)
    _loss_gradient(subject, real, by_part)
    _clipping(subject, real.batch)
    return dropout(subject)


# Adam -----------------------------------------------------------------------------------------------------------------


def _adam(subject: ModelUnderTest) -> None:
    """Hold that moments and weights follow the formulas at every rate.

    Source: Kingma and Ba 2015, algorithm 1.
    """
    model = subject.perturbed(training=ADAM)
    before = model.training_state()
    for count, rate in enumerate(RATES, start=1):
        model.train_step(subject.realistic_batch(count) if count % 2 else subject.batch(count), rate)
        after = model.training_state()
        hold(int(after["updates"]) == count, f"updates is {after['updates']} after {count} updates")
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
    _largest(f"second moment {where}", new[2], second, MOMENTS * float(second.max(initial=0.0)))
    corrected = new[1] / (1 - ADAM.beta1**count), new[2] / (1 - ADAM.beta2**count)
    change = -rate * corrected[0] / (np.sqrt(corrected[1]) + ADAM.epsilon)
    rounding = 4 * np.finfo(np.float32).eps * (np.abs(old[0]).max(initial=0.0) + rate)
    tolerance = float(rounding + 1e-4 * np.abs(change).max(initial=0.0))
    _largest(f"change {where} at rate {rate:g}", new[0] - old[0], change, tolerance)


def _largest(what: str, found: Reals, expected: Reals, tolerance: float) -> None:
    """Hold that two arrays agree; say how where they differ most."""
    differences = np.abs(found - expected)
    if not bool((differences <= tolerance).all()):
        place = np.unravel_index(int(np.nanargmax(np.where(np.isnan(differences), np.inf, differences))), found.shape)
        near(what, float(found[place]), float(expected[place]), tolerance)


# The gradient ---------------------------------------------------------------------------------------------------------


def applied(model: Seq2SeqModel, batch: Batch, training: Training) -> Gradient:
    """Return the gradient of a model's first update, which is made at rate 0, in float64."""
    model.train_step(batch, 0.0)
    state = model.training_state()
    share = 1 - training.beta1
    return {name: state[f"first_moment/{name}"].astype(np.float64) / share for name in model.weights()}


def norm(arrays: Gradient) -> float:
    """Return the length of all arrays as one vector."""
    return float(np.sqrt(sum(float((one**2).sum()) for one in arrays.values())))


def by_tensor(names: list[str]) -> dict[str, list[str]]:
    """Return each tensor as a group of its own."""
    return {name: [name] for name in names}


def by_sublayer(names: list[str]) -> dict[str, list[str]]:
    """Return the tensors of each sublayer, embedding or other part of a model as groups."""
    return _by(r"(encoder|decoder)\.\d+\.\w+|[^.]+", names)


def by_part(names: list[str]) -> dict[str, list[str]]:
    """Return the tensors of each layer, embedding or other part of a model as groups, and all together as one."""
    return {"all weights": names, **_by(r"(encoder|decoder)\.\d+|[^.]+", names)}


def _by(pattern: str, names: list[str]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for name in names:
        found = re.match(pattern, name)
        parts.setdefault(found[0] if found else name, []).append(name)
    return parts


def _loss_gradient(subject: ModelUnderTest, probe: Probe, grouped: Callable[[list[str]], dict[str, list[str]]]) -> None:
    """Hold that the gradient agrees with finite differences of the mean loss, and its norm with the totals."""
    training = Training(clip_norm=None, label_smoothing=0.1)
    model = subject.perturbed(training=training, dropout=0.0)
    own, gradient = model.weights(), applied(model, probe.batch, training)
    length, told = norm(gradient), model.take_totals().largest_gradient_norm
    near(f"totals.largest_gradient_norm of {probe.name}", told, length, 1e-4 * length)

    def loss(shift: Gradient, step: float) -> float:
        moved = {name: (own[name] + step * shift[name]).astype(np.float32) for name in shift}
        model.set_weights({**own, **moved})
        logits = model.logits(probe.batch.source, probe.batch.target_in)
        return objective_nats(logits, probe.batch.target_out, training.label_smoothing) / probe.batch.tokens

    lost = {name: [name] for name in own if not gradient[name].any()}  # each alone, so that no other one hides it
    for part, names in {**grouped([name for name in own if name not in lost]), **lost}.items():
        shift = _direction(gradient, names)
        found, tolerance, expected = sum(float((gradient[name] * one).sum()) for name, one in shift.items()), 0.0, 0.0
        for step in STEPS:
            expected = (loss(shift, step) - loss(shift, -step)) / (2 * step)
            tolerance = DIFFERENCE * max(abs(expected), abs(found)) + FLOOR
            if abs(found - expected) <= tolerance:
                break
        near(f"gradient of {part} along a direction, {probe.name},", found, expected, tolerance)


def _direction(gradient: Gradient, names: list[str]) -> Gradient:
    """Return a vector of length 1: in every tensor half along its gradient, if that is not 0, and half at random."""
    generator, found = np.random.default_rng(len(names)), {}
    for name in names:
        along, across = gradient[name], generator.standard_normal(gradient[name].shape)
        found[name] = along / max(float(np.linalg.norm(along)), 1e-30) + across / float(np.linalg.norm(across))
    length = norm(found)
    return {name: one / length for name, one in found.items()}


def _clipping(subject: ModelUnderTest, batch: Batch) -> None:
    """Hold that a gradient longer than the limit is scaled to it as a whole, and a shorter one is left alone."""

    def at(limit: float | None) -> Gradient:
        training = replace(Training(label_smoothing=0.1), clip_norm=limit)
        return applied(subject.perturbed(training=training, dropout=0.0), batch, training)

    free = at(None)
    length = norm(free)
    for share in (0.4, 2.5):
        expected = min(1.0, share)
        for name, found in at(share * length).items():
            scale = float(np.abs(free[name]).max(initial=0.0))
            what = f"gradient of {name} with clip_norm {share:g} times its norm"
            _largest(what, found, expected * free[name], 1e-3 * scale + 1e-6 * length)
