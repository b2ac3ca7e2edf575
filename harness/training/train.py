"""Executes a `RunSpec`: trains and measures a model, and stores the record. No framework is imported here."""

from __future__ import annotations

import errno
import itertools
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import impls
from harness.data import preprocess
from harness.data.batch_digest import array_digests
from harness.data.batches import training_batches
from harness.data.dataset import Dataset, prepare
from harness.evaluation.evaluate import TestResults, measure, validation_bleu
from harness.experiments.specs import RunSpec
from harness.processes import machine
from harness.processes.progress import Event, Progress, silent
from harness.processes.signals import Interrupted, SignalGuard
from harness.processes.workers import ProcessSettings
from harness.storage import checkpoint_files, run_store
from harness.storage.records import RunRecord, Status
from harness.storage.run_store import RunFailed
from harness.text import count
from harness.training import checkpoint, reuse, self_check
from harness.training.checkpoint import TrainingState
from harness.training.divergence import OVERFLOW_NATS, epoch_remark, finite, has_perplexity, record_remark
from harness.training.loop import LoopCallbacks, TrainingLoop
from harness.training.run_progress import RunProgress
from impls import registry
from impls.contract import Arrays, Compiling, Seq2SeqModel
from impls.weights import embedding_rms

RESUMED = ("resumed_after_epochs", "resumed_after_updates", "checkpoint_fallbacks", "earlier_processes")
"""Fields of `RunRecord.environment` that describe earlier, interrupted processes of the same run."""

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

TRAINING_DIGESTS = ("batches", "stream", "weights_after", "weights")
"""The fingerprints of the training of a run."""


def run(
    spec: RunSpec,
    results: Path,
    settings: ProcessSettings | None = None,
    *,
    progress: Progress = silent,
    guard: SignalGuard | None = None,
) -> RunRecord:
    """Train and measure one run and store its record; continue an interrupted run from its checkpoint.

    A completed or diverged run is returned as it is. The record of any other is removed when it starts again.

    A signal that `guard` delivers leaves a checkpoint and a record of status "interrupted".

    Raises:
        RunFailed: Training or measuring failed; the stored record has the reason.
        Interrupted: A signal arrived before there was a model.
        ValueError: The data, the model or a setting is not available, the files of an existing run have changed, or
            its checkpoint was written with another arithmetic. Nothing has been written.
    """
    settings = settings or ProcessSettings()
    guard = guard or SignalGuard()
    if existing := reuse.reusable_records(results, [spec]):
        checkpoint_files.remove(results, spec.id)
        return existing[0]
    progress(Event(run=spec.id, stage="preparing"))
    spec.check_tying()
    preprocess.check_libraries(spec.data)
    with guard.interruptible():
        current = _Run(spec, results, prepare(spec.data), settings, progress, guard)
    if not settings.resume_anyway:
        checkpoint.check_environment(results, spec, current.environment)
    run_store.remove_record(results, spec.id)  # otherwise a kill would leave the reason of an earlier process
    record = _execute(current)
    run_store.save_record(results, record)
    if record.status in run_store.FINISHED:
        checkpoint_files.remove(results, spec.id)
    progress(Event(run=spec.id, stage="ended", remark=record_remark(record)))
    return record


def _execute(current: _Run) -> RunRecord:
    """Check, resume, train and measure a run. Raises: RunFailed after storing a record with the reason."""
    try:
        if trained := current.same_training():
            return current.measure_again(*trained)
        current.check_model()
        current.resume()
        current.remark_on_warmup()
        diverged = current.loop.train()
        return current.record("diverged", diverged) if diverged else current.measure()
    except KeyboardInterrupt as error:
        return current.interrupted(error)
    except Exception as error:
        if current.guard.received is None:
            reason = f"{type(error).__name__}: {error}"
            run_store.save_record(current.results, current.record("failed", reason))
            # A fault that a self-check finds is in the model, and a full disk is outside: not where it was noticed.
            is_elsewhere = isinstance(error, self_check.SelfCheckFailed) or getattr(error, "errno", None) in FULL_DISK
            raise RunFailed(f"{current.spec.id}: {reason}") from None if is_elsewhere else error
        return current.interrupted(Interrupted(current.guard.received), f"; {type(error).__name__}: {error}")


def build_model(spec: RunSpec, dataset: Dataset) -> Seq2SeqModel:
    """Build the model of a run with its initial weights.

    Raises:
        ValueError: The model is not available, this process already runs Keras on another backend, or an external
            builder uses another framework than the one of the run.
    """
    if torch := sys.modules.get("torch"):  # imported before, as in a notebook: it reads OMP_NUM_THREADS no more
        torch.set_num_threads(spec.threads)
    settings: dict[str, Any] = {
        "training": spec.training,
        "seed": spec.seed,
        "device": spec.device,
        "precision": spec.precision,
        "matmul_precision": spec.matmul_precision,
    }
    if spec.recipe is not None:
        settings |= {"framework": spec.framework, "backend": spec.backend, "cuda_graphs": spec.cuda_graphs == "on"}
        return impls.build(spec.recipe, *dataset.vocabulary_sizes, **settings)
    model = registry.build_external(spec.variant, *dataset.vocabulary_sizes, **settings)
    registry.check_computes(spec.variant, model, spec.framework, spec.backend)
    return model


def laws_options(spec: RunSpec) -> str:
    """Return the options with which the command `laws` builds the model of a run."""
    keras = f" --framework keras --backend {spec.backend}" if spec.framework == "keras" else ""
    return f"--variant {spec.variant}{keras}" + (f" --device {spec.device}" if spec.device != "cpu" else "")


class _Run:
    """A run in progress: its model, its training loop, and the results so far."""

    def __init__(
        self,
        spec: RunSpec,
        results: Path,
        dataset: Dataset,
        settings: ProcessSettings,
        report: Progress,
        guard: SignalGuard,
    ) -> None:
        self.began = time.perf_counter()
        self.spec, self.results, self.dataset = spec, results, dataset
        self.settings, self.guard, self._report = settings, guard, report
        # Read now, not at the end: the checkout may change while this process uses the code that it has loaded.
        self.environment = machine.environment(spec)
        self.builder = reuse.imported_digest(spec.variant) if spec.recipe is None else ""
        self.model = build_model(spec, dataset)
        spec.check_positions("the model's max_length", registry.max_length(self.model))
        if arithmetic := machine.torch_arithmetic():
            # A model that sets its own precision ignores that of the process.
            products = getattr(self.model, "matmul_precision", None)
            self.environment["torch"] = arithmetic | ({"matmul_precision": products} if products else {})
        if isinstance(self.model, Compiling):
            self.environment["jit_compile"] = self.model.compilation().jit_compile
        initial = self.model.weights()
        run_store.check_limits(len(dataset.test), initial)
        self.initial_digests = array_digests(initial)
        self.parameters = sum(weight.size for weight in initial.values())
        self.embedding_rms = embedding_rms(spec.recipe, initial)
        self.earlier_seconds = 0.0
        self.measured = TestResults(scores={}, signatures={}, decode={}, speed={}, hypotheses=[])
        self.stored: dict[str, str] = {}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        data = f"{dataset.digests['tokenised']} {self.builder}".rstrip()
        self._use(TrainingState(started=started, data=data, environment=self.environment))

    def _use(self, state: TrainingState) -> None:
        """Make `state` the one that training continues from."""
        self.state = state
        self.loop = TrainingLoop(
            self.spec,
            self.dataset,
            self.model,
            state,
            guard=self.guard,
            callbacks=LoopCallbacks(
                on_update=lambda: self.progress.report("training"),
                on_validation=lambda: self.progress.report("validating", now=True),
                translate_validation=self._translate_validation,
                on_epoch=lambda epoch: self.progress.report(
                    "training", remark=epoch_remark(epoch, self.loop.epochs), finished_epoch=epoch
                ),
                save_checkpoint=self._save_checkpoint,
            ),
            checkpoint_seconds=self.settings.checkpoint_seconds,
        )
        self.progress = RunProgress(self.loop, self._report, with_loss=self.settings.report_loss)

    def _translate_validation(self, epoch: int) -> float | None:
        """Return the BLEU of the validation set after an epoch, or None for epochs that are not scored."""
        if not self.settings.score_every or epoch % self.settings.score_every:
            return None
        return validation_bleu(self.model, self.dataset, self.spec.decoding, on_batch=lambda _: self.guard.check())

    def _save_checkpoint(self) -> None:
        self.state.total_seconds = self._seconds()
        checkpoint.save(self.results, self.spec.id, self.state, self.model)

    def check_model(self) -> None:
        """Check the model on its first batches, before a checkpoint replaces its state. Raises: SelfCheckFailed."""
        batches = training_batches(self.dataset.train, self.spec.training, seed=self.spec.seed, epoch=0)
        first = list(itertools.islice(batches, self_check.BATCHES))
        self_check.check_model(
            self.model,
            first,
            precision=self.spec.precision,
            matmul_precision=self.spec.matmul_precision,
            device=self.spec.device,
            options=laws_options(self.spec),
        )

    def resume(self) -> None:
        """Continue from the newest usable checkpoint of an earlier process, if there is one."""
        complaints: list[str] = []
        anyway = self.settings.resume_anyway
        restored = checkpoint.load(self.results, self.spec, self.model, self.state, complaints, resume_anyway=anyway)
        for complaint in complaints:
            self._remark(f"a checkpoint cannot be used: {complaint}")
        if restored is not None:
            self.earlier_seconds = restored.total_seconds
            self._use(restored)
            self._remark(f"continues after update {restored.updates} of {self.loop.updates}")
            for epoch in restored.curve:
                self.progress.report("preparing", now=True, finished_epoch=epoch)
        elif complaints:
            self.state.checkpoint_fallbacks = [*complaints, "started anew"]
            self._remark("starts from the beginning, because none of its checkpoints can be used")

    def remark_on_warmup(self) -> None:
        """Remark on a training that ends before its learning rate has reached its peak."""
        updates, warmup = self.loop.updates, self.spec.training.warmup_updates
        if updates < warmup:
            self._remark(
                f"ends after {count(updates, 'update')}, within its warm-up of {warmup:,}: its learning rate stays "
                "below its peak (shorten training.warmup_updates)"
            )

    def _remark(self, remark: str) -> None:
        self.progress.report("preparing", remark=remark)

    def measure(self) -> RunRecord:
        """Measure the kept weights on the test set and store them, the translations and the per-sentence scores."""
        weights = self.loop.kept_weights()
        epochs = f"epoch {' and '.join(map(str, self.state.chosen))}"
        diverged = [name for name, weight in weights.items() if not np.isfinite(weight).all()]
        if diverged:
            return self.record("diverged", f"{epochs}: the weights kept are not finite: {', '.join(diverged)}")
        reason = self._measure(weights)
        return self.record("diverged", f"{epochs}: {reason}") if reason else self.record("completed")

    def _measure(self, weights: Arrays) -> str:
        """Measure weights on the test set and store them with the results; return why that is impossible, or ""."""
        results, run_id = self.results, self.spec.id
        # The training state does not change from here on, so a signal may interrupt anything.
        with self.guard.interruptible():
            self.model.set_weights(weights)
            self.progress.start_translation()
            measured = measure(self.model, self.dataset, self.spec.decoding, on_batch=self.progress.translated)
            if not has_perplexity(measured.scores["test_loss"]):
                return f"the test loss is not finite, or beyond {OVERFLOW_NATS:.0f} nats"
            self.measured = measured
            self.stored = {
                "hypotheses": run_store.save_hypotheses(results, run_id, measured.hypotheses),
                "trained_weights": run_store.save_weights(results, run_id, weights),
                "sentences": run_store.save_sentences(results, run_id, measured.sentences),
                "attention": run_store.save_attention(results, run_id, measured.attention),
            }
        return ""

    def same_training(self) -> tuple[RunRecord, Arrays] | None:
        """Return a run whose training this run can use, and its weights; None if there is none, or a checkpoint."""
        trained = reuse.same_training(self.results, self.spec, self.environment)
        if trained is None or checkpoint_files.exists(self.results, self.spec.id):
            return None
        asked = 0 < self.settings.score_every <= len(trained.curve)
        unscored = asked and all(line.validation_bleu is None for line in trained.curve)
        if unscored or reuse.differs_in_text(trained, self.dataset.digests):
            return None
        try:
            digest = trained.fingerprints.get("trained_weights")
            return trained, run_store.load_weights(self.results, trained.id, digest)
        except ValueError as error:
            self._remark(f"is trained again: {error}")
            return None

    def measure_again(self, trained: RunRecord, weights: Arrays) -> RunRecord:
        """Measure the weights of a run with the same training on the test set of this one."""
        self._remark(f"is not trained: its weights are those of {trained.id}")
        reason = self._measure(weights)
        tested = self.record("diverged" if reason else "completed", reason)
        changed = machine.differences(
            {name: value for name, value in trained.environment.items() if name in self.environment}, self.environment
        )
        process = [{"until_update": trained.curve[-1].updates, **changed}] if changed else []
        history = {name: trained.environment.get(name, []) for name in RESUMED}
        history["earlier_processes"] = [*history["earlier_processes"], *process]
        training = {name: trained.fingerprints[name] for name in TRAINING_DIGESTS if name in trained.fingerprints}
        return replace(
            tested,
            started=trained.started,
            fingerprints=tested.fingerprints | training,
            environment=self.environment | history | {"trained_as": trained.environment.get("trained_as", trained.id)},
            sizes=trained.sizes | self.dataset.figures,
            curve=trained.curve,
            chosen_epochs=trained.chosen_epochs,
            stopped_epoch=trained.stopped_epoch,
            speed=trained.speed | self.measured.speed,
        )

    def interrupted(self, error: KeyboardInterrupt, error_text: str = "") -> RunRecord:
        """Return the record of a run that a signal interrupted; `error_text` is appended to its reason."""
        cause = str(error) if isinstance(error, Interrupted) else "interrupted"
        reason = f"{cause} after {self.state.updates} of {self.loop.updates} updates{error_text}"
        return self.record("interrupted", reason)

    def record(self, status: Status, reason: str = "") -> RunRecord:
        """Return the record of the run as it is now."""
        spec, state = self.spec, self.state
        fingerprints = self.dataset.digests | {"weights": self.initial_digests, **self.stored}
        fingerprints |= {"batches": state.batches.marks, "weights_after": state.weights_after}
        fingerprints |= {"builder": self.builder} if self.builder else {}
        if status in run_store.FINISHED:
            fingerprints["stream"] = state.batches.digest
        return RunRecord(
            id=spec.id,
            spec=spec,
            status=status,
            reason=reason,
            note=self.settings.note,
            started=state.started,
            command=self.settings.command,
            fingerprints=fingerprints,
            environment=self.environment | {name: getattr(state, name) for name in RESUMED},
            sizes={
                "parameters": self.parameters,
                "updates_per_epoch": self.loop.epoch_updates,
                **self.embedding_rms,
                **self.dataset.figures,
                **state.batches.statistics(),
            },
            curve=tuple(state.curve),
            chosen_epochs=tuple(state.chosen),
            stopped_epoch=self.loop.stopped_epoch if status == "completed" else None,
            scores={name: finite(value) for name, value in self.measured.scores.items()},
            signatures=self.measured.signatures,
            speed=self._speed(),
            decode=self.measured.decode,
        )

    def _speed(self) -> dict[str, float]:
        state = self.state
        speed: dict[str, float] = {"total_seconds": self._seconds()}
        if state.first_update_seconds:
            speed["first_update_seconds"] = state.first_update_seconds
        if state.steady_updates > 0:
            speed["training_tokens_per_second"] = state.steady_tokens / state.steady_seconds
            speed["epoch_seconds"] = state.steady_seconds / state.steady_updates * self.loop.epoch_updates
        if state.curve:
            speed["validation_seconds"] = float(np.median([epoch.validation_seconds for epoch in state.curve]))
        if state.load_averages:
            speed["load_average"] = float(np.median(state.load_averages))
        if isinstance(self.model, Compiling):
            compiled = self.model.compilation()
            speed |= {"compilations": compiled.count, "compilation_seconds": compiled.seconds}
        peak = machine.peak_memory_bytes()
        if peak is not None:
            speed["peak_memory_bytes"] = peak
        return {**speed, **self.measured.speed}

    def _seconds(self) -> float:
        """Return the seconds of all processes of the run so far."""
        return self.earlier_seconds + time.perf_counter() - self.began
