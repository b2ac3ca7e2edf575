"""Loss in nats, perplexity, and several variants of BLEU with their signatures.

sacreBLEU does the counting. Every score has a signature that says how it was computed. BLEU and chrF are 0 to 100.

Every score of the test set is a function of counts that are summed over its sentences. `score` returns the scores and
the counts of each sentence; `perplexity_from_sums`, `bleu_from_sums` and `chrf_from_sums` compute the same scores from
any sums of counts, such as those of all sentences but one.
"""

from __future__ import annotations

import functools
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
"""Each BLEU that has its own counts, and its smoothing of n-grams that never match, as sacreBLEU calls it."""

SIGNATURE_SUFFIXES = {"bleu_tokenised": "|tokens:moses"}
BLEU_COUNTS = 2 + 2 * len(ORDERS)
CHRF_ORDERS, CHRF_BETA = 6, 2

# Marks a token that was rewritten because sacreBLEU splits at whitespace; from the private use area of Unicode.
_MARK = "\ue000"
_NO_MATCH = _MARK + "unknown"

_Sentences = Sequence[Sequence[str]]


class TokenScorer(Protocol):
    """The one member of `Seq2SeqModel` that evaluation uses."""

    def token_nats(self, batch: Batch) -> Numbers:
        """Return the unsmoothed negative log-likelihood of each target token, [B,T]; 0 at padding."""


@dataclass(frozen=True)
class Scored:
    """How well a model predicts the target tokens of a data set.

    Attributes:
        nats: Negative log-likelihood summed over all target tokens, `<eos>` included and padding excluded.
        tokens: The number of target tokens.
        batch_means: Nats per target token of each batch.
        sentence_nats: `nats` of each row of the batches, in order.
        sentence_tokens: `tokens` of each row of the batches, in order.
    """

    nats: float
    tokens: int
    batch_means: tuple[float, ...]
    sentence_nats: tuple[float, ...] = field(repr=False)
    sentence_tokens: tuple[int, ...] = field(repr=False)

    @property
    def loss(self) -> float:
        """Nats per target token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return perplexity(self.nats, self.tokens)

    @property
    def tutorial_perplexity(self) -> float:
        """The exponential of the mean of the batch means, which depends on the batches.

        Only for comparison with the tutorials, whose batches are 128 sentences sorted by length.
        """
        return perplexity(math.fsum(self.batch_means), len(self.batch_means))


@dataclass(frozen=True)
class Scores:
    """Scores, their signatures, and the counts of each sentence, all by name.

    Shapes: `statistics`, int32 [N,K] for N sentences: the columns are those of `bleu_from_sums` for each BLEU of
    `SMOOTHING`, and those of `chrf_from_sums` for `chrf`. `bleu_N_cumulative` and `bleu_N_individual` follow from the
    counts of `bleu_tutorial`.
    """

    values: dict[str, float]
    signatures: dict[str, str]
    statistics: Arrays = field(repr=False)


def perplexity(nats: float, tokens: int) -> float:
    """Return exp(nats / tokens), or infinity if that overflows.

    Raises:
        ValueError: `tokens` is below 1.
    """
    if tokens < 1:
        raise ValueError(f"tokens={tokens!r}: expected a whole number of at least 1")
    try:
        return math.exp(nats / tokens)
    except OverflowError:
        return math.inf


def evaluate(model: TokenScorer, batches: Iterable[Batch]) -> Scored:
    """Sum the nats of all target tokens in float64. A batch of only padding adds nothing.

    Raises:
        ValueError: There are no target tokens.
    """
    nats, tokens = 0.0, 0
    means: list[float] = []
    sentence_nats: list[float] = []
    sentence_tokens: list[int] = []
    for batch in batches:
        real = batch.target_out != PAD
        sentence_tokens += real.sum(axis=1).tolist()
        if not batch.tokens:
            sentence_nats += [0.0] * len(real)
            continue
        token_nats = model.token_nats(batch)
        batch_nats = float(token_nats[real].sum(dtype=np.float64))
        nats, tokens = nats + batch_nats, tokens + batch.tokens
        means.append(batch_nats / batch.tokens)
        sentence_nats += np.where(real, token_nats, 0).sum(axis=1, dtype=np.float64).tolist()
    if not tokens:
        raise ValueError("there are no target tokens to evaluate")
    return Scored(nats, tokens, tuple(means), tuple(sentence_nats), tuple(sentence_tokens))


def score(
    hypotheses: _Sentences,
    references: _Sentences,
    *,
    texts: Sequence[str],
    reference_texts: Sequence[str],
    moses: _Sentences,
    reference_moses: _Sentences,
    case: Case,
    unknown: Unknown,
    language: str = "en",
) -> Scores:
    """Return the scores of translations, with one reference each, by these names.

    | name | on | how |
    |---|---|---|
    | `bleu_tutorial` | the model's tokens, lower-cased | no smoothing: torchtext 0.6.0's `bleu_score`, times 100 |
    | `bleu_N_cumulative` | the same | n-grams of 1 to N; N = 4 is `bleu_tutorial` |
    | `bleu_N_individual` | the same | n-grams of length N only, times the brevity penalty |
    | `bleu_tokenised` | Moses tokens, lower-cased | sacreBLEU's default smoothing |
    | `bleu_sacre`, `chrf` | plain sentences | sacreBLEU's defaults, lower-cased if `case` is "lower" |
    | `brevity_penalty` | the same | the factor of `bleu_sacre`, from 0 to 1 |

    Args:
        hypotheses, references: Translations and references as tokens of the model.
        texts, reference_texts: The same as plain sentences.
        moses, reference_moses: The same as Moses tokens.
        case: Whether the case of plain sentences counts.
        language: The target language, which decides `sacre_tokenizer`.
        unknown: Whether the translations may contain `<unk>`; each signature ends with `unk:never` or `unk:allowed`.

    A token `<unk>` matches nothing, not even `<unk>`. Plain sentences are scored as sacreBLEU's command line does.

    Raises:
        ValueError: There are no hypotheses, or the numbers of sentences differ.
    """
    sides = {"texts": texts, "reference_texts": reference_texts, "moses": moses, "reference_moses": reference_moses}
    _check_numbers(hypotheses, references=references, **sides)
    scores = _on_words(hypotheses, references)
    plain = texts, reference_texts
    lines = {"bleu_tokenised": _lines(moses, reference_moses), "bleu_sacre": plain, "chrf": plain}
    for name, (own, of_references) in lines.items():
        metric = _metric(name, tuple(of_references), case, language)
        total, scores.statistics[name] = _count(metric, own)
        scores.values[name] = total.score
        scores.signatures[name] = str(metric.get_signature()) + SIGNATURE_SUFFIXES.get(name, "")
        if name == "bleu_sacre":
            scores.values["brevity_penalty"] = total.bp
            scores.signatures["brevity_penalty"] = scores.signatures[name]
    return replace(scores, signatures={name: f"{item}|unk:{unknown}" for name, item in scores.signatures.items()})


def text_bleu(texts: Sequence[str], reference_texts: Sequence[str], case: Case, language: str) -> float:
    """Return the `bleu_sacre` of plain sentences, as `score` computes it."""
    bleu: float = _metric("bleu_sacre", tuple(reference_texts), case, language).corpus_score(texts, None).score
    return bleu


def sacre_tokenizer(language: str) -> str:
    """Return sacreBLEU's tokenizer for a target language; in those without spaces, a sentence is not one word."""
    return "zh" if language == "zh" else "char" if language in ("ja", "km", "lo", "my", "th") else "13a"


@functools.lru_cache(maxsize=8)
def _metric(name: str, references: tuple[str, ...], case: Case = "lower", language: str = "en") -> Metric:
    """Return a metric of `score` with its references, whose n-grams are counted once; tokens are always lower-cased."""
    from sacrebleu.metrics.bleu import BLEU  # imported late: it takes as long as NumPy, and --help does not need it
    from sacrebleu.metrics.chrf import CHRF

    lowercase = case == "lower"
    if name == "chrf":
        return CHRF(char_order=CHRF_ORDERS, beta=CHRF_BETA, lowercase=lowercase, references=[references])
    smoothing = SMOOTHING[name]
    if name == "bleu_sacre":
        tokenize = sacre_tokenizer(language)
        return BLEU(lowercase=lowercase, tokenize=tokenize, smooth_method=smoothing, references=[references])
    return BLEU(tokenize="none", lowercase=True, force=True, smooth_method=smoothing, references=[references])


def without_unknown(signature: str) -> str:
    """Return a signature without the item that says whether translations may contain `<unk>`."""
    return "|".join(item for item in signature.split("|") if not item.startswith("unk:"))


def unknown_tokens(hypotheses: _Sentences) -> int:
    """Return the number of `<unk>` tokens in the translations."""
    return sum(list(tokens).count(SPECIAL_TOKENS[UNK]) for tokens in hypotheses)


def _check_numbers(hypotheses: _Sentences, **sides: Sequence[Any]) -> None:
    if not hypotheses and not sides["references"]:
        raise ValueError("there are no translations to score")
    for name, sentences in sides.items():
        if len(sentences) != len(hypotheses):
            raise ValueError(f"{len(hypotheses)} hypotheses, but {len(sentences)} {name}: the numbers must be equal")


def _on_words(hypotheses: _Sentences, references: _Sentences) -> Scores:
    """Return the scores on the model's tokens."""
    from sacrebleu.metrics.bleu import BLEU

    lines, reference_lines = _lines(hypotheses, references)
    metric = _metric("bleu_tutorial", tuple(reference_lines))
    bleu: BLEUScore
    bleu, statistics = _count(metric, lines)
    signature = f"{metric.get_signature()}|tokens:model"
    values, signatures = {"bleu_tutorial": bleu.score}, {"bleu_tutorial": signature}
    for order in ORDERS:
        values[f"bleu_{order}_cumulative"] = BLEU.compute_bleu(
            bleu.counts[:order], bleu.totals[:order], bleu.sys_len, bleu.ref_len, max_ngram_order=order
        ).score
        signatures[f"bleu_{order}_cumulative"] = f"{signature}|orders:1-{order}"
        values[f"bleu_{order}_individual"] = bleu.bp * bleu.precisions[order - 1]
        signatures[f"bleu_{order}_individual"] = f"{signature}|orders:{order}"
    return Scores(values, signatures, {"bleu_tutorial": statistics})


def _count(metric: Metric, lines: Sequence[str]) -> tuple[Any, npt.NDArray[np.int32]]:
    """Return the score of a corpus and the counts of each sentence: sacreBLEU's `corpus_score` in two steps."""
    counts = metric._extract_corpus_statistics(lines, None)
    return metric._aggregate_and_compute(counts), np.array(counts, dtype=np.int32)


def _lines(hypotheses: _Sentences, references: _Sentences) -> tuple[list[str], list[str]]:
    """Join tokens into lines that sacreBLEU splits into the same tokens, whatever they contain."""
    unknown = SPECIAL_TOKENS[UNK]
    lines = [
        " ".join(_NO_MATCH if token == unknown else _unsplittable(token) for token in tokens) for tokens in hypotheses
    ]
    return lines, [" ".join(map(_unsplittable, tokens)) for tokens in references]


def _unsplittable(token: str) -> str:
    """Rewrite a token that splitting at whitespace would change. Different tokens remain different."""
    if token.split() == [token] and not token.startswith(_MARK):
        return token
    return _MARK + "-".join(f"{ord(letter):x}" for letter in token.lower())


# Scores of sums -------------------------------------------------------------------------------------------------------


def perplexity_from_sums(nats: Sums, tokens: Sums) -> Figures:
    """Return exp(nats / tokens) of each pair of sums, infinity where that overflows.

    Shapes: `nats` and `tokens` [...], the result the same.

    Raises:
        ValueError: A sum of tokens is below 1.
    """
    if np.any(np.asarray(tokens) < 1):
        raise ValueError(f"tokens={np.min(tokens)}: expected a number of at least 1")
    with np.errstate(over="ignore"):
        perplexities: Figures = np.exp(np.asarray(nats, np.float64) / tokens)
    return perplexities


def bleu_from_sums(sums: Sums, smoothing: Smoothing) -> Figures:
    """Return the BLEU of each row of summed counts, with n-grams of 1 to 4.

    Formula: brevity penalty · (p1 · p2 · p3 · p4) ** (1/4), where pn is the share of n-grams that match. If none does,
    pn is 0 with smoothing "none", and 1 / (2 ** k · total) with "exp" at the kth such n. BLEU is 0 if no token matches,
    or if no translation has four tokens.

    Shapes: `sums` [...,10]: tokens of the translations, tokens of the references, matching n-grams of 1 to 4, all
    n-grams of 1 to 4; the scores [...].

    Source: Papineni et al. 2002, section 2.3; `exp`: Chen and Cherry 2014, method 3, as in sacreBLEU.
    """
    _check_columns(sums, BLEU_COUNTS)
    correct, total = (np.asarray(sums[..., start : start + len(ORDERS)], np.float64) for start in (2, 2 + len(ORDERS)))
    defined = (correct > 0).any(axis=-1) & (total > 0).all(axis=-1)
    if smoothing == "exp":
        missed = correct == 0
        correct = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), correct)
    with np.errstate(divide="ignore", invalid="ignore"):
        scores: Figures = 100 * brevity_from_sums(sums) * np.exp(np.log(correct / total).mean(axis=-1))
    return np.where(defined, scores, 0.0)


def brevity_from_sums(sums: Sums) -> Figures:
    """Return the brevity penalty of each row of summed counts, from 0 to 1.

    Formula: exp(min(0, 1 - r / c)) for c tokens of the translations and r of the references.

    Shapes: `sums` [...,10], as for `bleu_from_sums`, with c and r first; the penalties [...].

    Source: Papineni et al. 2002, section 2.2.2.
    """
    _check_columns(sums, BLEU_COUNTS)
    lengths, reference_lengths = (np.asarray(sums[..., column], np.float64) for column in (0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        penalties: Figures = np.exp(np.minimum(0.0, 1 - reference_lengths / lengths))
    return np.where(lengths > 0, penalties, 0.0)


def chrf_from_sums(sums: Sums) -> Figures:
    """Return the chrF of each row of summed counts: character n-grams of 1 to 6, with recall weighted twice.

    Formula: 5 · P · R / (4 · P + R), where P and R are the means of precision and recall over the n-gram lengths that
    both sides have.

    Shapes: `sums` [...,18]: for n of 1 to 6 the n-grams of the translations, those of the references, and those that
    match; the scores [...].

    Source: Popović 2015, section 2, with beta = 2; the means as in sacreBLEU.
    """
    _check_columns(sums, 3 * CHRF_ORDERS)
    counts = np.asarray(sums, np.float64).reshape(*sums.shape[:-1], CHRF_ORDERS, 3)
    hypothesis, reference, matching = (counts[..., column] for column in range(3))
    present = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(1, present.sum(axis=-1))
    precision, recall = (
        np.divide(matching, side, out=np.zeros_like(side), where=present).sum(axis=-1) / orders
        for side in (hypothesis, reference)
    )
    factor = CHRF_BETA**2
    weighted = factor * precision + recall
    score: Figures = np.divide(
        100 * (1 + factor) * precision * recall, weighted, out=np.zeros_like(weighted), where=weighted > 0
    )
    return score


def score_from_sums(name: str, sums: Sums) -> Figures:
    """Return the BLEU or chrF `name` of each row of sums of `Scores.statistics[name]`.

    Raises:
        ValueError: There are no counts of that name.
    """
    if name == "chrf":
        return chrf_from_sums(sums)
    if name not in SMOOTHING:
        raise ValueError(f"score {name!r}: expected one of {', '.join((*SMOOTHING, 'chrf'))}")
    return bleu_from_sums(sums, SMOOTHING[name])


def _check_columns(sums: Sums, columns: int) -> None:
    if sums.shape[-1:] != (columns,):
        raise ValueError(f"sums of shape {sums.shape}: expected {columns} columns")
