"""The learning rate of each cell of an ablation: pilot runs that try a grid of rates, and the choice between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from harness.storage.records import RunRecord
from harness.storage.run_store import FINISHED

PILOT_SEED = 1_000
"""The seed of all pilots; no suite uses it, so the runs that are compared did not take part in the choice."""
PILOT_SHARE = 3
"""A pilot has one epoch for each three of the full run, rounded up, unless the number of epochs is given."""


@dataclass(frozen=True)
class Choice:
    """The learning rate chosen for one cell.

    `losses` maps each rate, in ascending order, to the lowest validation loss of its pilot (None: the pilot diverged).
    `rate` has the lowest of these, the smaller rate on a tie; None if every pilot diverged. `epochs` and `updates` are
    the length of the pilots, and `warmup_updates` that of the warm-up.

    Units: losses in nats per target token.
    """

    rate: float | None
    losses: Mapping[float, float | None]
    epochs: int
    updates: int
    warmup_updates: int

    @property
    def edge(self) -> Literal["", "lowest", "highest"]:
        """Whether the chosen rate is the lowest or highest of the grid, so that a better one may lie beyond it."""
        if self.rate is None:
            return ""
        return "lowest" if self.rate == min(self.losses) else "highest" if self.rate == max(self.losses) else ""


def pilots(spec: RunSpec, rates: Iterable[float], epochs: int | None = None) -> list[RunSpec]:
    """Return the pilot of a cell at each learning rate.

    A pilot is the beginning of the full run at another rate and seed: the schedule does not depend on the number of
    epochs. A limit on the updates of the full run is shortened in the same proportion.

    Raises:
        ValueError: `epochs` exceeds the number of epochs of the full run.
    """
    training = spec.training
    if epochs is not None and epochs > training.epochs:
        raise ValueError(f"--pilot-epochs {epochs}: give at most {training.epochs}, the epochs of the full runs")
    length = epochs or math.ceil(training.epochs / PILOT_SHARE)
    limit = None if spec.updates is None else math.ceil(spec.updates * length / training.epochs)
    return [
        replace(
            spec,
            budget="pilot",
            seed=PILOT_SEED,
            updates=limit,
            training=replace(training, peak_rate=rate, epochs=length, averaged_epochs=0),
        )
        for rate in rates
    ]


def tuned(spec: RunSpec, choice: Choice | None) -> RunSpec:
    """Return the run of a cell at the chosen learning rate: the run itself if none was chosen."""
    return spec if choice is None or choice.rate is None else at_rate(spec, choice.rate)


def at_rate(spec: RunSpec, rate: float) -> RunSpec:
    """Return the run at another learning rate, in the budget "tuned"; the run itself if it has this rate."""
    if rate == spec.training.peak_rate:
        return spec
    return replace(spec, budget="tuned", training=replace(spec.training, peak_rate=rate))


def finished_pilots(records: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return the finished pilots among some records, by `cell_key`."""
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.spec.budget == "pilot" and record.status in FINISHED:
            found.setdefault(cell_key(record.spec), []).append(record)
    return found


def choose(records: Sequence[RunRecord]) -> Choice:
    """Return the choice between the finished pilots of one cell; of pilots that differ in length the longest count."""
    length = max(_length(record.spec) for record in records)
    same = [record for record in records if _length(record.spec) == length]
    losses = {record.spec.training.peak_rate: _lowest_loss(record) for record in same}
    losses = dict(sorted(losses.items()))
    known = {rate: loss for rate, loss in losses.items() if loss is not None}
    return Choice(
        rate=min(known, key=lambda rate: (known[rate], rate)) if known else None,
        losses=losses,
        epochs=same[0].spec.training.epochs,
        updates=max((record.curve[-1].updates for record in same if record.curve), default=0),
        warmup_updates=same[0].spec.training.warmup_updates,
    )


def complete(specs: Sequence[RunSpec], records: Iterable[RunRecord]) -> bool:
    """Return whether all these pilots have finished, so that the choice between them is final."""
    finished = {record.id for record in records if record.status in FINISHED}
    return all(spec.id in finished for spec in specs)


def cell_key(spec: RunSpec) -> str:
    """Return what a run has in common with the pilots of its cell: all settings but seed, length and learning rate."""
    training = replace(spec.training, peak_rate=0.0, epochs=1, averaged_epochs=0)
    settings = to_json(replace(spec, budget="pilot", seed=PILOT_SEED, updates=None, training=training))
    if settings["recipe"]:
        settings["recipe"] = {name: one for name, one in settings["recipe"].items() if name not in ("name", "source")}
    return canonical_json(settings)


def _length(spec: RunSpec) -> tuple[int, float]:
    return spec.training.epochs, math.inf if spec.updates is None else spec.updates


def _lowest_loss(record: RunRecord) -> float | None:
    losses = [line.validation_loss for line in record.curve if line.validation_loss is not None]
    return min(losses) if losses and record.status == "completed" else None
