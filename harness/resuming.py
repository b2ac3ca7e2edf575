"""What a run has come to, and how an interrupted one goes on from there bit for bit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from harness import checkpoints
from harness.specs import EpochRecord, epochs_from_json, to_json
from impls.contract import Arrays, Seq2SeqModel


@dataclass
class State:
    """What a run has come to at the end of an epoch.

    `kept` are the weights of the best epoch so far, or the float64 sum of those of the `chosen` epochs where these are
    averaged. `steady_…` leave out the first update of each process, which allocates, and those that compile.
    `total_seconds` are those of all its processes.
    """

    started: str
    epochs: int = 0
    updates: int = 0
    curve: list[EpochRecord] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    kept: Arrays = field(default_factory=dict)
    best_loss: float = math.inf
    first_update_seconds: float = 0.0
    steady_updates: int = 0
    steady_tokens: int = 0
    steady_seconds: float = 0.0
    total_seconds: float = 0.0
    resumed_after_epochs: list[int] = field(default_factory=list)


def save(results: Path, run_id: str, state: State, model: Seq2SeqModel) -> None:
    """Store all that an exact resume needs."""
    arrays = {f"state/{name}": one for name, one in model.training_state().items()}
    arrays |= {f"kept/{name}": one for name, one in state.kept.items()}
    notes = {name: value for name, value in vars(state).items() if name != "kept"}
    notes["curve"] = to_json(state.curve)
    notes["best_loss"] = state.best_loss if math.isfinite(state.best_loss) else None
    checkpoints.save(results, run_id, arrays, notes)


def load(results: Path, run_id: str, model: Seq2SeqModel) -> State | None:
    """Put a stored state into `model` and return the rest of it; None where there is none.

    Raises: ValueError where it is damaged or does not fit.
    """
    found = checkpoints.load(results, run_id)
    if found is None:
        return None
    arrays, notes = found
    try:
        best = math.inf if notes["best_loss"] is None else notes["best_loss"]
        notes |= {"curve": epochs_from_json(notes["curve"]), "best_loss": best}
        state = State(**notes, kept=_part(arrays, "kept/"))
    except (KeyError, TypeError) as error:
        raise ValueError(f"run {run_id}: its checkpoint is of another version ({error})") from error
    model.set_training_state(_part(arrays, "state/"))
    state.resumed_after_epochs.append(state.epochs)
    return state


def _part(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): one for name, one in arrays.items() if name.startswith(prefix)}
