"""Models with planted faults, one for each way a law can be broken: the test of the test.

A fault wraps a right model and alters what crosses the protocol, or what reaches the model. Each is as small as the
mistake it stands for would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.conformance.models_under_test import Build
from harness.evaluation.search import Decoded, translate
from harness.experiments.specs import DecodingSpec
from impls.contract import PAD, SOS, UNK, Arrays, Batch, Candidates, Ids, Numbers, Seq2SeqModel, Totals, Training


class Fault:
    """A model that passes everything on; each fault changes one thing."""

    def __init__(self, inner: Any, training: Training, seed: int, dropout: float) -> None:
        self.inner = inner
        self.training, self.seed, self.dropout = training, seed, dropout

    @staticmethod
    def settings(training: Training, dropout: float) -> tuple[Training, float]:
        """Return what the right model inside is built with."""
        return training, dropout

    @property
    def recipe(self) -> Any:
        return self.inner.recipe

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)

    def take_totals(self) -> Totals:
        return self.inner.take_totals()

    def token_nats(self, batch: Batch) -> Numbers:
        return self.inner.token_nats(batch)

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        return self.inner.logits(source, target_in)

    def begin_decoding(self, source: Ids) -> Any:
        return self.inner.begin_decoding(source)

    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        return self.inner.cross_attention(source, target_in)

    def weights(self) -> Arrays:
        return self.inner.weights()

    def set_weights(self, weights: Arrays) -> None:
        self.inner.set_weights(weights)

    def training_state(self) -> Arrays:
        return self.inner.training_state()

    def set_training_state(self, state: Arrays) -> None:
        self.inner.set_training_state(state)

    def synchronize(self) -> None:
        self.inner.synchronize()

    def nudge(self, change: Callable[[Numbers], Numbers]) -> None:
        """Change every weight."""
        self.inner.set_weights({name: change(value) for name, value in self.inner.weights().items()})


class FaultyDecoding:
    """A decoding that passes everything on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def step(self, last: Ids, best: int) -> Candidates:
        return self.inner.step(last, best)

    def select(self, rows: Any) -> None:
        self.inner.select(rows)


def planted(build: Build, fault: type[Fault]) -> Build:
    """Return a build whose models have the fault."""

    def faulty(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
        given, rate = fault.settings(training, dropout)
        return fault(build(given, seed, rate), training, seed, dropout)

    return faulty


# 1: shapes, types, counts ---------------------------------------------------------------------------------------------


class DoubleLogits(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Any:
        return self.inner.logits(source, target_in).astype(np.float64)


class TransposedAttention(Fault):
    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        return self.inner.cross_attention(source, target_in).swapaxes(-1, -2)


class AttentionOnPadding(Fault):
    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        return np.full_like(self.inner.cross_attention(source, target_in), 1 / source.shape[1])


class NatsAtPadding(Fault):
    def token_nats(self, batch: Batch) -> Numbers:
        return np.maximum(self.inner.token_nats(batch), 0.1)


class SmoothedNats(Fault):
    def token_nats(self, batch: Batch) -> Numbers:
        return self.inner.token_nats(batch) * 1.01


class PaddingCounted(Fault):
    """Counts B times T words."""

    tokens = 0

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.tokens += batch.target_out.size
        self.inner.train_step(batch, learning_rate)

    def take_totals(self) -> Totals:
        found, self.tokens = replace(self.inner.take_totals(), tokens=self.tokens), 0
        return found


class MeanTotals(Fault):
    def take_totals(self) -> Totals:
        found = self.inner.take_totals()
        return replace(found, nats=found.nats / max(found.tokens, 1))


class SmoothingForgotten(Fault):
    def take_totals(self) -> Totals:
        found = self.inner.take_totals()
        return replace(found, objective_nats=found.nats)


class TotalsKept(Fault):
    kept = None

    def take_totals(self) -> Totals:
        self.kept = self.kept or self.inner.take_totals()
        return self.kept


class ForeignNames(Fault):
    def weights(self) -> Arrays:
        return {f"model.{name}": value for name, value in self.inner.weights().items()}

    def set_weights(self, weights: Arrays) -> None:
        self.inner.set_weights({name.removeprefix("model."): value for name, value in weights.items()})


class WorstFirst(Fault):
    class Decoding(FaultyDecoding):
        def step(self, last: Ids, best: int) -> Candidates:
            found = self.inner.step(last, best)
            return Candidates(found.log_probabilities[:, ::-1], found.tokens[:, ::-1])

    def begin_decoding(self, source: Ids) -> Any:
        return self.Decoding(self.inner.begin_decoding(source))


# 2: determinism -------------------------------------------------------------------------------------------------------


class DropoutInEvaluation(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        found = self.inner.logits(source, target_in)
        return found * (np.random.default_rng().random(found.shape) < 0.9)


class EvaluationLeavesATrace(Fault):
    evaluations = 0

    def token_nats(self, batch: Batch) -> Numbers:
        self.evaluations += 1
        return self.inner.token_nats(batch)

    def training_state(self) -> Arrays:
        return {**self.inner.training_state(), "random/drawn": np.array(self.evaluations)}


# 3: causality ---------------------------------------------------------------------------------------------------------


class SeesTheNextWord(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        found = self.inner.logits(source, target_in)
        found[:, :-1, 5] += 1e-3 * (target_in[:, 1:] == 5)
        return found


class SeesTheWholeSentence(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        return self.inner.logits(source, target_in) + np.float32(1e-4) * target_in.sum(1)[:, None, None]


# 4: padding -----------------------------------------------------------------------------------------------------------


class SeesPadding(Fault):
    """Shows the source's padding to the attention, as a word like any other."""

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        return self.inner.logits(np.where(source == PAD, UNK, source).astype(np.int32), target_in)

    def token_nats(self, batch: Batch) -> Numbers:
        shown = np.where(batch.source == PAD, UNK, batch.source).astype(np.int32)
        return self.inner.token_nats(replace(batch, source=shown))


class DecodingSeesPadding(Fault):
    def begin_decoding(self, source: Ids) -> Any:
        return self.inner.begin_decoding(np.where(source == PAD, UNK, source).astype(np.int32))


class EmptyBatchPoisons(Fault):
    """Divides 0 by 0 where a batch has no words."""

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)
        if batch.tokens == 0:
            self.nudge(lambda value: value * np.float32(np.nan))


class EmptyRowPoisons(Fault):
    """Gives NaN where everything is hidden from the attention."""

    def token_nats(self, batch: Batch) -> Numbers:
        found = self.inner.token_nats(batch)
        found[(batch.source == PAD).all(1)] = np.nan
        return found


# 5: independence ------------------------------------------------------------------------------------------------------


class BatchStatistics(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        found = self.inner.logits(source, target_in)
        return found - 1e-3 * found.mean(axis=(0, 1))


class NeighbourDecoded(Fault):
    class Decoding(FaultyDecoding):
        def step(self, last: Ids, best: int) -> Candidates:
            found = self.inner.step(last, best)
            return replace(found, log_probabilities=found.log_probabilities - np.float32(1e-4 * (len(last) - 1)))

    def begin_decoding(self, source: Ids) -> Any:
        return self.Decoding(self.inner.begin_decoding(source))


# 6: caching -----------------------------------------------------------------------------------------------------------


class PositionOffByOne(Fault):
    """Has taken a step before the first word."""

    def begin_decoding(self, source: Ids) -> Any:
        found = self.inner.begin_decoding(source)
        found.step(np.full(len(source), SOS, np.int32), 1)
        return found


class ForgetsTheFirstWords(Fault):
    """Goes on from a cache that holds the last two words alone."""

    class Decoding(FaultyDecoding):
        def __init__(self, fault: Fault, source: Ids) -> None:
            super().__init__(fault.inner.begin_decoding(source))
            self.fault, self.source, self.fed = fault, source, []

        def step(self, last: Ids, best: int) -> Candidates:
            self.fed = [*self.fed, last][-2:]
            fresh = self.fault.inner.begin_decoding(self.source)
            return [fresh.step(one, best) for one in self.fed][-1]

        def select(self, rows: Any) -> None:
            self.source, self.fed = self.source[rows], [one[rows] for one in self.fed]

    def begin_decoding(self, source: Ids) -> Any:
        return self.Decoding(self, source)


class Unnormalised(Fault):
    class Decoding(FaultyDecoding):
        def step(self, last: Ids, best: int) -> Candidates:
            found = self.inner.step(last, best)
            return replace(found, log_probabilities=found.log_probabilities + np.float32(0.1))

    def begin_decoding(self, source: Ids) -> Any:
        return self.Decoding(self.inner.begin_decoding(source))


# 7: selection ---------------------------------------------------------------------------------------------------------


class SelectIgnoresOrder(Fault):
    class Decoding(FaultyDecoding):
        def select(self, rows: Any) -> None:
            self.inner.select(np.sort(rows))

    def begin_decoding(self, source: Ids) -> Any:
        return self.Decoding(self.inner.begin_decoding(source))


class SelectDropsRepeats(Fault):
    class Decoding(FaultyDecoding):
        def select(self, rows: Any) -> None:
            first = [int(np.flatnonzero(rows == row)[0]) for row in rows]
            self.inner.select(np.array([row if place == first[place] else 0 for place, row in enumerate(rows)]))

    def begin_decoding(self, source: Ids) -> Any:
        return self.Decoding(self.inner.begin_decoding(source))


class SelectMissesTheSource(Fault):
    """Reorders what was decoded, but not the sources it was decoded from."""

    class Decoding(FaultyDecoding):
        def __init__(self, fault: Fault, source: Ids) -> None:
            super().__init__(fault.inner.begin_decoding(source))
            self.fault, self.source, self.fed = fault, source, []

        def step(self, last: Ids, best: int) -> Candidates:
            self.fed = [*self.fed, last]
            fresh = self.fault.inner.begin_decoding(self.source)
            return [fresh.step(one, best) for one in self.fed][-1]

        def select(self, rows: Any) -> None:
            self.source = np.resize(self.source, (len(rows), self.source.shape[1]))
            self.fed = [one[rows] for one in self.fed]

    def begin_decoding(self, source: Ids) -> Any:
        return self.Decoding(self, source)


# 8: round trip --------------------------------------------------------------------------------------------------------


class LosesATensor(Fault):
    def set_weights(self, weights: Arrays) -> None:
        own = self.inner.weights()
        kept = next(name for name, value in own.items() if value.ndim == 2)
        self.inner.set_weights(weights)
        if weights.keys() == own.keys():
            self.inner.set_weights({**weights, kept: own[kept]})


class TransposesASquare(Fault):
    def set_weights(self, weights: Arrays) -> None:
        square = next(name for name, value in weights.items() if value.ndim == 2 and len(set(value.shape)) == 1)
        self.inner.set_weights({**weights, square: weights[square].T})


class LiveViews(Fault):
    """Hands out its own arrays."""

    live: Arrays | None = None

    def weights(self) -> Arrays:
        self.live = self.live or self.inner.weights()
        return self.live

    def set_weights(self, weights: Arrays) -> None:
        self.inner.set_weights(weights)
        self.live = None

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)
        self.live = None


class TakesWhatFits(Fault):
    """Keeps its own weights where none are given, and passes over those it does not know."""

    def set_weights(self, weights: Arrays) -> None:
        own = self.inner.weights()
        self.inner.set_weights({name: weights.get(name, value) for name, value in own.items()})


class HalfPrecision(Fault):
    def weights(self) -> Arrays:
        return {name: value.astype(np.float16).astype(np.float32) for name, value in self.inner.weights().items()}


# 9: standstill --------------------------------------------------------------------------------------------------------


class WeightDecay(Fault):
    """Shrinks the weights, whatever the rate."""

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)
        self.nudge(lambda value: value * np.float32(1 - 1e-5))


class OwnSchedule(Fault):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, max(learning_rate, 1e-7))


# 10: learning ---------------------------------------------------------------------------------------------------------


class RateDividedTwice(Fault):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate / batch.tokens)


class Ascends(Fault):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        before = self.inner.weights()
        self.inner.train_step(batch, learning_rate)
        after = self.inner.weights()
        self.inner.set_weights({name: 2 * value - after[name] for name, value in before.items()})


class TargetsNotShifted(Fault):
    """Learns to repeat the word it is given."""

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(replace(batch, target_out=batch.target_in), learning_rate)


# 11: reproducibility --------------------------------------------------------------------------------------------------


class Unseeded(Fault):
    """Its noise in training comes from nowhere."""

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)
        generator = np.random.default_rng()
        self.nudge(lambda value: value + np.float32(1e-6) * generator.random(value.shape, np.float32))


class SeedIgnored(Fault):
    """Starts from the same weights whatever the seed."""

    def __init__(self, inner: Any, training: Training, seed: int, dropout: float) -> None:
        super().__init__(inner, training, seed, dropout)
        self.nudge(lambda value: np.random.default_rng(0).normal(0, 0.1, value.shape).astype(np.float32))
        self.frozen = self.inner.weights()

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)
        self.inner.set_weights(self.frozen)


# 12: search -----------------------------------------------------------------------------------------------------------


class SecondBest(Fault):
    """Offers the second-best word as its best."""

    class Decoding(FaultyDecoding):
        def step(self, last: Ids, best: int) -> Candidates:
            found = self.inner.step(last, best + 1)
            return Candidates(found.log_probabilities[:, 1:], found.tokens[:, 1:])

    def begin_decoding(self, source: Ids) -> Any:
        return self.Decoding(self.inner.begin_decoding(source))


def without_penalty(model: Any, sources: Sequence[Ids], decoding: DecodingSpec) -> Decoded:
    """Search as if length did not matter."""
    return translate(model, sources, replace(decoding, length_penalty=0.0))


def always_greedy(model: Any, sources: Sequence[Ids], decoding: DecodingSpec) -> Decoded:
    """Search with a beam of 1, whatever is asked."""
    return translate(model, sources, replace(decoding, beam=1))


def order_lost(model: Any, sources: Sequence[Ids], decoding: DecodingSpec) -> Decoded:
    """Return the translations in the order they were searched for."""
    found = translate(model, sources, decoding)
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    return replace(found, translations=tuple(found.translations[index] for index in order))


def wider_than_asked(model: Any, sources: Sequence[Ids], decoding: DecodingSpec) -> Decoded:
    """Search with one hypothesis more than asked."""
    return translate(model, sources, replace(decoding, beam=decoding.beam + 1))


SEARCHES = (without_penalty, always_greedy, order_lost, wider_than_asked)


# 13: resumption -------------------------------------------------------------------------------------------------------


class MomentsForgotten(Fault):
    def training_state(self) -> Arrays:
        state = self.inner.training_state()
        return {name: np.zeros_like(value) if "moment/" in name else value for name, value in state.items()}


class UpdatesForgotten(Fault):
    def training_state(self) -> Arrays:
        return {**self.inner.training_state(), "updates": np.array(0)}


class ATensorNotRestored(Fault):
    def set_training_state(self, state: Arrays) -> None:
        own = self.inner.training_state()
        kept = next(name for name in state if name.startswith("weights/"))
        self.inner.set_training_state({**state, kept: own[kept]})


class TotalsForgotten(Fault):
    """Begins its sums anew where it goes on."""

    def set_training_state(self, state: Arrays) -> None:
        self.inner.set_training_state(state)
        self.inner.take_totals()


class TotalsRounded(Fault):
    """Saves its sums with fewer digits than it adds them with."""

    def training_state(self) -> Arrays:
        state = self.inner.training_state()
        rounded = {name: np.float16(state[name]) for name in ("totals/nats", "totals/objective_nats")}
        return state | {name: np.array(value, np.float64) for name, value in rounded.items()}


class LargestNormForgotten(Fault):
    def set_training_state(self, state: Arrays) -> None:
        self.inner.set_training_state({**state, "totals/largest_gradient_norm": np.array(0.0)})


FAULTS: tuple[tuple[int, type[Fault]], ...] = (
    (1, DoubleLogits),
    (1, TransposedAttention),
    (1, AttentionOnPadding),
    (1, NatsAtPadding),
    (1, SmoothedNats),
    (1, PaddingCounted),
    (1, MeanTotals),
    (1, SmoothingForgotten),
    (1, TotalsKept),
    (1, ForeignNames),
    (1, WorstFirst),
    (2, DropoutInEvaluation),
    (2, EvaluationLeavesATrace),
    (3, SeesTheNextWord),
    (3, SeesTheWholeSentence),
    (4, SeesPadding),
    (4, DecodingSeesPadding),
    (4, EmptyBatchPoisons),
    (4, EmptyRowPoisons),
    (5, BatchStatistics),
    (5, NeighbourDecoded),
    (6, PositionOffByOne),
    (6, ForgetsTheFirstWords),
    (6, Unnormalised),
    (7, SelectIgnoresOrder),
    (7, SelectDropsRepeats),
    (7, SelectMissesTheSource),
    (8, LosesATensor),
    (8, TransposesASquare),
    (8, LiveViews),
    (8, TakesWhatFits),
    (8, HalfPrecision),
    (9, WeightDecay),
    (9, OwnSchedule),
    (10, RateDividedTwice),
    (10, Ascends),
    (10, TargetsNotShifted),
    (11, Unseeded),
    (11, SeedIgnored),
    (12, SecondBest),
    (13, MomentsForgotten),
    (13, UpdatesForgotten),
    (13, ATensorNotRestored),
    (13, TotalsForgotten),
    (13, TotalsRounded),
    (13, LargestNormForgotten),
)
