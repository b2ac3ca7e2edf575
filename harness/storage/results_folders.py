"""The default folder of results, the folders in one, and the options that choose one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from harness.text import brief, command_line

RESULTS = Path("results/local")
EXPERIMENT = re.compile(r"(?!(ablation|speed|quick|standard|full)$)[A-Za-z0-9][A-Za-z0-9_.-]*")
"""The names of experiments, whose folders are in `RESULTS`; the names left out are folders of reports."""

NO_RUN = "lost+found"
"""A folder at the root of a disk that only root may read."""


def checked(
    folder: object, *, name: str = "results", kind: str = f"a folder of results, such as {str(RESULTS)!r}"
) -> Path:
    """Return the path of a folder that an argument of Python gives. It need not exist.

    Raises: ValueError, which begins with the name of the argument, if it is no path, or that of a file.
    """
    if not isinstance(folder, str | Path):
        raise ValueError(f"{name}: expected {kind}, not {brief(folder)}")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{name}: {str(path)!r} is a file, not a folder")
    return path


def run_folders(results: Path) -> list[Path]:
    """Return the folders that may be those of runs. Raises: OSError if a folder of results cannot be read."""
    folders = [path for path in results.iterdir() if path.is_dir()] if results.is_dir() else []
    return sorted(path for path in folders if not path.name.startswith(".") and path.name != NO_RUN)


def list_command(results: Path) -> str:
    """Return the end of a message: how to list the runs of a folder."""
    return f"see the runs with: {command_on(results, 'list')}"


def command_on(results: Path, command: str) -> str:
    """Return a command line that uses a folder of results."""
    return f"{command_line(command)}{results_option(results)}"


def results_option(results: Path) -> str:
    """Return the option that chooses a folder of results, quoted for the shell; empty for the default folder."""
    if results.parent == RESULTS and EXPERIMENT.fullmatch(results.name):
        return f" --experiment {results.name}"
    return "" if results == RESULTS else f" --results {shlex.quote(str(results))}"
