"""Trains a model as a `RunSpec` says and measures it: the loop that knows no framework."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import impls
from harness.data.batch_digest import WEIGHTS_MARK, weights_digest
from harness.data.batches import evaluation_batches, training_batches, updates_per_epoch
from harness.data.dataset import Dataset, prepare
from harness.evaluation.evaluate import TestResults, measure
from harness.evaluation.metrics import evaluate
from harness.experiments.specs import RunSpec
from harness.processes import machine
from harness.processes.progress import Event, Progress, Stage, silent
from harness.processes.signals import Interrupted, SignalGuard
from harness.storage import checkpoint_files, run_store
from harness.storage.records import EpochRecord, RunRecord, Status
from harness.storage.run_store import RunFailed
from harness.training import checkpoint, reuse, self_check
from harness.training.checkpoint import TrainingState
from harness.training.divergence import (
    OVERFLOW_NATS,
    epoch_remark,
    finite,
    has_perplexity,
    perplexity,
    record_remark,
    why_diverged,
)
from harness.training.schedules import learning_rate
from harness.training.throughput import ThroughputMeter
from impls import registry
from impls.contract import Arrays, Batch, Compiling, Seq2SeqModel, Totals
from impls.weights import embedding_rms

EVENT_SECONDS = 0.5
RESUMED = ("resumed_after_epochs", "resumed_after_updates", "checkpoint_fallbacks", "earlier_processes")
"""What a record's environment says of the processes before the last: a number each, a line for each bad file, and what
of the environment was different then."""

TRANSLATION_VALIDATIONS = 8
"""About how many validations one greedy translation of the test set takes: for estimates of the time left only."""


def run(
    spec: RunSpec,
    results: Path,
    *,
    progress: Progress = silent,
    command: str = "",
    note: str = "",
    checkpoint_seconds: float = checkpoint_files.SECONDS,
    watch: SignalGuard | None = None,
) -> RunRecord:
    """Train and measure one run and store what came of it; go on where an interrupted one ended.

    A run that is there already, completed or diverged, is returned as it is; the record of one that failed or was
    interrupted is removed as soon as it begins again. A checkpoint is written at the end of each epoch, and in it after
    so many seconds (0: never). A signal that `watch` takes gives a checkpoint and a record of status "interrupted".

    Raises: RunFailed where training or measuring fails, with a record that says so; `Interrupted` where a signal came
    before there was a model; ValueError, before anything is written, for data, a model or settings that cannot be had,
    and where the files of a run that is there have changed.
    """
    there = reuse.finished(results, [spec])
    if there:
        checkpoint_files.remove(results, spec.id)
        return there[0]
    watch = watch or SignalGuard()
    progress(Event(run=spec.id, stage="preparing"))
    with watch.at_once():
        trial = _Trial(spec, results, prepare(spec.data), progress, watch, command=command, note=note)
    trial.checkpoint_seconds = checkpoint_seconds
    run_store.remove_record(results, spec.id)  # else a kill would leave the reason of an earlier process
    try:
        trial.check_model()
        trial.resume()
        diverged = trial.train()
        record = trial.record("diverged", diverged) if diverged else trial.measure()
    except KeyboardInterrupt as error:
        record = trial.interrupted(error)
    except Exception as error:
        if watch.noted is None:
            run_store.save_record(results, trial.record("failed", f"{type(error).__name__}: {error}"))
            raise RunFailed(spec.id) from error
        record = trial.interrupted(Interrupted(watch.noted), f"; {type(error).__name__}: {error}")
    run_store.save_record(results, record)
    if record.status in ("completed", "diverged"):
        checkpoint_files.remove(results, spec.id)
    progress(Event(run=spec.id, stage="ended", remark=record_remark(record)))
    return record


def build_model(spec: RunSpec, prepared: Dataset) -> Seq2SeqModel:
    """Build the model of a run with its initial weights.

    Raises: ValueError where it cannot be had, or where this process already runs Keras on another backend.
    """
    words = len(prepared.source_words), len(prepared.target_words)
    settings: dict[str, Any] = {
        "training": spec.training,
        "seed": spec.seed,
        "device": spec.device,
        "precision": spec.precision,
    }
    if spec.recipe is not None:
        settings |= {"framework": spec.framework, "backend": spec.backend, "cuda_graphs": spec.cuda_graphs == "on"}
        return impls.build(spec.recipe, *words, **settings)
    return registry.build_external(spec.variant, *words, **settings)


class _Trial:
    """One run under way."""

    def __init__(
        self,
        spec: RunSpec,
        results: Path,
        prepared: Dataset,
        progress: Progress,
        watch: SignalGuard,
        *,
        command: str,
        note: str,
    ) -> None:
        self.spec, self.results, self.prepared, self.progress = spec, results, prepared, progress
        self.watch, self.checkpoint_seconds = watch, checkpoint_files.SECONDS
        self.began = time.perf_counter()
        self.command, self.note = command, note
        # Now, not at the end: the checkout may change while the run goes on with the code it has loaded.
        self.environment = machine.environment(spec)
        self.model = build_model(spec, prepared)
        if isinstance(self.model, Compiling):
            self.environment["jit_compile"] = self.model.compilation().jit_compile
        initial = self.model.weights()
        self.initial_digests = machine.array_digests(initial)
        self.parameters = sum(one.size for one in initial.values())
        self.embedding_rms = embedding_rms(spec.recipe, initial)
        self.per_epoch = updates_per_epoch(prepared.train, spec.training)
        self.updates = min(spec.training.epochs * self.per_epoch, spec.updates or 2**62)
        self.epochs = math.ceil(self.updates / self.per_epoch)
        self.validation = [batch for batch, _ in evaluation_batches(prepared.validation)]
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self.state = TrainingState(started=started, data=prepared.digests["tokenised"], environment=self.environment)
        self.pace = ThroughputMeter(self.state, self.model)
        self.earlier_seconds = 0.0
        self.saved = 0.0
        self.told = 0.0
        self.translating = 0.0
        self.measured = TestResults(scores={}, signatures={}, decode={}, speed={}, hypotheses=[])
        self.stored: dict[str, str] = {}

    # Training ---------------------------------------------------------------------------------------------------------

    def check_model(self) -> None:
        """Check the model on its first batches, before a resume replaces its state. Raises: SelfCheckFailed."""
        batches = training_batches(self.prepared.train, self.spec.training, seed=self.spec.seed, epoch=0)
        first = list(itertools.islice(batches, self_check.BATCHES))
        self_check.check_model(self.model, first, precision=self.spec.precision, device=self.spec.device)

    def train(self) -> str:
        """Train to the end. Return why the run diverged, or nothing."""
        state, self.saved = self.state, time.perf_counter()
        try:
            while state.epochs < self.epochs:
                if state.totals is None:
                    self._train_epoch()
                assert state.totals is not None
                epoch = self._validated(state.totals)
                state.curve.append(epoch)
                state.load_averages += machine.load_average()
                state.epochs = epoch.epoch
                diverged = why_diverged(epoch, state.totals)
                if diverged:
                    return diverged
                self._keep(epoch)
                state.totals, state.tokens, state.training_seconds = None, 0, 0.0
                self._checkpoint()
                self._tell("training", remark=epoch_remark(epoch, self.epochs))
        except Interrupted:
            if state.updates:
                self._checkpoint()
            raise
        return ""

    def _train_epoch(self) -> None:
        """Do the updates of an epoch that are not done yet."""
        state, spec = self.state, self.spec
        batches = training_batches(
            self.prepared.train,
            spec.training,
            seed=spec.seed,
            epoch=state.epochs,
            skip=state.updates - state.epochs * self.per_epoch,
        )
        self.pace.start()
        for batch in batches:
            if state.updates == self.updates:
                break
            self.watch.check()
            state.batches.add(batch)
            self.model.train_step(batch, learning_rate(spec.training, state.updates + 1))
            state.updates += 1
            state.tokens += batch.tokens
            self.pace.note(batch.tokens)
            self._tell("training")
            if state.updates == WEIGHTS_MARK:
                self.model.synchronize()
                self.pace.stop()
                self._digest_weights()
                self.pace.start()
            if 0 < self.checkpoint_seconds <= time.perf_counter() - self.saved:
                self._checkpoint()
                self.pace.start()
        state.totals = self.model.take_totals()
        self.pace.stop()
        state.batches.mark()
        self._digest_weights()

    def _digest_weights(self) -> None:
        """Keep a digest of the weights after the updates so far."""
        self.state.weights_after[str(self.state.updates)] = weights_digest(self.model.weights())

    def _checkpoint(self) -> None:
        """Store where the run is, outside of what counts as training."""
        self.model.synchronize()
        self.pace.stop()
        self.state.total_seconds = self._seconds()
        checkpoint.save(self.results, self.spec.id, self.state, self.model)
        self.saved = time.perf_counter()

    def _validated(self, totals: Totals) -> EpochRecord:
        """Validate after the updates of an epoch, unless it diverged in them."""
        state = self.state
        loss = totals.objective_nats / max(1, state.tokens) if totals.finite else math.nan
        validation, began = (math.nan, math.nan), time.perf_counter()
        if has_perplexity(loss):
            self._tell("validating", now=True)
            found = evaluate(self.model, self._watched(self.validation))
            validation = found.loss, found.perplexity
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
            validation_seconds=time.perf_counter() - began,
        )

    def _watched(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.watch.check()
            yield batch

    def _keep(self, epoch: EpochRecord) -> None:
        """Keep the weights of the best epoch, or the sum of the last ones where they are averaged."""
        state, averaged = self.state, self.spec.training.averaged_epochs
        if averaged:
            if epoch.epoch > self.epochs - averaged:
                for name, one in self.model.weights().items():
                    state.kept[name] = state.kept.get(name, 0) + one.astype(np.float64)
                state.chosen.append(epoch.epoch)
            return
        assert epoch.validation_loss is not None
        if epoch.validation_loss < state.best_loss:
            state.best_loss, state.chosen = epoch.validation_loss, [epoch.epoch]
            state.kept = self.model.weights()

    def _kept_weights(self) -> Arrays:
        if not self.spec.training.averaged_epochs:
            return self.state.kept
        count = len(self.state.chosen)
        return {name: (one / count).astype(np.float32) for name, one in self.state.kept.items()}

    def resume(self) -> None:
        """Go on from the newest checkpoint of an earlier process that is whole and fits, if there is one."""
        complaints: list[str] = []
        found = checkpoint.load(self.results, self.spec.id, self.model, self.state, complaints.append)
        for complaint in complaints:
            self._tell("preparing", remark=f"a checkpoint cannot be used: {complaint}")
        if found is not None:
            self.state, self.earlier_seconds = found, found.total_seconds
            self.pace = ThroughputMeter(self.state, self.model)
            self._tell("preparing", remark=f"goes on after update {found.updates} of {self.updates}")
        elif complaints:
            self.state.checkpoint_fallbacks = [*complaints, "started anew"]
            self._tell("preparing", remark="starts anew, because none of its checkpoints can be used")

    # Records and progress ---------------------------------------------------------------------------------------------

    def measure(self) -> RunRecord:
        """Measure the kept weights on the test set; store them, and what there is of each translation."""
        weights, results, run_id = self._kept_weights(), self.results, self.spec.id
        of = f"epoch {' and '.join(map(str, self.state.chosen))}"
        wrong = [name for name, one in weights.items() if not np.isfinite(one).all()]
        if wrong:
            return self.record("diverged", f"{of}: the weights kept are not finite: {', '.join(wrong)}")
        # Nothing of the training is changed from here on, so that a signal may break off anything.
        with self.watch.at_once():
            self.model.set_weights(weights)
            self.translating = time.perf_counter()
            self._tell("translating", now=True)
            found = measure(self.model, self.prepared, self.spec.decoding, on_batch=self._tell_translated)
            if not has_perplexity(found.scores["test_loss"]):
                return self.record("diverged", f"{of}: the test loss is not finite, or beyond {OVERFLOW_NATS:.0f} nats")
            self.measured = found
            self.stored = {
                "hypotheses": run_store.save_hypotheses(results, run_id, found.hypotheses),
                "trained_weights": run_store.save_weights(results, run_id, weights),
                "sentences": run_store.save_sentences(results, run_id, found.sentences),
                "attention": run_store.save_attention(results, run_id, found.attention),
            }
            return self.record("completed")

    def interrupted(self, error: KeyboardInterrupt, more: str = "") -> RunRecord:
        """Return the record of a run that a signal broke off; `more` is what went wrong meanwhile."""
        how = str(error) if isinstance(error, Interrupted) else "interrupted"
        return self.record("interrupted", f"{how} after {self.state.updates} of {self.updates} updates{more}")

    def record(self, status: Status, reason: str = "") -> RunRecord:
        """Return what is known of the run now."""
        spec, state = self.spec, self.state
        fingerprints = self.prepared.digests | {"weights": self.initial_digests, **self.stored}
        fingerprints |= {"batches": state.batches.marks, "weights_after": state.weights_after}
        if status in run_store.FINISHED:
            fingerprints["stream"] = state.batches.digest
        return RunRecord(
            id=spec.id,
            spec=spec,
            status=status,
            reason=reason,
            note=self.note,
            started=state.started,
            command=self.command,
            fingerprints=fingerprints,
            environment=self.environment | {name: getattr(state, name) for name in RESUMED},
            sizes={
                "parameters": self.parameters,
                "updates_per_epoch": self.per_epoch,
                **self.embedding_rms,
                **self.prepared.figures,
                **state.batches.statistics(),
            },
            curve=tuple(state.curve),
            chosen_epochs=tuple(state.chosen),
            scores={name: finite(value) for name, value in self.measured.scores.items()},
            signatures=self.measured.signatures,
            speed=self._speed(),
            decode=self.measured.decode,
        )

    def _speed(self) -> dict[str, float]:
        state = self.state
        found: dict[str, float] = {"total_seconds": self._seconds()}
        if state.first_update_seconds:
            found["first_update_seconds"] = state.first_update_seconds
        if state.steady_updates > 0:
            found["training_tokens_per_second"] = state.steady_tokens / state.steady_seconds
            found["epoch_seconds"] = state.steady_seconds / state.steady_updates * self.per_epoch
        if state.curve:
            found["validation_seconds"] = float(np.median([one.validation_seconds for one in state.curve]))
        if state.load_averages:
            found["load_average"] = float(np.median(state.load_averages))
        if isinstance(self.model, Compiling):
            compiled = self.model.compilation()
            found |= {"compilations": compiled.count, "compilation_seconds": compiled.seconds}
        peak = machine.peak_memory_bytes()
        if peak is not None:
            found["peak_memory_bytes"] = peak
        return {**found, **self.measured.speed}

    def _seconds(self) -> float:
        return self.earlier_seconds + time.perf_counter() - self.began

    def _tell_translated(self, done: int) -> None:
        elapsed = time.perf_counter() - self.translating
        self._tell("translating", left=elapsed * (len(self.prepared.test) - done) / done)

    def _tell(
        self,
        stage: Stage,
        *,
        left: float | None = None,
        now: bool = False,
        remark: str = "",
    ) -> None:
        """Tell how far the run is, unless it was told a moment ago; measures nothing and waits for nothing."""
        moment = time.perf_counter()
        if not (now or remark) and moment - self.told < EVENT_SECONDS:
            return
        self.told = moment
        state, pace = self.state, self.pace
        done, elapsed = state.steady_tokens + pace.tokens, state.steady_seconds + pace.seconds
        estimate = self._remaining(state.steady_updates + pace.updates, elapsed)
        event = Event(
            run=self.spec.id,
            stage=stage,
            epoch=min(state.epochs + (not remark), self.epochs),
            epochs=self.epochs,
            updates=state.updates,
            all_updates=self.updates,
            tokens_per_second=done / elapsed if elapsed > 0 and done > 0 else None,
            remaining_seconds=estimate if left is None else left,
            remark=remark,
        )
        self.progress(event)

    def _remaining(self, done: int, elapsed: float) -> float | None:
        """Estimate the seconds that are left: updates, validations, and translating as slow as some validations."""
        state = self.state
        if done < 1 or elapsed <= 0:
            return None
        updates = (self.updates - state.updates) * elapsed / done
        validation = state.curve[-1].validation_seconds if state.curve else elapsed / done * len(self.validation) / 3
        translating = TRANSLATION_VALIDATIONS * math.sqrt(self.spec.decoding.beam)
        return updates + validation * (self.epochs - state.epochs + translating)
