"""The process that trains a run again for its first updates, and reports the digests of its batches and weights.

It reads one line of JSON from standard input (`spec`, `updates`, and the digests of its `files`) and writes one to
standard output.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from harness.experiments.specs import RunSpec, spec_from_json


def retrain(spec: RunSpec, updates: int, digests: dict[str, Any]) -> dict[str, Any]:
    """Train a run from its beginning for so many updates; `digests` are those of the files it was trained on.

    Returns:
        `batches` and `weights_after` as in the fingerprints of a record, by number of updates; `loss`, the mean
        objective over all target tokens in nats; and `environment`, that of this process.

    Raises: ValueError where the corpus or the model cannot be built here.
    """
    from harness.data.batch_digest import WEIGHTS_MARK, ConsumedBatches, weights_digest
    from harness.data.batches import training_batches
    from harness.data.dataset import prepare
    from harness.processes import machine
    from harness.training.schedules import learning_rate
    from harness.training.train import build_model

    prepared = prepare(spec.data, digests)
    model = build_model(spec, prepared)
    consumed, weights, epoch = ConsumedBatches(), {}, 0
    while consumed.updates < updates and len(prepared.train):
        for batch in training_batches(prepared.train, spec.training, seed=spec.seed, epoch=epoch):
            consumed.add(batch)
            model.train_step(batch, learning_rate(spec.training, consumed.updates))
            if consumed.updates in (WEIGHTS_MARK, updates):
                weights[str(consumed.updates)] = weights_digest(model.weights())
            if consumed.updates == updates:
                break
        epoch += 1
    consumed.mark()
    totals = model.take_totals()
    return {
        "batches": consumed.marks,
        "weights_after": weights,
        "loss": totals.objective_nats / max(1, consumed.target_tokens) if totals.finite else None,
        "environment": machine.environment(spec),
    }


def main() -> int:
    """Train what a line of standard input names. Returns 0, or 2 with a line on standard error where it cannot."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get into the answer
    given = json.loads(sys.stdin.readline())
    try:
        answer = retrain(spec_from_json(given["spec"]), int(given["updates"]), given["files"])
    except ValueError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 2
    with answers:
        answers.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
