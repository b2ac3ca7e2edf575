"""`report`: print the table of all records and write their report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from harness.cli import folder_options, report_writing
from harness.cli.console import say_json, warn
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles

SUMMARY = "write the report of all records"
EXAMPLES = (
    ("write the report of results/local", ""),
    ("of the published runs, into a folder of its own", "--results results/published --reports reports/mine"),
    ("only the leaderboards, for other programs", "--json"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    folder_options.add_reports(parser)
    parser.add_argument(
        "--without-corpus-text",
        action="store_true",
        help=f"leave source and reference of the test set out of the page (default: only for {run_store.PUBLISHED!r})",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the leaderboards as JSON and write no report (default: write it)"
    )
    folder_options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Write the report of all records. Returns 0, or 1 if a rule of `check` that needs no corpus fails."""
    records = run_store.records(arguments.results, complain=warn)
    if not records:
        raise ValueError(run_store.no_record(arguments.results))
    failures = report_writing.check_records(arguments.results)
    if arguments.json:
        stored = StoredFiles(arguments.results)
        say_json(_leaderboards(report_writing.readable(records, stored), stored))
        report_writing.warn_failures(failures)
    else:
        with_text = not arguments.without_corpus_text
        report_writing.write(records, arguments.results, arguments.reports, failures=failures, corpus_text=with_text)
    return int(bool(failures))


def _leaderboards(records: Sequence[RunRecord], stored: StoredFiles) -> list[dict[str, Any]]:
    """Return each table with the mean, interval and ranks of every row by metric, best row first."""
    from harness.analysis.leaderboard import analyse_bench

    return [
        {
            "table": table.table.heading,
            "not_comparable": list(table.mismatches),
            "metrics": {
                name: [
                    {
                        "variant": label,
                        "mean": board.intervals[label].mean,
                        "low": board.intervals[label].low,
                        "high": board.intervals[label].high,
                        "seeds": board.intervals[label].n,
                        "ranks": board.rank_interval(label),
                    }
                    for label in board.ranking
                ]
                for name, board in table.leaderboards.items()
            },
        }
        for table in analyse_bench(records, stored).tables
    ]
