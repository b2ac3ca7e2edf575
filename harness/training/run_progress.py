"""Reports how far a run is and estimates the time that it still needs."""

from __future__ import annotations

import math
import time

from harness.processes.progress import Event, Progress, Stage
from harness.storage.records import EpochRecord
from harness.training.divergence import finite
from harness.training.loop import TrainingLoop
from harness.training.schedules import learning_rate
from impls.contract import NO_TOTALS, Observable

EVENT_SECONDS = 0.5
"""The shortest time between two events without a remark."""

TRANSLATION_VALIDATIONS = 8
"""One greedy translation of the test set takes about as long as 8 validations. Used only to estimate the time left."""


class RunProgress:
    """Reports the state of a training loop as events. It measures nothing, and waits for nothing but the loss.

    `with_loss` is whether to report the training loss of models that are `Observable`, for which it waits.
    """

    def __init__(self, loop: TrainingLoop, report: Progress, *, with_loss: bool = False) -> None:
        self._loop, self._report = loop, report
        self._observed = loop.model if with_loss and isinstance(loop.model, Observable) else None
        self._totals = self._observed.peek_totals() if self._observed else NO_TOTALS
        self._epochs = loop.state.epochs
        self._reported = 0.0
        self._translation_began = 0.0

    def start_translation(self) -> None:
        """Report that the test set is being translated."""
        self._translation_began = time.perf_counter()
        self.report("translating", now=True)

    def translated(self, sentences: int) -> None:
        """Report that this number of test sentences has been translated."""
        elapsed = time.perf_counter() - self._translation_began
        remaining = len(self._loop.dataset.test) - sentences
        self.report("translating", remaining_seconds=elapsed * remaining / sentences)

    def report(
        self,
        stage: Stage,
        *,
        remaining_seconds: float | None = None,
        now: bool = False,
        remark: str = "",
        finished_epoch: EpochRecord | None = None,
    ) -> None:
        """Report where the run is, unless it was reported less than `EVENT_SECONDS` ago.

        With `now` or a `remark`, a line for the log, it is reported in any case. Without `remaining_seconds` they are
        estimated from the throughput so far.
        """
        moment = time.perf_counter()
        if not (now or remark) and moment - self._reported < EVENT_SECONDS:
            return
        self._reported = moment
        loop, state, throughput = self._loop, self._loop.state, self._loop.throughput
        tokens, elapsed = state.steady_tokens + throughput.tokens, state.steady_seconds + throughput.seconds
        estimate = self._estimate(state.steady_updates + throughput.updates, elapsed)
        trains = stage == "training" and finished_epoch is None
        event = Event(
            run=loop.spec.id,
            stage=stage,
            epoch=min(state.epochs + (not remark), loop.epochs),
            epochs=loop.epochs,
            updates=state.updates,
            all_updates=loop.updates,
            tokens_per_second=tokens / elapsed if elapsed > 0 and tokens > 0 else None,
            remaining_seconds=estimate if remaining_seconds is None else remaining_seconds,
            remark=remark,
            learning_rate=learning_rate(loop.spec.training, state.updates) if trains else None,
            training_loss=self._loss() if trains else None,
            finished_epoch=finished_epoch,
        )
        self._report(event)

    def _loss(self) -> float | None:
        """Return the loss of the updates of this epoch since the last call; None if it cannot be read."""
        if self._observed is None:
            return None
        before = self._totals if self._loop.state.epochs == self._epochs else NO_TOTALS
        self._totals, self._epochs = self._observed.peek_totals(), self._loop.state.epochs
        tokens = self._totals.tokens - before.tokens
        return finite((self._totals.objective_nats - before.objective_nats) / tokens) if tokens else None

    def _estimate(self, updates: int, elapsed: float) -> float | None:
        """Return the seconds left for updates, validations and the translation; None before the second update."""
        loop, state = self._loop, self._loop.state
        if updates < 1 or elapsed <= 0:
            return None
        update = elapsed / updates
        validation = state.curve[-1].validation_seconds if state.curve else update * len(loop.validation_batches) / 3
        translation = TRANSLATION_VALIDATIONS * math.sqrt(loop.spec.decoding.beam)
        return (loop.updates - state.updates) * update + validation * (loop.epochs - state.epochs + translation)
