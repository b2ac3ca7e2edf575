"""The models that are timed, built-in variants and baselines, behind one interface: train, evaluate, translate."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

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
from impls.contract import Arrays, Batch, Compiling, Ids, Seq2SeqModel
from impls.weights import initial


class ReusableModel:
    """A model whose weights are restored after timed training has changed them.

    Attributes:
        model: A `Seq2SeqModel` or a baseline.
        abilities: "train", "translate" and "evaluate", as far as the model can do them.
    """

    model: Any
    abilities: frozenset[str]

    def __init__(self, job: ModelJob, weights: Arrays) -> None:
        self.job, self._weights, self._trained = job, weights, False

    @property
    def parameters(self) -> int:
        return sum(weight.size for weight in self._weights.values())

    @property
    def compilation_seconds(self) -> float | None:
        """Seconds spent compiling so far; None for a framework that does not compile."""
        return self.model.compilation().seconds if isinstance(self.model, Compiling) else None

    def use_weights(self, weights: Arrays) -> None:
        """Use these weights from now on for evaluation and translation."""
        self._weights, self._trained = weights, True
        self.restore_weights()

    def restore_weights(self) -> None:
        """Undo the effect of timed training on the weights."""
        if self._trained:
            self._set_weights()
            self._trained = False

    def _set_weights(self) -> None:
        raise NotImplementedError

    def bare_updates(self, batches: Sequence[Batch]) -> Callable[[], object]:
        """Return a function that trains on prepared batches and does nothing else."""
        self._trained = True
        rates = [learning_rate(self.job.spec.training, update) for update in range(1, len(batches) + 1)]
        model = self.model

        def train() -> None:
            for batch, rate in zip(batches, rates, strict=True):
                model.train_step(batch, rate)

        return train

    def synchronize(self) -> None:
        self.model.synchronize()


class VariantModel(ReusableModel):
    """A `Seq2SeqModel`, built and trained by this package."""

    model: Seq2SeqModel
    abilities = frozenset(("train", "translate", "evaluate"))

    def __init__(self, job: ModelJob, dataset: Dataset) -> None:
        self.model, self._dataset = build_model(job.spec, dataset), dataset
        super().__init__(job, self.model.weights())

    def _set_weights(self) -> None:
        self.model.set_weights(self._weights)

    def train(self, batches: Sequence[Batch]) -> Arrays:
        """Train on these batches, use the resulting weights from now on, and return them."""
        self.bare_updates(batches)()
        self.model.take_totals()
        self.use_weights(self.model.weights())
        return self._weights

    def full_updates(self, count: int) -> Callable[[], object]:
        """Return a function that makes the first `count` updates of an epoch with the harness's own training loop.

        This includes data loading, digests and progress events, but no checkpoint.
        """
        assert self.job.synthetic_length is None, "the training loop is not timed on synthetic batches"
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

    def translate(self, sources: Sequence[Ids], spec: DecodingSpec) -> tuple[list[list[int]], int]:
        """Return translations by the search for test sets, and the number of them that reached the token limit."""
        decoded = search.translate(self.model, sources, spec)
        return [list(translation.tokens) for translation in decoded.translations], decoded.unfinished


class BaselineModel(ReusableModel):
    """A baseline of `impls.baselines`. It is built anew to restore its weights."""

    model: Trains | Decodes

    def __init__(self, job: ModelJob, dataset: Dataset) -> None:
        recipe, words = job.spec.recipe, dataset.vocabulary_sizes
        assert recipe is not None, "a baseline has the recipe of a built-in variant"
        self._recipe, self._words = recipe, words
        weights = tensors.read(Path(job.weights)) if job.weights else initial(recipe, *words, seed=job.spec.seed)
        super().__init__(job, weights)
        self._set_weights()
        abilities = {"train": isinstance(self.model, Trains), "translate": isinstance(self.model, Decodes)}
        self.abilities = frozenset(name for name, able in abilities.items() if able)

    def _set_weights(self) -> None:
        spec = self.job.spec
        self.model = registry.build_baseline(
            self.job.baseline,
            self._recipe,
            *self._words,
            training=spec.training,
            weights=self._weights,
            device=spec.device,
        )

    def translate(self, sources: Sequence[Ids], spec: DecodingSpec) -> tuple[list[list[int]], int]:
        """Return translations by the baseline's own search, and the number of them that reached the token limit."""
        assert isinstance(self.model, Decodes)
        tokens = self.model.translate(
            sources,
            beam=spec.beam,
            batch_size=spec.batch_size,
            max_tokens=spec.max_tokens,
            suppressed=search.suppressed(spec),
        )
        return tokens, sum(len(translation) >= spec.max_tokens for translation in tokens)
