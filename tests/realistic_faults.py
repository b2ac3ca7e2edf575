"""Faults that show only at realistic sizes: in batches of more than 16 sentences, or beyond 12 ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from faults import Fault, FaultyDecoding

from harness.evaluation.search import Decoded, translate
from harness.experiments.specs import DecodingSpec
from impls.contract import PAD, UNK, Arrays, Batch, Candidates, Ids, Numbers, Totals

MANY, FAR = 16, 12


def many(ids: Ids) -> bool:
    """Return whether a batch has more sentences than a fault spares."""
    return len(ids) > MANY


def far(ids: Ids) -> Any:
    """Return which columns are beyond those that a fault spares."""
    return np.arange(ids.shape[1]) >= FAR


def as_ids(array: Any) -> Ids:
    return array.astype(np.int32)


# 1: shapes, types, counts ---------------------------------------------------------------------------------------------


class NatsTooLowInLargeBatches(Fault):
    def token_nats(self, batch: Batch) -> Numbers:
        return self.inner.token_nats(batch) * np.float32(0.9 if many(batch.source) else 1)


class NatsOfTheFirstWordsOnly(Fault):
    def token_nats(self, batch: Batch) -> Numbers:
        return np.where(far(batch.target_out), np.float32(0), self.inner.token_nats(batch))


class AttentionOfTheFirstWordsOnly(Fault):
    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        return np.where(far(source), np.float32(0), self.inner.cross_attention(source, target_in))


class AttentionOnFarPadding(Fault):
    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        found = self.inner.cross_attention(source, target_in)
        hidden = ((source == PAD) & far(source))[:, None, None, None]
        return np.where(hidden, np.float32(0.01), found)


class HalfOfALargeBatchIgnored(Fault):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        rows = len(batch.source) // 2 if many(batch.source) else len(batch.source)
        self.inner.train_step(Batch(*(ids[:rows] for ids in vars(batch).values())), learning_rate)


class TotalsTooHigh(Fault):
    def take_totals(self) -> Totals:
        found = self.inner.take_totals()
        return replace(found, nats=found.nats * (1 + 1e-4))


class _OtherSmoothing(Fault):
    """Spreads the smoothed share over some words only."""

    words: Any = None
    extra = 0.0

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        logits = self.inner.logits(batch.source, batch.target_in).astype(np.float64)
        logs = (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[batch.target_out != PAD]
        change = logs.mean(-1).sum() - self.mean(logs, batch.target_out[batch.target_out != PAD])
        self.extra += self.training.label_smoothing * change
        self.inner.train_step(batch, learning_rate)

    def mean(self, logs: Any, target: Ids) -> float:
        raise NotImplementedError

    def take_totals(self) -> Totals:
        found, extra = self.inner.take_totals(), self.extra
        self.extra = 0.0
        return replace(found, objective_nats=found.objective_nats + extra)


class SmoothingSparesPadding(_OtherSmoothing):
    def mean(self, logs: Any, target: Ids) -> float:
        return float(np.delete(logs, PAD, -1).mean(-1).sum())


class SmoothingSparesTheTarget(_OtherSmoothing):
    def mean(self, logs: Any, target: Ids) -> float:
        right = np.take_along_axis(logs, target[:, None], -1)[:, 0]
        return float(((logs.sum(-1) - right) / (logs.shape[-1] - 1)).sum())


# 2: determinism -------------------------------------------------------------------------------------------------------


class DropoutInLargeEvaluations(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        found = self.inner.logits(source, target_in)
        return found * (np.random.default_rng().random(found.shape) < 0.99) if many(source) else found


class LongEvaluationLeavesATrace(Fault):
    calls = 0

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        self.calls += source.shape[1] > FAR
        return self.inner.logits(source, target_in)

    def training_state(self) -> Arrays:
        return {**self.inner.training_state(), "random/drawn": np.array(self.calls)}


# 3: causality ---------------------------------------------------------------------------------------------------------


class LeakBeyondTwelve(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        found = self.inner.logits(source, target_in)
        found[:, :-1, 5] += 1e-3 * ((target_in == 5) & far(target_in))[:, 1:]
        return found


class FirstWordSeesTheLast(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        found = self.inner.logits(source, target_in)
        if target_in.shape[1] > FAR:
            last = np.take_along_axis(target_in, (target_in != PAD).sum(1, keepdims=True) - 1, 1)
            found[:, 0, 5] += 1e-4 * last[:, 0]
        return found


class TruncatedSource(Fault):
    def cut(self, source: Ids) -> Ids:
        return as_ids(np.where(far(source), PAD, source))

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        return self.inner.logits(self.cut(source), target_in)

    def token_nats(self, batch: Batch) -> Numbers:
        return self.inner.token_nats(replace(batch, source=self.cut(batch.source)))

    def begin_decoding(self, source: Ids) -> Any:
        return self.inner.begin_decoding(self.cut(source))

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(replace(batch, source=self.cut(batch.source)), learning_rate)


class BlindToFarTargetWords(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        return self.inner.logits(source, as_ids(np.where(far(target_in) & (target_in != PAD), UNK, target_in)))


class StaleLogits(Fault):
    """Keeps the logits of a large batch for the next one of its shape."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.kept: dict[Any, Numbers] = {}

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        if not many(source):
            return self.inner.logits(source, target_in)
        return self.kept.setdefault((source.shape, target_in.shape), self.inner.logits(source, target_in)).copy()


class _PositionsShifted(Fault):
    """Uses the vector of the next position from the twelfth on, everywhere alike."""

    table = ""

    def turned(self, weights: Arrays, by: int) -> Arrays:
        if self.table not in weights:
            return weights
        value = weights[self.table]
        return {**weights, self.table: np.concatenate([value[:FAR], np.roll(value[FAR:], by, 0)])}

    def set_weights(self, weights: Arrays) -> None:
        self.inner.set_weights(self.turned(weights, -1))

    def weights(self) -> Arrays:
        return self.turned(self.inner.weights(), 1)


class SourcePositionsShifted(_PositionsShifted):
    table = "source.positions"


class TargetPositionsShifted(_PositionsShifted):
    table = "target.positions"


# 4: padding -----------------------------------------------------------------------------------------------------------


class SeesFarPadding(Fault):
    def shown(self, source: Ids) -> Ids:
        return as_ids(np.where((source == PAD) & far(source), UNK, source))

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        return self.inner.logits(self.shown(source), target_in)

    def token_nats(self, batch: Batch) -> Numbers:
        return self.inner.token_nats(replace(batch, source=self.shown(batch.source)))


class DecodingSeesFarPadding(SeesFarPadding):
    logits, token_nats = Fault.logits, Fault.token_nats

    def begin_decoding(self, source: Ids) -> Any:
        return self.inner.begin_decoding(self.shown(source))


class NatsGrowWithPadding(Fault):
    def token_nats(self, batch: Batch) -> Numbers:
        share = ((batch.target_out == PAD) & far(batch.target_out)).mean(1, keepdims=True)
        return self.inner.token_nats(batch) * (1 + 1e-3 * share).astype(np.float32)


# 5: independence ------------------------------------------------------------------------------------------------------


class StatisticsOfLargeBatches(Fault):
    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        found = self.inner.logits(source, target_in)
        return found - 1e-3 * found.mean(axis=(0, 1)) if many(source) else found


class RowsMixedUpInLargeBatches(Fault):
    def token_nats(self, batch: Batch) -> Numbers:
        found = self.inner.token_nats(batch)
        return found[np.r_[: MANY + 1, MANY : len(found) - 1]] if many(found) else found


# 6 and 7: caching and selection ---------------------------------------------------------------------------------------


class _Decodes(Fault):
    """Decodes with the faulty decoding `Decoding`."""

    Decoding: type[FaultyDecoding] = FaultyDecoding

    def begin_decoding(self, source: Ids) -> Any:
        return self.Decoding(self.inner.begin_decoding(source))


class _Counting(FaultyDecoding):
    position = 0

    def step(self, last: Ids, best: int) -> Candidates:
        self.position += 1
        return self.found(self.inner.step(last, best))

    def found(self, candidates: Candidates) -> Candidates:
        return candidates


class UnnormalisedBeyondTwelve(_Decodes):
    class Decoding(_Counting):
        def found(self, candidates: Candidates) -> Candidates:
            extra = np.float32(0.1 if self.position > FAR else 0)
            return replace(candidates, log_probabilities=candidates.log_probabilities + extra)


class StuckBeyondTwelve(_Decodes):
    """Gives the step before once more."""

    class Decoding(_Counting):
        before: Any = None

        def found(self, candidates: Candidates) -> Candidates:
            if self.position <= FAR or len(self.before.tokens) != len(candidates.tokens):
                self.before = candidates
            return self.before


class RepeatsAWordBeyondTwelve(_Decodes):
    class Decoding(_Counting):
        def step(self, last: Ids, best: int) -> Candidates:
            self.position += 1
            return self.inner.step(last if self.position <= FAR else np.full_like(last, UNK), best)


class NeighbourDecodedInLargeBatches(_Decodes):
    class Decoding(FaultyDecoding):
        def step(self, last: Ids, best: int) -> Candidates:
            found = self.inner.step(last, best)
            if not many(last):
                return found
            return Candidates(np.roll(found.log_probabilities, 1, 0), np.roll(found.tokens, 1, 0))


class _Selects(_Counting):
    def select(self, rows: Any) -> None:
        self.inner.select(self.chosen(rows))

    def chosen(self, rows: Any) -> Any:
        raise NotImplementedError


class SelectIgnoresOrderFromStepSix(_Decodes):
    class Decoding(_Selects):
        def chosen(self, rows: Any) -> Any:
            return np.sort(rows) if self.position >= 6 else rows


class SelectRepeatsNothingBeyondTwelve(_Decodes):
    class Decoding(_Selects):
        def chosen(self, rows: Any) -> Any:
            return rows if self.position <= FAR else np.resize(np.unique(rows), len(rows))


class SelectForgottenBeyondTwelve(_Decodes):
    class Decoding(_Selects):
        rows = 0

        def chosen(self, rows: Any) -> Any:
            kept = np.arange(len(rows)) if self.position > FAR and len(rows) == self.rows else rows
            self.rows = len(rows)
            return kept


class SelectOfManyRowsOffByOne(_Decodes):
    class Decoding(_Selects):
        def chosen(self, rows: Any) -> Any:
            return np.roll(rows, 1) if len(rows) > MANY else rows


# 8 to 13 --------------------------------------------------------------------------------------------------------------


class LosesVectors(Fault):
    """Does not take biases and norms."""

    def set_weights(self, weights: Arrays) -> None:
        own = self.inner.weights()
        self.inner.set_weights(weights)
        if weights.keys() == own.keys():
            self.inner.set_weights({name: own[name] if one.ndim == 1 else one for name, one in weights.items()})


class DecayInLargeBatches(Fault):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)
        if many(batch.source):
            self.nudge(lambda value: value * np.float32(1 - 1e-5))


class LearnsFromSmallBatchesOnly(Fault):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, 0.0 if many(batch.source) else learning_rate)


class UnseededInLargeBatches(Fault):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)
        if many(batch.source):
            noise = np.random.default_rng()
            self.nudge(lambda value: value + np.float32(1e-6) * noise.random(value.shape, np.float32))


class SecondBestBeyondTwelve(_Decodes):
    class Decoding(_Counting):
        def step(self, last: Ids, best: int) -> Candidates:
            self.position += 1
            found = self.inner.step(last, best + 1)
            first = int(self.position > FAR)
            return Candidates(found.log_probabilities[:, first : first + best], found.tokens[:, first : first + best])


class SecondMomentRounded(Fault):
    def training_state(self) -> Arrays:
        state = self.inner.training_state()
        return {
            name: (value.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
            if name.startswith("second_moment/")
            else value
            for name, value in state.items()
        }


class ResumesWithAnotherSeed(Fault):
    def set_training_state(self, state: Arrays) -> None:
        self.inner.set_training_state({**state, "random/seed": state["random/seed"] + 1})

    def training_state(self) -> Arrays:
        state = self.inner.training_state()
        return {**state, "random/seed": np.array(self.seed)}


def scores_rounded(model: Any, sources: Sequence[Ids], decoding: DecodingSpec) -> Decoded:
    """Give the log-probability of the last word a weight of less than 1."""
    found = translate(model, sources, decoding)
    changed = tuple(replace(one, log_probability=one.log_probability * 0.99) for one in found.translations)
    return replace(found, translations=changed)


def words_swapped_beyond_twelve(model: Any, sources: Sequence[Ids], decoding: DecodingSpec) -> Decoded:
    """Give the words after the twelfth in another order."""
    found = translate(model, sources, decoding)
    changed = tuple(replace(one, tokens=one.tokens[:FAR] + one.tokens[: FAR - 1 : -1]) for one in found.translations)
    return replace(found, translations=changed)


def source_truncated(model: Any, sources: Sequence[Ids], decoding: DecodingSpec) -> Decoded:
    """Translate the first words of each source only."""
    return translate(model, [one[:FAR] for one in sources], decoding)


LATE_SEARCHES = (scores_rounded, words_swapped_beyond_twelve, source_truncated)

REALISTIC: tuple[tuple[int, type[Fault]], ...] = (
    (1, NatsTooLowInLargeBatches),
    (1, NatsOfTheFirstWordsOnly),
    (1, AttentionOfTheFirstWordsOnly),
    (1, AttentionOnFarPadding),
    (1, HalfOfALargeBatchIgnored),
    (1, TotalsTooHigh),
    (1, SmoothingSparesPadding),
    (1, SmoothingSparesTheTarget),
    (2, DropoutInLargeEvaluations),
    (2, LongEvaluationLeavesATrace),
    (3, LeakBeyondTwelve),
    (3, FirstWordSeesTheLast),
    (3, TruncatedSource),
    (3, BlindToFarTargetWords),
    (3, StaleLogits),
    (3, SourcePositionsShifted),
    (3, TargetPositionsShifted),
    (4, SeesFarPadding),
    (4, DecodingSeesFarPadding),
    (4, NatsGrowWithPadding),
    (5, StatisticsOfLargeBatches),
    (5, RowsMixedUpInLargeBatches),
    (6, UnnormalisedBeyondTwelve),
    (6, StuckBeyondTwelve),
    (6, RepeatsAWordBeyondTwelve),
    (6, NeighbourDecodedInLargeBatches),
    (7, SelectIgnoresOrderFromStepSix),
    (7, SelectRepeatsNothingBeyondTwelve),
    (7, SelectForgottenBeyondTwelve),
    (7, SelectOfManyRowsOffByOne),
    (8, LosesVectors),
    (9, DecayInLargeBatches),
    (10, LearnsFromSmallBatchesOnly),
    (11, UnseededInLargeBatches),
    (12, SecondBestBeyondTwelve),
    (13, SecondMomentRounded),
    (13, ResumesWithAnotherSeed),
)
