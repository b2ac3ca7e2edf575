"""Rules about the other files of a run: translations, statistics of sentences, weights and attention."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from harness.analysis.evidence import bleu_of_order
from harness.audit.record_rules import differing_tensors, kept_digest, tensor_shapes
from harness.audit.run_folder import Skipped, StoredRun, skip_unless, unequal
from harness.data.batch_digest import weights_digest
from harness.evaluation.metrics import (
    ORDERS,
    SMOOTHING,
    brevity_from_sums,
    perplexity_from_sums,
    score_from_sums,
    unknown_tokens,
)
from harness.storage import run_store
from harness.text import first_few

HALF_PRECISION = 0.01
"""Absolute tolerance of a sum of some hundred half-precision numbers that is 1."""

SUMS = "the sums over its sentences"
INITIAL = "its initial weights"

LONGEST = 60
"""The number of characters of a text that a message shows."""


def translations(stored: StoredRun) -> Iterator[str]:
    """The translations have the digest in the record."""
    expected = stored.completed.fingerprints.get("hypotheses")
    path = stored.folder / run_store.HYPOTHESES
    if expected and os.path.lexists(path) and stored.digest(run_store.HYPOTHESES) != expected:
        yield f"{path.name}: damaged (its SHA-256 is not {expected})"
    if not stored.hypotheses:
        yield f"{path.name}: expected a translation of each test sentence, found none"


def sentences(stored: StoredRun) -> Iterator[str]:
    """Each test sentence has one translation, in order, and none exceeds the maximum length."""
    record, hypotheses = stored.completed, stored.hypotheses
    most = record.spec.decoding.max_tokens
    yield from unequal("number of translations", len(hypotheses), record.sizes.get("test_pairs"), "sizes.test_pairs")
    for number, hypothesis in enumerate(hypotheses):
        if hypothesis.sentence != number:
            yield f"line {number + 1}: sentence={hypothesis.sentence}, expected {number}"
            break
    lengths = [len(hypothesis.tokens) for hypothesis in hypotheses]
    if max(lengths, default=0) > most:
        yield f"a translation of {max(lengths)} tokens, expected at most {most} (decoding.max_tokens)"
    if record.decode.get("unfinished", 0) > lengths.count(most):
        yield f"unfinished={record.decode['unfinished']}, but {lengths.count(most)} translations have {most} tokens"
    unknown = unknown_tokens([hypothesis.tokens for hypothesis in hypotheses])
    yield from unequal("unknown_tokens", record.decode.get("unknown_tokens", unknown), unknown, "its translations")
    if unknown and record.spec.decoding.unknown == "never":
        yield f"{unknown} unknown tokens in the translations, expected none (decoding.unknown='never')"


def counts(stored: StoredRun) -> Iterator[str]:
    """The statistics of the sentences have the digest in the record, and add up to its scores."""
    record, statistics = stored.completed, stored.sentences
    scores = record.scores
    pairs = record.sizes.get("test_pairs")
    yield from unequal("number of counted sentences", len(statistics["nats"]), pairs, "sizes.test_pairs")
    counted = {name for name in scores if name in SMOOTHING or name == "chrf"}
    yield from (f"no counts of {name}" for name in sorted(counted - statistics.keys()))
    unused = statistics.keys() - counted - {"nats", "tokens"}
    yield from (f"counts of {name}, which is not a score" for name in sorted(unused))
    perplexity = float(perplexity_from_sums(statistics["nats"].sum(), statistics["tokens"].sum()))
    yield from unequal("test_perplexity", scores.get("test_perplexity"), perplexity, SUMS)
    sums = {name: statistics[name].sum(axis=0) for name in sorted(counted & statistics.keys())}
    for name, totals in sums.items():
        yield from unequal(name, scores[name], float(score_from_sums(name, totals)), SUMS)
    if "brevity_penalty" in scores and "bleu_sacre" in statistics:
        penalty = float(brevity_from_sums(statistics["bleu_sacre"].sum(axis=0)))
        yield from unequal("brevity_penalty", scores["brevity_penalty"], penalty, SUMS)
    if "bleu_tutorial" in statistics:
        totals = statistics["bleu_tutorial"].sum(axis=0)
        for order in ORDERS:
            bleu, name = float(bleu_of_order(totals, order, individual=True)), f"bleu_{order}_individual"
            yield from unequal(name, scores.get(name), bleu, SUMS)


def lengths(stored: StoredRun) -> Iterator[str]:
    """The statistics of each sentence are those of its stored translation."""
    record, hypotheses = stored.completed, stored.hypotheses
    counted = stored.sentences.get("bleu_tutorial", np.empty((0, 1)))[:, 0]
    skip_unless(not record.spec.data.has_subwords, "scored on other tokens than the model's")
    recorded = np.array([len(hypothesis.tokens) for hypothesis in hypotheses])
    if len(recorded) != len(counted):
        yield f"{len(recorded):,} translations, but counts of {len(counted):,}"
        return
    wrong = np.flatnonzero(counted != recorded)
    if len(wrong):
        first = wrong[0]
        yield (
            f"{len(wrong):,} of {len(recorded):,} translations are not those that were counted: sentence {first} has "
            f"{recorded[first]} tokens, but {counted[first]:.0f} were counted"
        )


def weights(stored: StoredRun) -> Iterator[str]:
    """The stored weights have the digest in the record, are finite, and have the expected names and shapes."""
    record = stored.completed
    skip_unless(run_store.has(stored.results, stored.name, run_store.WEIGHTS), "weights not stored")
    tensors = run_store.load_weights(stored.results, stored.name)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if differing := list(differing_tensors(shapes, tensor_shapes(record), INITIAL)):
        yield from differing
        return
    if stored.digest(run_store.WEIGHTS) != record.fingerprints.get("trained_weights"):
        yield f"{run_store.WEIGHTS}: damaged (its SHA-256 is not that in the record)"
    digest = kept_digest(record)
    if digest is not None and weights_digest(tensors) != digest:
        epoch = record.chosen_epochs[0]
        yield f"{run_store.WEIGHTS}: not the weights after epoch {epoch}, by their digest in the record"
    infinite = [name for name, tensor in sorted(tensors.items()) if not np.isfinite(tensor).all()]
    if infinite:
        yield f"{first_few(infinite)}: not finite"


def attention(stored: StoredRun) -> Iterator[str]:
    """The stored attention has the digest in the record, the lengths of the translations, and rows that add up to 1."""
    digest = stored.completed.fingerprints.get("attention")
    exists = run_store.has(stored.results, stored.name, run_store.ATTENTION)
    skip_unless(exists or digest is not None, "attention not stored")
    if not exists:
        raise ValueError(f"{run_store.ATTENTION} is missing, but the record has its digest")
    if digest is None:
        raise ValueError(f"{run_store.ATTENTION} exists, but the record has no digest of it")
    maps = run_store.load_attention(stored.results, stored.name, digest)
    tokens = {hypothesis.sentence: len(hypothesis.tokens) for hypothesis in stored.hypotheses}
    for sentence, weights in maps.items():
        rows, expected = weights.shape[-2], tokens.get(sentence, -1) + 1
        yield from unequal(f"sentence {sentence}: rows of attention", rows, expected, "its tokens and <eos>")
        if rows == expected and not np.allclose(weights.sum(axis=-1, dtype=np.float64), 1, atol=HALF_PRECISION):
            yield f"sentence {sentence}: its attention does not add up to 1"


def text(stored: StoredRun) -> Iterator[str]:
    """The text of each translation is that of its detokenised tokens."""
    from harness.data import text_files
    from harness.data.tokenizers import tokenizer

    data = stored.completed.spec.data
    try:
        hypotheses = stored.hypotheses
    except (ValueError, OSError) as error:
        raise Skipped("the translations cannot be read") from error
    for hypothesis in hypotheses:
        for words in (hypothesis.text, " ".join(hypothesis.tokens)):
            text_files.check_words(words, f"sentence {hypothesis.sentence}")
    tool = tokenizer(data.tokenizer, data.target_language, case=data.case)
    try:
        texts = [tool.detokenise(hypothesis.tokens) for hypothesis in hypotheses]
    except ValueError as error:
        raise Skipped(str(error)) from error
    wrong = [pair for pair in zip(hypotheses, texts, strict=True) if pair[0].text != pair[1]]
    if wrong:
        hypothesis, expected = wrong[0]
        yield (
            f"{len(wrong)} of {len(texts)} texts are not those of their tokens: sentence {hypothesis.sentence} is "
            f"{hypothesis.text[:LONGEST]!r}, expected {expected[:LONGEST]!r}"
        )
