"""Nats, perplexity, and the flavours of BLEU with their signatures.

sacreBLEU does the counting. A score never travels without the signature that says how it was computed. BLEU and chrF
are 0 to 100.

Every score of the test set is a function of counts that are summed over its sentences. `score` gives the counts of each
sentence beside the scores, and `perplexity_from_sums`, `bleu_from_sums` and `chrf_from_sums` turn any sums of them, of
one corpus or of thousands of resampled ones, into the same scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from harness.experiments.specs import Case, Unknown
from impls.contract import PAD, SPECIAL_TOKENS, UNK, Arrays, Batch, Numbers

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEUScore

Smoothing = Literal["none", "exp"]
Sums = npt.NDArray[Any]
Figures = npt.NDArray[np.float64]

ORDERS = (1, 2, 3, 4)
SMOOTHING: dict[str, Smoothing] = {"bleu_tutorial": "none", "bleu_tokenised": "exp", "bleu_sacre": "exp"}
"""Each BLEU that has counts of its own, and what it makes of n-grams that never match, in sacreBLEU's words."""

BLEU_COUNTS = 2 + 2 * len(ORDERS)
CHRF_ORDERS, CHRF_BETA = 6, 2

# Marks a token that was rewritten to pass through sacreBLEU's splitting at whitespace: from Unicode's private use area.
_MARK = "\ue000"
_NO_MATCH = _MARK + "unknown"

_Sentences = Sequence[Sequence[str]]


class Judge(Protocol):
    """The one member of `Seq2SeqModel` that evaluation uses."""

    def token_nats(self, batch: Batch) -> Numbers:
        """Return the unsmoothed negative log-likelihood of each target word, [B,T]; 0 at padding."""


@dataclass(frozen=True)
class Scored:
    """How well a model predicts the right words of a data set.

    Units: `nats`, natural logarithms summed over all `tokens` target words (`<eos>` included, padding excluded);
    `batch_means`, nats per target word of each batch. `sentence_nats` and `sentence_tokens` are of each row of the
    batches, in their order.
    """

    nats: float
    tokens: int
    batch_means: tuple[float, ...]
    sentence_nats: tuple[float, ...] = field(repr=False)
    sentence_tokens: tuple[int, ...] = field(repr=False)

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
    """Scores by name, under the same names how each was computed, and of which counts of each sentence.

    Shapes: `statistics`, int32 [N,K] for N sentences: each BLEU of `SMOOTHING` as `bleu_from_sums` takes it, and `chrf`
    as `chrf_from_sums` does. `bleu_N_cumulative` and `bleu_N_individual` come from those of `bleu_tutorial`.
    """

    values: dict[str, float]
    signatures: dict[str, str]
    statistics: Arrays = field(repr=False)


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


def evaluate(model: Judge, batches: Iterable[Batch]) -> Scored:
    """Sum the nats of all target words, in float64; a batch of only padding adds nothing.

    Raises: ValueError where the batches hold no target words.
    """
    nats, tokens = 0.0, 0
    means: list[float] = []
    sentence_nats: list[float] = []
    sentence_tokens: list[int] = []
    for batch in batches:
        words = batch.target_out != PAD
        sentence_tokens += words.sum(axis=1).tolist()
        if not batch.tokens:
            sentence_nats += [0.0] * len(words)
            continue
        word_nats = model.token_nats(batch)
        found = float(word_nats[words].sum(dtype=np.float64))
        nats, tokens = nats + found, tokens + batch.tokens
        means.append(found / batch.tokens)
        sentence_nats += np.where(words, word_nats, 0).sum(axis=1, dtype=np.float64).tolist()
    if not tokens:
        raise ValueError("there are no target words to evaluate")
    return Scored(nats, tokens, tuple(means), tuple(sentence_nats), tuple(sentence_tokens))


def score(
    hypotheses: _Sentences,
    references: _Sentences,
    *,
    texts: Sequence[str],
    reference_texts: Sequence[str],
    moses: _Sentences | None,
    reference_moses: _Sentences | None,
    case: Case,
    unknown: Unknown,
) -> Scores:
    """Compare translations with one reference each.

    `hypotheses` and `references` are the model's words, `texts` and `reference_texts` plain sentences, `moses` and
    `reference_moses` the same as Moses tokens, or None where they cannot be had. `case` is the case of the plain
    sentences that counts. `unknown` says whether the translations may contain unknown words; each signature ends with
    it, as `unk:never` or `unk:allowed`.

    | name | on | how |
    |---|---|---|
    | `bleu_tutorial` | the model's words, lower-cased | no smoothing: torchtext 0.6.0's `bleu_score`, times 100 |
    | `bleu_N_cumulative` | the same | n-grams of 1 to N; N = 4 is `bleu_tutorial` |
    | `bleu_N_individual` | the same | n-grams of N alone, times the brevity penalty |
    | `bleu_tokenised` | Moses tokens, lower-cased; absent where these are | sacreBLEU's default smoothing |
    | `bleu_sacre`, `chrf` | plain sentences | sacreBLEU's defaults, lower-cased if `case` is "lower" |
    | `brevity_penalty` | the same | the factor of `bleu_sacre`, from 0 to 1 |

    An unknown word `<unk>` among the words of a hypothesis matches nothing, not even `<unk>`; plain sentences are
    scored as they are, as sacreBLEU's own command line would.

    Raises: ValueError where there are no hypotheses, or not as many of one kind as of another.
    """
    from sacrebleu.metrics.bleu import BLEU  # takes as long to import as NumPy, and the command line's help needs none
    from sacrebleu.metrics.chrf import CHRF

    _check_numbers(hypotheses, references, texts, reference_texts, moses, reference_moses)
    found = _on_words(hypotheses, references)
    lowercase = case == "lower"
    if moses is not None and reference_moses is not None:
        name = "bleu_tokenised"
        metric = BLEU(tokenize="none", lowercase=True, force=True, smooth_method=SMOOTHING[name])
        total, found.statistics[name] = _count(metric, *_lines(moses, reference_moses))
        found.values[name] = total.score
        found.signatures[name] = f"{metric.get_signature()}|tokens:moses"
    sacre = BLEU(lowercase=lowercase, smooth_method=SMOOTHING["bleu_sacre"])
    chrf = CHRF(char_order=CHRF_ORDERS, beta=CHRF_BETA, lowercase=lowercase)
    for name, plain in (("bleu_sacre", sacre), ("chrf", chrf)):
        total, found.statistics[name] = _count(plain, list(texts), list(reference_texts))
        found.values[name] = total.score
        found.signatures[name] = str(plain.get_signature())
        if name == "bleu_sacre":
            found.values["brevity_penalty"] = total.bp
            found.signatures["brevity_penalty"] = found.signatures[name]
    return replace(found, signatures={name: f"{one}|unk:{unknown}" for name, one in found.signatures.items()})


def without_unknown(signature: str) -> str:
    """Return a signature without the item that says whether translations may contain unknown words."""
    return "|".join(item for item in signature.split("|") if not item.startswith("unk:"))


def as_version_1(found: Scores) -> Scores:
    """Return scores as records of version 1 have them: no brevity penalty, and nothing about unknown words."""
    signatures = {name: without_unknown(one) for name, one in found.signatures.items() if name != "brevity_penalty"}
    return replace(found, values={name: found.values[name] for name in signatures}, signatures=signatures)


def unknown_tokens(hypotheses: _Sentences) -> int:
    """Return how many tokens of the translations are `<unk>`."""
    return sum(list(one).count(SPECIAL_TOKENS[UNK]) for one in hypotheses)


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


def _on_words(hypotheses: _Sentences, references: _Sentences) -> Scores:
    """Return the scores on the model's words."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", lowercase=True, smooth_method=SMOOTHING["bleu_tutorial"], force=True)
    found: BLEUScore
    found, statistics = _count(metric, *_lines(hypotheses, references))
    signature = f"{metric.get_signature()}|tokens:model"
    values, signatures = {"bleu_tutorial": found.score}, {"bleu_tutorial": signature}
    for order in ORDERS:
        values[f"bleu_{order}_cumulative"] = BLEU.compute_bleu(
            found.counts[:order], found.totals[:order], found.sys_len, found.ref_len, max_ngram_order=order
        ).score
        signatures[f"bleu_{order}_cumulative"] = f"{signature}|orders:1-{order}"
        values[f"bleu_{order}_individual"] = found.bp * found.precisions[order - 1]
        signatures[f"bleu_{order}_individual"] = f"{signature}|orders:{order}"
    return Scores(values, signatures, {"bleu_tutorial": statistics})


def _count(metric: Metric, lines: list[str], reference_lines: list[str]) -> tuple[Any, npt.NDArray[np.int32]]:
    """Return sacreBLEU's score of a corpus and the counts of each sentence that it sums: its `corpus_score` in two."""
    counts = metric._extract_corpus_statistics(lines, [reference_lines])
    return metric._aggregate_and_compute(counts), np.array(counts, dtype=np.int32)


def _lines(hypotheses: _Sentences, references: _Sentences) -> tuple[list[str], list[str]]:
    """Write sentences that are tokens already as lines that are split into them, each token one, whatever it holds."""
    unknown = SPECIAL_TOKENS[UNK]
    lines = [" ".join(_NO_MATCH if word == unknown else _unsplittable(word) for word in one) for one in hypotheses]
    return lines, [" ".join(map(_unsplittable, one)) for one in references]


def _unsplittable(token: str) -> str:
    """Rewrite a token that splitting at whitespace would cut or lose; no two tokens become one."""
    if token.split() == [token] and not token.startswith(_MARK):
        return token
    return _MARK + "-".join(f"{ord(letter):x}" for letter in token.lower())


# Scores of sums -------------------------------------------------------------------------------------------------------


def perplexity_from_sums(nats: Sums, tokens: Sums) -> Figures:
    """Return exp(nats / tokens) of each pair of sums, infinity where that is too large for a float.

    Shapes: `nats` and `tokens` [...], the perplexities the same.

    Raises: ValueError where a sum has no tokens.
    """
    if np.any(np.asarray(tokens) < 1):
        raise ValueError(f"tokens={np.min(tokens)}: allowed is a number of at least 1")
    with np.errstate(over="ignore"):
        found: Figures = np.exp(np.asarray(nats, np.float64) / tokens)
    return found


def bleu_from_sums(sums: Sums, smoothing: Smoothing) -> Figures:
    """Return the BLEU of each row of summed counts, with n-grams of 1 to 4.

    brevity penalty · (p1 · p2 · p3 · p4) ** (1/4), where pn is the share of n-grams that match. Where none does, "none"
    leaves pn 0, and "exp" makes it 1 / (2 ** k · total) at the kth such n. It is 0 where no word matches, or no
    translation has four.

    Shapes: `sums` [...,10]: words of the translations, words of the references, matching n-grams of 1 to 4, all n-grams
    of 1 to 4; the scores [...].

    Source: Papineni et al. 2002, section 2.3; `exp`: Chen and Cherry 2014, method 3, as in sacreBLEU.
    """
    _check_columns(sums, BLEU_COUNTS)
    correct, total = (np.asarray(sums[..., start : start + len(ORDERS)], np.float64) for start in (2, 2 + len(ORDERS)))
    defined = (correct > 0).any(axis=-1) & (total > 0).all(axis=-1)
    if smoothing == "exp":
        missed = correct == 0
        correct = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), correct)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Figures = 100 * brevity_from_sums(sums) * np.exp(np.log(correct / total).mean(axis=-1))
    return np.where(defined, found, 0.0)


def brevity_from_sums(sums: Sums) -> Figures:
    """Return the brevity penalty of each row of summed counts, from 0 to 1: exp(1 - r / c) where c is less than r.

    Shapes: `sums` [...,10], as `bleu_from_sums` takes them, with c and r first; the penalties [...].

    Source: Papineni et al. 2002, section 2.2.2.
    """
    _check_columns(sums, BLEU_COUNTS)
    words, reference_words = (np.asarray(sums[..., column], np.float64) for column in (0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Figures = np.exp(np.minimum(0.0, 1 - reference_words / words))
    return np.where(words > 0, found, 0.0)


def chrf_from_sums(sums: Sums) -> Figures:
    """Return the chrF of each row of summed counts: character n-grams of 1 to 6, recall counting twice as much.

    5 · P · R / (4 · P + R), where P and R are the means of precision and recall over the n that both sides have.

    Shapes: `sums` [...,18]: for n of 1 to 6 the n-grams of the translations, those of the references, and those that
    match; the scores [...].

    Source: Popović 2015, section 2, with beta = 2; the means as in sacreBLEU.
    """
    _check_columns(sums, 3 * CHRF_ORDERS)
    counts = np.asarray(sums, np.float64).reshape(*sums.shape[:-1], CHRF_ORDERS, 3)
    ours, theirs, matching = (counts[..., column] for column in range(3))
    both = (ours > 0) & (theirs > 0)
    orders = np.maximum(1, both.sum(axis=-1))
    precision, recall = (
        np.divide(matching, one, out=np.zeros_like(one), where=both).sum(axis=-1) / orders for one in (ours, theirs)
    )
    factor = CHRF_BETA**2
    weighted = factor * precision + recall
    score: Figures = np.divide(
        100 * (1 + factor) * precision * recall, weighted, out=np.zeros_like(weighted), where=weighted > 0
    )
    return score


def score_from_sums(name: str, sums: Sums) -> Figures:
    """Return the BLEU or chrF `name` of each row of summed counts, as `Scores.statistics` has them under that name.

    Raises: ValueError for a name that has no counts of its own.
    """
    if name == "chrf":
        return chrf_from_sums(sums)
    if name not in SMOOTHING:
        raise ValueError(f"score {name!r}: allowed is {', '.join((*SMOOTHING, 'chrf'))}")
    return bleu_from_sums(sums, SMOOTHING[name])


def _check_columns(sums: Sums, columns: int) -> None:
    if sums.shape[-1:] != (columns,):
        raise ValueError(f"sums of the shape {sums.shape}: allowed is {columns} columns")
