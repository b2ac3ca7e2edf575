"""Measures a trained model on the test set: loss, perplexity, translations and their scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.data.batches import evaluation_batches
from harness.data.prepared import Prepared, detokenise, moses_tokens, score_tokens
from harness.decoding import translate
from harness.scoring import Scores, evaluate, score
from harness.specs import DecodingSpec
from harness.store import Hypothesis
from impls.contract import Seq2SeqModel


@dataclass(frozen=True)
class Measured:
    """What the test set says of a model; the dictionaries are those of a `RunRecord`."""

    scores: dict[str, float]
    signatures: dict[str, str]
    decode: dict[str, int]
    speed: dict[str, float]
    hypotheses: list[Hypothesis]


def measure(
    model: Seq2SeqModel, prepared: Prepared, decoding: DecodingSpec, *, on_batch: Callable[[int], None] | None = None
) -> Measured:
    """Evaluate a model on the test set, translate it and score the translations.

    `on_batch` is called with the number of sentences translated so far.
    """
    loss = evaluate(model, [batch for batch, _ in evaluation_batches(prepared.test)])
    model.synchronize()
    began = time.perf_counter()
    decoded = translate(model, prepared.test.source, decoding, on_batch=on_batch)
    seconds = time.perf_counter() - began
    tokens = [tuple(prepared.target_words[token] for token in one.tokens) for one in decoded.translations]
    texts = detokenise(prepared, tokens)
    hypotheses = [Hypothesis(number, *one) for number, one in enumerate(zip(tokens, texts, strict=True))]
    scores = test_scores(prepared, hypotheses)
    perplexities = {
        "test_loss": loss.loss,
        "test_perplexity": loss.perplexity,
        "tutorial_perplexity": loss.tutorial_perplexity,
    }
    return Measured(
        scores={**perplexities, **scores.values},
        signatures=dict(scores.signatures),
        decode={"ties": decoded.ties, "unfinished": decoded.unfinished},
        speed={"decoding_sentences_per_second": len(hypotheses) / seconds},
        hypotheses=hypotheses,
    )


def test_scores(prepared: Prepared, hypotheses: Sequence[Hypothesis]) -> Scores:
    """Return every BLEU and chrF of the test set's translations, with their signatures.

    Raises: ValueError where there are not as many translations as references.
    """
    texts = [one.text for one in hypotheses]
    pieces = prepared.data.tokenizer.startswith("sentencepiece")
    return score(
        score_tokens(prepared, texts) if pieces else [list(one.tokens) for one in hypotheses],
        prepared.test_target_tokens,
        texts=texts,
        reference_texts=prepared.test_target_text,
        moses=moses_tokens(prepared, texts),
        reference_moses=prepared.test_target_moses,
        case=prepared.data.case,
    )
