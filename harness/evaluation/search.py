"""Greedy and beam search, once, for every model.

Only `model.begin_decoding(source)` is asked of a model, so that two implementations differ in their probabilities and
never in how a translation is searched for.

Rules, the same for greedy and beam:

- `<pad>` and `<sos>` are never chosen, and neither is `<unk>` unless the `DecodingSpec` has unknown="allowed". The
  probabilities of the other words stay as they are: they are not made to sum to 1 again.
- `max_tokens` counts words without `<eos>`. After the last word the model is asked once more, whether `<eos>` follows;
  if it does not, the translation keeps all its words and is marked unfinished.
- A log-probability above 0, which only rounding can give, counts as 0. Sums are float64.
- Between equal log-probabilities of one hypothesis, the word with the smaller id wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.experiments.specs import DecodingSpec
from impls.contract import EOS, PAD, SOS, UNK, Candidates, Decoding, Ids

TIE_NATS = 1e-4

# Three candidates may be words that are never chosen, and one more shows how near the first candidate that is dropped
# comes. The number is the same where <unk> is allowed, so that a model offers the same words under both rules.
SPARE_CANDIDATES = 4

_Reals = npt.NDArray[np.float64]
_Indices = npt.NDArray[np.intp]
_Flags = npt.NDArray[np.bool_]


class Decodable(Protocol):
    """The one member of `Seq2SeqModel` that search uses."""

    def begin_decoding(self, source: Ids) -> Decoding:
        """Encode `source` [B,S] and return its `Decoding`, before the first word."""


@dataclass(frozen=True)
class Translation:
    """One translated sentence: its words without `<sos>` and `<eos>`.

    `log_probability` is the sum of natural logarithms over the words and, if `finished`, over `<eos>`.
    """

    tokens: tuple[int, ...]
    log_probability: float
    finished: bool


@dataclass(frozen=True)
class Decoded:
    """Translations in the order of their sources, and how sure they are.

    `ties`: decisions in which the last candidate kept and the first one dropped lay within 1e-4 nats, so that another
    machine may rightly decide otherwise. `unfinished`: translations that reached `max_tokens` without `<eos>`.
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
    """Translate every source, in batches of similar length, longest first.

    `sources` holds one array `<sos>` words `<eos>` per sentence. `on_batch` is called after each batch with the number
    of sentences translated so far.

    Raises: ValueError where the model's log-probabilities are not numbers.
    """
    search = greedy if decoding.beam == 1 else beam_search
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    translations: dict[int, Translation] = {}
    ties = 0
    for start in range(0, len(order), decoding.batch_size):
        batch = order[start : start + decoding.batch_size]
        decoded = search(model, _padded([sources[index] for index in batch]), decoding)
        translations.update(zip(batch, decoded.translations, strict=True))
        ties += decoded.ties
        if on_batch is not None:
            on_batch(len(translations))
    return _decoded([translations[index] for index in range(len(sources))], ties)


def greedy(model: Decodable, source: Ids, decoding: DecodingSpec) -> Decoded:
    """Take the most probable word at every position, for one batch.

    Shapes: source [B,S].
    """
    most, never = decoding.max_tokens, suppressed(decoding)
    decoder = model.begin_decoding(source)
    outcome = _Outcome(len(source), most)
    owners = np.arange(len(source))  # the sentence of each row
    running = np.ones(len(source), dtype=bool)
    last: Ids = np.full(len(source), SOS, dtype=np.int32)
    ties = 0
    for length in range(most + 1):
        log_probabilities, tokens = _allowed(decoder.step(last, 1 + SPARE_CANDIDATES), never)
        ties += _count_ties(log_probabilities, running.astype(np.intp))
        best, chosen = log_probabilities[:, 0], tokens[:, 0]
        running &= np.isfinite(best)
        ended = running & (chosen == EOS)
        running &= ~ended & (length < most)
        outcome.finished[owners[ended]] = True
        outcome.log_probabilities[owners[ended | running]] += best[ended | running]
        if not running.any():
            break
        outcome.words[owners[running], length] = chosen[running]
        outcome.lengths[owners[running]] += 1
        last = np.where(running, chosen, EOS).astype(np.int32)
        rows = _survivors(running)
        if len(rows) < len(running):
            decoder.reorder(rows)
            owners, running, last = owners[rows], running[rows], last[rows]
    return _decoded(outcome.translations(), ties)


def beam_search(model: Decodable, source: Ids, decoding: DecodingSpec) -> Decoded:
    """Search with `beam` hypotheses per sentence, for one batch.

    Formula: a finished hypothesis Y is worth log P(Y) / penalty(|Y|), where |Y| counts the factors of P: the words and
    `<eos>`; `length_penalties` gives the penalty. The finished hypothesis that is worth most wins, the earlier of two
    equals.

    A sentence has `beam` slots. At every position all extensions of its open hypotheses are ranked together, and as
    many are kept as slots are free. One that ends in `<eos>` is set aside: it keeps its slot and is never extended or
    rescored; so beam 1 is greedy, whatever the penalty. A sentence is done when its slots are all taken, or as soon as
    no open hypothesis can win: P can only fall from here on, |Y| is at most `max_tokens` + 1 and no penalty is larger
    than that of this length, so an open hypothesis Y is worth at most log P(Y) / penalty(max_tokens + 1).
    Where nothing has ended after `max_tokens` words, the most probable open hypothesis is returned, unfinished.

    Shapes: source [B,S].
    Source: Wu et al. 2016, section 7, equation 14; Sutskever et al. 2014, section 3.2 (setting aside).
    """
    most, penalty = decoding.max_tokens, length_penalties(decoding)
    decoder = model.begin_decoding(source)
    outcome = _Outcome(len(source), most)
    open_ = _Open.begin(len(source), decoding)
    last: Ids = np.full(len(source), SOS, dtype=np.int32)
    ties = 0
    for length in range(most + 1):
        cut = open_.cut(decoder.step(last, decoding.beam + SPARE_CANDIDATES), decoding)
        ties += cut.ties
        ended = cut.kept & (cut.tokens == EOS)
        live = cut.kept & ~ended & (length < most)
        outcome.set_aside(open_, cut, ended, cut.log_probabilities / penalty[length + 1], length)
        promise = np.where(live, cut.log_probabilities, -np.inf).max(axis=1) / penalty[most + 1]
        running = live.any(axis=1) & (promise > outcome.worth[open_.owners])
        outcome.give_up(open_, ~running & (open_.slots > 0), length)
        if not running.any():
            break
        rows, last = open_.follow(cut, ended, live, running, length)
        decoder.reorder(rows)
    return _decoded(outcome.translations(), ties)


def length_penalties(decoding: DecodingSpec) -> _Reals:
    """Return what the log-probability of a hypothesis is divided by, for lengths from 0 to `max_tokens` + 1.

    It never falls as the length grows, because the exponent is at least 0; beam search relies on that to stop early.
    """
    length = np.arange(decoding.max_tokens + 2, dtype=np.float64)
    base = (5 + length) / 6 if decoding.length_formula == "wu" else length
    penalties: _Reals = base**decoding.length_penalty
    return penalties


@dataclass(frozen=True)
class _Cut:
    """The best extensions of each sentence, best first.

    Shapes: all [A,W], with A sentences and W at most `beam`; `parents` are places in the last beam.
    """

    log_probabilities: _Reals
    tokens: Ids
    parents: _Indices
    kept: _Flags
    ties: int


@dataclass
class _Open:
    """The open hypotheses of the sentences still in the batch.

    Shapes: owners [A] (which sentence), slots [A] (free slots, 0 when done), log_probabilities [A,W] (-inf: no
    hypothesis), words [A,W,max_tokens].
    """

    owners: _Indices
    slots: _Indices
    log_probabilities: _Reals
    words: Ids

    @classmethod
    def begin(cls, sentences: int, decoding: DecodingSpec) -> _Open:
        """Return one empty hypothesis for each sentence."""
        words = np.zeros((sentences, 1, decoding.max_tokens), dtype=np.int32)
        slots = np.full(sentences, decoding.beam, dtype=np.intp)
        return cls(np.arange(sentences), slots, np.zeros((sentences, 1)), words)

    def cut(self, candidates: Candidates, decoding: DecodingSpec) -> _Cut:
        """Rank all extensions of each sentence together and keep as many as slots are free."""
        beam = decoding.beam
        log_probabilities, tokens = _allowed(candidates, suppressed(decoding))
        sentences, each = len(self.owners), log_probabilities.shape[1]
        extended = (self.log_probabilities.reshape(-1, 1) + log_probabilities).reshape(sentences, -1)
        order = np.argsort(-extended, axis=1, kind="stable")[:, : beam + 1]
        places = np.arange(sentences)[:, None]
        ranked = extended[places, order]
        ties = _count_ties(ranked, self.slots)
        order, ranked = order[:, :beam], ranked[:, :beam]
        return _Cut(
            log_probabilities=ranked,
            tokens=tokens.reshape(sentences, -1)[places, order],
            parents=order // each,
            kept=(np.arange(ranked.shape[1]) < self.slots[:, None]) & np.isfinite(ranked),
            ties=ties,
        )

    def follow(self, cut: _Cut, ended: _Flags, live: _Flags, running: _Flags, length: int) -> tuple[_Indices, Ids]:
        """Go on with the live extensions; return the decoder's rows to select and the words to feed next."""
        stay = _survivors(running)
        parents = cut.parents[stay]
        rows = stay[:, None] * self.words.shape[1] + parents
        last = np.where(live, cut.tokens, EOS).astype(np.int32)[stay]
        self.words = self.words[stay[:, None], parents]
        self.words[:, :, length] = last
        self.log_probabilities = np.where(live, cut.log_probabilities, -np.inf)[stay]
        self.slots = np.where(running, self.slots - ended.sum(axis=1), 0)[stay]
        self.owners = self.owners[stay]
        return rows.ravel(), last.ravel()


class _Outcome:
    """The best translation known of each sentence of a batch.

    Shapes: words [B,max_tokens], all others [B]; `worth` is the penalised score, -inf before a hypothesis has ended.
    """

    def __init__(self, sentences: int, most: int) -> None:
        self.words: Ids = np.zeros((sentences, most), dtype=np.int32)
        self.lengths = np.zeros(sentences, dtype=np.intp)
        self.log_probabilities = np.zeros(sentences)
        self.worth = np.full(sentences, -np.inf)
        self.finished = np.zeros(sentences, dtype=bool)

    def set_aside(self, open_: _Open, cut: _Cut, ended: _Flags, worth: _Reals, length: int) -> None:
        """Note each sentence's best hypothesis of `length` words that has just ended, where it beats what is known."""
        if not ended.any():
            return
        first = ended.argmax(axis=1)  # equally long, so the most probable is worth most
        places = np.arange(len(first))
        better = ended.any(axis=1) & (worth[places, first] > self.worth[open_.owners])
        places, first = places[better], first[better]
        self._note(open_, places, cut.parents[places, first], cut.log_probabilities[places, first], length)
        self.worth[open_.owners[places]] = worth[places, first]
        self.finished[open_.owners[places]] = True

    def give_up(self, open_: _Open, done: _Flags, length: int) -> None:
        """Note the best open hypothesis of each sentence that is done though none of its hypotheses has ended."""
        places = np.flatnonzero(done & ~self.finished[open_.owners])
        if not len(places):
            return
        best = open_.log_probabilities[places].argmax(axis=1)
        self._note(open_, places, best, open_.log_probabilities[places, best], length)

    def _note(self, open_: _Open, places: _Indices, slots: _Indices, log_probabilities: _Reals, length: int) -> None:
        owners = open_.owners[places]
        self.words[owners] = open_.words[places, slots]
        self.lengths[owners] = length
        self.log_probabilities[owners] = log_probabilities

    def translations(self) -> list[Translation]:
        """Return plain values, one `Translation` a sentence."""
        found: list[tuple[Any, ...]] = list(
            zip(
                self.words.tolist(),
                self.lengths.tolist(),
                self.log_probabilities.tolist(),
                self.finished.tolist(),
                strict=True,
            )
        )
        return [Translation(tuple(words[:length]), total, ended) for words, length, total, ended in found]


def _decoded(translations: list[Translation], ties: int) -> Decoded:
    return Decoded(tuple(translations), ties, sum(not one.finished for one in translations))


def _padded(sources: Sequence[Ids]) -> Ids:
    padded: Ids = np.full((len(sources), max(map(len, sources))), PAD, dtype=np.int32)
    for row, source in zip(padded, sources, strict=True):
        row[: len(source)] = source
    return padded


def _allowed(candidates: Candidates, never: Sequence[int]) -> tuple[_Reals, Ids]:
    """Return log-probabilities and tokens, best first, with the words in `never` made impossible: both [B,N]."""
    tokens, log_probabilities = candidates.tokens, candidates.log_probabilities.astype(np.float64)
    if np.isnan(log_probabilities).any():
        raise ValueError("the model's log-probabilities are not numbers: its weights have diverged")
    log_probabilities = np.where(np.isin(tokens, never), -np.inf, np.minimum(log_probabilities, 0))
    order = np.lexsort((tokens, -log_probabilities))
    rows = np.arange(len(order))[:, None]
    return log_probabilities[rows, order], tokens[rows, order]


def _count_ties(ranked: _Reals, kept: _Indices) -> int:
    """Count the rows in which candidate kept - 1, the last kept, and candidate kept, the first dropped, are close."""
    rows = np.flatnonzero((kept > 0) & (kept < ranked.shape[1]))
    edge = kept[rows]
    least, dropped = ranked[rows, edge - 1], ranked[rows, edge]
    return int((np.isfinite(dropped) & (dropped >= least - TIE_NATS)).sum())


def _survivors(running: _Flags) -> _Indices:
    """Return the rows to go on with: all, or half as often as the running ones fit into that.

    Copying caches costs, and a framework that compiles does so once for each number of rows; so rows leave by halves,
    and some that are done stay as fillers.
    """
    size, needed = len(running), int(running.sum())
    while needed <= size // 2:
        size //= 2
    if size == len(running):
        return np.arange(size)
    return np.sort(np.argsort(~running, kind="stable")[:size])
