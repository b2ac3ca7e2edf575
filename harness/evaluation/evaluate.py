"""Evaluates a trained model on the test set: loss, perplexity, translations and their scores."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.data import text_files
from harness.data.batches import evaluation_batches
from harness.data.dataset import Dataset, detokenise, encode, moses_tokens, score_tokens, unknown_words
from harness.evaluation.metrics import Scored, Scores, TokenScorer, evaluate, score, text_bleu, unknown_tokens
from harness.evaluation.search import Decodable, Decoded, NotANumber, translate
from harness.experiments.specs import DecodingSpec, Unknown
from harness.storage.run_store import Hypothesis
from harness.text import brief, count
from impls.contract import SOS, Arrays, Compiling, Ids, Numbers, Seq2SeqModel

ATTENDED = 4
"""The number of test sentences whose attention is stored, from the first on."""


@dataclass(frozen=True)
class TestResults:
    """The results of a model on the test set.

    Attributes:
        scores, signatures, decode, speed: As in a `RunRecord`.
        hypotheses: The translations.
        sentences: The argument of `harness.storage.run_store.save_sentences`.
        attention: The argument of `harness.storage.run_store.save_attention`.
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
    """Compute the loss of a model on the test set, translate the test set and score the translations.

    `on_batch` is called with the number of sentences translated so far.
    """
    loss, sentences = test_nats(model, prepared)
    compiled = _compilations(model)
    decoded, seconds = _translated(model, prepared, decoding, on_batch)
    if _compilations(model) > compiled:
        _, seconds = _translated(model, prepared, decoding, None)  # the first time included compilation
    hypotheses = as_hypotheses(prepared, decoded)
    scores = test_scores(prepared, hypotheses, decoding.unknown)
    unknown = unknown_tokens([hypothesis.tokens for hypothesis in hypotheses])
    return TestResults(
        scores={**perplexities(loss), **scores.values},
        signatures=dict(scores.signatures),
        decode={"ties": decoded.ties, "unfinished": decoded.unfinished, "unknown_tokens": unknown},
        speed={"decoding_sentences_per_second": len(hypotheses) / seconds},
        hypotheses=hypotheses,
        sentences={**sentences, **scores.statistics},
        attention=test_attention(
            model, prepared, [translation.tokens for translation in decoded.translations[:ATTENDED]]
        ),
    )


def perplexities(loss: Scored) -> dict[str, float]:
    """Return the loss of the test set and its perplexities by their names in records."""
    return {
        "test_loss": loss.loss,
        "test_perplexity": loss.perplexity,
        "tutorial_perplexity": loss.tutorial_perplexity,
    }


def as_hypotheses(prepared: Dataset, decoded: Decoded) -> list[Hypothesis]:
    """Return translations as words and as text, numbered in their order."""
    tokens = [
        tuple(prepared.target_words[token] for token in translation.tokens) for translation in decoded.translations
    ]
    texts = detokenise(prepared, tokens)
    return [Hypothesis(number, *pair) for number, pair in enumerate(zip(tokens, texts, strict=True))]


@contextlib.contextmanager
def naming(sentences: Sequence[str]) -> Iterator[None]:
    """Name the sentence for which the model gives NaN. Raises: ValueError."""
    try:
        yield
    except NotANumber as error:
        raise ValueError(
            f"sentence {brief(sentences[error.sentence])}: the model gives NaN for it; translate the others without it"
        ) from None


def translated(model: Decodable, prepared: Dataset, sentences: Sequence[str], decoding: DecodingSpec) -> list[str]:
    """Return the translation of each sentence; that of an empty one is empty. Raises: as `encode` and `naming`.

    Warnings say how many sentences were cut to the corpus's greatest length, and which words are unknown.
    """
    nonempty = [sentence for sentence in sentences if sentence.strip()]
    if not nonempty:
        return [""] * len(sentences)
    encoded = encode(prepared, nonempty)
    if encoded.cut:
        most = prepared.data.max_length
        warnings.warn(f"{count(encoded.cut, 'sentence')} cut to data.max_length={most} tokens", stacklevel=3)
    if unknown := unknown_words(prepared, encoded):
        warnings.warn(unknown, stacklevel=3)
    with naming(nonempty):
        texts = iter(as_hypotheses(prepared, translate(model, encoded.ids, decoding)))
    return [next(texts).text if sentence.strip() else "" for sentence in sentences]


def validation_bleu(
    model: Seq2SeqModel, prepared: Dataset, decoding: DecodingSpec, *, on_batch: Callable[[int], None] | None = None
) -> float:
    """Return the sacreBLEU, 0 to 100, of greedy translations of the validation set without `<unk>`.

    Its references are the ids that the model is validated on: words outside the vocabulary match nothing, and long
    sentences are cut. So the figure does not compare with scores of the test set. `on_batch` is as in `measure`.
    """
    decoded = translate(
        model, prepared.validation.source, replace(decoding, beam=1, unknown="never"), on_batch=on_batch
    )
    texts = [hypothesis.text for hypothesis in as_hypotheses(prepared, decoded)]
    references = [[prepared.target_words[token] for token in ids[1:-1]] for ids in prepared.validation.target]
    return text_bleu(texts, detokenise(prepared, references), prepared.data.case, prepared.data.target_language)


def _translated(
    model: Seq2SeqModel, prepared: Dataset, decoding: DecodingSpec, on_batch: Callable[[int], None] | None
) -> tuple[Decoded, float]:
    """Translate the test set and return the translations and the seconds that it took."""
    model.synchronize()
    began = time.perf_counter()
    decoded = translate(model, prepared.test.source, decoding, on_batch=on_batch)
    return decoded, time.perf_counter() - began


def _compilations(model: Seq2SeqModel) -> int:
    return model.compilation().count if isinstance(model, Compiling) else 0


def test_nats(model: TokenScorer, prepared: Dataset) -> tuple[Scored, Arrays]:
    """Return the loss of a model on the test set, and `nats` and `tokens` of each sentence in the order of the set."""
    batches = list(evaluation_batches(prepared.test))
    scored = evaluate(model, [batch for batch, _ in batches])
    order = np.concatenate([rows for _, rows in batches])
    sentences: Arrays = {"nats": np.zeros(len(order), np.float64), "tokens": np.zeros(len(order), np.int32)}
    sentences["nats"][order] = scored.sentence_nats
    sentences["tokens"][order] = scored.sentence_tokens
    return scored, sentences


def test_attention(model: Seq2SeqModel, prepared: Dataset, translations: Sequence[Sequence[int]]) -> dict[int, Numbers]:
    """Return the cross attention of the first test sentences for these translations of them.

    Shapes: by sentence number float16 [layers,H,T,S]. Row t belongs to target token t, and the last row to `<eos>`.
    Source positions are those of the sentence's ids, `<sos>` and `<eos>` included. Empty for a model without attention.
    """
    attention = {}
    for number, tokens in enumerate(translations):
        target: Ids = np.array([[SOS, *tokens]], dtype=np.int32)
        attention[number] = model.cross_attention(prepared.test.source[number][None], target)[0].astype(np.float16)
    return {number: weights for number, weights in attention.items() if weights.size}


def check_words(hypotheses: Sequence[Hypothesis], where: str) -> None:
    """Raise ValueError for a translation with a word that is too long to tokenise; the message starts with `where`."""
    for hypothesis in hypotheses:
        text_files.check_words(hypothesis.text, f"{where}, sentence {hypothesis.sentence}")


def test_scores(prepared: Dataset, hypotheses: Sequence[Hypothesis], unknown: Unknown) -> Scores:
    """Return every BLEU and chrF of the translations of the test set, with their signatures.

    Raises: ValueError if the numbers of translations and references differ.
    """
    texts = [hypothesis.text for hypothesis in hypotheses]
    return score(
        score_tokens(prepared, texts)
        if prepared.data.has_subwords
        else [list(hypothesis.tokens) for hypothesis in hypotheses],
        prepared.test_target_tokens,
        texts=texts,
        reference_texts=prepared.test_target_text,
        moses=moses_tokens(prepared, texts),
        reference_moses=prepared.test_target_moses,
        case=prepared.data.case,
        unknown=unknown,
        language=prepared.data.target_language,
    )
