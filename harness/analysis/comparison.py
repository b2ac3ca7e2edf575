"""A whole comparison: what sides are, in what they differ, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.analysis import comparability, subsets
from harness.analysis import comparison_metrics as figures
from harness.analysis import example_sentences as sentences
from harness.analysis.comparability import DifferingSetting, Disagreement
from harness.analysis.comparison_metrics import MetricComparison
from harness.analysis.example_sentences import Ngram, Sentence
from harness.analysis.metric_registry import MAIN
from harness.analysis.selection import Side
from harness.analysis.subsets import SubsetScores

RANKED_BY = ("chrf", "bleu_sacre")
"""By which score sentences are told apart: the first that every run has statistics of."""


@dataclass(frozen=True)
class ReferenceCorpus:
    """The test set that sides were measured on, and how often training has each word.

    `words` are the references as the models' own words; `frequencies` is None where those are pieces of words.
    """

    source: Sequence[str]
    reference: Sequence[str]
    words: Sequence[Sequence[str]]
    frequencies: Mapping[str, int] | None


@dataclass(frozen=True)
class LargestDifferences:
    """What a side does better than the first side by most, and worse."""

    letter: str
    sentences: tuple[list[Sentence], list[Sentence]] | None = None
    ngrams: tuple[list[Ngram], list[Ngram]] | None = None


@dataclass(frozen=True)
class Comparison:
    """Everything that is told of some sides.

    `seeds` are those that completed on every side: sentences, lengths and words are of these alone. `ranked_by` is the
    score of single sentences. `left_out` says in a line each what could not be had.
    """

    sides: tuple[Side, ...]
    allowed: tuple[Disagreement, ...]
    settings: tuple[DifferingSetting, ...]
    figures: tuple[MetricComparison, ...]
    remarks: tuple[str, ...]
    lost: tuple[str, ...]
    seeds: tuple[int, ...]
    ranked_by: str = ""
    parts: tuple[SubsetScores, ...] = ()
    extremes: tuple[LargestDifferences, ...] = ()
    left_out: tuple[str, ...] = field(default=())

    def figure(self, name: str) -> MetricComparison | None:
        """Return a figure by its name in records, or None where no side has it."""
        return next((one for one in self.figures if one.figure.name == name), None)


def compare(
    sides: Sequence[Side],
    allowed: Sequence[Disagreement],
    corpus: ReferenceCorpus | None,
    *,
    examples: int,
    with_text: bool = True,
    others: Sequence[Side] = (),
) -> Comparison:
    """Compare sides that may be compared, the further ones with the first.

    `others` are the further rows of the report's table that the sides stand in.
    `examples` is how many sentences and n-grams are told each way; `with_text` lets them hold text of the corpus.

    Raises:
        ValueError: no run completed, or for a damaged file.
    """
    if not any(side.completed for side in sides):
        raise ValueError("no run completed: there is nothing to compare")
    paired = not any(one.unpaired for one in allowed)
    found = figures.compare(sides, paired=paired, others=others if paired else ())
    seeds, left_out = figures.common(sides), []
    parts: list[SubsetScores] = []
    extremes: list[LargestDifferences] = []
    ranked_by = ""
    if not paired:
        left_out.append("Sentences, lengths, words and n-grams: the sides were not measured on the same sentences.")
    elif not seeds:
        left_out.append("Sentences, lengths, words and n-grams: no seed completed on every side.")
    else:
        parts, told = _parts(sides, seeds, corpus)
        extremes, ranked_by, more = _extremes(sides, seeds, corpus, examples, with_text=with_text)
        left_out += [*told, *more]
    return Comparison(
        sides=tuple(sides),
        allowed=tuple(allowed),
        settings=tuple(comparability.differing(sides)),
        figures=tuple(found),
        remarks=_remarks(found),
        lost=tuple(figures.lost(sides)),
        seeds=seeds,
        ranked_by=ranked_by,
        parts=tuple(parts),
        extremes=tuple(extremes),
        left_out=tuple(left_out),
    )


def _remarks(found: Sequence[MetricComparison]) -> tuple[str, ...]:
    """Return what the statistics say beside quality, each remark once."""
    judged = [one for one in found if one.table is not None and one.figure.kind == "quality"]
    whole = [one for one in judged if any(each.basis != "nothing" for each in one.intervals)]
    first = next((one for one in whole if one.figure.name == MAIN), None) or next(iter(judged), None)
    return first.table.remarks if first and first.table else ()


def _parts(
    sides: Sequence[Side], seeds: Sequence[int], corpus: ReferenceCorpus | None
) -> tuple[list[SubsetScores], list[str]]:
    """Return the scores of parts of the test set, and what could not be had."""
    found, left_out = [], []
    sums = subsets.stored(sides, seeds, MAIN)
    if sums is None:
        left_out.append("sacreBLEU by length and by rarest word: not every run has the statistics of its sentences.")
    else:
        found.append(subsets.by_length(sides, seeds, sums, MAIN))
    why = _no_words(sides, corpus)
    if corpus is None or corpus.frequencies is None or why:
        left_out.append(f"sacreBLEU by rarest word, words by frequency: {why}")
        return found, left_out
    if sums is not None and len(corpus.words) == sums[0].shape[1]:
        found.append(subsets.by_rarest_word(sides, seeds, sums, MAIN, corpus.words, corpus.frequencies))
    own = subsets.words(sides, seeds, corpus.words, corpus.frequencies)
    if own is None:
        left_out.append("Words by frequency: not every run has its translations stored.")
    else:
        found.append(own)
    return found, left_out


def _no_words(sides: Sequence[Side], corpus: ReferenceCorpus | None) -> str:
    """Return why words cannot be counted; nothing where they can."""
    if corpus is None:
        return "the corpus that the runs were measured on is not on this machine."
    if corpus.frequencies is None:
        return "the tokenizer cuts words into pieces."
    if comparability.other_words(sides):
        return "the sides have different target words."
    return ""


def _extremes(
    sides: Sequence[Side], seeds: Sequence[int], corpus: ReferenceCorpus | None, examples: int, *, with_text: bool
) -> tuple[list[LargestDifferences], str, list[str]]:
    """Return the sentences and n-grams that differ most, the score that tells sentences, and what could not be had."""
    if not examples:
        return [], "", []
    left_out = []
    stored = {name: sums for name in RANKED_BY if (sums := subsets.stored(sides, seeds, name)) is not None}
    name = next(iter(stored), "")
    why = _no_words(sides, corpus)
    texts = (corpus.source, corpus.reference) if corpus and with_text else ((), ())
    found = []
    for place, side in enumerate(sides[1:], start=1):
        pair = (sides[0], side)
        told = (
            sentences.most_different(
                pair, seeds, (stored[name][0], stored[name][place]), name, count=examples, texts=texts
            )
            if name
            else None
        )
        grams = (
            sentences.ngrams(pair, seeds, corpus.words, count=examples) if corpus and with_text and not why else None
        )
        found.append(LargestDifferences(side.letter, told, grams))
    if any(one.sentences is None for one in found):
        left_out.append("Sentences that differ most: not every run has its translations and statistics stored.")
    elif not texts[0]:
        what = "--without-corpus-text" if corpus else "the corpus is not on this machine"
        left_out.append(f"Source and reference of the sentences: {what}.")
    if any(one.ngrams is None for one in found):
        shut = "--without-corpus-text." if corpus and not with_text else "not every run has its translations."
        left_out.append(f"n-grams: {why or shut}")
    return found, name, left_out
