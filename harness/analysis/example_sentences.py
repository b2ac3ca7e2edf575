"""Single sentences and n-grams in which two sides differ most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.selection import Side
from harness.analysis.subsets import Counts
from harness.evaluation.metrics import score_from_sums
from harness.storage.run_store import Hypothesis
from harness.text import SENTENCE_CHARACTERS, short_line
from impls.contract import SPECIAL_TOKENS, UNK

MOST_WORDS = 4
SMOOTHING = 1.0

Words = tuple[str, ...]


@dataclass(frozen=True)
class Sentence:
    """A test sentence and the translations of two sides.

    Attributes:
        number: The number of the sentence in the stored translations.
        means: The mean sentence score of each side over seeds.
        difference: The mean of the second side minus that of the first.
        seed: The seed of the translations, the one whose difference is nearest to the mean.
        scores: The scores of the translations.
        translations: The translation of each side.
        source: The source, if the corpus is available.
        reference: The reference, if the corpus is available.
    """

    number: int
    means: tuple[float, float]
    difference: float
    seed: int
    scores: tuple[float, float]
    translations: tuple[str, str]
    source: str = ""
    reference: str = ""


@dataclass(frozen=True)
class Ngram:
    """An n-gram, and how often two sides match it in the reference.

    Attributes:
        words: The n-gram.
        first: The number of matches of the first side, summed over seeds.
        second: The number of matches of the second side.
        share: (second + 1) / (first + second + 2).
        seeds: The number of seeds at which the side with more matches over all seeds has more.
    """

    words: str
    first: int
    second: int
    share: float
    seeds: int


def most_different(
    sides: tuple[Side, Side],
    seeds: Sequence[int],
    sums: tuple[Counts, Counts],
    name: str,
    *,
    count: int,
    texts: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> tuple[list[Sentence], list[Sentence]] | None:
    """Return the sentences that the second side translates better by most, and worse by most.

    Args:
        sides: The two sides.
        seeds: The seeds, which completed on both sides.
        sums: The sentence statistics of a score on each side, [n,N,K].
        name: The name of the score.
        count: The number of sentences in each direction.
        texts: The sources and references, or nothing.

    Returns:
        Two lists, or None if the translations of a run are not stored.
    """
    first_runs, second_runs = (side.hypotheses(seeds, sums[0].shape[1]) for side in sides)
    if first_runs is None or second_runs is None:
        return None
    first, second = (score_from_sums(name, array) for array in sums)
    differences = second - first
    means = differences.mean(axis=0)
    order = np.argsort(-means, kind="stable").tolist()
    better = [index for index in order[:count] if means[index] > 0]
    worse = [index for index in order[::-1][:count] if means[index] < 0]

    def sentence(index: int) -> Sentence:
        run = int(np.abs(differences[:, index] - means[index]).argmin())
        translations = first_runs[run][index], second_runs[run][index]
        source, reference = (_cut(lines[index]) if index < len(lines) else "" for lines in texts)
        return Sentence(
            number=translations[0].sentence,
            means=(float(first[:, index].mean()), float(second[:, index].mean())),
            difference=float(means[index]),
            seed=seeds[run],
            scores=(float(first[run, index]), float(second[run, index])),
            translations=(_cut(translations[0].text), _cut(translations[1].text)),
            source=source,
            reference=reference,
        )

    return [sentence(index) for index in better], [sentence(index) for index in worse]


def ngrams(
    sides: tuple[Side, Side], seeds: Sequence[int], references: Sequence[Sequence[str]], *, count: int
) -> tuple[list[Ngram], list[Ngram]] | None:
    """Return the n-grams of 1 to 4 words that the second side matches most more often, and most less often.

    An n-gram matches as often in a sentence as both the translation and the reference have it. N-grams are ranked by
    the smoothed share (second + 1) / (first + second + 2); of equal ones the more frequent, then the longer come first.

    Returns:
        Two lists, or None if the translations of a run are not stored.

    Source: Neubig et al. 2019, compare-mt.
    """
    hypotheses = [side.hypotheses(seeds, len(references)) for side in sides]
    if None in hypotheses:
        return None
    expected = [_ngrams(words) for words in references]
    first_runs, second_runs = ([_matches(run, expected) for run in runs or ()] for runs in hypotheses)
    first_total, second_total = (sum(matches, Counter[Words]()) for matches in (first_runs, second_runs))
    ranked: list[tuple[Words, Ngram]] = []
    for words in {*first_total, *second_total}:
        first, second = first_total[words], second_total[words]
        sign = 1 if second > first else -1
        agreeing = sum(sign * (b[words] - a[words]) > 0 for a, b in zip(first_runs, second_runs, strict=True))
        share = (second + SMOOTHING) / (first + second + 2 * SMOOTHING)
        ranked.append((words, Ngram(short_line(" ".join(words)), first, second, share, agreeing)))
    ranked.sort(key=lambda pair: (-pair[1].first - pair[1].second, -len(pair[0]), pair[0]))
    better = sorted((gram for _, gram in ranked if gram.second > gram.first), key=lambda gram: -gram.share)
    worse = sorted((gram for _, gram in ranked if gram.second < gram.first), key=lambda gram: gram.share)
    return better[:count], worse[:count]


def _cut(text: str) -> str:
    return short_line(text, longest=SENTENCE_CHARACTERS)


def _ngrams(words: Sequence[str]) -> Counter[Words]:
    return Counter(
        tuple(words[start : start + size])
        for size in range(1, MOST_WORDS + 1)
        for start in range(len(words) - size + 1)
    )


def _matches(hypotheses: Sequence[Hypothesis], expected: Sequence[Counter[Words]]) -> Counter[Words]:
    """Return how often a run matches each n-gram of the references; n-grams with unknown words never match."""
    matches: Counter[Words] = Counter()
    for hypothesis, reference in zip(hypotheses, expected, strict=True):
        matches.update(_ngrams(hypothesis.tokens) & reference)
    return Counter({words: times for words, times in matches.items() if SPECIAL_TOKENS[UNK] not in words})
