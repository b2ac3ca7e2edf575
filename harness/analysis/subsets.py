"""Scores of subsets of the test set: sentences by length and by rarest word, and words by frequency."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis import statistics
from harness.analysis.effects import Conclusion, conclude
from harness.analysis.leaderboard import metric_function
from harness.analysis.scales import LOGIT
from harness.analysis.selection import Run, Side
from harness.analysis.significance import Reals
from harness.analysis.statistics import METHOD, Evidence, MetricFunction, holm
from impls.contract import SPECIAL_TOKENS, UNK

Counts = npt.NDArray[Any]
PARTS = 5
"""Into how many parts of about equal size sentences are divided by length."""
FREQUENCIES = (1, 10, 100, 1_000)
UNSEEN = "not in the vocabulary"


@dataclass(frozen=True)
class Change:
    """A side's score of a part less the first side's; `p` after Holm's correction for all parts and sides.

    `values` are the differences of single seeds.
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
    """A part of the test set: how much is in it, each side's score, and each further side's change."""

    title: str
    size: int
    scores: tuple[float | None, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class SubsetScores:
    """A score over the parts that a division makes; `unit` says what `Subset.size` counts."""

    name: str
    title: str
    score: str
    unit: str
    parts: tuple[Subset, ...]
    notes: tuple[str, ...] = ()


def stored(sides: Sequence[Side], seeds: Sequence[int], name: str) -> list[Counts] | None:
    """Return the statistics of a score on each side, [n,N,K]; None if a run lacks them or shapes differ."""
    found = []
    for side in sides:
        arrays = [side.completed[seed].sentences for seed in seeds]
        if not arrays or any(one is None or name not in one for one in arrays):
            return None
        found.append([one[name] for one in arrays if one is not None])
    if len({one.shape for own in found for one in own}) > 1:
        return None
    return [np.stack(one) for one in found]


def by_length(sides: Sequence[Side], seeds: Sequence[int], sums: Sequence[Counts], name: str) -> SubsetScores:
    """Return a BLEU by the length of the reference in the score's own tokens."""
    lengths = sums[0][0, :, 1]
    cuts = np.unique(np.quantile(lengths, np.arange(1, PARTS) / PARTS, method="inverted_cdf"))
    places = np.searchsorted(cuts, lengths, side="left")
    masks = {}
    for place in range(len(cuts) + 1):
        if (inside := places == place).any():
            own = lengths[inside]
            masks["–".join(dict.fromkeys((str(own.min()), str(own.max()))))] = inside
    parts = _parts(
        sides, seeds, [(title, int(one.sum()), _cut(sums, one)) for title, one in masks.items()], metric_function(name)
    )
    return SubsetScores("length", "by words of the reference", "sacreBLEU", "sentences", parts)


def by_rarest_word(
    sides: Sequence[Side],
    seeds: Sequence[int],
    sums: Sequence[Counts],
    name: str,
    references: Sequence[Sequence[str]],
    frequencies: Mapping[str, int],
) -> SubsetScores:
    """Return a BLEU by the training frequency of the rarest word of the reference."""
    rarest = np.array([min((_place(word, frequencies) for word in one), default=0) for one in references])
    chosen = [(title, rarest == place) for place, title in enumerate(titles(frequencies))]
    parts = _parts(
        sides,
        seeds,
        [(title, int(one.sum()), _cut(sums, one)) for title, one in chosen if one.any()],
        metric_function(name),
    )
    title = "by how often training has the rarest word of the reference"
    return SubsetScores("rarest_word", title, "sacreBLEU", "sentences", parts)


def words(
    sides: Sequence[Side],
    seeds: Sequence[int],
    references: Sequence[Sequence[str]],
    frequencies: Mapping[str, int],
) -> SubsetScores | None:
    """Return the F1 of words by their training frequency; None if a translation is not stored.

    F1 = 100 · 2 · matched / (words of the translations + words of the references), where a word is matched as often in
    a sentence as both have it.

    Source: the idea is that of Neubig et al. 2019, compare-mt.
    """
    runs = [[side.completed[seed] for seed in seeds] for side in sides]
    if any(run.hypotheses is None or len(run.hypotheses) != len(references) for one in runs for run in one):
        return None
    counts = [np.stack([_matches(run, references, frequencies) for run in one]) for one in runs]
    chosen = []
    for place, title in enumerate(titles(frequencies)):
        own = [one[..., place, :] for one in counts]
        size = int(own[0][0, :, 1].sum())
        if size and place:
            chosen.append((title, size, own))
    notes = []
    if unseen := int(counts[0][0, :, 0, 1].sum()):
        notes.append(f"{unseen} words of the references are not in the vocabulary, so that no run can produce them.")
    parts = _parts(sides, seeds, chosen, _f1)
    return SubsetScores(
        "word", "by how often training has the word", "word F1", "words of the references", parts, tuple(notes)
    )


def titles(frequencies: Mapping[str, int]) -> list[str]:
    """Return the names of the parts by frequency, the rarest first."""
    ends = [*(f"{end - 1:,}" for end in FREQUENCIES[1:]), ""]
    least = min(frequencies.values(), default=1)
    starts = [max(FREQUENCIES[0], least), *FREQUENCIES[1:]]
    spans = [f"{start:,}–{end}" if end else f"{start:,} or more" for start, end in zip(starts, ends, strict=True)]
    return [UNSEEN, *spans]


def _place(word: str, frequencies: Mapping[str, int]) -> int:
    times = frequencies.get(word, 0)
    return sum(times >= least for least in FREQUENCIES)


def _matches(run: Run, references: Sequence[Sequence[str]], frequencies: Mapping[str, int]) -> Counts:
    """Return the numbers of words in the translation, the reference and both, by sentence and frequency."""
    found = np.zeros((len(references), len(FREQUENCIES) + 1, 3), np.int32)
    for row, (hypothesis, reference) in enumerate(zip(run.hypotheses or (), references, strict=True)):
        ours, theirs = Counter(hypothesis.tokens), Counter(reference)
        del ours[SPECIAL_TOKENS[UNK]]
        for column, counted in enumerate((ours, theirs, ours & theirs)):
            for word, times in counted.items():
                found[row, _place(word, frequencies), column] += times
    return found


def _f1(sums: Reals) -> Reals:
    total = sums[..., 0] + sums[..., 1]
    found: Reals = np.divide(200 * sums[..., 2], total, out=np.zeros_like(sums[..., 2], float), where=total > 0)
    return found


def _cut(sums: Sequence[Counts], mask: npt.NDArray[np.bool_]) -> list[Counts]:
    return [one[:, mask] for one in sums]


def _parts(
    sides: Sequence[Side], seeds: Sequence[int], chosen: Sequence[tuple[str, int, list[Counts]]], metric: MetricFunction
) -> tuple[Subset, ...]:
    """Return the parts; p is corrected for all of them together."""
    scores: list[tuple[float | None, ...]] = []
    found = []
    for _, _, sums in chosen:
        evidence = [
            Evidence(side.letter, tuple(seeds), tuple(map(float, metric(own.sum(axis=1, dtype=np.float64)))), own)
            for side, own in zip(sides, sums, strict=True)
        ]
        scores.append(tuple(_mean(one.figures) for one in evidence))
        found.append(statistics.against(evidence, sides[0].letter, metric, scale=LOGIT).differences)
    flat = [one for own in found for one in own]
    corrected = iter(holm([one.p for one in flat]))
    made = []
    for (title, size, _), own, differences in zip(chosen, scores, found, strict=True):
        changes = tuple(_change(one, next(corrected)) for one in differences)
        made.append(Subset(title, size, own, changes))
    return tuple(made)


def _change(one: statistics.Difference, p: float | None) -> Change:
    significant = p is not None and p < 1 - METHOD.confidence
    conclusion = conclude(one.mean, one.tested, significant=significant, less_is_better=False)
    return Change(one.first, one.mean, one.low, one.high, one.values, p, conclusion)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return math.fsum(known) / len(known) if known else None
