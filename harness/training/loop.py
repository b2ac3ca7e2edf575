"""The training loop: updates, validation, the choice or average of the kept weights, and the chained digests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.data.batch_digest import WEIGHTS_MARK, weights_digest
from harness.data.batches import evaluation_batches, training_batches, updates_per_epoch
from harness.data.dataset import Dataset
from harness.evaluation.metrics import evaluate
from harness.experiments.specs import RunSpec
from harness.processes import machine
from harness.processes.signals import Interrupted, SignalGuard
from harness.storage.records import EpochRecord
from harness.training.checkpoint import TrainingState
from harness.training.divergence import finite, has_perplexity, perplexity, why_diverged
from harness.training.schedules import learning_rate, stopping_epoch
from harness.training.throughput import ThroughputMeter
from impls.contract import Arrays, Batch, Seq2SeqModel, Totals


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class LoopCallbacks:
    """Functions that the loop calls.

    Attributes:
        on_update: Called after every update, inside the time that counts as training.
        on_validation: Called before a validation.
        translate_validation: Called with the number of an epoch after its validation; returns the BLEU of the model's
            translations of the validation set, or None for epochs that are not scored.
        on_epoch: Called after an epoch, including validation and checkpoint.
        save_checkpoint: Stores the state and the model, outside the time that counts as training.
    """

    on_update: Callable[[], None] = _ignore
    on_validation: Callable[[], None] = _ignore
    translate_validation: Callable[[int], float | None] = _ignore
    on_epoch: Callable[[EpochRecord], None] = _ignore
    save_checkpoint: Callable[[], None] = _ignore


class TrainingLoop:
    """Trains a model on a dataset as a spec says, from the point that `state` describes.

    The loop reads no file and writes none. It changes `state` and `model` together, so that both can be stored after
    any update and training can continue from there with the same bits.

    Args:
        model: The model to train, in the state that belongs to `state`.
        state: The state of training; a new `TrainingState` starts at the first update.
        guard: Its signals end training between two updates, after a checkpoint.
        checkpoint_seconds: Time between two checkpoints within an epoch; 0 for none within epochs.
    """

    def __init__(
        self,
        spec: RunSpec,
        dataset: Dataset,
        model: Seq2SeqModel,
        state: TrainingState,
        *,
        guard: SignalGuard | None = None,
        callbacks: LoopCallbacks | None = None,
        checkpoint_seconds: float = 0.0,
    ) -> None:
        self.spec, self.dataset, self.model, self.state = spec, dataset, model, state
        self.throughput = ThroughputMeter(state, model)
        self.checkpoint_seconds = checkpoint_seconds
        self.epoch_updates = updates_per_epoch(dataset.train, spec.training)
        planned = spec.training.epochs * self.epoch_updates
        self.updates = min(planned, spec.updates) if spec.updates else planned
        self.epochs = math.ceil(self.updates / self.epoch_updates)
        self._guard, self._callbacks = guard or SignalGuard(), callbacks or LoopCallbacks()
        self._saved = time.perf_counter()

    @property
    def stopped_epoch(self) -> int | None:
        """The epoch after which training stopped early; None if it did not."""
        epoch = stopping_epoch([epoch.validation_loss for epoch in self.state.curve], self.spec.training.patience)
        return epoch if epoch != self.epochs else None

    @cached_property
    def validation_batches(self) -> list[Batch]:
        """The batches of the validation set."""
        return [batch for batch, _ in evaluation_batches(self.dataset.validation)]

    def train(self) -> str:
        """Train to the last update, or until the validation loss has not improved for `patience` epochs.

        Returns:
            Why the run diverged, or an empty string.

        Raises:
            Interrupted: A signal arrived; the last complete update is in a checkpoint.
        """
        state, self._saved = self.state, time.perf_counter()
        try:
            while state.epochs < self.epochs and self.stopped_epoch is None:
                if state.totals is None:
                    self.train_epoch()
                assert state.totals is not None
                epoch = self._validate(state.totals)
                state.curve.append(epoch)
                state.load_averages.append(machine.load_average())
                state.epochs = epoch.epoch
                reason = why_diverged(epoch, state.totals)
                if reason:
                    return reason
                self._keep_weights(epoch)
                state.totals, state.tokens, state.training_seconds = None, 0, 0.0
                self._save_checkpoint()
                self._callbacks.on_epoch(epoch)
        except Interrupted:
            if state.updates:
                self._save_checkpoint()
            raise
        return ""

    def train_epoch(self) -> None:
        """Do the remaining updates of the current epoch and leave their totals in the state."""
        state, training = self.state, self.spec.training
        skip = state.updates - state.epochs * self.epoch_updates
        batches = training_batches(self.dataset.train, training, seed=self.spec.seed, epoch=state.epochs, skip=skip)
        self.throughput.start()
        for batch in batches:
            if state.updates == self.updates:
                break
            self._guard.check()
            state.batches.add(batch)
            self.model.train_step(batch, learning_rate(training, state.updates + 1))
            state.updates += 1
            state.tokens += batch.tokens
            self.throughput.add_update(batch.tokens)
            self._callbacks.on_update()
            if state.updates == WEIGHTS_MARK:
                self.model.synchronize()
                self.throughput.stop()
                self._digest_weights()
                self.throughput.start()
            if 0 < self.checkpoint_seconds <= time.perf_counter() - self._saved:
                self._save_checkpoint()
                self.throughput.start()
        state.totals = self.model.take_totals()
        self.throughput.stop()
        state.batches.mark()
        self._digest_weights()

    def kept_weights(self) -> Arrays:
        """Return the weights of the best epoch, or the mean of the last `averaged_epochs` epochs, in float32."""
        if not self.spec.training.averaged_epochs:
            return self.state.kept_weights
        count = len(self.state.chosen)
        return {name: (total / count).astype(np.float32) for name, total in self.state.kept_weights.items()}

    def _digest_weights(self) -> None:
        """Add a digest of the weights after the updates so far."""
        self.state.weights_after[str(self.state.updates)] = weights_digest(self.model.weights())

    def _save_checkpoint(self) -> None:
        self.model.synchronize()
        self.throughput.stop()
        self._callbacks.save_checkpoint()
        self._saved = time.perf_counter()

    def _validate(self, totals: Totals) -> EpochRecord:
        """Return the record of the current epoch. It is validated only if the training loss has a perplexity."""
        state = self.state
        loss = totals.objective_nats / max(1, state.tokens) if totals.finite else math.nan
        validation, began = (math.nan, math.nan), time.perf_counter()
        if has_perplexity(loss):
            self._callbacks.on_validation()
            scored = evaluate(self.model, self._interruptible(self.validation_batches))
            validation = scored.loss, scored.perplexity
        seconds, diverged = time.perf_counter() - began, not has_perplexity(validation[0])
        return EpochRecord(
            epoch=state.epochs + 1,
            updates=state.updates,
            tokens=state.tokens,
            learning_rate=learning_rate(self.spec.training, state.updates),
            training_loss=finite(loss),
            training_perplexity=perplexity(totals.nats / max(1, state.tokens)),
            validation_loss=finite(validation[0]),
            validation_perplexity=finite(validation[1]),
            largest_gradient_norm=finite(totals.largest_gradient_norm),
            training_seconds=state.training_seconds,
            validation_seconds=seconds,
            validation_bleu=None if diverged else self._callbacks.translate_validation(state.epochs + 1),
        )

    def _interruptible(self, batches: list[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._guard.check()
            yield batch

    def _keep_weights(self, epoch: EpochRecord) -> None:
        """Keep the weights of the best epoch, or add those of the last epochs if they are averaged."""
        state, averaged = self.state, self.spec.training.averaged_epochs
        if averaged:
            if epoch.epoch > self.epochs - averaged:
                for name, weight in self.model.weights().items():
                    state.kept_weights[name] = state.kept_weights.get(name, 0) + weight.astype(np.float64)
                state.chosen.append(epoch.epoch)
            return
        assert epoch.validation_loss is not None
        if epoch.validation_loss < state.best_loss:
            state.best_loss, state.chosen = epoch.validation_loss, [epoch.epoch]
            state.kept_weights = self.model.weights()
