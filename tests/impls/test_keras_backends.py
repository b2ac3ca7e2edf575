"""The torch backend of Keras, in a process of its own because a process has one backend."""

from __future__ import annotations

import os
import subprocess
import sys

from places import ROOT

SCRIPT = """
from small_models import BASE, SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, batch_of_lengths
import impls

sizes = SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE
model = impls.build(BASE, *sizes, training=impls.Training(), framework="keras")
model.train_step(batch_of_lengths((3, 4), (5, 2)), 1e-3)
tensors = [*model.held.weights, *(tensor for update, _ in model._sums for tensor in update)]
print(sum(tensor.grad_fn is not None for tensor in tensors), len(tensors))
"""
"""What is kept after an update must not hold on to the graph of its gradients, which holds the weights before it."""


def test_what_an_update_leaves_keeps_no_graph() -> None:
    paths = [str(ROOT), str(ROOT / "tests" / "fixtures")]
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", SCRIPT]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    attached, tensors = map(int, process.stdout.split())
    assert tensors > 10, process.stderr
    assert attached == 0
