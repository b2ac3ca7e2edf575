"""Measures everything that a plan names, part by part, and can say at any moment what it has found so far."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.data.dataset import Dataset
from harness.speed import scaling
from harness.speed.plan import ONE_BY_ONE, USING_WEIGHTS, WAYS, Amounts, ModelJob, Part, same_weights
from harness.speed.scheduler import RoundRobin, TimedTask
from harness.speed.speed_document import Scaling
from harness.storage import tensors
from impls.contract import Arrays, Recipe
from impls.flops import Product, products


@dataclass(frozen=True, kw_only=True)
class Unavailable:
    """A subject that cannot be measured here, and why."""

    name: str
    variant: str
    framework: str
    reason: str
    is_baseline: bool = False


@dataclass(frozen=True, kw_only=True)
class MeasurementPlan:
    """What is to be measured.

    Each way to translate is timed in `decoding_rounds`, all else in `rounds`. `jobs` are the subjects, variants before
    baselines. `given` are trained weights by what they fit (`same_weights`), with their origin. `base` is the job
    whose cost is followed along the axes of scaling.
    """

    size: Amounts
    rounds: int
    decoding_rounds: int
    parts: tuple[Part, ...]
    jobs: tuple[ModelJob, ...]
    absent: tuple[Unavailable, ...]
    given: dict[Recipe | str, tuple[Arrays, str]]
    base: ModelJob
    command: str
    note: str
    timeout_seconds: float | None


class Measurement:
    """One measurement under way. `say` is given lines worth showing; `check` may raise while anything is waited for."""

    PRODUCTS = "matrix products"
    """The name of the process that multiplies matrices and does nothing else."""

    def __init__(
        self,
        plan: MeasurementPlan,
        prepared: Dataset,
        folder: Path,
        *,
        say: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        self.plan, self.prepared, self.say = plan, prepared, say
        self._folder = folder
        self.started = now()
        self.load_before = running()
        self.crew = RoundRobin(folder, say=say, check=check, timeout_seconds=plan.timeout_seconds)
        self.weights_from: dict[str, str] = {}
        self.weights: dict[Recipe | str, Path] = {}
        self.breakdowns: dict[str, dict[str, Any]] = {}
        self.scaling: list[Scaling] = []
        words = len(prepared.source_words), len(prepared.target_words)
        self.products = _by_products([job for job in plan.jobs if not job.baseline], words)

    def run(self) -> None:
        """Measure all of it."""
        try:
            self._start()
            for part in ("training", "evaluation", "decoding", "breakdown", "scaling"):
                if part in self.plan.parts:
                    getattr(self, f"_{part}")()
        finally:
            self.crew.end()

    @property
    def has_samples(self) -> bool:
        """Whether at least one round is whole."""
        return any(series.values for series in self.crew.series.values())

    # Parts ------------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for job in self.plan.jobs:
            if {"training", "evaluation", "decoding", "breakdown"} & set(self.plan.parts):
                self.say(f"{job.name} is made ready")
                self.crew.start(job)
        if USING_WEIGHTS & set(self.plan.parts):
            self._give_weights()
        if "training" in self.plan.parts and self.products:
            specs = tuple(jobs[0].spec for _, jobs in self.products)
            self.crew.start(replace(self.plan.jobs[0], name=self.PRODUCTS, baseline="", weights="", products=specs))

    def _give_weights(self) -> None:
        """Give every subject trained weights, the same to all whose models are the same function of theirs."""
        for job in self.plan.jobs:
            key = same_weights(job.spec.recipe, job.spec.variant)
            if key not in self.weights:
                path = self._folder / f"weights-{len(self.weights)}.safetensors"
                source = self._made(job, key, path)
                if source is None:
                    continue
                self.weights[key] = path
                self.weights_from[str(path)] = source
            if self.crew.ask(job.name, "load", path=str(self.weights[key])) is not None:
                self.weights_from[job.name] = self.weights_from[str(self.weights[key])]

    def _made(self, job: ModelJob, key: Recipe | str, path: Path) -> str | None:
        """Write trained weights for a job and return where they come from: a run, or so many updates of the job's."""
        if key in self.plan.given:
            arrays, source = self.plan.given[key]
            tensors.write(path, arrays)
            return source
        updates = self.plan.size.learning_updates
        if job.baseline or job.name not in self.crew.facts:
            return None
        self.say(f"{job.name} trains for {updates} updates, so that its translations are as long as a model's")
        if self.crew.ask(job.name, "learn", updates=updates, path=str(path)) is None:
            return None
        return f"{updates} updates of {job.name}"

    def _can(self, job: ModelJob, what: str) -> bool:
        return bool(self.crew.facts.get(job.name, {}).get("can", {}).get(what))

    def _training(self) -> None:
        turns: list[TimedTask] = []
        for job in self.plan.jobs:
            turns += [TimedTask(job.name, "training")] * self._can(job, "train")
            turns += [TimedTask(job.name, "loop")] * (not job.baseline)
        turns += [TimedTask(self.PRODUCTS, "products", number) for number in range(len(self.products))]
        self.crew.run("training", turns, self.plan.rounds)
        self.crew.end(self.PRODUCTS)

    def _evaluation(self) -> None:
        turns = [TimedTask(job.name, "evaluation") for job in self.plan.jobs if self._can(job, "evaluate")]
        self.crew.run("evaluation", turns, self.plan.rounds)

    def _decoding(self) -> None:
        # What a baseline does one by one alone is held against batches, so both are in the same rounds.
        for ways in WAYS:
            turns = [
                TimedTask(job.name, measure)
                for measure in ways
                for job in self.plan.jobs
                if self._can(job, "translate") and (job.baseline not in ONE_BY_ONE or measure.startswith("single"))
            ]
            self.crew.run("decoding", turns, self.plan.decoding_rounds)

    def _breakdown(self) -> None:
        for job in self.plan.jobs:
            if not job.baseline and self._can(job, "train"):
                self.say(f"breakdown: {job.name}")
                answer = self.crew.ask(job.name, "breakdown")
                if answer is not None:
                    self.breakdowns[job.name] = answer

    def _scaling(self) -> None:
        self.crew.end()
        base = self.plan.base
        path = self.weights.get(same_weights(base.spec.recipe, base.spec.variant))
        for axis in scaling.axes(base, self.plan.size.name, "" if path is None else str(path)):
            folder = self._folder / axis.axis
            folder.mkdir()
            crew = RoundRobin(folder, say=self.say, check=self.crew.check, timeout_seconds=self.plan.timeout_seconds)
            self.scaling.append(scaling.follow(axis, crew))


def _by_products(
    jobs: list[ModelJob], words: tuple[int, int]
) -> tuple[tuple[tuple[Product, ...], list[ModelJob]], ...]:
    """Return the different sets of products among jobs, each with its jobs."""
    found: dict[tuple[Product, ...], list[ModelJob]] = {}
    for job in jobs:
        if job.spec.recipe is not None:
            found.setdefault(products(job.spec.recipe, words), []).append(job)
    return tuple(found.items())


def now() -> str:
    """Return the time as a document has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def running() -> float | None:
    """Return the system's mean count of running processes in the last minute; None where it does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
