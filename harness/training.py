"""Trains a model as a `RunSpec` says and measures it: the loop that knows no framework."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import impls
from harness import checkpoints, evidence, resuming, store
from harness.curves import learning_rate
from harness.data.batches import evaluation_batches, stream_digest, training_batches, updates_per_epoch
from harness.data.prepared import Prepared, prepare
from harness.measuring import Measured, measure
from harness.progress import Event, Progress, Stage, duration, silent
from harness.resuming import State
from harness.scoring import evaluate
from harness.specs import EpochRecord, RunRecord, RunSpec, Status
from harness.store import RunFailed
from impls import registry
from impls.contract import Arrays, Compiling, Seq2SeqModel, Totals

EVENT_SECONDS = 0.5
OVERFLOW_NATS = 700.0
"""A loss beyond this has no perplexity that a float64 can hold: the run counts as diverged."""

TRANSLATION_VALIDATIONS = 8
"""About how many validations one greedy translation of the test set takes: for estimates of the time left only."""


def run(spec: RunSpec, results: Path, *, progress: Progress = silent, command: str = "", note: str = "") -> RunRecord:
    """Train and measure one run and store what came of it; go on where an interrupted one ended.

    A run that is there already, completed or diverged, is returned as it is. Ctrl-C gives a record with the status
    "interrupted".

    Raises: RunFailed where training or measuring fails, with a record that says so; ValueError, before anything is
    written, for data, a model or settings that cannot be had.
    """
    there = store.finished(results, spec.id)
    if there is not None:
        return there
    progress(Event(run=spec.id, stage="preparing"))
    trial = _Trial(spec, results, prepare(spec.data), progress, command, note)
    try:
        trial.resume()
        diverged = trial.train()
        record = trial.record("diverged", diverged) if diverged else trial.measure()
    except KeyboardInterrupt:
        record = trial.record("interrupted", f"interrupted after {trial.state.updates} of {trial.updates} updates")
    except Exception as error:
        store.save_record(results, trial.record("failed", f"{type(error).__name__}: {error}"))
        raise RunFailed(spec.id) from error
    store.save_record(results, record)
    if record.status in ("completed", "diverged"):
        checkpoints.remove(results, spec.id)
    progress(Event(run=spec.id, stage="ended", remark=_remark(record)))
    return record


def build_model(spec: RunSpec, prepared: Prepared) -> Seq2SeqModel:
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
        return impls.build(spec.recipe, *words, framework=spec.framework, backend=spec.backend, **settings)
    model = registry.load(spec.variant)(*words, **settings)
    if not isinstance(model, Seq2SeqModel):
        raise ValueError(f"{spec.variant!r} gives a {type(model).__name__}: allowed is a Seq2SeqModel")
    return model


class _Trial:
    """One run under way."""

    def __init__(
        self, spec: RunSpec, results: Path, prepared: Prepared, progress: Progress, command: str, note: str
    ) -> None:
        self.spec, self.results, self.prepared, self.progress = spec, results, prepared, progress
        self.began = time.perf_counter()
        self.command, self.note = command, note
        # Now, not at the end: the checkout may change while the run goes on with the code it has loaded.
        self.environment = evidence.environment(spec)
        self.model = build_model(spec, prepared)
        if isinstance(self.model, Compiling):
            self.environment["jit_compile"] = self.model.compilation().jit_compile
        initial = self.model.weights()
        self.initial_digests = evidence.array_digests(initial)
        self.parameters = sum(one.size for one in initial.values())
        self.per_epoch = updates_per_epoch(prepared.train, spec.training.batch_size)
        self.updates = min(spec.training.epochs * self.per_epoch, spec.updates or 2**62)
        self.epochs = math.ceil(self.updates / self.per_epoch)
        self.validation = [batch for batch, _ in evaluation_batches(prepared.validation)]
        self.state = State(started=datetime.now(UTC).isoformat(timespec="seconds"))
        self.earlier_seconds = 0.0
        self.warm = False
        self.told = 0.0
        self.translating = 0.0
        self.measured = Measured(scores={}, signatures={}, decode={}, speed={}, hypotheses=[])
        self.stored: dict[str, str] = {}

    # Training ---------------------------------------------------------------------------------------------------------

    def train(self) -> str:
        """Train to the end. Return why the run diverged, or nothing."""
        while self.state.epochs < self.epochs:
            epoch = self._train_epoch()
            self.state.curve.append(epoch)
            self.state.epochs = epoch.epoch
            if None in (epoch.training_loss, epoch.training_perplexity):
                return f"epoch {epoch.epoch}: the training loss is not finite, or beyond {OVERFLOW_NATS:.0f} nats"
            if None in (epoch.validation_loss, epoch.validation_perplexity):
                return f"epoch {epoch.epoch}: the validation loss is not finite, or beyond {OVERFLOW_NATS:.0f} nats"
            self._keep(epoch)
            self.state.total_seconds = self._seconds()
            resuming.save(self.results, self.spec.id, self.state, self.model)
            self._tell("training", remark=_epoch_remark(epoch, self.epochs))
        return ""

    def _train_epoch(self) -> EpochRecord:
        state, spec = self.state, self.spec
        began = time.perf_counter()
        steady = began if self.warm else None
        tokens = steady_tokens = steady_updates = 0
        compiling = rate = 0.0
        for batch in training_batches(
            self.prepared.train, batch_size=spec.training.batch_size, seed=spec.seed, epoch=state.epochs
        ):
            if state.updates == self.updates:
                break
            state.updates += 1
            rate = learning_rate(spec.training, state.updates)
            before = self._compiling_seconds()
            self.model.train_step(batch, rate)
            compiled = self._compiling_seconds() - before
            tokens += batch.tokens
            if steady is None:
                self.model.synchronize()
                steady, self.warm = time.perf_counter(), True
                state.first_update_seconds = state.first_update_seconds or steady - began
            elif compiled:
                compiling += compiled
            else:
                steady_updates += 1
                steady_tokens += batch.tokens
            seconds = time.perf_counter() - steady - compiling
            self._tell("training", updates=steady_updates, tokens=steady_tokens, seconds=seconds)
        totals = self.model.take_totals()
        ended = time.perf_counter()
        state.steady_updates += steady_updates
        state.steady_tokens += steady_tokens
        state.steady_seconds += ended - (steady or began) - compiling
        return self._epoch_record(totals, tokens, rate, ended - began)

    def _epoch_record(self, totals: Totals, tokens: int, rate: float, seconds: float) -> EpochRecord:
        loss = totals.objective_nats / max(1, tokens) if totals.finite else math.nan
        validation, began = (math.nan, math.nan), time.perf_counter()
        if _has_perplexity(loss):
            self._tell("validating", now=True)
            found = evaluate(self.model, self.validation)
            validation = found.loss, found.perplexity
        return EpochRecord(
            epoch=self.state.epochs + 1,
            updates=self.state.updates,
            tokens=tokens,
            learning_rate=rate,
            training_loss=_finite(loss),
            training_perplexity=_perplexity(totals.nats / max(1, tokens)),
            validation_loss=_finite(validation[0]),
            validation_perplexity=_finite(validation[1]),
            largest_gradient_norm=_finite(totals.largest_gradient_norm),
            training_seconds=seconds,
            validation_seconds=time.perf_counter() - began,
        )

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
        """Go on from the checkpoint of an earlier, interrupted process, if there is one that is whole."""
        try:
            found = resuming.load(self.results, self.spec.id, self.model)
        except ValueError as error:
            self._tell("preparing", remark=f"starts anew, because its checkpoint cannot be used: {error}")
            return
        if found is not None:
            self.state, self.earlier_seconds = found, found.total_seconds
            self._tell("preparing", remark=f"goes on after epoch {found.epochs} of {self.epochs}")

    # Records and progress ---------------------------------------------------------------------------------------------

    def measure(self) -> RunRecord:
        """Measure the kept weights on the test set; store them, and what there is of each translation."""
        weights, results, run_id = self._kept_weights(), self.results, self.spec.id
        self.model.set_weights(weights)
        self.translating = time.perf_counter()
        self._tell("translating", now=True)
        self.measured = measure(self.model, self.prepared, self.spec.decoding, on_batch=self._tell_translated)
        self.stored = {
            "hypotheses": store.save_hypotheses(results, run_id, self.measured.hypotheses),
            "trained_weights": store.save_weights(results, run_id, weights),
            "sentences": store.save_sentences(results, run_id, self.measured.sentences),
            "attention": store.save_attention(results, run_id, self.measured.attention),
        }
        return self.record("completed")

    def record(self, status: Status, reason: str = "") -> RunRecord:
        """Return what is known of the run now."""
        spec, state = self.spec, self.state
        fingerprints = dict(self.prepared.digests)
        fingerprints["stream"] = stream_digest(
            self.prepared.train, batch_size=spec.training.batch_size, seed=spec.seed, updates=state.updates
        )
        fingerprints |= {"weights": self.initial_digests, **self.stored}
        return RunRecord(
            id=spec.id,
            spec=spec,
            status=status,
            reason=reason,
            note=self.note,
            started=state.started,
            command=self.command,
            fingerprints=fingerprints,
            environment=self.environment | {"resumed_after_epochs": state.resumed_after_epochs},
            sizes={"parameters": self.parameters, **self.prepared.figures},
            curve=tuple(state.curve),
            chosen_epochs=tuple(state.chosen),
            scores={name: _finite(value) for name, value in self.measured.scores.items()},
            signatures=self.measured.signatures,
            speed=self._speed(),
            decode=self.measured.decode,
        )

    def _compiling_seconds(self) -> float:
        return self.model.compilation().seconds if isinstance(self.model, Compiling) else 0.0

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
        if isinstance(self.model, Compiling):
            compiled = self.model.compilation()
            found |= {"compilations": compiled.count, "compilation_seconds": compiled.seconds}
        peak = evidence.peak_memory_bytes()
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
        updates: int = 0,
        tokens: int = 0,
        seconds: float = 0.0,
        left: float | None = None,
        now: bool = False,
        remark: str = "",
    ) -> None:
        """Tell how far the run is, unless it was told a moment ago; measures nothing and waits for nothing."""
        moment = time.perf_counter()
        if not (now or remark) and moment - self.told < EVENT_SECONDS:
            return
        self.told = moment
        state = self.state
        done, elapsed = state.steady_tokens + tokens, state.steady_seconds + seconds
        estimate = self._remaining(state.steady_updates + updates, elapsed)
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


def _epoch_remark(epoch: EpochRecord, epochs: int) -> str:
    return (
        f"epoch {epoch.epoch}/{epochs}: training loss {epoch.training_loss:.3f}, "
        f"validation loss {epoch.validation_loss:.3f}, validation perplexity {epoch.validation_perplexity:.2f}, "
        f"{epoch.tokens / epoch.training_seconds:,.0f} tokens/s"
    )


def _remark(record: RunRecord) -> str:
    """Return a line that says how a run ended."""
    if record.status != "completed":
        return f"{record.status}: {record.reason}"
    scores = {name: math.nan if value is None else value for name, value in record.scores.items()}
    return (
        f"completed in {duration(record.speed['total_seconds'])}: test perplexity {scores['test_perplexity']:.3f}, "
        f"tutorial BLEU {scores['bleu_tutorial']:.2f}"
    )


def _has_perplexity(loss: float) -> bool:
    return math.isfinite(loss) and loss < OVERFLOW_NATS


def _perplexity(loss: float) -> float | None:
    return math.exp(loss) if _has_perplexity(loss) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
