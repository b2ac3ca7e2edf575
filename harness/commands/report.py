"""`report`: the table and the pages, made again from the records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness import store
from harness.commands import options


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("report", help="make the report again from the records", description=__doc__)
    parser.add_argument("--reports", type=Path, default=options.REPORTS, help=f"folder to write ({options.REPORTS})")
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Write the report of every record. Returns 0."""
    records = store.records(arguments.results, complain=options.warn)
    if not records:
        raise ValueError(f"{arguments.results}: there is no record in it; make some with: python -m harness bench")
    from harness.reporting import pages, tables

    options.say(tables.terminal(records))
    pages.write(records, arguments.reports)
    options.say(f"The report: {arguments.reports / 'index.md'}")
    return 0
