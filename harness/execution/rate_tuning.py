"""Chooses the learning rate of each cell of an ablation by pilot runs at a grid of rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.experiments.specs import RunSpec
from harness.storage.records import RunRecord
from harness.storage.run_store import FINISHED

PILOT_SEED = 1_000
"""The seed of all pilots. No suite uses it, so no compared run influences the choice."""


@dataclass(frozen=True)
class Choice:
    """The learning rate chosen for one cell.

    Attributes:
        rate: The rate with the lowest loss, the smaller one on a tie; None if every pilot diverged.
        losses: The lowest validation loss of each pilot by its rate, in ascending order of the rates; None if the pilot
            diverged. Units: nats per target token.
        epochs, updates: The length of the pilots.
        warmup_updates: The length of the warm-up.
        limit: The number of updates after which pilots stop; None if they train for all epochs.
    """

    rate: float | None
    losses: Mapping[float, float | None]
    epochs: int
    updates: int
    warmup_updates: int
    limit: int | None = None

    @property
    def edge(self) -> Literal["", "lowest", "highest"]:
        """Whether the chosen rate is the lowest or highest of the grid, so that a better rate may lie outside it."""
        if self.rate is None:
            return ""
        return "lowest" if self.rate == min(self.losses) else "highest" if self.rate == max(self.losses) else ""


def pilots(spec: RunSpec, rates: Iterable[float], epochs: int | None = None) -> list[RunSpec]:
    """Return the pilot of a cell at each learning rate.

    A pilot is the full run at another rate and seed, or the beginning of it: the schedule does not depend on the number
    of epochs. A limit on the updates of the full run is reduced in the same proportion. Pilots are as long as the full
    run by default, because the best rate of a shorter run tends to be higher.

    Raises: ValueError if `epochs` exceeds the number of epochs of the full run.
    """
    training = spec.training
    if epochs is not None and epochs > training.epochs:
        raise ValueError(f"--pilot-epochs {epochs}: give at most {training.epochs}, the epochs of the full runs")
    length = epochs or training.epochs
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


def tuned(spec: RunSpec, choice: Choice) -> RunSpec:
    """Return the run of a cell at the chosen learning rate: the run itself if none was chosen."""
    return spec if choice.rate is None else at_rate(spec, choice.rate)


def at_rate(spec: RunSpec, rate: float) -> RunSpec:
    """Return the run at another learning rate, in the budget "tuned"; the run itself if it has this rate."""
    if rate == spec.training.peak_rate:
        return spec
    return replace(spec, budget="tuned", training=replace(spec.training, peak_rate=rate))


def finished_pilots(records: Iterable[RunRecord]) -> dict[RunSpec, list[RunRecord]]:
    """Return the finished pilots among some records, by `cell_key`."""
    pilots_of: dict[RunSpec, list[RunRecord]] = {}
    for record in records:
        if record.spec.budget == "pilot" and record.status in FINISHED:
            pilots_of.setdefault(cell_key(record.spec), []).append(record)
    return pilots_of


def choose(records: Sequence[RunRecord]) -> Choice:
    """Return the choice between the finished pilots of one cell. If they differ in length, the longest count."""
    longest = max(map(_length, records))
    records = [record for record in records if _length(record) == longest]
    loss_of = {record.spec.training.peak_rate: _lowest_loss(record) for record in records}
    losses = dict(sorted(loss_of.items()))
    converged = {rate: loss for rate, loss in losses.items() if loss is not None}
    training = records[0].spec.training
    return Choice(
        rate=min(converged, key=lambda rate: (converged[rate], rate), default=None),
        losses=losses,
        epochs=training.epochs,
        updates=max((record.curve[-1].updates for record in records if record.curve), default=0),
        warmup_updates=training.warmup_updates,
        limit=records[0].spec.updates,
    )


def cell_key(spec: RunSpec) -> RunSpec:
    """Return what a run shares with the pilots of its cell: all settings but seed, length and learning rate."""
    training = replace(spec.training, peak_rate=0.0, epochs=1, averaged_epochs=0)
    recipe = None if spec.recipe is None else replace(spec.recipe, name="", source="")
    return replace(spec, recipe=recipe, budget="pilot", seed=PILOT_SEED, updates=None, training=training)


def _length(record: RunRecord) -> tuple[float, int]:
    """Return the number of updates that a pilot was to make, and of epochs."""
    limit, epochs = record.spec.updates or math.inf, record.spec.training.epochs
    return min(limit, epochs * record.sizes.get("updates_per_epoch", math.inf)), epochs


def _lowest_loss(record: RunRecord) -> float | None:
    losses = [line.validation_loss for line in record.curve if line.validation_loss is not None]
    return min(losses) if losses and record.status == "completed" else None
