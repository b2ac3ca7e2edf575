"""A comparison of sides: their settings, metrics, subsets of the test set, and most different sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis import comparability, subsets
from harness.analysis import comparison_metrics as figures
from harness.analysis import example_sentences as sentences
from harness.analysis.comparability import DifferingSetting, Disagreement
from harness.analysis.comparison_metrics import MetricComparison
from harness.analysis.example_sentences import Ngram, Sentence
from harness.analysis.fairness import differences
from harness.analysis.grouping import groups
from harness.analysis.metric_registry import MAIN
from harness.analysis.selection import Run, Side
from harness.analysis.subsets import SubsetScores
from harness.storage import run_store

RANKED_BY = ("chrf", "bleu_sacre")
"""By which score sentences are told apart: the first that every run has statistics of."""


@dataclass(frozen=True)
class ReferenceCorpus:
    """The test set of the sides, and the frequency of each word in the training data.

    `words` are the tokenised references; `frequencies` is None for subword tokenizers.
    """

    source: Sequence[str]
    reference: Sequence[str]
    words: Sequence[Sequence[str]]
    frequencies: Mapping[str, int] | None


@dataclass(frozen=True)
class LargestDifferences:
    """The sentences and n-grams in which a side is most better, and most worse, than the first side."""

    letter: str
    sentences: tuple[list[Sentence], list[Sentence]] | None = None
    ngrams: tuple[list[Ngram], list[Ngram]] | None = None


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison.

    `seeds` completed on every side; sentences, lengths and words are of these only. `ranked_by` is the score of single
    sentences. `left_out` has a line for each part that is not available.
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
        """Return a metric by its name in records; None if no side has it."""
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
    """Compare sides with the first one.

    Args:
        sides: two or more; see `selection.find`.
        allowed: the differences between them that were allowed by name.
        corpus: their test set, if it is available.
        examples: the number of sentences and n-grams in each direction.
        with_text: whether the result may hold text of the corpus.
        others: the other rows of the table of the report that has the sides as rows; see `other_rows`.

    Raises:
        ValueError: no run completed, or a file is damaged.
    """
    if not any(side.completed for side in sides):
        raise ValueError("no run completed: there is nothing to compare")
    paired = not any(one.unpaired for one in allowed)
    found = figures.compare(sides, paired=paired, others=others if paired else ())
    seeds, left_out = figures.common(sides), []
    parts, extremes, ranked_by = list[SubsetScores](), list[LargestDifferences](), ""
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
    """Return the remarks on the statistics of quality."""
    judged = [one for one in found if one.table is not None and one.figure.kind == "quality"]
    whole = [one for one in judged if any(each.basis != "nothing" for each in one.intervals)]
    first = next((one for one in whole if one.figure.name == MAIN), None) or next(iter(judged), None)
    return first.table.remarks if first and first.table else ()


def _parts(
    sides: Sequence[Side], seeds: Sequence[int], corpus: ReferenceCorpus | None
) -> tuple[list[SubsetScores], list[str]]:
    """Return the scores of subsets of the test set, and a line for each that is not available."""
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
    """Return why words cannot be counted; empty if they can."""
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
    """Return the most different sentences and n-grams, the score that ranks sentences, and what is not available."""
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


def other_rows(sides: tuple[Side, ...], results: Path) -> tuple[Side, ...]:
    """Return the other rows of the report's table that has each side as a row, so that both test the same table.

    Returns an empty tuple if no table of `results` has all sides, or its runs are not comparable.
    """
    wanted = [{run.folder.resolve() for run in side.runs} for side in sides]
    if not all(folder.parent == results.resolve() for one in wanted for folder in one):
        return ()
    for group in groups(run_store.records(results, complain=lambda line: None)):
        rows = [[Run(record, run_store.run_folder(results, record.id)) for record in row.records] for row in group.rows]
        folders = [{run.folder.resolve() for run in row} for row in rows]
        if all(one in folders for one in wanted):
            if differences(group):
                return ()
            return tuple(
                Side(f"row {place}", row.label, tuple(runs))
                for place, (row, runs, own) in enumerate(zip(group.rows, rows, folders, strict=True), start=1)
                if own not in wanted
            )
    return ()
