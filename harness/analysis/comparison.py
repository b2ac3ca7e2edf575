"""A comparison of sides: their settings, metrics, subsets of the test set, and most different sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis import comparability, sentence_comparison, statistics
from harness.analysis.comparability import differ_in_target_vocabulary, is_unpaired, machine
from harness.analysis.effects import Comparisons, Conclusion, Difference, Interval
from harness.analysis.evidence import Evidence, metric_function, row_evidence
from harness.analysis.fairness import Mismatch, find_mismatches
from harness.analysis.grouping import RunTable, TableRow, groups, incomplete, measure
from harness.analysis.leaderboard import compared_tables, finished_seeds
from harness.analysis.metric_registry import COMPARISON, MAIN, Metric
from harness.analysis.scales import IDENTITY
from harness.analysis.selection import Run, Side
from harness.analysis.sentence_comparison import Ngram, Sentence, SubsetScores
from harness.storage import run_store
from harness.storage.records import RunRecord

RANKED_BY = ("chrf", "bleu_sacre")
"""The scores that may rank sentences; the first one with statistics of every run does."""


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
    """The sentences and n-grams with the largest differences from the first side: better ones, and worse ones."""

    letter: str
    sentences: tuple[list[Sentence], list[Sentence]] | None = None
    ngrams: tuple[list[Ngram], list[Ngram]] | None = None


@dataclass(frozen=True)
class MetricComparison:
    """One metric of all sides.

    Attributes:
        intervals: The mean of each side with its interval.
        table: The differences of all pairs; None if nothing is compared.
        reported: Whether the table has all rows of the report's table, not only the sides.
        not_compared: The reason why nothing is compared.
        not_tested: The reason why differences are shown but not tested.
    """

    definition: Metric
    intervals: tuple[Interval, ...]
    table: Comparisons | None = None
    reported: bool = False
    not_compared: str = ""
    not_tested: str = ""

    def difference(self, letter: str, base: str) -> Difference | None:
        """Return the metric of side `letter` minus that of side `base`."""
        return None if self.table is None else self.table.between(letter, base)

    def conclusion(self, difference: Difference | None) -> Conclusion:
        """Return the conclusion from a difference."""
        if difference is None or self.not_tested or self.definition.direction == "neither":
            return Conclusion.NOT_TESTED
        return difference.conclude(less_is_better=self.definition.less_is_better)


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison.

    Attributes:
        allowed: The differences that make the sides incomparable, allowed by name.
        settings: The value of each side in the settings in which they differ.
        remarks: What restricts the statistics of the first metric of quality that is compared, in sentences.
        lost: A line for each run that did not complete.
        seeds: The seeds that completed on every side, over which sentences, lengths and words are compared.
        ranked_by: The score that ranks sentences.
        parts: The scores of subsets of the test set.
        extremes: The sentences and n-grams that differ most.
        left_out: A line for each part that is not available.
    """

    sides: tuple[Side, ...]
    allowed: tuple[Mismatch, ...]
    settings: Mapping[str, tuple[str, ...]]
    metrics: tuple[MetricComparison, ...]
    remarks: tuple[str, ...]
    lost: tuple[str, ...]
    seeds: tuple[int, ...]
    ranked_by: str
    parts: tuple[SubsetScores, ...]
    extremes: tuple[LargestDifferences, ...]
    left_out: tuple[str, ...]

    def metric(self, name: str) -> MetricComparison | None:
        """Return a metric by its name in records; None if no side has it."""
        return next((comparison for comparison in self.metrics if comparison.definition.name == name), None)


def compare(
    sides: Sequence[Side],
    allowed: Sequence[Mismatch],
    corpus: ReferenceCorpus | None,
    *,
    examples: int,
    with_text: bool = True,
    table_rows: Sequence[Side] = (),
) -> Comparison:
    """Compare sides with the first one.

    Args:
        sides: Two or more sides; see `selection.find`.
        allowed: The differences that make them incomparable, allowed by name.
        corpus: Their test set, if it is available.
        examples: The number of sentences and n-grams in each direction.
        with_text: Whether the result may hold text of the corpus.
        table_rows: The other rows of the report's table; see `other_rows`.

    Raises:
        ValueError: No run completed, or a file is damaged.
    """
    if not any(side.completed for side in sides):
        raise ValueError("no run completed: there is nothing to compare")
    paired = not any(map(is_unpaired, allowed))
    metrics = _metrics(sides, paired=paired, table_rows=table_rows if paired else ())
    of_quality = (metric for metric in metrics if metric.definition.kind == "quality")
    seeds = tuple(sorted(set.intersection(*(set(side.completed) for side in sides))))
    left_out: list[str] = []
    parts, extremes, ranked_by = list[SubsetScores](), list[LargestDifferences](), ""
    if not paired:
        left_out.append("Sentences, lengths, words and n-grams: the sides were not measured on the same sentences.")
    elif not seeds:
        left_out.append("Sentences, lengths, words and n-grams: no seed completed on every side.")
    else:
        parts = _parts(sides, seeds, corpus, left_out)
        ranked_by, extremes = _extremes(sides, seeds, corpus, examples, left_out, with_text=with_text)
    return Comparison(
        sides=tuple(sides),
        allowed=tuple(allowed),
        settings=comparability.differing_settings(sides),
        metrics=tuple(metrics),
        remarks=next((metric.table.remarks for metric in of_quality if metric.table), ()),
        lost=tuple(line for side in sides for line in incomplete(side.letter, side.records)),
        seeds=seeds,
        ranked_by=ranked_by,
        parts=tuple(parts),
        extremes=tuple(extremes),
        left_out=tuple(left_out),
    )


def other_rows(sides: tuple[Side, ...], results: Path, records: Iterable[RunRecord]) -> tuple[Side, ...]:
    """Return the other rows of the report's table that has all sides as rows, so that both correct for the same tests.

    If the report splits the table by seeds, this is the part of it with the seeds that the sides share. Returns an
    empty tuple if no table of `records`, those of the folder `results`, has all sides, or its runs are not comparable,
    or the report does not compare so many rows.
    """
    folders = [{run.folder.resolve() for run in side.runs} for side in sides]
    if not all(folder.parent == results.resolve() for of_side in folders for folder in of_side):
        return ()
    ids = [{folder.name for folder in of_side} for of_side in folders]
    for table in groups(records):
        own = [row for row in table.rows if {record.id for record in row.records} in ids]
        if len(own) == len(sides):
            part = _shared_part(table, own)
            if part is None or len(part.rows) > statistics.MOST_ROWS:
                return ()
            labels = {row.label for row in own}
            return tuple(_as_side(row, results) for row in part.rows if row.label not in labels)
    return ()


def _shared_part(table: RunTable, rows: Sequence[TableRow]) -> RunTable | None:
    """Return the part of a table that the report compares at all seeds that these rows share; None if there is none."""
    seeds, labels = frozenset.intersection(*map(finished_seeds, rows)), {row.label for row in rows}
    for part in compared_tables(table, find_mismatches(table.records, table.budget)):
        compared = [own for own in map(finished_seeds, part.rows) if own]
        if labels <= {row.label for row in part.rows} and compared and seeds == frozenset.intersection(*compared):
            return part
    return None


def _as_side(row: TableRow, results: Path) -> Side:
    """Return a row as a side; remarks on it name the row, because no table shows it."""
    runs = tuple(Run(record, run_store.run_folder(results, record.id)) for record in row.records)
    return Side(f"row {row.label}", row.label, runs)


# Metrics --------------------------------------------------------------------------------------------------------------


def _metrics(sides: Sequence[Side], *, paired: bool, table_rows: Sequence[Side]) -> list[MetricComparison]:
    """Return every metric that a side has; `paired` is whether the sides have the same test sentences."""
    same_vocabulary = [row for row in table_rows if not differ_in_target_vocabulary([*sides, row])]
    return [
        _metric(sides, metric, paired=paired, table_rows=same_vocabulary if metric.token_based else table_rows)
        for metric in COMPARISON.values()
        if any(measure(run.record, metric.name) is not None for side in sides for run in side.completed.values())
    ]


def _metric(sides: Sequence[Side], metric: Metric, *, paired: bool, table_rows: Sequence[Side]) -> MetricComparison:
    def evidence_of(group: Sequence[Side]) -> list[Evidence]:
        return [
            row_evidence(side.letter, side.records, metric.name, side.sentences if paired else None) for side in group
        ]

    evidence, function, not_tested = evidence_of(sides), metric_function(metric.name), _not_tested(sides, metric)
    intervals = tuple(statistics.interval(row, function, scale=metric.scale) for row in evidence)
    if not_compared := _not_compared(sides, metric):
        return MetricComparison(metric, intervals, not_compared=not_compared, not_tested=not_tested)
    seeds = _common_seeds(sides)
    if not seeds:  # single runs: tested over sentences, which need no common seed
        evidence, table_rows = [replace(row, seeds=sides[0].seeds) for row in evidence], ()
    # The other rows may have thousands of runs: copies, of one row at a time, keep no files in memory.
    copies = (replace(side, runs=tuple(map(replace, side.runs))) for side in table_rows)
    rows = [row for side in copies for row in evidence_of([side]) if row.seeds]
    reported = bool(rows) and not not_tested and all(seeds <= set(row.seeds) for row in rows)
    # The costs of one side can vary severalfold, and a difference of geometric means is not that of the columns.
    scale = IDENTITY if metric.kind == "cost" else metric.scale
    table = statistics.compare_rows([*evidence, *rows] if reported else evidence, function, scale=scale)
    if not_tested:
        untested = (replace(pair, p=None, p_holm=None, significant=False) for pair in table.differences)
        table = replace(table, differences=tuple(untested), tests=0, detectable=None)
    return MetricComparison(metric, intervals, table, reported, not_tested=not_tested)


def _not_compared(sides: Sequence[Side], metric: Metric) -> str:
    """Return the reason why a metric is not compared; empty if it is."""
    if len(sides) > statistics.MOST_ROWS:
        return f"more than {statistics.MOST_ROWS} sides"
    values = {side.letter: [measure(run.record, metric.name) for run in side.completed.values()] for side in sides}
    if lacking := [letter for letter, of_side in values.items() if None in of_side]:
        return f"not in every record of {', '.join(lacking)}"
    if without_runs := [letter for letter, of_side in values.items() if not of_side]:
        return f"no run of {', '.join(without_runs)} completed"
    if metric.token_based and differ_in_target_vocabulary(sides):
        return "the sides have different target words"
    are_single = all(len(side.seeds) == 1 for side in sides)
    return "" if are_single or _common_seeds(sides) else "the sides have no seed in common"


def _common_seeds(sides: Sequence[Side]) -> set[int]:
    return set.intersection(*(set(side.seeds) for side in sides))


def _not_tested(sides: Sequence[Side], metric: Metric) -> str:
    """Return the reason why differences in a metric are not tested; empty if they are."""
    if metric.name == "parameters":
        return "counted, not measured"
    if metric.direction == "neither":
        return "neither more nor less is better"
    if metric.kind != "cost":
        return ""
    if len({machine(record) for side in sides for record in side.records}) > 1:
        return "measured on different machines"
    return "not known whether the machine did other work"


# Parts that need sentences --------------------------------------------------------------------------------------------


def _parts(
    sides: Sequence[Side], seeds: Sequence[int], corpus: ReferenceCorpus | None, left_out: list[str]
) -> list[SubsetScores]:
    """Return the scores of subsets of the test set; add a line to `left_out` for each that is not available."""
    parts = []
    sums = sentence_comparison.stored_sums(sides, seeds, MAIN)
    if sums is None:
        left_out.append("sacreBLEU by length and by rarest word: not every run has the statistics of its sentences.")
    else:
        parts.append(sentence_comparison.by_length(sides, seeds, sums))
    reason = _no_words(sides, corpus)
    if corpus is None or corpus.frequencies is None or reason:
        left_out.append(f"sacreBLEU by rarest word, words by frequency: {reason}")
        return parts
    if sums is not None and len(corpus.words) == sums[0].shape[1]:
        parts.append(sentence_comparison.by_rarest_word(sides, seeds, sums, corpus.words, corpus.frequencies))
    by_frequency = sentence_comparison.words(sides, seeds, corpus.words, corpus.frequencies)
    if by_frequency is None:
        left_out.append("Words by frequency: not every run has its translations stored.")
    else:
        parts.append(by_frequency)
    return parts


def _no_words(sides: Sequence[Side], corpus: ReferenceCorpus | None) -> str:
    """Return the reason why words cannot be counted; empty if they can."""
    if corpus is None:
        return "the corpus is not on this machine, or has changed since the runs."
    if corpus.frequencies is None:
        return "the tokenizer cuts words into pieces."
    if differ_in_target_vocabulary(sides):
        return "the sides have different target words."
    return ""


def _extremes(
    sides: Sequence[Side],
    seeds: Sequence[int],
    corpus: ReferenceCorpus | None,
    examples: int,
    left_out: list[str],
    *,
    with_text: bool,
) -> tuple[str, list[LargestDifferences]]:
    """Return the score that ranks sentences, and the most different sentences and n-grams of each further side."""
    if not examples:
        return "", []
    stored = {
        name: sums for name in RANKED_BY if (sums := sentence_comparison.stored_sums(sides, seeds, name)) is not None
    }
    score, sums = next(iter(stored.items()), ("", []))
    reason = _no_words(sides, corpus)
    texts = (corpus.source, corpus.reference) if corpus and with_text else ((), ())
    extremes = []
    for index, side in enumerate(sides[1:], start=1):
        pair, sentences, ngrams = (sides[0], side), None, None
        if score:
            sentences = sentence_comparison.most_different(
                pair, seeds, (sums[0], sums[index]), score, count=examples, texts=texts
            )
        if corpus and with_text and not reason:
            ngrams = sentence_comparison.ngrams(pair, seeds, corpus.words, count=examples)
        extremes.append(LargestDifferences(side.letter, sentences, ngrams))
    if any(extreme.sentences is None for extreme in extremes):
        left_out.append("Sentences that differ most: not every run has its translations and statistics stored.")
    elif not texts[0]:
        cause = (
            "--without-corpus-text" if corpus else "the corpus is not on this machine, or has changed since the runs"
        )
        left_out.append(f"Source and reference of the sentences: {cause}.")
    if any(extreme.ngrams is None for extreme in extremes):
        cause = "--without-corpus-text." if corpus and not with_text else "not every run has its translations."
        left_out.append(f"n-grams: {reason or cause}")
    return score, extremes
