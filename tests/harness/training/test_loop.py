"""The training loop with a model that computes nothing: rates, losses, early stops and averages."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from record_factory import record
from small_runs import TRAINING, UPDATES_PER_EPOCH, spec

from harness.data.dataset import prepare
from harness.training import throughput
from harness.training.checkpoint import TrainingState
from harness.training.loop import TrainingLoop
from impls.contract import PAD, Arrays, Batch, Numbers, Totals

pytestmark = pytest.mark.usefixtures("cache")


class Recorder:
    """A model that keeps the learning rates; every target token costs 2 nats."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.tokens = 0

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.rates.append(learning_rate)
        self.tokens += batch.tokens

    def take_totals(self) -> Totals:
        return Totals(3.0 * self.tokens, 1.5 * self.tokens, self.tokens, len(self.rates), 0.5, True)

    def token_nats(self, batch: Batch) -> Numbers:
        return np.where(batch.target_out == PAD, 0, 2).astype(np.float32)

    def weights(self) -> Arrays:
        return {"output.bias": np.zeros(1, np.float32)}

    def synchronize(self) -> None: ...


def loop_of(updates: int | None = None, **training: Any) -> tuple[TrainingLoop, Recorder]:
    """Return a loop at its first update, and its model."""
    run = spec(training=replace(TRAINING, **training), updates=updates)
    model = Recorder()
    return TrainingLoop(run, prepare(run.data), model, TrainingState("today", "digest")), model  # type: ignore[arg-type]


def test_train_gives_each_update_the_rate_of_its_number() -> None:
    loop, model = loop_of(schedule="inverse_sqrt", warmup_updates=5, epochs=2)
    assert loop.train() == ""
    updates = range(1, 2 * UPDATES_PER_EPOCH + 1)
    assert model.rates == pytest.approx([1e-2 * min(update / 5, math.sqrt(5 / update)) for update in updates])


def test_epochs_have_the_rate_of_their_last_update() -> None:
    loop, model = loop_of(schedule="inverse_sqrt", warmup_updates=5, epochs=2)
    loop.train()
    assert [epoch.learning_rate for epoch in loop.state.curve] == model.rates[
        UPDATES_PER_EPOCH - 1 :: UPDATES_PER_EPOCH
    ]


def test_epochs_have_the_seconds_of_their_own_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: float(next(clock)))
    loop, _ = loop_of(epochs=3)
    loop.train()
    _, second, third = (epoch.training_seconds for epoch in loop.state.curve)
    assert second == third


def test_train_epoch_has_the_objective_as_its_loss_and_the_perplexity_of_the_words() -> None:
    """With label smoothing the objective is larger than the negative log-likelihood."""
    loop, _ = loop_of(label_smoothing=0.1, epochs=1)
    loop.train()
    (epoch,) = loop.state.curve
    assert (epoch.training_loss, epoch.validation_loss) == (3.0, 2.0)
    assert epoch.training_perplexity == pytest.approx(math.exp(1.5))
    assert epoch.validation_perplexity == pytest.approx(math.exp(2.0))


@pytest.mark.parametrize(("epochs", "stopped"), [(4, 3), (3, None)])
def test_stopped_epoch_at_the_planned_end_is_none(epochs: int, stopped: int | None) -> None:
    loop, _ = loop_of(patience=2, epochs=epochs)
    lines = record().curve
    loop.state.curve += [
        replace(line, validation_loss=loss) for line, loss in zip(lines, (1.0, 1.1, 1.2), strict=False)
    ]
    assert loop.stopped_epoch == stopped


def test_kept_weights_are_the_mean_of_the_epochs_that_there_were() -> None:
    """A limit of updates ends the run before as many epochs as are averaged."""
    loop, model = loop_of(updates=2 * UPDATES_PER_EPOCH, averaged_epochs=3, epochs=3)
    model.weights = lambda: {"output.bias": np.full(1, loop.state.epochs, np.float32)}  # type: ignore[method-assign]
    loop.train()
    assert loop.state.chosen == [1, 2]
    assert loop.kept_weights()["output.bias"] == pytest.approx((1 + 2) / 2)
