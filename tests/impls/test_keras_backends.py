"""Backends of Keras, each in a process of its own because a process has one backend."""

from __future__ import annotations

import os
import subprocess
import sys

from places import ROOT

BUILD = """
from small_models import BASE, SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, batch_of_lengths
import impls

sizes = SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE
model = impls.build(BASE, *sizes, training=impls.Training(), framework="keras")
model.train_step(batch_of_lengths((3, 4), (5, 2)), 1e-3)
"""

COUNT_ATTACHED = """
tensors = [*model.held.weights, *(tensor for update, _ in model._sums for tensor in update)]
print(sum(tensor.grad_fn is not None for tensor in tensors), len(tensors))
"""

COUNT_COMPILATIONS = """
second = impls.build(BASE, *sizes, training=impls.Training(), framework="keras", seed=1)
print(model.compilation().count, second.compilation().count)
"""


def numbers(backend: str, script: str) -> list[int]:
    """Return the numbers that a script prints after the first update of a model."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "fixtures")])
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": paths}
    command = [sys.executable, "-c", BUILD + script]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return [int(word) for word in process.stdout.split()]


def test_what_an_update_leaves_keeps_no_graph() -> None:
    """The graph of an update's gradients holds the weights before it."""
    attached, tensors = numbers("torch", COUNT_ATTACHED)
    assert tensors > 10
    assert attached == 0


def test_compilations_of_an_earlier_model_are_not_counted_again() -> None:
    assert numbers("jax", COUNT_COMPILATIONS) == [1, 0]
