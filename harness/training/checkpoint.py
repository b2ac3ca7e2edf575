"""The state of a training run, and its exact resume from a checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.batch_digest import ConsumedBatches
from harness.experiments.serialization import from_json, to_json
from harness.experiments.specs import RunSpec
from harness.processes.machine import arithmetic_differences, differences
from harness.storage import checkpoint_files, files, run_store
from harness.storage.records import EpochRecord
from impls.contract import Arrays, Seq2SeqModel, Totals

LARGEST_SHARE = 3
"""The most bytes of a checkpoint per byte of the model's state: the state, and the kept weights in float64."""
HEADER_BYTES = 4 * 2**20
"""The most bytes of the names and shapes in a checkpoint."""


@dataclass
class TrainingState:
    """The state of a run after an update.

    Attributes:
        data: The digest of all ids; a checkpoint cannot be used with other data.
        epochs: Number of complete epochs, validation included; `curve` has their records.
        batches: What the model has been trained on.
        weights_after: Digests of the weights, by the number of updates after which they were taken.
        tokens: Target tokens of the current epoch so far.
        training_seconds: Seconds of the updates of the current epoch so far.
        totals: Totals of the current epoch once its updates are done; until then the model has them.
        chosen: The epochs of the weights in `kept_weights`.
        kept_weights: The weights of the best epoch so far, or the float64 sum of those of the `chosen` epochs.
        first_update_seconds: Seconds of the first update of the first process.
        steady_updates, steady_tokens, steady_seconds: Without the first update of each process, which allocates, and
            without updates that compile.
        total_seconds: Seconds of all processes of the run.
        load_averages: The machine's one-minute load average at the end of each epoch.
        resumed_after_epochs, resumed_after_updates: Where each later process started.
        checkpoint_fallbacks: A line for each checkpoint that could not be used.
        environment: That of the last process; a checkpoint of an older version has none.
        earlier: For each environment before it, `until_update`, `environment`, and `resumed_anyway` if
            `--resume-anyway` was needed to leave it.
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
    kept_weights: Arrays = field(default_factory=dict)
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
    earlier: list[dict[str, Any]] = field(default_factory=list)

    @property
    def earlier_processes(self) -> list[dict[str, Any]]:
        """The values that earlier environments had and the last one does not, and up to which update."""
        entries = []
        for earlier in self.earlier:
            changed = differences(earlier["environment"], self.environment)
            changed |= {name: True for name in earlier if name == "resumed_anyway"}
            if changed:
                entries.append({"until_update": earlier["until_update"], **changed})
        return entries

    def continue_in(self, environment: dict[str, Any], *, resumed_anyway: bool) -> None:
        """Continue in an environment, and keep the one before in `earlier` if it differs."""
        if self.environment and self.environment != environment:
            forced = {"resumed_anyway": True} if resumed_anyway else {}
            self.earlier.append({"until_update": self.updates, "environment": self.environment, **forced})
        self.environment = environment


def save(results: Path, run_id: str, state: TrainingState, model: Seq2SeqModel) -> None:
    """Store everything that an exact resume needs."""
    arrays = {f"state/{name}": array for name, array in model.training_state().items()}
    arrays |= {f"kept/{name}": array for name, array in state.kept_weights.items()}
    if state.totals is not None:
        arrays |= {f"totals/{name}": np.array(total) for name, total in vars(state.totals).items()}
    notes = {name: value for name, value in vars(state).items() if name not in ("kept_weights", "totals")}
    notes["curve"] = to_json(state.curve)
    notes["batches"] = to_json(state.batches)
    checkpoint_files.save(results, run_id, arrays, notes)


def check_environment(results: Path, spec: RunSpec, environment: dict[str, Any]) -> None:
    """Check that a run can be resumed in this environment with the same arithmetic, if it has a checkpoint.

    Raises: ValueError if the newest checkpoint was written with another processor, library version or setting that
    changes results.
    """
    stored = checkpoint_files.notes(results, spec.id).get("environment")
    changes = arithmetic_differences(stored, environment, spec.computes) if isinstance(stored, dict) else []
    if changes:
        raise ValueError(
            f"run {spec.id}: its checkpoint was written with {', '.join(changes)}: the rest of the run would compute "
            f"differently; resume it where it was interrupted, remove {run_store.run_folder(results, spec.id)} to "
            "start it again, or accept the difference with --resume-anyway"
        )


def load(
    results: Path,
    spec: RunSpec,
    model: Seq2SeqModel,
    new: TrainingState,
    complaints: list[str],
    *,
    resume_anyway: bool = False,
) -> TrainingState | None:
    """Load the newest usable checkpoint into `model`, and return the rest of the stored state; None if there is none.

    Args:
        new: The state of a run that starts now, with the digest of the data and the environment of this process.
        complaints: Receives a line for each checkpoint that cannot be used.
        resume_anyway: Also use a checkpoint that was written with another arithmetic.
    """

    def restore(arrays: Arrays, notes: dict[str, Any]) -> TrainingState:
        state = _state(arrays, notes)
        if state.data != new.data:
            raise ValueError("a checkpoint was written with another text or module: a file has changed")
        changes = arithmetic_differences(state.environment, new.environment, spec.computes)
        if changes and not resume_anyway:
            raise ValueError(f"a checkpoint was written with {', '.join(changes)}")
        model.set_training_state(_part(arrays, "state/"))
        state.continue_in(new.environment, resumed_anyway=bool(changes))
        return state

    limit = _most_bytes(model) if checkpoint_files.exists(results, spec.id) else 0
    state = checkpoint_files.load(results, spec.id, restore, complaints.append, most=limit)
    if state is not None:
        state.resumed_after_epochs.append(state.epochs)
        state.resumed_after_updates.append(state.updates)
        state.checkpoint_fallbacks += complaints
    return state


def updates_done(results: Path, run_id: str) -> int:
    """Return the number of updates in the newest readable checkpoint of a run; 0 if it has none."""
    updates = checkpoint_files.notes(results, run_id).get("updates")
    return updates if type(updates) is int and updates > 0 else 0


def _most_bytes(model: Seq2SeqModel) -> int:
    """Return an upper bound for the size of a model's checkpoint, so that a foreign file cannot exhaust memory."""
    state = sum(array.nbytes for array in model.training_state().values())
    return max(files.FILE_BYTES, LARGEST_SHARE * state + HEADER_BYTES)


def _state(arrays: Arrays, notes: dict[str, Any]) -> TrainingState:
    try:
        best = math.inf if notes["best_loss"] is None else notes["best_loss"]  # JSON has no infinity
        notes = notes | {"curve": from_json(list[EpochRecord], notes["curve"], "curve"), "best_loss": best}
        notes["batches"] = ConsumedBatches(**notes["batches"])
        totals = {name: array.item() for name, array in _part(arrays, "totals/").items()}
        return TrainingState(**notes, kept_weights=_part(arrays, "kept/"), totals=Totals(**totals) if totals else None)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a checkpoint was written by another version of this program ({error})") from error


def _part(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays whose names have a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
