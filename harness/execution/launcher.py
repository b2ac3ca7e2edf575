"""What the launchers share: their names and libraries, the limits of a run, and the outcome of a set of runs.

A launcher is a module with a function `execute(specs, results, ..., stream)` that returns an `Outcome`: `local` starts
processes on this machine, `slurm_launcher` jobs, `ray_launcher` tasks. For each run it holds the lock or passes the run
over (claim), runs the local launcher on whatever machine that is (run), and accepts only a record of this very run with
the files that it has the digests of (collect, `transfer`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.storage.records import RunRecord

Engine = Literal["local", "ray", "slurm"]
LIBRARIES = {"ray": "ray", "slurm": "submitit"}

GRACE_SECONDS = 30.0
"""The time that an interrupted process has to write its checkpoint before it is killed."""

SILENCE_SECONDS = 1800.0


def library(engine: str) -> Any:
    """Import and return the library of a launcher. Raises: ValueError with the command that installs it."""
    try:
        return importlib.import_module(LIBRARIES[engine])
    except ImportError as error:
        raise ValueError(
            f"--engine {engine}: {LIBRARIES[engine]} is not installed: python -m pip install '.[{engine}]'"
        ) from error


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """Limits of each run.

    Attributes:
        timeout_seconds: The time that one process of a run may take; None for no limit.
        silence_seconds: The time without progress after which a process counts as hung; None for no limit.
        retries: How often a run is restarted whose process hung or was killed from outside.
        grace_seconds: The time that an interrupted process has to write its checkpoint.
        checkpoint_seconds: The interval of checkpoints; None for the default of the run.
        resume_anyway: Whether a run resumes from a checkpoint of another environment.
        score_every: The number of epochs between two translations of the validation set; 0 for none.
    """

    timeout_seconds: float | None = None
    silence_seconds: float | None = SILENCE_SECONDS
    retries: int = 1
    grace_seconds: float = GRACE_SECONDS
    checkpoint_seconds: float | None = None
    resume_anyway: bool = False
    score_every: int = 0


@dataclass
class Outcome:
    """The records of the runs that ended, and the signal that interrupted the set, if any."""

    records: list[RunRecord] = field(default_factory=list)
    signal: int | None = None

    @property
    def interrupted(self) -> bool:
        """Whether a signal interrupted the set."""
        return self.signal is not None
