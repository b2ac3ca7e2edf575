"""Scores of subsets of the test set: sentences by length and by rarest word, and words by frequency."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis import statistics
from harness.analysis.effects import METHOD, Conclusion, Difference
from harness.analysis.evidence import Evidence, metric_function
from harness.analysis.scales import LOGIT, Reals
from harness.analysis.selection import Side
from harness.analysis.significance import MetricFunction, holm
from harness.storage.run_store import Hypothesis
from impls.contract import SPECIAL_TOKENS, UNK

Counts = npt.NDArray[Any]
PARTS = 5
"""The number of parts of about equal size into which sentences are divided by length."""
FREQUENCIES = (1, 10, 100, 1_000)
UNSEEN = "not in the vocabulary"


@dataclass(frozen=True)
class Change:
    """The score of a part on a side minus that on the first side.

    Attributes:
        letter: The side.
        mean: The mean over seeds.
        low: The lower end of its interval.
        high: The upper end of its interval.
        values: The differences of single seeds.
        p: The p-value after Holm's correction for all parts and sides.
        conclusion: The conclusion.
    """

    letter: str
    mean: float | None
    low: float | None
    high: float | None
    values: tuple[float, ...]
    p: float | None
    conclusion: Conclusion


@dataclass(frozen=True)
class Subset:
    """A part of the test set: its size, the score of each side, and the change of each side but the first."""

    title: str
    size: int
    scores: tuple[float | None, ...]
    changes: tuple[Change, ...]


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
    arrays = [[(side.completed[seed].sentences or {}).get(name) for seed in seeds] for side in sides]
    present = [[array for array in side if array is not None] for side in arrays]
    complete = all(len(side) == len(seeds) for side in present)
    if not seeds or not complete or len({array.shape for side in present for array in side}) > 1:
        return None
    return [np.stack(side) for side in present]


def by_length(sides: Sequence[Side], seeds: Sequence[int], sums: Sequence[Counts], name: str) -> SubsetScores:
    """Return a BLEU score by the length of the reference in the score's own tokens."""
    lengths = sums[0][0, :, 1]
    cuts = np.unique(np.quantile(lengths, np.arange(1, PARTS) / PARTS, method="inverted_cdf"))
    indices = np.searchsorted(cuts, lengths, side="left")
    masks = {}
    for mask in (indices == index for index in np.unique(indices)):
        ends = str(lengths[mask].min()), str(lengths[mask].max())
        masks["–".join(dict.fromkeys(ends))] = mask
    parts = _sentence_subsets(sides, seeds, sums, name, masks)
    return SubsetScores("length", "by words of the reference", "sacreBLEU", "sentences", parts)


def by_rarest_word(
    sides: Sequence[Side],
    seeds: Sequence[int],
    sums: Sequence[Counts],
    name: str,
    references: Sequence[Sequence[str]],
    frequencies: Mapping[str, int],
) -> SubsetScores:
    """Return a BLEU score by the training frequency of the rarest word of the reference."""
    rarest = np.array([min((_class(word, frequencies) for word in words), default=0) for words in references])
    masks = {title: rarest == index for index, title in enumerate(class_titles(frequencies))}
    parts = _sentence_subsets(sides, seeds, sums, name, masks)
    title = "by how often training has the rarest word of the reference"
    return SubsetScores("rarest_word", title, "sacreBLEU", "sentences", parts)


def words(
    sides: Sequence[Side],
    seeds: Sequence[int],
    references: Sequence[Sequence[str]],
    frequencies: Mapping[str, int],
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
    sides: Sequence[Side],
    seeds: Sequence[int],
    sums: Sequence[Counts],
    name: str,
    masks: Mapping[str, npt.NDArray[np.bool_]],
) -> tuple[Subset, ...]:
    function = metric_function(name)
    assert function is not None
    subsets = [
        (title, int(mask.sum()), [array[:, mask] for array in sums]) for title, mask in masks.items() if mask.any()
    ]
    return _subsets(sides, seeds, subsets, function)


def _subsets(
    sides: Sequence[Side],
    seeds: Sequence[int],
    subsets: Sequence[tuple[str, int, list[Counts]]],
    metric: MetricFunction,
) -> tuple[Subset, ...]:
    """Return the scores of (title, size, statistics of each side); p-values are corrected for all of them together."""
    scores: list[tuple[float | None, ...]] = []
    differences: list[Difference] = []
    for _, _, sums in subsets:
        evidence = [
            Evidence(side.letter, tuple(seeds), tuple(map(float, metric(array.sum(axis=1, dtype=np.float64)))), array)
            for side, array in zip(sides, sums, strict=True)
        ]
        scores.append(tuple(_mean(row.values) for row in evidence))
        differences += statistics.compare_rows(evidence, metric, base=sides[0].letter, scale=LOGIT).differences
    changes = [
        _change(difference, p)
        for difference, p in zip(differences, holm([difference.p for difference in differences]), strict=True)
    ]
    width = len(sides) - 1
    return tuple(
        Subset(title, size, scores[index], tuple(changes[index * width : (index + 1) * width]))
        for index, (title, size, _) in enumerate(subsets)
    )


def _change(difference: Difference, p: float | None) -> Change:
    corrected = replace(difference, significant=p is not None and p < 1 - METHOD.confidence)
    conclusion = corrected.conclude(less_is_better=False)
    return Change(difference.first, difference.mean, difference.low, difference.high, difference.values, p, conclusion)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
