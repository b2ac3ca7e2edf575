"""`report`: print the table of all records and write their report."""

from __future__ import annotations

import argparse
from typing import Any

from harness.cli import options, report_options
from harness.cli.console import say, warn
from harness.storage import run_store


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("report", help="write the report of all records", description=__doc__)
    options.add_reports(parser)
    parser.add_argument(
        "--without-corpus-text",
        action="store_true",
        help=f"leave source and reference of the test set out of the page (default: only for {run_store.PUBLISHED!r})",
    )
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Write the report of every record. Returns 0, or 1 if a rule of `check` that needs no corpus fails."""
    records = run_store.records(arguments.results, complain=warn)
    if not records:
        raise ValueError(f"{arguments.results}: there is no record in it; train some with: python -m harness bench")
    from harness.reporting import bench_tables

    say(bench_tables.terminal(records))
    with_text = not arguments.without_corpus_text
    failures = report_options.check_records(arguments.results)
    report_options.write(records, arguments.results, arguments.reports, failures=failures, corpus_text=with_text)
    return int(bool(failures))
