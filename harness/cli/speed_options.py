"""The options of `speed`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.cli import folder_options, options
from harness.speed.plan import PARTS, SIZES
from impls import registry

NO_BASELINE = "none"
TIMEOUT_SECONDS = 3600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every option."""
    _add_measurement(parser)
    options.add_models(parser.add_argument_group("models"), repeatable=("framework", "backend"))
    options.add_data(parser)
    folder_options.add_results(parser)


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variant", action="append", help="a variant, or package.module:NAME; repeatable (default: the size's)"
    )
    parser.add_argument(
        "--baseline",
        action="append",
        choices=[*registry.baseline_names(), NO_BASELINE],
        help="a baseline to measure too; repeatable (default: all that are installed)",
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="a part to measure; repeatable (default: all)")
    purposes = "; ".join(f"{size.name}: {size.purpose}" for size in SIZES.values())
    parser.add_argument("--size", choices=list(SIZES), default="tutorial", help=f"{purposes} (default tutorial)")
    parser.add_argument(
        "--rounds", type=options.positive, metavar="N", help="samples of each measure (default: the size's)"
    )
    parser.add_argument(
        "--weights",
        action="append",
        metavar="RUN",
        default=[],
        help="translate with the weights of a completed run: its folder, or the beginning of its id; repeatable "
        "(default: each recipe is first trained briefly)",
    )
    parser.add_argument(
        "--beam",
        type=options.positive,
        default=5,
        metavar="WIDTH",
        help="beam width to time besides greedy (default 5)",
    )
    parser.add_argument(
        "--timeout",
        type=options.seconds,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"give up on a model that does not answer for this long (default {TIMEOUT_SECONDS:.0f}; 0: never)",
    )
    options.add_note(parser)
    folder_options.add_reports(parser)
    parser.add_argument(
        "--from",
        type=Path,
        dest="document",
        metavar="DOCUMENT",
        help="write the page of a stored document, measure nothing (default: measure)",
    )


def defaults(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the default of every option that changes the measurement, by its name in the parsed arguments."""
    values = vars(parser.parse_args([]))
    return {name: value for name, value in values.items() if name not in ("reports", "document")}
