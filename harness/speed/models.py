"""The models that are timed, built-in variants and baselines, behind one interface: train, evaluate, translate."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TextIO

from harness.data.dataset import Dataset
from harness.evaluation import search
from harness.evaluation.metrics import evaluate
from harness.experiments.specs import DecodingSpec
from harness.processes.progress import Event, to_line
from harness.speed.plan import ModelJob
from harness.storage import tensors
from harness.training.checkpoint import TrainingState
from harness.training.loop import LoopCallbacks, TrainingLoop
from harness.training.run_progress import RunProgress
from harness.training.schedules import learning_rate
from harness.training.train import build_model
from impls import registry
from impls.baselines.protocol import Decodes, Trains
from impls.contract import Arrays, Batch, Compiling, Ids, Seq2SeqModel, Training
from impls.weights import initial


@dataclass(frozen=True)
class TimedTranslations:
    """TimedTranslations as ids without special tokens, and how many of them reached the token limit without an end."""

    tokens: list[list[int]]
    unfinished: int


class OwnModel:
    """A `Seq2SeqModel`, built and trained by this package."""

    can_train = can_translate = can_evaluate = True

    def __init__(self, job: ModelJob, dataset: Dataset) -> None:
        self.job, self._dataset = job, dataset
        self.model: Seq2SeqModel = build_model(job.spec, dataset)
        self._weights = self.model.weights()
        self._trained = False

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(weight.size for weight in self._weights.values())

    @property
    def compilation_seconds(self) -> float | None:
        """Seconds spent compiling so far; None for a framework that does not compile."""
        return self.model.compilation().seconds if isinstance(self.model, Compiling) else None

    def use_weights(self, weights: Arrays) -> None:
        """Use these weights from now on for evaluation and translation."""
        self._weights, self._trained = weights, True
        self.restore_weights()

    def train(self, batches: Sequence[Batch]) -> Arrays:
        """Train on these batches, use the resulting weights from now on, and return them."""
        self.bare_updates(batches)()
        self.model.take_totals()
        self.use_weights(self.model.weights())
        return self._weights

    def restore_weights(self) -> None:
        """Undo the effect of timed training on the weights."""
        if self._trained:
            self.model.set_weights(self._weights)
            self._trained = False

    def bare_updates(self, batches: Sequence[Batch]) -> Callable[[], object]:
        """Return a function that does the updates and nothing else."""
        self._trained = True
        return bare_updates(self.model, batches, self.job.spec.training)

    def full_updates(self, count: int) -> Callable[[], object]:
        """Return a function that does the first `count` updates of an epoch with the harness's own training loop.

        This includes data loading, digests and progress events, but no checkpoint.
        """
        assert self.job.synthetic is None, "the training loop is not timed on synthetic batches"
        self._trained = True
        self.model.take_totals()
        loop = TrainingLoop(
            replace(self.job.spec, updates=count),
            self._dataset,
            self.model,
            TrainingState(started="", data=""),
            callbacks=LoopCallbacks(on_update=lambda: progress.report("training")),
        )
        progress = RunProgress(loop, self._write_event)
        return loop.train_epoch

    @cached_property
    def _null_device(self) -> TextIO:
        return open(os.devnull, "w", encoding="utf-8")

    def _write_event(self, event: Event) -> None:
        """Write an event as the process of a run does, but to the null device."""
        self._null_device.write(to_line(event))

    def evaluate(self, batches: Sequence[Batch]) -> float:
        """Return the mean nats per target token."""
        return float(evaluate(self.model, batches).loss)

    def translate(self, sources: Sequence[Ids], spec: DecodingSpec) -> TimedTranslations:
        """Translate with the search that is used for test sets."""
        decoded = search.translate(self.model, sources, spec)
        return TimedTranslations([list(translation.tokens) for translation in decoded.translations], decoded.unfinished)

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""
        self.model.synchronize()


def bare_updates(model: Seq2SeqModel | Trains, batches: Sequence[Batch], training: Training) -> Callable[[], object]:
    """Return a function that trains a model on prepared batches and does nothing else."""
    rates = [learning_rate(training, update) for update in range(1, len(batches) + 1)]

    def train() -> None:
        for batch, rate in zip(batches, rates, strict=True):
            model.train_step(batch, rate)

    return train


class BaselineModel:
    """A baseline of `impls.baselines`, built anew with the given weights after training has changed them."""

    can_evaluate = False
    compilation_seconds = None

    def __init__(self, job: ModelJob, dataset: Dataset) -> None:
        spec, recipe = job.spec, job.spec.recipe
        assert recipe is not None, "a baseline has the recipe of a built-in variant"
        words = len(dataset.source_words), len(dataset.target_words)
        self._weights = tensors.read(Path(job.weights)) if job.weights else initial(recipe, *words, spec.seed)

        def build() -> Trains | Decodes:
            baseline: Trains | Decodes = registry.build_baseline(
                job.baseline, recipe, *words, training=spec.training, weights=self._weights, device=spec.device
            )
            return baseline

        self._build = build
        self.job, self.model, self._trained = job, self._build(), False
        self.can_train = isinstance(self.model, Trains)
        self.can_translate = isinstance(self.model, Decodes)

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(weight.size for weight in self._weights.values())

    def use_weights(self, weights: Arrays) -> None:
        """Use these weights from now on."""
        self._weights, self._trained = weights, True
        self.restore_weights()

    def restore_weights(self) -> None:
        """Undo the effect of timed training on the weights."""
        if self._trained:
            self.model = self._build()
            self._trained = False

    def bare_updates(self, batches: Sequence[Batch]) -> Callable[[], object]:
        """Return a function that does the updates and nothing else."""
        assert isinstance(self.model, Trains)
        self._trained = True
        return bare_updates(self.model, batches, self.job.spec.training)

    def translate(self, sources: Sequence[Ids], spec: DecodingSpec) -> TimedTranslations:
        """Translate with the baseline's own search."""
        assert isinstance(self.model, Decodes)
        tokens = self.model.translate(
            sources,
            beam=spec.beam,
            batch_size=spec.batch_size,
            max_tokens=spec.max_tokens,
            suppressed=search.suppressed(spec),
        )
        return TimedTranslations(tokens, sum(len(translation) >= spec.max_tokens for translation in tokens))

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""
        self.model.synchronize()
