"""Search against cases computed by hand, against every possible sentence, and against a plain beam search."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from table_model import TableModel, Words, from_prefixes, from_seed

from harness.evaluation.search import Decoded, NotANumber, suppressed, translate
from harness.experiments.specs import DecodingSpec, LengthFormula
from impls.contract import EOS, PAD, SOS, UNK, Candidates, Ids

A, B, C = 4, 5, 6
FORMULAS = get_args(LengthFormula)


def source(*words: int) -> Ids:
    return np.array([SOS, *words, EOS], dtype=np.int32)


def sources(count: int) -> list[Ids]:
    """Sentences of mixed lengths, no two the same."""
    return [source(*[A] * (1 + index % 3), *(10 + int(digit) for digit in str(index))) for index in range(count)]


def translate_one(model: TableModel, sentence: Ids, spec: DecodingSpec) -> Decoded:
    return translate(model, [sentence], spec)


def normalised(log_probability: float, words: int, spec: DecodingSpec) -> float:
    length = words + 1
    return log_probability / {"wu": (5 + length) / 6, "power": length}[spec.length_formula] ** spec.length_penalty


def log_probability(model: TableModel, sentence: Words, words: Words) -> float:
    """The sum over the words and <eos>, rounded to float32 as a model's results are."""
    tokens = [*words, EOS]
    probabilities = [model.next_words(sentence, tuple(tokens[:index]))[token] for index, token in enumerate(tokens)]
    return sum(float(np.log(probability).astype(np.float32)) for probability in probabilities)


def plain_beam(model: TableModel, sentence: Words, spec: DecodingSpec) -> tuple[Words, float, bool]:
    """The same rules in plain Python for one sentence, without an early stop."""
    active: list[tuple[float, Words]] = [(0.0, ())]
    finished: list[tuple[float, float, Words]] = []
    for length in range(spec.max_tokens + 1):
        extensions = [
            (total + float(np.log(probability).astype(np.float32)), (*words, word))
            for total, words in active
            for word, probability in enumerate(model.next_words(sentence, words))
            if word not in suppressed(spec)
        ]
        best = sorted(extensions, key=lambda extension: -extension[0])[: spec.beam - len(finished)]
        for total, words in best:
            if words[-1] == EOS:
                finished.append((normalised(total, length, spec), total, words[:-1]))
        if length == spec.max_tokens:
            break
        active = [(total, words) for total, words in best if words[-1] != EOS]
    if not finished:
        total, words = max(active, key=lambda hypothesis: hypothesis[0])
        return words, total, False
    _, total, words = max(finished, key=lambda hypothesis: hypothesis[0])
    return words, total, True


def assert_equals_plain_beam(model: TableModel, sentences: list[Ids], spec: DecodingSpec) -> None:
    for sentence, translation in zip(sentences, translate(model, sentences, spec).translations, strict=True):
        words, total, finished = plain_beam(model, tuple(map(int, sentence)), spec)
        assert (translation.tokens, translation.finished) == (words, finished)
        assert translation.log_probability == pytest.approx(total, abs=1e-9)


def test_beam_search_of_two_equal_hypotheses_the_one_that_ends_first_wins() -> None:
    model = from_prefixes({(): {A: 0.5, B: 0.5}, (A,): {EOS: 0.25}, (B,): {C: 1.0}, (B, C): {EOS: 0.25}})
    spec = DecodingSpec(beam=2, length_penalty=0.0)
    assert translate_one(model, source(A), spec).translations[0].tokens == (A,)


@pytest.mark.parametrize(("unknown", "words"), [("never", (A, B)), ("allowed", (UNK, A, B))])
def test_beam_search_wide_enough_finds_the_best_sentence(unknown: Any, words: Words) -> None:
    most = 4
    candidates = [sequence for length in range(most + 1) for sequence in itertools.product(words, repeat=length)]
    for seed in range(200):
        model = from_seed(seed)
        spec = DecodingSpec(beam=400, length_penalty=(0.0, 0.6, 1.0, 2.0)[seed % 4], max_tokens=most, unknown=unknown)
        spec = replace(spec, length_formula=FORMULAS[seed // 4 % 2])
        sentence = (SOS, A, EOS)
        scores = {words: normalised(log_probability(model, sentence, words), len(words), spec) for words in candidates}
        best = max(candidates, key=scores.__getitem__)
        (translation,) = translate_one(model, np.array(sentence, dtype=np.int32), spec).translations
        assert translation.finished
        assert translation.tokens == best
        assert translation.log_probability == pytest.approx(log_probability(model, sentence, best), abs=1e-6)


@pytest.mark.parametrize("unknown", ["never", "allowed"])
@pytest.mark.parametrize(("alpha", "formula"), [(0.0, "wu"), (0.6, "wu"), (0.6, "power"), (1.5, "wu"), (1.5, "power")])
@pytest.mark.parametrize("beam", [1, 2, 3, 5])
def test_beam_search_early_stopping_and_batching_change_nothing(
    beam: int, alpha: float, formula: Any, unknown: Any
) -> None:
    spec = DecodingSpec(beam=beam, length_penalty=alpha, max_tokens=6, batch_size=16, unknown=unknown)
    spec = replace(spec, length_formula=formula)
    for seed, end in enumerate((0.3, 1.0, 3.0)):
        assert_equals_plain_beam(from_seed(seed, 8, concentration=0.5, end=end), sources(20), spec)


def test_beam_search_decided_sentence_stops() -> None:
    # Nothing that begins with B (0.1) can overtake A <eos> (0.9 * 0.9), whatever follows.
    model = from_prefixes({(): {A: 0.9, B: 0.1}, (A,): {EOS: 0.9, C: 0.1}, (B,): {C: 1.0}, (B, C): {C: 1.0}})
    translate_one(model, source(A), DecodingSpec(beam=2, length_penalty=0.6, max_tokens=20))
    assert model.steps == 2


@pytest.mark.parametrize("beam", [1, 3])
def test_search_finished_sentence_adds_no_ties(beam: int) -> None:
    model, sentences = from_seed(2, 8, end=2.0, levels=3), sources(40)
    ties = sum(translate_one(model, sentence, DecodingSpec(beam=beam, max_tokens=8)).ties for sentence in sentences)
    assert ties > 20
    for batch_size in (7, 40):
        assert translate(model, sentences, DecodingSpec(beam=beam, max_tokens=8, batch_size=batch_size)).ties == ties


def test_translate_batches_similar_lengths() -> None:
    model = from_seed(0)
    translate(model, [source(*[A] * words) for words in (1, 7, 2, 8, 1)], DecodingSpec(max_tokens=2, batch_size=2))
    assert model.widths == [10, 4, 3]


@pytest.mark.parametrize("beam", [1, 2])
def test_search_never_chooses_pad_and_sos(beam: int) -> None:
    model = from_prefixes({(): {PAD: 0.5, SOS: 0.3, UNK: 0.15, A: 0.05}})
    (translation,) = translate_one(model, source(A), DecodingSpec(beam=beam, unknown="allowed")).translations
    assert translation.tokens == (UNK,)
    assert translation.log_probability == pytest.approx(math.log(0.15))


@pytest.mark.parametrize("beam", [1, 2])
def test_search_without_possible_token_ends_unfinished(beam: int) -> None:
    model = from_prefixes({(): {A: 1.0}, (A,): {PAD: 1.0}})
    (translation,) = translate_one(model, source(A), DecodingSpec(beam=beam)).translations
    assert (translation.tokens, translation.finished, translation.log_probability) == ((A,), False, 0.0)


def test_beam_search_impossible_tokens_take_no_slot() -> None:
    # After A five words fit five slots; the least probable one is the only one that ends at once, so it wins.
    rest = dict.fromkeys((UNK, A, B, C, 7), 0.2)
    table: dict[Words, dict[int, float]] = {(): {A: 1.0}, (A,): {UNK: 0.3, A: 0.25, B: 0.2, C: 0.15, 7: 0.1}}
    table |= {(A, word): rest for word in (UNK, A, B, C)}
    spec = DecodingSpec(beam=5, length_penalty=0.0, unknown="allowed")
    assert translate_one(from_prefixes(table, 8), source(A), spec).translations[0].tokens == (A, 7)


@pytest.mark.parametrize(("unknown", "words"), [("never", (PAD, SOS, UNK)), ("allowed", (PAD, SOS))])
@pytest.mark.parametrize("beam", [1, 2, 3])
def test_ties_are_counted_behind_suppressed_tokens(beam: int, unknown: Any, words: Words) -> None:
    rest = range(A, A + beam + 1)
    table = {(): dict.fromkeys(words, 0.25) | dict.fromkeys(rest, 0.25 / (beam + 1))}
    spec = DecodingSpec(beam=beam, unknown=unknown)
    assert translate_one(from_prefixes(table, A + beam + 1), source(A), spec).ties == 1


def test_ties_of_greedy_count_once_per_decision() -> None:
    near, far = 0.3 * math.exp(0.9e-4), 0.3 * math.exp(1.1e-4)
    near_or_far = {(): {A: near, B: 0.3}, (A,): {A: far, B: 0.3}, (A, A): {C: 0.3, B: 0.3}}
    decoded = translate_one(from_prefixes(near_or_far), source(A), DecodingSpec())
    assert decoded.translations[0].tokens == (A, A, B)  # of equal ones the smaller id
    assert decoded.ties == 2
    # A suppressed token causes no tie.
    assert translate_one(from_prefixes({(): {A: 0.5, PAD: 0.5}}), source(A), DecodingSpec()).ties == 0


@pytest.mark.parametrize(
    ("probabilities", "beam", "ties"), [((0.4, 0.4, 0.2), 2, 0), ((0.5, 0.25, 0.25), 2, 1), ((0.5, 0.25, 0.25), 3, 0)]
)
def test_ties_of_beam_search_are_at_its_edge(probabilities: tuple[float, ...], beam: int, ties: int) -> None:
    model = from_prefixes({(): dict(zip((A, B, C), probabilities, strict=True))})
    assert translate_one(model, source(A), DecodingSpec(beam=beam)).ties == ties


def test_search_finished_sentences_leave_the_batch() -> None:
    def next_words(sentence: Words, prefix: Words) -> np.ndarray:
        row = np.full(8, 0.01)
        row[A if len(prefix) < sentence[1] else EOS] = 1.0
        return row / row.sum()

    model = TableModel(next_words)
    sentences = [source(40), *(source(11) for _ in range(63))]
    decoded = translate(model, sentences, DecodingSpec(max_tokens=50, batch_size=64))
    assert [len(translation.tokens) for translation in decoded.translations] == [40] + [11] * 63
    assert model.rows == 12 * 64 + 29


def test_search_requests_a_constant_number_of_candidates() -> None:
    model = from_seed(0)
    translate(model, sources(9), DecodingSpec(beam=3, max_tokens=5, batch_size=4))
    assert len(model.best_asked) == 1


def test_translate_reports_progress_and_accepts_an_empty_set() -> None:
    counts: list[int] = []
    model = from_seed(0)
    translate(model, sources(9), DecodingSpec(max_tokens=3, batch_size=4), on_batch=counts.append)
    assert counts == [4, 8, 9]
    assert translate(model, [], DecodingSpec()) == Decoded((), 0, 0)


@pytest.mark.parametrize("beam", [1, 2])
def test_search_log_probability_above_0_counts_as_0(beam: int) -> None:
    model = from_prefixes({(): {A: 1.001}, (A,): {EOS: 1.001}})
    (translation,) = translate_one(model, source(A), DecodingSpec(beam=beam)).translations
    assert (translation.tokens, translation.log_probability) == ((A,), 0.0)


@pytest.mark.parametrize("beam", [1, 2])
def test_search_with_nan_names_the_sentence(beam: int) -> None:
    class GivesNaN:
        def begin_decoding(self, source: Ids) -> GivesNaN:
            self.is_nan = (source == A).any(axis=1)
            return self

        def step(self, last: Ids, best: int) -> Candidates:
            values = np.where(self.is_nan & (last != SOS), np.float32(np.nan), np.float32(-1))
            return Candidates(np.stack([values, values - 9], 1), np.full((len(last), 2), [B, EOS], np.int32))

        def reorder(self, rows: np.ndarray) -> None:
            self.is_nan = self.is_nan[rows]

    with pytest.raises(NotANumber, match="sentence 3: the model gives NaN") as raised:
        translate(GivesNaN(), [source(B, B), source(B), source(A), source(B)], DecodingSpec(beam=beam))
    assert raised.value.sentence == 2
