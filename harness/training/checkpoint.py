"""What a run has come to, and how an interrupted one goes on from there bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from harness.data.batch_digest import ConsumedBatches
from harness.experiments.serialization import to_json
from harness.processes.machine import differences
from harness.storage import checkpoint_files, files, tensors
from harness.storage.records import EpochRecord, epochs_from_json
from impls.contract import Arrays, Seq2SeqModel, Totals

LARGEST_SHARE = 3
"""A checkpoint has at most so many times the bytes of the model's state: that, and the kept weights in float64."""


class EarlierProcesses(TypedDict):
    """An environment that a run had up to an update."""

    until_update: int
    environment: dict[str, Any]


@dataclass
class TrainingState:
    """What a run has come to after an update.

    `data` is the digest of all ids: the position in other data would be none. `batches` records what the model was
    trained on; `weights_after` holds digests of the weights by the number of updates after which they were taken.
    `epochs` are those that are complete, validation included. Of the one under way there are `tokens`, the seconds its
    updates took, and once these are done the `totals` that were taken from the model; until then the model has them.
    `kept` are the weights of the best epoch so far, or the float64 sum of those of the `chosen` epochs where these are
    averaged. `steady_…` leave out the first update of each process, which allocates, and those that compile.
    `total_seconds` are those of all its processes. `load_averages` are the machine's one-minute load averages at each
    epoch's end. `environment` is that of the last process, `earlier` are those before it, each up to an update; a
    checkpoint of an older version has neither.
    """

    started: str
    data: str
    epochs: int = 0
    batches: ConsumedBatches = field(default_factory=ConsumedBatches)
    weights_after: dict[str, str] = field(default_factory=dict)
    updates: int = 0
    tokens: int = 0
    training_seconds: float = 0.0
    totals: Totals | None = None
    curve: list[EpochRecord] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    kept: Arrays = field(default_factory=dict)
    best_loss: float = math.inf
    first_update_seconds: float = 0.0
    steady_updates: int = 0
    steady_tokens: int = 0
    steady_seconds: float = 0.0
    total_seconds: float = 0.0
    load_averages: list[float] = field(default_factory=list)
    resumed_after_epochs: list[int] = field(default_factory=list)
    resumed_after_updates: list[int] = field(default_factory=list)
    checkpoint_fallbacks: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    earlier: list[EarlierProcesses] = field(default_factory=list)

    @property
    def earlier_processes(self) -> list[dict[str, Any]]:
        """What the environments of earlier processes had that the last one's has not, and up to which update."""
        found = ((one["until_update"], differences(one["environment"], self.environment)) for one in self.earlier)
        return [{"until_update": until, **different} for until, different in found if different]

    def move(self, environment: dict[str, Any]) -> None:
        """Note that the run goes on in this environment."""
        if self.environment and self.environment != environment:
            self.earlier.append({"until_update": self.updates, "environment": self.environment})
        self.environment = environment


def save(results: Path, run_id: str, state: TrainingState, model: Seq2SeqModel) -> None:
    """Store all that an exact resume needs."""
    arrays = {f"state/{name}": one for name, one in model.training_state().items()}
    arrays |= {f"kept/{name}": one for name, one in state.kept.items()}
    if state.totals is not None:
        arrays |= {f"totals/{name}": np.array(one) for name, one in vars(state.totals).items()}
    notes = {name: value for name, value in vars(state).items() if name not in ("kept", "totals")}
    notes["curve"] = to_json(state.curve)
    notes["batches"] = to_json(state.batches)
    notes["best_loss"] = state.best_loss if math.isfinite(state.best_loss) else None
    checkpoint_files.save(results, run_id, arrays, notes)


def load(
    results: Path, run_id: str, model: Seq2SeqModel, now: TrainingState, complain: Callable[[str], None]
) -> TrainingState | None:
    """Put a stored state into `model` and return the rest of it; None where there is none that is whole and fits.

    `now` is what a run begins with: it has the digest of all ids, and the environment of this process. `complain` is
    told in a line of each checkpoint that is not.
    """
    fallbacks: list[str] = []

    def note(complaint: str) -> None:
        fallbacks.append(complaint)
        complain(complaint)

    def restore(arrays: Arrays, notes: dict[str, Any]) -> TrainingState:
        state = _state(arrays, notes)
        if state.data != now.data:
            raise ValueError("a checkpoint is of other data: the files of the corpus have changed since")
        model.set_training_state(_part(arrays, "state/"))
        return state

    most = _most_bytes(model) if checkpoint_files.exists(results, run_id) else 0
    state = checkpoint_files.load(results, run_id, restore, note, most=most)
    if state is not None:
        state.move(now.environment)
        state.resumed_after_epochs.append(state.epochs)
        state.resumed_after_updates.append(state.updates)
        state.checkpoint_fallbacks += fallbacks
    return state


def updates_done(results: Path, run_id: str) -> int:
    """Return after how many updates a run goes on, as its newest whole manifest says; 0 where it begins."""
    done = checkpoint_files.notes(results, run_id).get("updates")
    return done if type(done) is int and done > 0 else 0


def _most_bytes(model: Seq2SeqModel) -> int:
    """Return what no checkpoint of a model is larger than, and a stranger's may not be."""
    state = sum(one.nbytes for one in model.training_state().values())
    return max(files.FILE_BYTES, LARGEST_SHARE * state + tensors.HEADER_BYTES)


def _state(arrays: Arrays, notes: dict[str, Any]) -> TrainingState:
    try:
        best = math.inf if notes["best_loss"] is None else notes["best_loss"]
        notes = notes | {"curve": epochs_from_json(notes["curve"]), "best_loss": best}
        notes["batches"] = ConsumedBatches(**notes["batches"])
        totals = {name: one.item() for name, one in _part(arrays, "totals/").items()}
        return TrainingState(**notes, kept=_part(arrays, "kept/"), totals=Totals(**totals) if totals else None)
    except (KeyError, TypeError) as error:
        raise ValueError(f"its checkpoint is of another version ({error})") from error


def _part(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): one for name, one in arrays.items() if name.startswith(prefix)}
