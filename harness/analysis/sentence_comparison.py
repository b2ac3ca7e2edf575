"""Comparisons below the test set: scores by length and by word frequency, and the most different sentences."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis import statistics
from harness.analysis.effects import Difference
from harness.analysis.evidence import Evidence, sentence_sums
from harness.analysis.grouping import digests_of
from harness.analysis.metric_registry import MAIN
from harness.analysis.scales import LOGIT, Reals
from harness.analysis.selection import Side
from harness.analysis.significance import MetricFunction
from harness.evaluation.metrics import score_from_sums
from harness.storage.run_store import Hypothesis
from harness.text import SENTENCE_CHARACTERS, short_line
from impls.contract import SPECIAL_TOKENS, UNK

Counts = npt.NDArray[Any]
PARTS = 5
"""The number of parts of about equal size into which sentences are divided by length."""
FREQUENCIES = (1, 10, 100, 1_000)
UNSEEN = "not in the vocabulary"
MOST_WORDS, SMOOTHING = 4, 1.0

Words = tuple[str, ...]


@dataclass(frozen=True)
class Subset:
    """A part of the test set: its size, the score of each side, and the difference of each further side from the first.

    The p-values of the differences are corrected for all parts and sides.
    """

    title: str
    size: int
    scores: tuple[float, ...]
    changes: tuple[Difference, ...]


@dataclass(frozen=True)
class SubsetScores:
    """A score on each part of a division of the test set; `unit` is what `Subset.size` counts."""

    name: str
    title: str
    score: str
    unit: str
    parts: tuple[Subset, ...]
    notes: tuple[str, ...] = ()


def stored_sums(sides: Sequence[Side], seeds: Sequence[int], name: str) -> list[Counts] | None:
    """Return the sentence statistics of a score on each side, [n,N,K]; None if a run lacks them or shapes differ."""
    records = [[side.completed[seed].record for seed in seeds] for side in sides]
    sums = [sentence_sums(runs, name, side.sentences) for runs, side in zip(records, sides, strict=True)]
    stored = [array for array in sums if array is not None]
    return stored if len(stored) == len(sides) and len({array.shape for array in stored}) == 1 else None


def by_length(sides: Sequence[Side], seeds: Sequence[int], sums: Sequence[Counts]) -> SubsetScores:
    """Return sacreBLEU, with these sentence statistics, by the length of the reference in sacreBLEU's own tokens."""
    lengths = sums[0][0, :, 1]
    cuts = np.unique(np.quantile(lengths, np.arange(1, PARTS) / PARTS, method="inverted_cdf"))
    indices = np.searchsorted(cuts, lengths, side="left")
    masks = {}
    for mask in (indices == index for index in np.unique(indices)):
        ends = str(lengths[mask].min()), str(lengths[mask].max())
        masks["–".join(dict.fromkeys(ends))] = mask
    parts = _sentence_subsets(sides, seeds, sums, masks)
    return SubsetScores("length", "by words of the reference", "sacreBLEU", "sentences", parts)


def by_rarest_word(
    sides: Sequence[Side],
    seeds: Sequence[int],
    sums: Sequence[Counts],
    references: Sequence[Sequence[str]],
    frequencies: Mapping[str, int],
) -> SubsetScores:
    """Return sacreBLEU, with these sentence statistics, by the training frequency of the reference's rarest word."""
    rarest = np.array([min((_class(word, frequencies) for word in words), default=0) for words in references])
    masks = {title: rarest == index for index, title in enumerate(class_titles(frequencies))}
    parts = _sentence_subsets(sides, seeds, sums, masks)
    title = "by how often training has the rarest word of the reference"
    return SubsetScores("rarest_word", title, "sacreBLEU", "sentences", parts)


def words(
    sides: Sequence[Side], seeds: Sequence[int], references: Sequence[Sequence[str]], frequencies: Mapping[str, int]
) -> SubsetScores | None:
    """Return the F1 of words by their training frequency; None if a translation is not stored.

    F1 = 100 · 2 · matched / (words of the translations + words of the references), where a sentence has as many matches
    of a word as both texts have of it.

    Source: Neubig et al. 2019, compare-mt.
    """
    counts = []
    for side in sides:
        runs = side.hypotheses(seeds, len(references))
        if runs is None:
            return None
        counts.append(np.stack([_word_counts(hypotheses, references, frequencies) for hypotheses in runs]))
    subsets = []
    for index, title in enumerate(class_titles(frequencies)):
        size = int(counts[0][0, :, index, 1].sum())
        if size and index:
            subsets.append((title, size, [array[..., index, :] for array in counts]))
    notes = []
    if unseen := int(counts[0][0, :, 0, 1].sum()):
        notes.append(f"{unseen} words of the references are not in the vocabulary, so that no run can produce them.")
    parts = _subsets(sides, seeds, subsets, _f1)
    title = "by how often training has the word"
    return SubsetScores("word", title, "word F1", "words of the references", parts, tuple(notes))


def class_titles(frequencies: Mapping[str, int]) -> list[str]:
    """Return the names of the frequency classes, the rarest first."""
    lowest = min(frequencies.values(), default=1)
    starts = [max(FREQUENCIES[0], lowest), *FREQUENCIES[1:]]
    spans = [f"{start:,}–{end - 1:,}" for start, end in zip(starts, FREQUENCIES[1:], strict=False)]
    return [UNSEEN, *spans, f"{starts[-1]:,} or more"]


def _class(word: str, frequencies: Mapping[str, int]) -> int:
    return sum(frequencies.get(word, 0) >= lowest for lowest in FREQUENCIES)


def _word_counts(
    hypotheses: Sequence[Hypothesis], references: Sequence[Sequence[str]], frequencies: Mapping[str, int]
) -> Counts:
    """Return the numbers of words in the translation, the reference and both, by sentence and frequency class."""
    counts = np.zeros((len(references), len(FREQUENCIES) + 1, 3), np.int32)
    for row, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True)):
        translated, expected = Counter(hypothesis.tokens), Counter(reference)
        del translated[SPECIAL_TOKENS[UNK]]
        for column, counter in enumerate((translated, expected, translated & expected)):
            for word, times in counter.items():
                counts[row, _class(word, frequencies), column] += times
    return counts


def _f1(sums: Reals) -> Reals:
    total = sums[..., 0] + sums[..., 1]
    f1: Reals = np.divide(200 * sums[..., 2], total, out=np.zeros_like(sums[..., 2], float), where=total > 0)
    return f1


def _sentence_subsets(
    sides: Sequence[Side], seeds: Sequence[int], sums: Sequence[Counts], masks: Mapping[str, npt.NDArray[np.bool_]]
) -> tuple[Subset, ...]:
    subsets = [
        (title, int(mask.sum()), [array[:, mask] for array in sums]) for title, mask in masks.items() if mask.any()
    ]
    return _subsets(sides, seeds, subsets, functools.partial(score_from_sums, MAIN))


def _subsets(
    sides: Sequence[Side],
    seeds: Sequence[int],
    subsets: Sequence[tuple[str, int, list[Counts]]],
    metric: MetricFunction,
) -> tuple[Subset, ...]:
    """Return the scores of (title, size, statistics of each side); p-values are corrected for all of them together."""
    scores: list[tuple[float, ...]] = []
    differences: list[Difference] = []
    for _, _, sums in subsets:
        values = [metric(array.sum(axis=1, dtype=np.float64)).tolist() for array in sums]
        evidence = [
            Evidence(side.letter, tuple(seeds), tuple(by_seed), array, digests_of("trained_weights", side.records))
            for side, by_seed, array in zip(sides, values, sums, strict=True)
        ]
        scores.append(tuple(math.fsum(by_seed) / len(by_seed) for by_seed in values))
        differences += statistics.compare_rows(evidence, metric, base=sides[0].letter, scale=LOGIT).differences
    changes = statistics.with_holm(differences)
    width = len(sides) - 1
    return tuple(
        Subset(title, size, scores[index], tuple(changes[index * width : (index + 1) * width]))
        for index, (title, size, _) in enumerate(subsets)
    )


# Single sentences and n-grams -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sentence:
    """A test sentence and the translations of two sides.

    Attributes:
        number: The number of the sentence in the stored translations.
        means: The mean sentence score of each side over seeds; `difference` is the second minus the first.
        seed: The seed of the translations, of those on the side of the mean the one nearest to it.
        scores: The scores of the translations.
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
        first: The number of matches of the first side, summed over seeds; `second` of the second side.
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
    """Return `count` sentences with the largest differences each: that the second side translates better, and worse.

    None if the translations of a run are not stored.

    Args:
        seeds: The seeds, which completed on both sides.
        sums: The sentence statistics of the score `name` on each side, [n,N,K].
        texts: The sources and references, or nothing.
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
        # Of the seeds that differ in the direction of the mean: the example must show what its heading says.
        opposite = differences[:, index] * means[index] <= 0
        run = int(np.where(opposite, np.inf, np.abs(differences[:, index] - means[index])).argmin())
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
    """Return the n-grams of 1 to 4 words with the largest differences: more matches of the second side, and fewer.

    An n-gram matches as often in a sentence as both the translation and the reference have it. N-grams are ranked by
    the smoothed share (second + 1) / (first + second + 2); of equal ones the more frequent, then the longer come first.
    None if the translations of a run are not stored.

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
