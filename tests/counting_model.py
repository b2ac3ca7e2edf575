"""A model that counts target words: it trains in no time, needs no framework, and its builders can be told to fail."""

from __future__ import annotations

import os
import time
from dataclasses import fields
from typing import Any

import numpy as np

from impls.contract import NO_TOTALS, PAD, Arrays, Batch, Candidates, Compilation, Ids, Numbers, Totals, Training


class CountingDecoding:
    def __init__(self, log_probabilities: Numbers) -> None:
        self.log_probabilities = log_probabilities

    def step(self, last: Ids, best: int) -> Candidates:
        tokens = np.argsort(-self.log_probabilities, kind="stable")[:best].astype(np.int32)
        rows = np.tile(tokens, (len(last), 1))
        return Candidates(self.log_probabilities[rows], rows)

    def select(self, rows: Any) -> None:
        pass


class CountingModel:
    """Every word's probability is its share of what was seen; the learning rate is the weight of what is seen."""

    recipe = None

    def __init__(self, target_words: int, *, training: Training, seed: int, pause: float = 0.0) -> None:
        generator = np.random.default_rng(seed)
        self.counts = (1 + generator.random(target_words)).astype(np.float32)
        self.pause, self.updates, self.seed = pause, 0, seed
        self.totals = NO_TOTALS

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        time.sleep(self.pause)
        nats, before = float(self.token_nats(batch).sum(dtype=np.float64)), self.totals
        sums = before.objective_nats + nats, before.nats + nats, before.tokens + batch.tokens, before.updates + 1
        self.totals = Totals(*sums, 1.0, before.finite and bool(np.isfinite(nats)))
        seen = np.bincount(batch.target_out[batch.target_out != PAD], minlength=len(self.counts))
        self.counts += np.float32(learning_rate) * seen.astype(np.float32)
        self.updates += 1

    def take_totals(self) -> Totals:
        totals, self.totals = self.totals, NO_TOTALS
        return totals

    def _log_probabilities(self) -> Numbers:
        with np.errstate(all="ignore"):
            found: Numbers = np.log(self.counts / self.counts.sum())
        return found

    def token_nats(self, batch: Batch) -> Numbers:
        nats = np.where(batch.target_out == PAD, 0, -self._log_probabilities()[batch.target_out])
        return nats.astype(np.float32)

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        return np.broadcast_to(self._log_probabilities(), (*target_in.shape, len(self.counts)))

    def begin_decoding(self, source: Ids) -> CountingDecoding:
        return CountingDecoding(self._log_probabilities())

    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        shape = (len(source), 1, 1, target_in.shape[1], source.shape[1])
        return np.full(shape, 1 / source.shape[1], np.float32)

    def weights(self) -> Arrays:
        return {"counts": self.counts.copy()}

    def set_weights(self, weights: Arrays) -> None:
        self.counts = weights["counts"].copy()

    def training_state(self) -> Arrays:
        totals = {f"totals/{name}": np.array(value) for name, value in vars(self.totals).items()}
        return {"weights/counts": self.counts.copy(), "updates": np.array(self.updates), **totals}

    def set_training_state(self, state: Arrays) -> None:
        self.counts, self.updates = state["weights/counts"].copy(), int(state["updates"])
        self.totals = Totals(**{one.name: state[f"totals/{one.name}"].item() for one in fields(Totals)})

    def synchronize(self) -> None:
        pass


def build(
    source_words: int, target_words: int, *, training: Training, seed: int, device: str, precision: str
) -> CountingModel:
    return CountingModel(target_words, training=training, seed=seed)


def build_slow(source_words: int, target_words: int, **settings: Any) -> CountingModel:
    return CountingModel(target_words, training=settings["training"], seed=settings["seed"], pause=0.3)


class _Breaking(CountingModel):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        raise RuntimeError("the planted fault")


def build_breaking(source_words: int, target_words: int, **settings: Any) -> CountingModel:
    return _Breaking(target_words, training=settings["training"], seed=settings["seed"])


class _Dying(CountingModel):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        os.write(2, b"the last words\n")
        os._exit(9)


def build_dying(source_words: int, target_words: int, **settings: Any) -> CountingModel:
    return _Dying(target_words, training=settings["training"], seed=settings["seed"])


def build_seeing(source_words: int, target_words: int, **settings: Any) -> CountingModel:
    os.write(2, f"sees {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}\n".encode())
    return CountingModel(target_words, training=settings["training"], seed=settings["seed"])


def build_nothing(source_words: int, target_words: int, **settings: Any) -> str:
    return "no model"


NOTHING = 5


COMPILING_SECONDS = 1.0


class CompilingModel(CountingModel):
    """Takes a second to compile at its first and its fourth update, and where it first decodes."""

    compiled = 0
    has_decoded = False

    def _compile(self) -> None:
        time.sleep(COMPILING_SECONDS)
        self.compiled += 1

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        if self.updates in (0, 3):
            self._compile()
        super().train_step(batch, learning_rate)

    def begin_decoding(self, source: Ids) -> CountingDecoding:
        if not self.has_decoded:
            self.has_decoded = True
            self._compile()
        return super().begin_decoding(source)

    def compilation(self) -> Compilation:
        return Compilation("nothing", False, self.compiled, self.compiled * COMPILING_SECONDS)


def build_compiling(
    source_words: int, target_words: int, *, training: Training, seed: int, device: str, precision: str
) -> CompilingModel:
    return CompilingModel(target_words, training=training, seed=seed)
