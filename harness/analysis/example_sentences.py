"""Single sentences and n-grams in which two sides differ most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.selection import Run, Side
from harness.analysis.subsets import Counts
from harness.evaluation.metrics import score_from_sums
from harness.text import SENTENCE_CHARACTERS, short_line
from impls.contract import SPECIAL_TOKENS, UNK

MOST_WORDS = 4
SMOOTHING = 1.0


@dataclass(frozen=True)
class Sentence:
    """A test sentence, by its number in the stored translations, and the translations of two sides.

    `difference` is the mean over seeds of the second side's sentence score less the first's, `means` each side's mean.
    The translations are those of `seed`, whose difference is nearest to the mean; `scores` are their own.
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
    """An n-gram, and how often each of two sides matches it in the reference, summed over seeds.

    `share` is (second + 1) / (first + second + 2). `seeds` counts those in which the side that has them more often over
    all seeds has them more often.
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

    `name` is the score whose statistics `sums` are, [n,N,K]; `texts` are sources and references, or nothing. None where
    a run's translations are not stored.
    """
    runs = [[side.completed[seed] for seed in seeds] for side in sides]
    total = sums[0].shape[1]
    if any(run.hypotheses is None or len(run.hypotheses) != total for own in runs for run in own):
        return None
    first, second = (score_from_sums(name, one) for one in sums)
    each = second - first
    means = each.mean(axis=0)
    order = np.argsort(-means, kind="stable")
    better = [int(place) for place in order[:count] if means[place] > 0]
    worse = [int(place) for place in order[::-1][:count] if means[place] < 0]

    def sentence(place: int) -> Sentence:
        chosen = int(np.abs(each[:, place] - means[place]).argmin())
        source, reference = (
            short_line(lines[place], longest=SENTENCE_CHARACTERS) if place < len(lines) else "" for lines in texts
        )
        return Sentence(
            number=_text(runs[0][chosen], place)[0],
            means=(float(first[:, place].mean()), float(second[:, place].mean())),
            difference=float(means[place]),
            seed=seeds[chosen],
            scores=(float(first[chosen, place]), float(second[chosen, place])),
            translations=(_text(runs[0][chosen], place)[1], _text(runs[1][chosen], place)[1]),
            source=source,
            reference=reference,
        )

    return [sentence(place) for place in better], [sentence(place) for place in worse]


def ngrams(
    sides: tuple[Side, Side], seeds: Sequence[int], references: Sequence[Sequence[str]], *, count: int
) -> tuple[list[Ngram], list[Ngram]] | None:
    """Return the n-grams of 1 to 4 words that the second side matches most more often, and most less often.

    An n-gram matches as often in a sentence as both the translation and the reference have it. They are ranked by the
    smoothed share (second + 1) / (first + second + 2), and among equals those seen more often, then longer, come first.

    Source: Neubig et al. 2019, compare-mt.
    """
    runs = [[side.completed[seed] for seed in seeds] for side in sides]
    if any(run.hypotheses is None or len(run.hypotheses) != len(references) for own in runs for run in own):
        return None
    theirs = [_grams(one) for one in references]
    right = [[_right(run, theirs) for run in own] for own in runs]
    first, second = (sum(own, Counter()) for own in right)
    found = []
    for words in {*first, *second}:
        one, two = first[words], second[words]
        sign = 1 if two > one else -1
        seen = sum(sign * (b[words] - a[words]) > 0 for a, b in zip(*right, strict=True))
        share = (two + SMOOTHING) / (one + two + 2 * SMOOTHING)
        found.append((words, Ngram(short_line(" ".join(words)), one, two, share, seen)))
    found.sort(key=lambda pair: (-pair[1].first - pair[1].second, -len(pair[0]), pair[0]))
    better = sorted((one for _, one in found if one.second > one.first), key=lambda one: -one.share)
    worse = sorted((one for _, one in found if one.second < one.first), key=lambda one: one.share)
    return better[:count], worse[:count]


def _text(run: Run, place: int) -> tuple[int, str]:
    assert run.hypotheses is not None
    return run.hypotheses[place].sentence, short_line(run.hypotheses[place].text, longest=SENTENCE_CHARACTERS)


def _grams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(
        tuple(words[start : start + size])
        for size in range(1, MOST_WORDS + 1)
        for start in range(len(words) - size + 1)
    )


def _right(run: Run, theirs: Iterable[Counter[tuple[str, ...]]]) -> Counter[tuple[str, ...]]:
    unknown = SPECIAL_TOKENS[UNK]
    found: Counter[tuple[str, ...]] = Counter()
    for hypothesis, reference in zip(run.hypotheses or (), theirs, strict=True):
        ours = _grams(hypothesis.tokens)
        found.update(
            {one: min(times, ours[one]) for one, times in reference.items() if one in ours and unknown not in one}
        )
    return found
