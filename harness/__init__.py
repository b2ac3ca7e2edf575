"""Trains, measures and compares the implementations of `impls` on identical runs.

`harness.api` is the Python interface; its names can be imported from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.api import RunComparison, RunFailed, Runs, TrainedRun, load, run, translate

__version__ = "0.1.0"
__all__ = ["RunComparison", "RunFailed", "Runs", "TrainedRun", "load", "run", "translate"]


def __getattr__(name: str) -> Any:
    """Import the Python interface on first use: it needs NumPy, and the command line does not."""
    if name in __all__:
        return getattr(importlib.import_module("harness.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the Python interface, which completion offers."""
    return sorted([*__all__, "__version__"])
