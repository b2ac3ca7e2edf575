"""The engines that can execute runs: `local` (`harness.execution.local`), and the clusters `ray` and `slurm`."""

from __future__ import annotations

import importlib
from typing import Any, Literal

Engine = Literal["local", "ray", "slurm"]
LIBRARIES = {"ray": "ray", "slurm": "submitit"}


def library(engine: str) -> Any:
    """Return the library that an engine is made of. Raises: ValueError with what installs it."""
    try:
        return importlib.import_module(LIBRARIES[engine])
    except ImportError as error:
        raise ValueError(
            f"--engine {engine}: {LIBRARIES[engine]} is not installed: python -m pip install '.[{engine}]'"
        ) from error
