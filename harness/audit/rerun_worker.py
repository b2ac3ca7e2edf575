"""The process that trains a run again for its first updates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from harness.experiments.specs import spec_from_json
from harness.processes import json_process


def retrain(spec: dict[str, Any], updates: int, digests: dict[str, Any]) -> dict[str, Any]:
    """Train a run from the beginning; `digests` are those of its corpus files.

    Returns:
        `batches` and `weights_after` as in the fingerprints of a record, by number of updates; `loss`, the mean
        objective over all target tokens in nats; and `environment`, that of this process.

    Raises:
        ValueError: The corpus or the model cannot be built here.
    """
    from harness.data.dataset import prepare
    from harness.processes import machine
    from harness.training.checkpoint import TrainingState
    from harness.training.divergence import finite
    from harness.training.loop import TrainingLoop
    from harness.training.train import build_model

    run = spec_from_json(spec)
    dataset = prepare(run.data, digests)
    state = TrainingState(started="", data="")
    loop = TrainingLoop(replace(run, updates=updates), dataset, build_model(run, dataset), state)
    nats = 0.0
    while state.updates < loop.updates:
        loop.train_epoch()
        assert state.totals is not None
        nats += state.totals.objective_nats if state.totals.finite else math.nan
        state.epochs += 1
    return {
        "batches": state.batches.marks,
        "weights_after": state.weights_after,
        "loss": finite(nats / max(1, state.tokens)),
        "environment": machine.environment(run),
    }


if __name__ == "__main__":
    json_process.serve({"retrain": retrain})
