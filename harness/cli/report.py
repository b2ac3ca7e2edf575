"""`report`: the table and the pages, made again from the records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.cli import options, report_options
from harness.storage import run_store


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("report", help="make the report again from the records", description=__doc__)
    parser.add_argument("--reports", type=Path, default=options.REPORTS, help=f"folder to write ({options.REPORTS})")
    parser.add_argument(
        "--without-corpus-text",
        action="store_true",
        help=f"leave the test set's source and reference out of the page; always so for {run_store.PUBLISHED!r}",
    )
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Write the report of every record. Returns 0, or 1 where a rule of `check` that needs no corpus fails."""
    records = run_store.records(arguments.results, complain=options.warn)
    if not records:
        raise ValueError(f"{arguments.results}: there is no record in it; make some with: python -m harness bench")
    from harness.reporting import bench_tables

    options.say(bench_tables.terminal(records))
    with_text = not arguments.without_corpus_text
    failures = report_options.check_records(arguments.results)
    report_options.write(records, arguments.results, arguments.reports, failures=failures, corpus_text=with_text)
    return int(bool(failures))
