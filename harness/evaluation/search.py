"""Greedy and beam search, once for all models.

Search only uses `model.begin_decoding(source)`, so two implementations differ in their probabilities and never in how
translations are found.

Rules of greedy and beam search:

- `<pad>` and `<sos>` are never chosen, and `<unk>` only if the `DecodingSpec` has unknown="allowed". The probabilities
  of the other tokens are not renormalised.
- `max_tokens` counts tokens without `<eos>`. After the last token the model is asked once more whether `<eos>` follows;
  if not, the translation keeps all its tokens and is marked as unfinished.
- A log-probability above 0, which only rounding can produce, counts as 0. Sums are float64.
- Of two extensions of a hypothesis with equal log-probabilities, the token with the smaller id wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.data.batches import pad
from harness.experiments.specs import DecodingSpec
from impls.contract import EOS, PAD, SOS, UNK, Candidates, Decoding, Ids

TIE_NATS = 1e-4
"""Log-probabilities that are closer than this count as a tie."""

SPARE_CANDIDATES = 4
"""Candidates beyond the beam: three may be tokens that are never chosen, and one shows how close the first dropped
candidate is. The number does not depend on whether `<unk>` is allowed, so the model returns the same candidates."""

_Reals = npt.NDArray[np.float64]
_Indices = npt.NDArray[np.intp]
_Flags = npt.NDArray[np.bool_]


class NotANumber(ValueError):
    """A log-probability of the model is NaN; `sentence` is the position of its source, from 0."""

    def __init__(self, sentence: int) -> None:
        super().__init__(f"sentence {sentence + 1}: the model gives NaN as a log-probability")
        self.sentence = sentence


class Decodable(Protocol):
    """The one member of `Seq2SeqModel` that search uses."""

    def begin_decoding(self, source: Ids) -> Decoding:
        """Encode `source` [B,S] and return its `Decoding`, before the first token."""


@dataclass(frozen=True)
class Translation:
    """One translated sentence.

    Attributes:
        tokens: Its tokens without `<sos>` and `<eos>`.
        log_probability: The sum of natural logarithms over the tokens and, if `finished`, over `<eos>`.
        finished: Whether it ended with `<eos>`.
    """

    tokens: tuple[int, ...]
    log_probability: float
    finished: bool


@dataclass(frozen=True)
class Decoded:
    """Translations in the order of their sources.

    Attributes:
        translations: One for each source.
        ties: Decisions in which the last kept and the first dropped candidate were within 1e-4 nats of each other, so
            that another machine may decide otherwise.
        unfinished: Translations that reached `max_tokens` without `<eos>`.
    """

    translations: tuple[Translation, ...]
    ties: int
    unfinished: int


def suppressed(decoding: DecodingSpec) -> tuple[int, ...]:
    """Return the ids that are never chosen."""
    return (PAD, SOS) if decoding.unknown == "allowed" else (UNK, PAD, SOS)


def translate(
    model: Decodable, sources: Sequence[Ids], decoding: DecodingSpec, *, on_batch: Callable[[int], None] | None = None
) -> Decoded:
    """Translate all sources in batches of similar length, longest first.

    Each source is `<sos>`, its tokens, `<eos>`. `on_batch` is called after each batch with the number of sentences
    translated so far.

    Raises: NotANumber if a log-probability of the model is NaN.
    """
    search = greedy if decoding.beam == 1 else beam_search
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    translations: dict[int, Translation] = {}
    ties = 0
    for start in range(0, len(order), decoding.batch_size):
        batch = order[start : start + decoding.batch_size]
        try:
            decoded = search(model, pad([sources[index] for index in batch]), decoding)
        except NotANumber as error:
            raise NotANumber(batch[error.sentence]) from None
        translations.update(zip(batch, decoded.translations, strict=True))
        ties += decoded.ties
        if on_batch is not None:
            on_batch(len(translations))
    return _decoded([translations[index] for index in range(len(sources))], ties)


def greedy(model: Decodable, source: Ids, decoding: DecodingSpec) -> Decoded:
    """Choose the most probable token at every position, for one batch.

    Shapes: source [B,S].
    """
    max_tokens, never = decoding.max_tokens, suppressed(decoding)
    decoder = model.begin_decoding(source)
    best = BestHypotheses(len(source), max_tokens)
    sentence_index = np.arange(len(source))  # the sentence of each row
    running = np.ones(len(source), dtype=bool)
    last: Ids = np.full(len(source), SOS, dtype=np.int32)
    ties = 0
    for length in range(max_tokens + 1):
        candidates = decoder.step(last, 1 + SPARE_CANDIDATES)
        log_probabilities, tokens = _without_suppressed(candidates, never, sentence_index)
        ties += _count_ties(log_probabilities, running.astype(np.intp))
        largest, chosen = log_probabilities[:, 0], tokens[:, 0]
        running &= np.isfinite(largest)
        ended = running & (chosen == EOS)
        running &= ~ended & (length < max_tokens)
        best.finished[sentence_index[ended]] = True
        best.log_probabilities[sentence_index[ended | running]] += largest[ended | running]
        if not running.any():
            break
        best.tokens[sentence_index[running], length] = chosen[running]
        best.lengths[sentence_index[running]] += 1
        last = np.where(running, chosen, EOS).astype(np.int32)
        rows = _remaining_rows(running)
        if len(rows) < len(running):
            decoder.reorder(rows)
            sentence_index, running, last = sentence_index[rows], running[rows], last[rows]
    return _decoded(best.translations(), ties)


def beam_search(model: Decodable, source: Ids, decoding: DecodingSpec) -> Decoded:
    """Search with `beam` hypotheses per sentence, for one batch.

    Formula: the normalised score of a finished hypothesis Y is log P(Y) / penalty(|Y|), where |Y| counts the factors of
    P, that is the tokens and `<eos>`, and `length_penalties` gives the penalty. The finished hypothesis with the
    highest score wins, and of two equal ones the earlier.

    A sentence has `beam` slots. At every position all extensions of its active hypotheses are ranked together, and as
    many are kept as there are free slots. A hypothesis that ends in `<eos>` keeps its slot and is not extended again,
    so beam 1 is greedy search, whatever the penalty. The search of a sentence ends when all slots are taken, or as soon
    as no active hypothesis can win: log P can only fall, |Y| is at most `max_tokens` + 1, and no penalty is larger than
    that of this length, so log P(Y) / penalty(max_tokens + 1) is an upper bound for the score of an active hypothesis.
    If no hypothesis has ended after `max_tokens` tokens, the most probable active one is returned, unfinished.

    Shapes: source [B,S].
    Source: Wu et al. 2016, section 7, equation 14; Sutskever et al. 2014, section 3.2 (finished hypotheses).
    """
    max_tokens, penalty = decoding.max_tokens, length_penalties(decoding)
    decoder = model.begin_decoding(source)
    best = BestHypotheses(len(source), max_tokens)
    beams = ActiveBeams.begin(len(source), decoding)
    last: Ids = np.full(len(source), SOS, dtype=np.int32)
    ties = 0
    for length in range(max_tokens + 1):
        extensions = beams.top_extensions(decoder.step(last, decoding.beam + SPARE_CANDIDATES), decoding)
        ties += extensions.ties
        ended = extensions.selected & (extensions.tokens == EOS)
        active = extensions.selected & ~ended & (length < max_tokens)
        best.finish(beams, extensions, ended, extensions.log_probabilities / penalty[length + 1], length)
        upper_bound = np.where(active, extensions.log_probabilities, -np.inf).max(axis=1) / penalty[max_tokens + 1]
        running = active.any(axis=1) & (upper_bound > best.normalised_score[beams.sentence_index])
        best.finish_without_eos(beams, ~running & (beams.free_slots > 0), length)
        if not running.any():
            break
        rows, last = beams.advance(extensions, ended, active, running, length)
        decoder.reorder(rows)
    return _decoded(best.translations(), ties)


def length_penalties(decoding: DecodingSpec) -> _Reals:
    """Return the length penalty for lengths from 0 to `max_tokens` + 1.

    It never decreases with the length, because the exponent is at least 0. Beam search relies on that to stop early.
    """
    length = np.arange(decoding.max_tokens + 2, dtype=np.float64)
    base = (5 + length) / 6 if decoding.length_formula == "wu" else length
    penalties: _Reals = base**decoding.length_penalty
    return penalties


@dataclass(frozen=True)
class Extensions:
    """The best extensions of the hypotheses of each sentence, best first.

    Shapes: all but `ties` [A,W], with A sentences and W at most `beam`.

    Attributes:
        log_probabilities: The sum over all tokens of each extended hypothesis.
        tokens: The last token of each.
        parents: The position of the extended hypothesis in the previous beam.
        selected: Whether the extension gets a slot.
        ties: Sentences in which the last selected and the first dropped extension are within `TIE_NATS`.
    """

    log_probabilities: _Reals
    tokens: Ids
    parents: _Indices
    selected: _Flags
    ties: int


@dataclass
class ActiveBeams:
    """The active hypotheses of the sentences that are still in the batch.

    Attributes:
        sentence_index: [A], which sentence.
        free_slots: [A], 0 for a sentence whose search has ended.
        log_probabilities: [A,W], -inf for no hypothesis.
        tokens: [A,W,max_tokens].
    """

    sentence_index: _Indices
    free_slots: _Indices
    log_probabilities: _Reals
    tokens: Ids

    @classmethod
    def begin(cls, sentences: int, decoding: DecodingSpec) -> ActiveBeams:
        """Return one empty hypothesis for each sentence."""
        tokens = np.zeros((sentences, 1, decoding.max_tokens), dtype=np.int32)
        free_slots = np.full(sentences, decoding.beam, dtype=np.intp)
        return cls(np.arange(sentences), free_slots, np.zeros((sentences, 1)), tokens)

    def top_extensions(self, candidates: Candidates, decoding: DecodingSpec) -> Extensions:
        """Rank all extensions of each sentence together and keep as many as there are free slots."""
        beam = decoding.beam
        sentence_index = np.repeat(self.sentence_index, self.log_probabilities.shape[1])
        log_probabilities, tokens = _without_suppressed(candidates, suppressed(decoding), sentence_index)
        sentences, width = len(self.sentence_index), log_probabilities.shape[1]
        extended = (self.log_probabilities.reshape(-1, 1) + log_probabilities).reshape(sentences, -1)
        order = np.argsort(-extended, axis=1, kind="stable")[:, : beam + 1]
        rows = np.arange(sentences)[:, None]
        ranked = extended[rows, order]
        ties = _count_ties(ranked, self.free_slots)
        order, ranked = order[:, :beam], ranked[:, :beam]
        return Extensions(
            log_probabilities=ranked,
            tokens=tokens.reshape(sentences, -1)[rows, order],
            parents=order // width,
            selected=(np.arange(ranked.shape[1]) < self.free_slots[:, None]) & np.isfinite(ranked),
            ties=ties,
        )

    def advance(
        self, extensions: Extensions, ended: _Flags, active: _Flags, running: _Flags, length: int
    ) -> tuple[_Indices, Ids]:
        """Continue with the active extensions; return the decoder's rows to keep and the next input tokens."""
        remaining = _remaining_rows(running)
        parents = extensions.parents[remaining]
        rows = remaining[:, None] * self.tokens.shape[1] + parents
        last = np.where(active, extensions.tokens, EOS).astype(np.int32)[remaining]
        self.tokens = self.tokens[remaining[:, None], parents]
        self.tokens[:, :, length] = last
        self.log_probabilities = np.where(active, extensions.log_probabilities, -np.inf)[remaining]
        self.free_slots = np.where(running, self.free_slots - ended.sum(axis=1), 0)[remaining]
        self.sentence_index = self.sentence_index[remaining]
        return rows.ravel(), last.ravel()


class BestHypotheses:
    """The best translation of each sentence of a batch so far.

    Shapes: tokens [B,max_tokens], all others [B]. `normalised_score` is -inf until a hypothesis has ended.
    """

    def __init__(self, sentences: int, max_tokens: int) -> None:
        self.tokens: Ids = np.zeros((sentences, max_tokens), dtype=np.int32)
        self.lengths = np.zeros(sentences, dtype=np.intp)
        self.log_probabilities = np.zeros(sentences)
        self.normalised_score = np.full(sentences, -np.inf)
        self.finished = np.zeros(sentences, dtype=bool)

    def finish(self, beams: ActiveBeams, extensions: Extensions, ended: _Flags, scores: _Reals, length: int) -> None:
        """Keep the best hypothesis of each sentence that has just ended, if it is better than the best so far."""
        if not ended.any():
            return
        first = ended.argmax(axis=1)  # all have the same length, so the most probable has the highest score
        rows = np.arange(len(first))
        better = ended.any(axis=1) & (scores[rows, first] > self.normalised_score[beams.sentence_index])
        rows, first = rows[better], first[better]
        self._keep(beams, rows, extensions.parents[rows, first], extensions.log_probabilities[rows, first], length)
        self.normalised_score[beams.sentence_index[rows]] = scores[rows, first]
        self.finished[beams.sentence_index[rows]] = True

    def finish_without_eos(self, beams: ActiveBeams, ended: _Flags, length: int) -> None:
        """Keep the best active hypothesis of each sentence whose search is over without any finished hypothesis."""
        rows = np.flatnonzero(ended & ~self.finished[beams.sentence_index])
        if not len(rows):
            return
        first = beams.log_probabilities[rows].argmax(axis=1)
        self._keep(beams, rows, first, beams.log_probabilities[rows, first], length)

    def _keep(
        self, beams: ActiveBeams, rows: _Indices, slots: _Indices, log_probabilities: _Reals, length: int
    ) -> None:
        sentences = beams.sentence_index[rows]
        self.tokens[sentences] = beams.tokens[rows, slots]
        self.lengths[sentences] = length
        self.log_probabilities[sentences] = log_probabilities

    def translations(self) -> list[Translation]:
        """Return one `Translation` for each sentence, with plain Python values."""
        columns = (self.tokens, self.lengths, self.log_probabilities, self.finished)
        rows: list[tuple[Any, ...]] = list(zip(*(column.tolist() for column in columns), strict=True))
        return [Translation(tuple(tokens[:length]), total, finished) for tokens, length, total, finished in rows]


def _decoded(translations: list[Translation], ties: int) -> Decoded:
    return Decoded(tuple(translations), ties, sum(not translation.finished for translation in translations))


def _without_suppressed(candidates: Candidates, never: Sequence[int], sentence_index: _Indices) -> tuple[_Reals, Ids]:
    """Return log-probabilities and tokens, best first, both [B,N]; the tokens in `never` have -inf.

    `sentence_index` [B] is the sentence of each row. Raises: NotANumber.
    """
    tokens, log_probabilities = candidates.tokens, candidates.log_probabilities.astype(np.float64)
    if (is_nan := np.isnan(log_probabilities).any(axis=1)).any():
        raise NotANumber(int(sentence_index[is_nan.argmax()]))
    log_probabilities = np.where(np.isin(tokens, never), -np.inf, np.minimum(log_probabilities, 0))
    order = np.lexsort((tokens, -log_probabilities))
    rows = np.arange(len(order))[:, None]
    return log_probabilities[rows, order], tokens[rows, order]


def _count_ties(ranked: _Reals, sizes: _Indices) -> int:
    """Count the rows in which the last kept candidate, number `sizes` - 1, and the first dropped one are close."""
    rows = np.flatnonzero((sizes > 0) & (sizes < ranked.shape[1]))
    edge = sizes[rows]
    least, dropped = ranked[rows, edge - 1], ranked[rows, edge]
    return int((np.isfinite(dropped) & (dropped >= least - TIE_NATS)).sum())


def _remaining_rows(running: _Flags) -> _Indices:
    """Return the rows to continue with: all of them, or as few halvings as still hold all running rows.

    Copying caches takes time, and a framework that compiles does so for each number of rows. Therefore the number of
    rows is only ever halved, and some rows that are done remain as padding.
    """
    size, needed = len(running), int(running.sum())
    while needed <= size // 2:
        size //= 2
    if size == len(running):
        return np.arange(size)
    return np.sort(np.argsort(~running, kind="stable")[:size])
