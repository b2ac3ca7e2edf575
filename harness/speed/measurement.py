"""Carries out a plan part by part and keeps the measurements so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.data.dataset import Dataset
from harness.processes import machine
from harness.speed import scaling
from harness.speed.plan import (
    DECODINGS,
    SINGLE,
    USING_WEIGHTS,
    WITHOUT_BATCHES,
    MeasurementPlan,
    ModelJob,
    Part,
    weights_key,
)
from harness.speed.scheduler import RoundRobin, TimedTask
from harness.speed.speed_document import Scaling
from harness.storage import tensors
from impls.contract import Recipe
from impls.flops import Product, products

PRODUCTS = "matrix products"
"""The name of the process that multiplies matrices to measure the matmul peak."""


class Measurement:
    """A measurement in progress.

    Args:
        plan: What to measure.
        dataset: The prepared corpus of the plan.
        folder: A folder for logs and weights.
        say, check: As in `RoundRobin`.
    """

    def __init__(
        self,
        plan: MeasurementPlan,
        dataset: Dataset,
        folder: Path,
        *,
        say: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        self.plan, self.dataset, self.say = plan, dataset, say
        self._folder = folder
        self.started = now()
        self.load_before = machine.load_average()
        self.scheduler = RoundRobin(folder, say=say, check=check, timeout_seconds=plan.timeout_seconds)
        self.weights_from: dict[str, str] = {}
        self.weights: dict[Recipe | str, Path] = {}
        self.breakdowns: dict[str, dict[str, Any]] = {}
        self.scaling: list[Scaling] = []
        self.products = _by_products([job for job in plan.jobs if not job.baseline], dataset.vocabulary_sizes)

    def run(self) -> None:
        parts: dict[Part, Callable[[], None]] = {
            "training": self._measure_training,
            "evaluation": self._measure_evaluation,
            "decoding": self._measure_decoding,
            "breakdown": self._measure_breakdown,
            "scaling": self._measure_scaling,
        }
        try:
            self._start()
            for part, measure in parts.items():
                if part in self.plan.parts:
                    measure()
        finally:
            self.scheduler.close()

    @property
    def has_samples(self) -> bool:
        timed = any(series.values for series in self.scheduler.series.values())
        return timed or bool(self.breakdowns) or any(axis.points for axis in self.scaling)

    def _start(self) -> None:
        if set(self.plan.parts) != {"scaling"}:
            for job in self.plan.jobs:
                self.say(f"{job.name} is made ready")
                self.scheduler.start(job)
        if USING_WEIGHTS & set(self.plan.parts):
            self._provide_weights()
        if "training" in self.plan.parts and self.products:
            specs = tuple(jobs[0].spec for _, jobs in self.products)
            self.scheduler.start(replace(self.plan.jobs[0], name=PRODUCTS, baseline="", weights="", products=specs))

    def _provide_weights(self) -> None:
        """Load trained weights into every model: the same into all models that compute the same function."""
        origins: dict[Recipe | str, str] = {}
        for job in self.plan.jobs:
            key = weights_key(job.spec)
            if key not in self.weights:
                path = self._folder / f"weights-{len(self.weights)}.safetensors"
                origin = self._write_weights(job, key, path)
                if origin is None:
                    continue
                self.weights[key], origins[key] = path, origin
            if self.scheduler.request(job.name, "load", path=str(self.weights[key])) is not None:
                self.weights_from[job.name] = origins[key]

    def _write_weights(self, job: ModelJob, key: Recipe | str, path: Path) -> str | None:
        """Write trained weights for a job and return their origin: a run, or a number of updates of the job's model."""
        if key in self.plan.trained:
            arrays, origin = self.plan.trained[key]
            tensors.write(path, arrays)
            return origin
        updates = self.plan.amounts.learning_updates
        if job.baseline or job.name not in self.scheduler.facts:
            return None
        self.say(f"{job.name} trains for {updates} updates, so that its translations are as long as a model's")
        if self.scheduler.request(job.name, "train", updates=updates, path=str(path)) is None:
            return None
        return f"{updates} updates of {job.name}"

    def _can(self, job: ModelJob, ability: str) -> bool:
        return ability in self.scheduler.facts.get(job.name, {}).get("abilities", ())

    def _measure_training(self) -> None:
        tasks = [TimedTask(job.name, "training") for job in self.plan.jobs if self._can(job, "train")]
        tasks += [TimedTask(PRODUCTS, "products", index) for index in range(len(self.products))]
        self.scheduler.run("training", tasks, self.plan.amounts.rounds)
        self.scheduler.close(PRODUCTS)

    def _measure_evaluation(self) -> None:
        tasks = [TimedTask(job.name, "evaluation") for job in self.plan.jobs if self._can(job, "evaluate")]
        self.scheduler.run("evaluation", tasks, self.plan.amounts.rounds)

    def _measure_decoding(self) -> None:
        for measure in DECODINGS:
            tasks = [
                TimedTask(job.name, measure)
                for job in self.plan.jobs
                if self._can(job, "translate") and (job.baseline not in WITHOUT_BATCHES or measure in SINGLE)
            ]
            self.scheduler.run("decoding", tasks, self.plan.amounts.decoding_rounds)

    def _measure_breakdown(self) -> None:
        for job in self.plan.jobs:
            if not job.baseline and self._can(job, "train"):
                self.say(f"breakdown: {job.name}")
                answer = self.scheduler.request(job.name, "profile")
                if answer is not None:
                    self.breakdowns[job.name] = answer

    def _measure_scaling(self) -> None:
        self.scheduler.close()
        base = self.plan.base
        path = self.weights.get(weights_key(base.spec))
        for axis in scaling.axes(base, self.plan.amounts.name, "" if path is None else str(path)):
            folder = self._folder / axis.axis
            folder.mkdir()
            scheduler = RoundRobin(
                folder, say=self.say, check=self.scheduler.check, timeout_seconds=self.plan.timeout_seconds
            )
            self.scaling.append(scaling.measure_axis(axis, scheduler))


def _by_products(
    jobs: Sequence[ModelJob], words: tuple[int, int]
) -> tuple[tuple[tuple[Product, ...], list[ModelJob]], ...]:
    """Return the different sets of matrix products, each with the jobs of the recipes that contain them."""
    jobs_of: dict[tuple[Product, ...], list[ModelJob]] = {}
    for job in jobs:
        if job.spec.recipe is not None:
            jobs_of.setdefault(products(job.spec.recipe, words), []).append(job)
    return tuple(jobs_of.items())


def now() -> str:
    """Return the current time (UTC) in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
