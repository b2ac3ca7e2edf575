"""How the cost of updates and of translation grows along one axis at a time. Each size has its own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.experiments.specs import RunSpec
from harness.experiments.suites import reduced
from harness.processes import machine
from harness.speed import timing
from harness.speed.plan import Measure, ModelJob, Synthetic
from harness.speed.scheduler import RoundRobin, TimedTask
from harness.speed.speed_document import Axis, Point, Scaling
from harness.speed.timing import Samples

ROUNDS = 3
UPDATES = 2
BATCH, LENGTH = 64, 16
"""Sentences of an update, and tokens of each side, while another axis varies."""

SIZES: dict[str, dict[Axis, tuple[int, ...]]] = {
    "tutorial": {
        "batch_size": (16, 32, 64, 128, 256),
        "length": (8, 16, 32, 64),
        "width": (64, 128, 256, 512),
        "threads": (1, 2, 4, 8, 16),
        "decoding_batch_size": (1, 4, 16, 64, 256),
    },
    "quick": {
        "batch_size": (16, 64, 256),
        "length": (8, 24, 72),
        "width": (64, 256),
        "threads": (1, 2, 4),
        "decoding_batch_size": (1, 8, 64),
    },
    "toy": {
        "batch_size": (4, 16),
        "length": (4, 12),
        "width": (16, 64),
        "threads": (1, 2),
        "decoding_batch_size": (1, 4),
    },
}
"""The sizes along each axis, by the name of a measurement's size."""

DECODED = {"tutorial": 256, "quick": 64, "toy": 8}
"""The number of sentences translated at each size."""


@dataclass(frozen=True)
class ScalingAxis:
    """One axis: a job for each size, and the settings that stay fixed.

    Attributes:
        axis: What varies.
        measure: What is timed.
        jobs: The sizes and their jobs.
        fixed: The other settings.
        base: The name of the model.
        reason: Why there are no jobs.
    """

    axis: Axis
    measure: Measure
    jobs: tuple[tuple[int, ModelJob], ...]
    fixed: dict[str, float]
    base: str
    reason: str = ""


def axes(base: ModelJob, size: str, weights: str) -> list[ScalingAxis]:
    """Return all axes for a job; `weights` is a file of trained weights to translate with, or empty."""
    spec, sizes = base.spec, SIZES[size]
    updates = UPDATES if size != "toy" else 1

    def at(spec: RunSpec, *, rows: int = BATCH, length: int = LENGTH) -> ModelJob:
        spec = replace(spec, training=replace(spec.training, batch_size=rows))
        synthetic = Synthetic(length=length)
        return replace(base, name=f"{base.name} {spec.threads} {rows} {length}", spec=spec, updates=updates,
                       weights="", synthetic=synthetic)  # fmt: skip

    fixed = {"batch_size": float(BATCH), "length": float(LENGTH), "threads": float(spec.threads)}
    jobs_of: dict[Axis, Callable[[int], ModelJob]] = {
        "batch_size": lambda value: at(spec, rows=value),
        "length": lambda value: at(spec, length=value),
        "threads": lambda value: at(replace(spec, threads=value)),
    }
    recipe = spec.recipe
    if recipe is not None:
        fixed["width"] = float(recipe.width)
        jobs_of["width"] = lambda value: at(replace(spec, recipe=reduced(recipe, value)))
    longest = getattr(recipe, "max_length", 10**9)
    result = []
    for axis, job_of in jobs_of.items():
        values = [value for value in sizes[axis] if _possible(axis, value, longest)]
        jobs = tuple((value, replace(job_of(value), name=f"{axis} {value}")) for value in values)
        others = {name: value for name, value in fixed.items() if name != axis}
        result.append(ScalingAxis(axis, "training", jobs, others, base.name))
    return [*result, _decoding(base, size, weights)]


def _possible(axis: Axis, value: int, longest: int) -> bool:
    return value <= {"threads": machine.cores(), "length": longest}.get(axis, value)


def _decoding(base: ModelJob, size: str, weights: str) -> ScalingAxis:
    count = DECODED[size]
    jobs = tuple(
        (
            rows,
            replace(
                base,
                name=f"decoding_batch_size {rows}",
                spec=replace(base.spec, decoding=replace(base.spec.decoding, batch_size=rows)),
                weights=weights,
                sentences=count,
            ),
        )
        for rows in SIZES[size]["decoding_batch_size"]
    )
    fixed = {"beam": 1.0, "sentences": float(count), "threads": float(base.spec.threads)}
    reason = "" if weights else "there are no trained weights to translate with"
    return ScalingAxis("decoding_batch_size", "greedy", jobs if weights else (), fixed, base.name, reason)


def measure_axis(axis: ScalingAxis, scheduler: RoundRobin) -> Scaling:
    """Time every size of an axis in turns, end the processes, and fit the exponent of the cost."""
    try:
        for _, job in axis.jobs:
            scheduler.start(job)
        scheduler.run(
            f"scaling with {axis.axis.replace('_', ' ')}",
            [TimedTask(job.name, axis.measure) for _, job in axis.jobs],
            ROUNDS,
        )
    finally:
        scheduler.close()
    points = []
    for size, job in axis.jobs:
        values = scheduler.samples(job.name, axis.measure)
        if not values:
            continue
        facts = scheduler.series[TimedTask(job.name, axis.measure)].facts
        updates = 1 if axis.measure == "greedy" else job.updates
        length = job.synthetic.length if job.synthetic else 0
        tokens = facts.get("words") or 2 * length * job.spec.training.batch_size
        points.append(
            Point(size=float(size), seconds=Samples.of([seconds / updates for seconds in values]), tokens=tokens)
        )
    reason = axis.reason or "; ".join(f"{name}: {why}" for name, why in scheduler.lost.items())
    measured = Scaling(axis=axis.axis, subject=axis.base, fixed=axis.fixed, points=tuple(points), reason=reason)
    if len(points) < 2:
        return replace(measured, reason=reason or f"{len(points)} sizes are possible on this machine; a fit needs two")
    fit = timing.growth([point.size for point in points], [point.seconds.median for point in points])
    return replace(measured, exponent=fit.exponent, standard_error=fit.standard_error)
