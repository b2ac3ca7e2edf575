"""The leaderboards of a set of runs: for each table and metric the intervals, all differences, and ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.analysis import ablation, statistics
from harness.analysis.ablation import Analysis
from harness.analysis.effects import Comparisons, Conclusion, Difference, Interval, assumption
from harness.analysis.evidence import Sentences, metric_function, row_evidence
from harness.analysis.fairness import Mismatch, find_mismatches
from harness.analysis.grouping import RunTable, TableRow, groups
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.metric_registry import LEADERBOARD, MAIN, Metric
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles
from harness.text import count, named_seeds


@dataclass(frozen=True)
class MetricLeaderboard:
    """One metric of a table: the interval of each row, by label, and the differences of all pairs of rows.

    `not_compared` are the labels of the rows that have an interval only: their values are over another vocabulary.
    """

    name: str
    intervals: dict[str, Interval]
    comparisons: Comparisons
    not_compared: frozenset[str] = frozenset()

    @property
    def metric(self) -> Metric:
        return LEADERBOARD[self.name]

    @property
    def ranking(self) -> list[str]:
        """The labels of the compared rows that have a mean, the best first."""
        means = {
            label: self.metric.sign * row.mean
            for label, row in self.intervals.items()
            if row.mean is not None and label not in self.not_compared
        }
        return sorted(means, key=means.__getitem__, reverse=True)

    @property
    def seeds(self) -> int:
        """The number of seeds that all rows have."""
        return len(self.comparisons.seeds)

    def conclusion(self, difference: Difference) -> Conclusion:
        """Return the conclusion from a difference of two rows."""
        return difference.conclude(less_is_better=self.metric.less_is_better)

    def against_best(self, label: str) -> Conclusion | None:
        """Return the conclusion from comparing a row with the best one; None for the best row itself."""
        ranking = self.ranking
        if label not in ranking or label == ranking[0]:
            return None
        if not self.comparisons.differences:
            return Conclusion.NOT_TESTED
        return self.conclusion(self.comparisons.between(label, ranking[0]))

    def tied_with_best(self, label: str) -> bool:
        """Return whether a test over seeds cannot distinguish a row from the one with the best mean."""
        return self.seeds >= LEAST_SEEDS and self.against_best(label) is Conclusion.INCONCLUSIVE

    def rank_interval(self, label: str) -> tuple[int, int] | None:
        """Return the best and the worst rank that a row may have; None if nothing is tested over seeds.

        Significantly better rows rank above it, significantly worse rows below. Holm's correction makes all intervals
        of the table hold together with a probability of 95 %.

        Source: Mogstad et al. 2024, Inference for ranks, section 3.
        """
        ranking = self.ranking
        if label not in ranking or self.seeds < LEAST_SEEDS or len(ranking) < 2 or not self.comparisons.differences:
            return None
        conclusions = [self.conclusion(self.comparisons.between(label, row)) for row in ranking if row != label]
        return 1 + conclusions.count(Conclusion.WORSE), len(ranking) - conclusions.count(Conclusion.BETTER)

    @property
    def note(self) -> str:
        """What the tests of this metric assume and can find, in sentences; empty if there are none."""
        table, metric = self.comparisons, self.metric
        if not table.tests:
            return ""
        if self.seeds < LEAST_SEEDS:
            return f"{metric.title}: {table.tests} comparisons, tested {Conclusion.SENTENCES_ONLY.label}."
        note = f"{metric.title}: {count(table.tests, 'comparison')} over {self.seeds} seeds{assumption(self.seeds)}"
        if table.detectable is not None:
            note += f"; a true difference of {table.detectable:.{metric.digits}f} is found with 80 % probability"
        return f"{note}. {table.moderation}".rstrip()


@dataclass(frozen=True)
class TableAnalysis:
    """A table of runs and its leaderboards by metric.

    `mismatches` are the reasons why the runs are not comparable; if there are some, there are no leaderboards.
    """

    table: RunTable
    mismatches: tuple[str, ...]
    leaderboards: Mapping[str, MetricLeaderboard]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(row.label for row in self.table.rows)

    @property
    def main(self) -> MetricLeaderboard | None:
        """The leaderboard of the metric that ranks the rows, or of the first one that has values."""
        return self.leaderboards.get(MAIN) or next(iter(self.leaderboards.values()), None)


@dataclass(frozen=True)
class BenchAnalysis:
    """The complete analysis of a set of runs, computed once for all renderers.

    Attributes:
        tables: The tables. The rows of each have the same seeds, so that means, ranks and tests are over the same runs.
        charted: The same runs with every row at all of its seeds in one table, for curves and translations.
    """

    records: tuple[RunRecord, ...]
    tables: tuple[TableAnalysis, ...]
    charted: tuple[TableAnalysis, ...]
    sentences: Sentences = field(repr=False)

    @functools.cached_property
    def ablation(self) -> Analysis:
        """The ablation studies among the runs, pilots included; computed on first use."""
        return ablation.analyse(self.records, self.sentences)


def analyse_bench(records: Iterable[RunRecord], results: Path | StoredFiles | None = None) -> BenchAnalysis:
    """Return the analysis of some runs.

    Args:
        records: The records of the runs.
        results: The folder with the sentence statistics of the runs; without it intervals cover other seeds only.

    Raises:
        ValueError: A file of sentence statistics is damaged.
    """
    records = tuple(records)
    sentences: Sentences = (lambda record: None) if results is None else StoredFiles.of(results).sentences
    tables: list[TableAnalysis] = []
    charted: list[TableAnalysis] = []

    def judge(table: RunTable, mismatches: Iterable[object] = ()) -> TableAnalysis:
        texts = tuple(map(str, mismatches))
        return TableAnalysis(table, texts, {} if texts else leaderboards(table, sentences))

    for table in groups(records):
        mismatches = find_mismatches(table.records, table.budget)
        parts = compared_tables(table, mismatches)
        charted.append(judge(table, () if parts else mismatches))
        tables += charted[-1:] if parts in ([], [table]) else map(judge, parts)
    return BenchAnalysis(records, tuple(tables), tuple(charted), sentences)


def compared_tables(table: RunTable, mismatches: Iterable[Mismatch]) -> list[RunTable]:
    """Return the tables whose rows are compared: `table`, its parts of equal seeds, or none if it is not comparable."""
    return [] if {mismatch.kind for mismatch in mismatches} - {"seeds"} else _by_seeds(table)


def finished_seeds(row: TableRow) -> frozenset[int]:
    """Return the seeds that count: a diverged run is a result, an interrupted or failed one is not."""
    return frozenset(record.spec.seed for record in row.records if record.status in run_store.FINISHED)


def _by_seeds(table: RunTable) -> list[RunTable]:
    """Return tables of equal seeds, those that compare most runs first; a row is in each of them whose seeds it has.

    Seeds are those of finished runs, and other runs stay with their row. One of the tables has the seeds that all rows
    share, if there are any.
    """
    of_rows = list(map(finished_seeds, table.rows))
    finished = {own for own in of_rows if own}
    if len(finished) < 2:
        return [table]
    sets = {frozenset.intersection(*finished), *finished} - {frozenset()}

    def order(seeds: frozenset[int]) -> tuple[int, int, list[int]]:
        return (len(seeds) * (1 - sum(seeds <= own for own in of_rows)), -len(seeds), sorted(seeds))

    parts = []
    for seeds in sorted(sets, key=order):
        members = [
            replace(row, records=tuple(record for record in row.records if record.spec.seed not in own - seeds))
            for row, own in zip(table.rows, of_rows, strict=True)
            if seeds <= own or not own
        ]
        title = f"{table.title}, {named_seeds(sorted(seeds))}"
        parts.append(RunTable(table.budget, title, tuple(members)))
    return parts


def leaderboards(table: RunTable, sentences: Sentences) -> dict[str, MetricLeaderboard]:
    """Return the leaderboard of each metric of a table whose runs are comparable.

    Token-based metrics are compared only between the rows that have the vocabulary of most rows.
    """
    boards = {}
    for name, metric in LEADERBOARD.items():
        evidence = [row_evidence(row.label, row.records, name, sentences) for row in table.rows]
        evidence = [row for row in evidence if row.seeds]
        if all(value is None for row in evidence for value in row.values):
            continue
        function, scale = metric_function(name), metric.scale
        intervals = {row.label: statistics.interval(row, function, scale=scale) for row in evidence}
        not_compared = table.other_vocabulary if metric.token_based else frozenset()
        compared = [row for row in evidence if row.label not in not_compared]
        comparisons = statistics.compare_rows(compared, function, scale=scale)
        boards[name] = MetricLeaderboard(name, intervals, comparisons, not_compared)
    return boards
