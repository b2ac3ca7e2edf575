"""`clean`: remove leftovers of killed processes and of finished runs.

These are checkpoints of finished runs, partial writes, locks of processes that are gone, and unreadable entries of the
cache. Records, translations, weights and logs are kept.
"""

from __future__ import annotations

import argparse

from harness.cli import folder_options
from harness.cli.console import say, warn
from harness.data import cache
from harness.storage import leftovers, results_folders
from harness.text import count

SUMMARY = "remove leftovers of killed processes"
EXAMPLES = (
    ("list what can be removed", "--dry-run"),
    ("remove it", ""),
    ("in another folder of results", "--results results/cluster"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="list the files, but remove none")
    folder_options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """List the leftovers with their sizes and remove them. Returns 0, or 1 if one cannot be removed."""
    if arguments.results != results_folders.RESULTS and not arguments.results.is_dir():
        raise ValueError(f"{arguments.results}: there is no such folder")
    removed, total_bytes, failed = 0, 0, 0
    for leftover in [*leftovers.of_results(arguments.results), *cache.leftovers()]:
        size_bytes = leftover.size_bytes
        try:
            if not arguments.dry_run:
                leftover.remove()
        except (OSError, ValueError) as error:
            warn(f"{leftover.path}: cannot be removed ({error})")
            failed += 1
            continue
        removed, total_bytes = removed + 1, total_bytes + size_bytes
        say(f"  {size_bytes:>15,} bytes  {leftover.path}  ({leftover.reason})")
    action = "can be removed; run without --dry-run" if arguments.dry_run else "removed"
    say(f"{count(removed, 'leftover')}, {total_bytes:,} bytes, {action}." if removed else "Nothing to clean.")
    return int(failed > 0)
