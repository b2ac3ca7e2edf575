"""Nats, perplexity, and the flavours of BLEU with their signatures.

sacreBLEU does the counting. A score never travels without the signature that says how it was computed. BLEU and chrF
are 0 to 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from harness.specs import Case
from impls.contract import PAD, SPECIAL_WORDS, UNK, Batch, Numbers

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU, BLEUScore

ORDERS = (1, 2, 3, 4)

# Marks a token that was rewritten to pass through sacreBLEU's splitting at whitespace: from Unicode's private use area.
_MARK = "\ue000"
_NO_MATCH = _MARK + "unknown"

_Sentences = Sequence[Sequence[str]]


class Judge(Protocol):
    """The one member of `Seq2SeqModel` that evaluation uses."""

    def token_nats(self, batch: Batch) -> Numbers:
        """Return the unsmoothed negative log-likelihood of each target word, [B,T]; 0 at padding."""


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts the right words of a data set.

    Units: `nats`, natural logarithms summed over all `tokens` target words (`<eos>` included, padding excluded);
    `batch_means`, nats per target word of each batch.
    """

    nats: float
    tokens: int
    batch_means: tuple[float, ...]

    @property
    def loss(self) -> float:
        """Nats per target word: sum divided by count."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return perplexity(self.nats, self.tokens)

    @property
    def tutorial_perplexity(self) -> float:
        """The exponential of the mean of the batches' means, which depends on the batches.

        For comparison with the tutorials' figures alone: test set sorted by length, batches of 128.
        """
        return perplexity(math.fsum(self.batch_means), len(self.batch_means))


@dataclass(frozen=True)
class Scores:
    """Scores by name, and under the same names how each was computed."""

    values: dict[str, float]
    signatures: dict[str, str]


def perplexity(nats: float, tokens: int) -> float:
    """Return exp(nats / tokens), infinity where that is too large for a float.

    Raises: ValueError where there are no tokens.
    """
    if tokens < 1:
        raise ValueError(f"tokens={tokens!r}: allowed is a whole number of at least 1")
    try:
        return math.exp(nats / tokens)
    except OverflowError:
        return math.inf


def evaluate(model: Judge, batches: Iterable[Batch]) -> Evaluation:
    """Sum the nats of all target words, in float64; a batch of only padding adds nothing.

    Raises: ValueError where the batches hold no target words.
    """
    nats, tokens = 0.0, 0
    means: list[float] = []
    for batch in batches:
        if batch.tokens:
            found = float(model.token_nats(batch)[batch.target_out != PAD].sum(dtype=np.float64))
            nats, tokens = nats + found, tokens + batch.tokens
            means.append(found / batch.tokens)
    if not tokens:
        raise ValueError("there are no target words to evaluate")
    return Evaluation(nats, tokens, tuple(means))


def score(
    hypotheses: _Sentences,
    references: _Sentences,
    *,
    texts: Sequence[str],
    reference_texts: Sequence[str],
    moses: _Sentences | None,
    reference_moses: _Sentences | None,
    case: Case,
) -> Scores:
    """Compare translations with one reference each.

    `hypotheses` and `references` are the model's words, `texts` and `reference_texts` plain sentences, `moses` and
    `reference_moses` the same as Moses tokens, or None where they cannot be had. `case` is the case of the plain
    sentences that counts.

    | name | on | how |
    |---|---|---|
    | `bleu_tutorial` | the model's words, lower-cased | no smoothing: torchtext 0.6.0's `bleu_score`, times 100 |
    | `bleu_N_cumulative` | the same | n-grams of 1 to N; N = 4 is `bleu_tutorial` |
    | `bleu_N_individual` | the same | n-grams of N alone, times the brevity penalty |
    | `bleu_tokenised` | Moses tokens, lower-cased; absent where these are | sacreBLEU's default smoothing |
    | `bleu_sacre`, `chrf` | plain sentences | sacreBLEU's defaults, lower-cased if `case` is "lower" |

    An unknown word `<unk>` among the words of a hypothesis matches nothing, not even `<unk>`; plain sentences are
    scored as they are, as sacreBLEU's own command line would.

    Raises: ValueError where there are no hypotheses, or not as many of one kind as of another.
    """
    from sacrebleu.metrics.bleu import BLEU  # takes as long to import as NumPy, and the command line's help needs none
    from sacrebleu.metrics.chrf import CHRF

    _check_numbers(hypotheses, references, texts, reference_texts, moses, reference_moses)
    values, signatures = _on_words(hypotheses, references)
    lowercase = case == "lower"
    if moses is not None and reference_moses is not None:
        metric = BLEU(tokenize="none", lowercase=True, force=True)
        values["bleu_tokenised"] = _on_tokens(metric, moses, reference_moses).score
        signatures["bleu_tokenised"] = f"{metric.get_signature()}|tokens:moses"
    for name, plain in (("bleu_sacre", BLEU(lowercase=lowercase)), ("chrf", CHRF(lowercase=lowercase))):
        values[name] = plain.corpus_score(list(texts), [list(reference_texts)]).score
        signatures[name] = str(plain.get_signature())
    return Scores(values, signatures)


def _check_numbers(
    hypotheses: _Sentences,
    references: _Sentences,
    texts: Sequence[str],
    reference_texts: Sequence[str],
    moses: _Sentences | None,
    reference_moses: _Sentences | None,
) -> None:
    if not hypotheses and not references:
        raise ValueError("there are no translations to score")
    kinds = {
        "references": references,
        "texts": texts,
        "reference_texts": reference_texts,
        "moses": moses,
        "reference_moses": reference_moses,
    }
    for name, found in kinds.items():
        if found is not None and len(found) != len(hypotheses):
            raise ValueError(f"there are {len(hypotheses)} hypotheses and {len(found)} {name}: allowed is as many")


def _on_words(hypotheses: _Sentences, references: _Sentences) -> tuple[dict[str, float], dict[str, str]]:
    """Return the scores on the model's words, and their signatures."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", lowercase=True, smooth_method="none", force=True)
    found = _on_tokens(metric, hypotheses, references)
    signature = f"{metric.get_signature()}|tokens:model"
    values, signatures = {"bleu_tutorial": found.score}, {"bleu_tutorial": signature}
    for order in ORDERS:
        values[f"bleu_{order}_cumulative"] = BLEU.compute_bleu(
            found.counts[:order], found.totals[:order], found.sys_len, found.ref_len, max_ngram_order=order
        ).score
        signatures[f"bleu_{order}_cumulative"] = f"{signature}|orders:1-{order}"
        values[f"bleu_{order}_individual"] = found.bp * found.precisions[order - 1]
        signatures[f"bleu_{order}_individual"] = f"{signature}|orders:{order}"
    return values, signatures


def _on_tokens(metric: BLEU, hypotheses: _Sentences, references: _Sentences) -> BLEUScore:
    """Score sentences that are tokens already, each token as one, whatever it holds."""
    unknown = SPECIAL_WORDS[UNK]
    lines = [" ".join(_NO_MATCH if word == unknown else _unsplittable(word) for word in one) for one in hypotheses]
    reference_lines = [" ".join(map(_unsplittable, one)) for one in references]
    found: BLEUScore = metric.corpus_score(lines, [reference_lines])
    return found


def _unsplittable(token: str) -> str:
    """Rewrite a token that splitting at whitespace would cut or lose; no two tokens become one."""
    if token.split() == [token] and not token.startswith(_MARK):
        return token
    return _MARK + "-".join(f"{ord(letter):x}" for letter in token.lower())
