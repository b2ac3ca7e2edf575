"""The complete analysis of a set of runs, computed once for all renderers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis import ablation
from harness.analysis.ablation import Analysis
from harness.analysis.effects import METHOD, Method
from harness.analysis.evidence import Sentences, stored_sentences
from harness.analysis.fairness import table_differences
from harness.analysis.grouping import RunTable, groups
from harness.analysis.leaderboard import MetricLeaderboard, leaderboards
from harness.analysis.metric_registry import MAIN
from harness.storage.records import RunRecord


@dataclass(frozen=True)
class TableAnalysis:
    """A table of runs and its leaderboards.

    Attributes:
        table: The runs, one row for each variant and set of settings.
        mismatches: The reasons why the runs are not comparable; empty if they are.
        leaderboards: The leaderboard of each metric; empty if the runs are not comparable.
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
    """All tables of a set of runs, and its ablations."""

    records: tuple[RunRecord, ...]
    tables: tuple[TableAnalysis, ...]
    sentences: Sentences = field(repr=False)

    @functools.cached_property
    def ablation(self) -> Analysis:
        """The ablation studies among the runs, pilots included; computed on first use."""
        return ablation.analyse(self.records, self.sentences)


def analyse_bench(
    records: Iterable[RunRecord], results: Path | None = None, *, method: Method = METHOD
) -> BenchAnalysis:
    """Return the analysis of some runs.

    Args:
        records: The records of the runs.
        results: The folder with the sentence statistics of the runs; without it intervals cover other seeds only.
        method: The method of intervals and tests.

    Raises:
        ValueError: A file of sentence statistics is damaged.
    """
    records, sentences = tuple(records), stored_sentences(results)
    tables = []
    for table in groups(records):
        mismatches = tuple(table_differences(table))
        boards = {} if mismatches else leaderboards(table, sentences, method=method)
        tables.append(TableAnalysis(table, mismatches, boards))
    return BenchAnalysis(records, tuple(tables), sentences)
