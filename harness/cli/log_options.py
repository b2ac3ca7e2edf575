"""`--log`: writes the logs of runs for TensorBoard or MLflow while they train."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.cli import folder_options
from harness.cli.console import say, warn
from harness.experiments.specs import RunSpec
from harness.processes.progress import Event, Progress, silent

LIBRARIES = {"tensorboard": "tensorboardX", "mlflow": "mlflow"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log",
        choices=list(LIBRARIES),
        action="append",
        default=[],
        help="write losses, learning rate and scores for this tool while the runs train; repeatable (default: none)",
    )
    parser.add_argument(
        "--log-folder",
        type=Path,
        default=folder_options.LOGS,
        metavar="FOLDER",
        help=f"folder for --log (default {folder_options.LOGS})",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raise ValueError if runs cannot be logged as the options say."""
    for tool in arguments.log:
        check_library(f"--log {tool}", tool)
        if (launcher := getattr(arguments, "launcher", "local")) != "local":
            raise ValueError(
                f"--log {tool} with --launcher {launcher}: runs on a cluster send no values while they train; use "
                "--launcher local, or export the finished runs with: export --to mlflow"
            )


def check_library(option: str, tool: str) -> None:
    """Raise ValueError if the library of a tool is not installed."""
    if importlib.util.find_spec(LIBRARIES[tool]) is None:
        raise ValueError(f"{option}: {LIBRARIES[tool]} is not installed: python -m pip install '.[{tool}]'")


@contextlib.contextmanager
def logging_runs(arguments: argparse.Namespace, specs: Sequence[RunSpec]) -> Iterator[Progress]:
    """Yield what writes the logs of runs from their events. Raises: ValueError if a log cannot be begun."""
    if not arguments.log:
        yield silent
        return
    from harness.reporting.trackers import TRACKERS, RunLogs

    with contextlib.ExitStack() as stack:
        logs = []
        for tool in dict.fromkeys(arguments.log):
            folder = arguments.log_folder / tool
            try:
                tracker = TRACKERS[tool](folder)
            except Exception as error:
                raise ValueError(f"--log {tool}: {folder}: {type(error).__name__}: {error}") from error
            complain = functools.partial(_warn, tool)
            logs.append(stack.enter_context(contextlib.closing(RunLogs(tracker, specs, arguments.results, complain))))
            say(f"Log: {folder}; open it with: {opened_with(tool, folder)}")

        def log(event: Event) -> None:
            for write in logs:
                write(event)

        yield log


def _warn(tool: str, message: str) -> None:
    warn(f"--log {tool}: {message}")


def opened_with(tool: str, folder: Path) -> str:
    if tool == "tensorboard":
        return f"tensorboard --logdir {shlex.quote(str(folder))}"
    store = shlex.quote(f"sqlite:///{(folder / 'mlflow.db').as_posix()}")
    return f"mlflow ui --backend-store-uri {store}"
