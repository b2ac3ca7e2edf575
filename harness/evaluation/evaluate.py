"""Measures a trained model on the test set: loss, perplexity, translations and their scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.data import text_files
from harness.data.batches import evaluation_batches
from harness.data.dataset import Dataset, detokenise, moses_tokens, score_tokens
from harness.evaluation.metrics import Judge, Scored, Scores, evaluate, score, unknown_tokens
from harness.evaluation.search import Decoded, translate
from harness.experiments.specs import DecodingSpec, Unknown
from harness.storage.run_store import Hypothesis
from impls.contract import SOS, Arrays, Compiling, Ids, Numbers, Seq2SeqModel

ATTENDED = 4
"""Test sentences, from the first on, whose attention is stored."""


@dataclass(frozen=True)
class TestResults:
    """What the test set says of a model.

    The dictionaries are those of a `RunRecord`; `sentences` is what
    `harness.storage.run_store.save_sentences` takes, `attention` what `save_attention` takes.
    """

    scores: dict[str, float]
    signatures: dict[str, str]
    decode: dict[str, int]
    speed: dict[str, float]
    hypotheses: list[Hypothesis]
    sentences: Arrays = field(default_factory=dict)
    attention: dict[int, Numbers] = field(default_factory=dict)


def measure(
    model: Seq2SeqModel, prepared: Dataset, decoding: DecodingSpec, *, on_batch: Callable[[int], None] | None = None
) -> TestResults:
    """Evaluate a model on the test set, translate it and score the translations.

    `on_batch` is called with the number of sentences translated so far.
    """
    loss, sentences = test_nats(model, prepared)
    compiled = _compilations(model)
    decoded, seconds = _translated(model, prepared, decoding, on_batch)
    if _compilations(model) > compiled:
        _, seconds = _translated(model, prepared, decoding, None)  # all is compiled now
    tokens = [tuple(prepared.target_words[token] for token in one.tokens) for one in decoded.translations]
    texts = detokenise(prepared, tokens)
    hypotheses = [Hypothesis(number, *one) for number, one in enumerate(zip(tokens, texts, strict=True))]
    scores = test_scores(prepared, hypotheses, decoding.unknown)
    perplexities = {
        "test_loss": loss.loss,
        "test_perplexity": loss.perplexity,
        "tutorial_perplexity": loss.tutorial_perplexity,
    }
    return TestResults(
        scores={**perplexities, **scores.values},
        signatures=dict(scores.signatures),
        decode={"ties": decoded.ties, "unfinished": decoded.unfinished, "unknown_tokens": unknown_tokens(tokens)},
        speed={"decoding_sentences_per_second": len(hypotheses) / seconds},
        hypotheses=hypotheses,
        sentences={**sentences, **scores.statistics},
        attention=test_attention(model, prepared, [one.tokens for one in decoded.translations[:ATTENDED]]),
    )


def _translated(
    model: Seq2SeqModel, prepared: Dataset, decoding: DecodingSpec, on_batch: Callable[[int], None] | None
) -> tuple[Decoded, float]:
    """Translate the test set; return also the seconds that it took."""
    model.synchronize()
    began = time.perf_counter()
    decoded = translate(model, prepared.test.source, decoding, on_batch=on_batch)
    return decoded, time.perf_counter() - began


def _compilations(model: Seq2SeqModel) -> int:
    return model.compilation().count if isinstance(model, Compiling) else 0


def test_nats(model: Judge, prepared: Dataset) -> tuple[Scored, Arrays]:
    """Evaluate a model on the test set; return also `nats` and `tokens` of each sentence, in the order of the set."""
    batches = list(evaluation_batches(prepared.test))
    found = evaluate(model, [batch for batch, _ in batches])
    places = np.concatenate([rows for _, rows in batches])
    sentences: Arrays = {"nats": np.zeros(len(places), np.float64), "tokens": np.zeros(len(places), np.int32)}
    sentences["nats"][places] = found.sentence_nats
    sentences["tokens"][places] = found.sentence_tokens
    return found, sentences


def test_attention(model: Seq2SeqModel, prepared: Dataset, translations: Sequence[Sequence[int]]) -> dict[int, Numbers]:
    """Return the cross attention of the first test sentences while these translations of them are written.

    Shapes: by sentence number float16 [layers,T,S], a mean over heads; row t is what writes target word t, and the last
    row what writes `<eos>`. Source positions are those of the sentence's ids, `<sos>` and `<eos>` included.
    """
    found = {}
    for number, tokens in enumerate(translations):
        target: Ids = np.array([[SOS, *tokens]], dtype=np.int32)
        weights = model.cross_attention(prepared.test.source[number][None], target)[0]
        found[number] = weights.astype(np.float64).mean(axis=1).astype(np.float16)
    return found


def check_words(hypotheses: Sequence[Hypothesis], where: str) -> None:
    """Raise ValueError with `where` for a translation, which may be a stranger's, with a word too long to tokenise."""
    for one in hypotheses:
        text_files.check_words(one.text, f"{where}, sentence {one.sentence}")


def test_scores(prepared: Dataset, hypotheses: Sequence[Hypothesis], unknown: Unknown) -> Scores:
    """Return every BLEU and chrF of the test set's translations, with their signatures.

    `unknown` says whether the search was allowed to choose `<unk>`.

    Raises: ValueError where there are not as many translations as references.
    """
    texts = [one.text for one in hypotheses]
    return score(
        score_tokens(prepared, texts) if prepared.data.has_subwords else [list(one.tokens) for one in hypotheses],
        prepared.test_target_tokens,
        texts=texts,
        reference_texts=prepared.test_target_text,
        moses=moses_tokens(prepared, texts),
        reference_moses=prepared.test_target_moses,
        case=prepared.data.case,
        unknown=unknown,
    )
