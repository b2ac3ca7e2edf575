"""Everything that the statistics say of a set of runs, computed once and passed to every renderer."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis import ablation
from harness.analysis.ablation import Analysis
from harness.analysis.fairness import differences
from harness.analysis.grouping import RunTable, groups
from harness.analysis.leaderboard import MetricLeaderboard, Sentences, distinct, judge, stored_sentences
from harness.analysis.metric_registry import MAIN
from harness.analysis.statistics import METHOD, Method
from harness.storage.records import RunRecord


@dataclass(frozen=True)
class TableAnalysis:
    """A table of runs and what its runs allow to conclude.

    Args:
        table: the runs, one row for each variant and set of settings.
        labels: the rows' labels, each once.
        mismatches: why the runs are not comparable; empty if they are.
        leaderboards: by metric, the intervals, differences, ranks and detectable difference; empty if the runs are not
            comparable.
    """

    table: RunTable
    labels: tuple[str, ...]
    mismatches: tuple[str, ...]
    leaderboards: Mapping[str, MetricLeaderboard]

    @property
    def main(self) -> MetricLeaderboard | None:
        """The leaderboard of the metric that ranks the rows, or of the first one that has values."""
        return self.leaderboards.get(MAIN) or next(iter(self.leaderboards.values()), None)


@dataclass(frozen=True)
class BenchAnalysis:
    """All tables of a set of runs, each analysed once, and its ablations."""

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
        records: the runs' records.
        results: the folder of the runs' files, from which the statistics of test sentences are read; without it
            intervals cover other seeds only.
        method: how intervals and tests are made.

    Raises:
        ValueError: a file of sentence statistics is damaged.
    """
    records = tuple(records)
    sentences = stored_sentences(results)
    tables = []
    for table in groups(records):
        labels = tuple(distinct([row.label for row in table.rows]))
        mismatches = tuple(differences(table))
        leaderboards = {} if mismatches else judge(table, labels, sentences, method=method)
        tables.append(TableAnalysis(table, labels, mismatches, leaderboards))
    return BenchAnalysis(records, tuple(tables), sentences)
