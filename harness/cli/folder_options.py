"""The options that choose folders: --results, --reports, and --experiment for both."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli.options import flag
from harness.storage import results_folders

REPORTS = Path("reports/local")
LOGS = Path("logs/local")


def add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--experiment",
        type=_experiment,
        metavar="NAME",
        help=f"keep an experiment apart from others: short for --results {results_folders.RESULTS}/NAME and, for "
        f"pages and logs, --reports {REPORTS}/NAME and --log-folder {LOGS}/NAME (default none)",
    )
    parser.add_argument(
        "--results",
        type=_folder,
        default=results_folders.RESULTS,
        metavar="FOLDER",
        help=f"folder of run records (default {results_folders.RESULTS})",
    )


def add_reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reports", type=_folder, default=REPORTS, metavar="FOLDER", help=f"folder for reports (default {REPORTS})"
    )


def _folder(text: str) -> Path:
    """Check the path of a folder, which need not exist. An empty one is that of a shell variable without value."""
    if not text:
        raise argparse.ArgumentTypeError("'' names no folder; give . for the current one")
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file, not a folder")
    return path


def _experiment(text: str) -> str:
    if not results_folders.EXPERIMENT.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} names no experiment: use letters, digits and - _ . after a letter or digit, and no name of a "
            f"suite, 'ablation' or 'speed', which are folders of {REPORTS}"
        )
    return text


def use_experiment(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the folders of --experiment. Raises: ValueError if one of these is given, too."""
    if getattr(arguments, "experiment", None) is not None:
        folders = {"results": results_folders.RESULTS, "reports": REPORTS, "log_folder": LOGS}
        for name, default in folders.items():
            if getattr(arguments, name, default) is not default:  # a path that was given is another object
                raise ValueError(f"{flag(name)} with --experiment {arguments.experiment}: give one or the other")
            setattr(arguments, name, default / arguments.experiment)
    return arguments
