"""What a subject can do, ours or a baseline: trained, evaluated and asked for translations in the same few words."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.data.dataset import Dataset
from harness.evaluation import search
from harness.evaluation.metrics import evaluate
from harness.experiments.specs import DecodingSpec
from harness.processes.progress import Event, to_line
from harness.processes.signals import SignalGuard
from harness.speed.plan import ModelJob
from harness.storage import tensors
from harness.training import train
from harness.training.checkpoint import TrainingState
from harness.training.schedules import learning_rate
from harness.training.throughput import ThroughputMeter
from impls.contract import Arrays, Batch, Compiling, Ids, Seq2SeqModel


@dataclass(frozen=True)
class Translated:
    """Translations, as ids without special words, and how many reached the most words without an end."""

    tokens: list[list[int]]
    unfinished: int


class OwnModel:
    """A `Seq2SeqModel` as the harness builds and drives it."""

    can_train = can_translate = can_evaluate = True

    def __init__(self, job: ModelJob, prepared: Dataset) -> None:
        self.job, self._trial = job, None
        if job.synthetic is None:
            self._sink = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  it lives as long as the process
            self._trial = train._Trial(job.spec, Path(), prepared, self._tell, SignalGuard(), command="", note="")
            self._trial.checkpoint_seconds = 0.0
        self.model: Seq2SeqModel = train.build_model(job.spec, prepared) if self._trial is None else self._trial.model
        self._weights = self.model.weights()
        self._trained = False

    def _tell(self, event: Event) -> None:
        """Write an event as the process of a run does."""
        self._sink.write(to_line(event))

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(one.size for one in self._weights.values())

    @property
    def compilation_seconds(self) -> float | None:
        """The seconds of compiling so far; None for a framework that does not compile."""
        return self.model.compilation().seconds if isinstance(self.model, Compiling) else None

    def take(self, weights: Arrays) -> None:
        """Have these weights from now on, and whenever it translates or evaluates."""
        self._weights, self._trained = weights, True
        self._restore()

    def learn(self, batches: Sequence[Batch]) -> Arrays:
        """Train on these batches and have the weights that it gives."""
        self._update(batches)
        self.take(self.model.weights())
        return self._weights

    def _restore(self) -> None:
        if self._trained:
            self.model.set_weights(self._weights)
            self._trained = False

    def _update(self, batches: Sequence[Batch]) -> None:
        self._trained = True
        for number, batch in enumerate(batches, start=1):
            self.model.train_step(batch, learning_rate(self.job.spec.training, number))
        self.model.take_totals()

    def updates(self, batches: Sequence[Batch]) -> Callable[[], object]:
        """Return its bare training loop over prepared batches, as work to time."""
        self._trained = True
        rates = [learning_rate(self.job.spec.training, number) for number in range(1, len(batches) + 1)]

        def work() -> None:
            for batch, rate in zip(batches, rates, strict=True):
                self.model.train_step(batch, rate)

        return work

    def driven(self, updates: int) -> Callable[[], object]:
        """Return the first updates of an epoch as the harness's own loop makes them, as work to time."""
        trial = self._trial
        assert trial is not None, "the harness's loop is not timed on made-up batches"
        self._trained = True
        self.model.take_totals()
        trial.state = TrainingState(started="", data="")
        trial.pace = ThroughputMeter(trial.state, self.model)
        trial.updates = updates
        return trial._train_epoch

    def evaluation(self, batches: Sequence[Batch]) -> float:
        """Return the mean nats per target word."""
        return float(evaluate(self.model, batches).loss)

    def translation(self, sources: Sequence[Ids], spec: DecodingSpec) -> Translated:
        """Translate as the harness translates a test set."""
        found = search.translate(self.model, sources, spec)
        return Translated([list(one.tokens) for one in found.translations], found.unfinished)

    def ready(self) -> None:
        """Undo what training has done to the weights."""
        self._restore()

    def synchronize(self) -> None:
        """Return when the device has finished all work that was enqueued."""
        self.model.synchronize()


class BaselineModel:
    """A baseline of `impls.baselines`, built anew with the given weights wherever training has changed them."""

    can_evaluate = False
    compilation_seconds = None

    def __init__(self, job: ModelJob, prepared: Dataset) -> None:
        from impls import registry
        from impls.baselines.protocol import Decodes, Trains
        from impls.weights import initial

        words, spec, recipe = (len(prepared.source_words), len(prepared.target_words)), job.spec, job.spec.recipe
        assert recipe is not None, "a baseline has the recipe of a variant of this package"
        self._weights = tensors.read(Path(job.weights)) if job.weights else initial(recipe, *words, spec.seed)

        def build() -> Trains | Decodes:
            baseline: Trains | Decodes = registry.build_baseline(
                job.baseline, recipe, *words, training=spec.training, weights=self._weights, device=spec.device
            )
            return baseline

        self._build = build
        self.job, self.model, self._trained = job, self._build(), False
        self.can_train, self.can_translate = isinstance(self.model, Trains), isinstance(self.model, Decodes)

    @property
    def parameters(self) -> int:
        """The number of parameters that it was given."""
        return sum(one.size for one in self._weights.values())

    def updates(self, batches: Sequence[Batch]) -> Callable[[], object]:
        """Return its training loop over prepared batches, as work to time."""
        self._trained = True
        rates = [learning_rate(self.job.spec.training, number) for number in range(1, len(batches) + 1)]

        def work() -> None:
            for batch, rate in zip(batches, rates, strict=True):
                self.model.train_step(batch, rate)  # type: ignore[union-attr]

        return work

    def translation(self, sources: Sequence[Ids], spec: DecodingSpec) -> Translated:
        """Translate as the baseline does."""
        found = self.model.translate(  # type: ignore[union-attr]
            sources,
            beam=spec.beam,
            batch_size=spec.batch_size,
            max_tokens=spec.max_tokens,
            suppressed=search.suppressed(spec),
        )
        return Translated(found, sum(len(one) >= spec.max_tokens for one in found))

    def take(self, weights: Arrays) -> None:
        """Have these weights from now on."""
        self._weights, self._trained = weights, True
        self.ready()

    def ready(self) -> None:
        """Undo what training has done to the weights."""
        if self._trained:
            self.model = self._build()
            self._trained = False

    def synchronize(self) -> None:
        """Return when the device has finished all work that was enqueued."""
        self.model.synchronize()
