"""How the cost of an update and of translating grows along one axis at a time, each size in a process of its own."""

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
"""Sentences and tokens a side of an update where another axis is followed."""

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
"""How many sentences are translated at each size."""


@dataclass(frozen=True)
class ScalingAxis:
    """An axis to follow: a job for each size, and what is fixed."""

    axis: Axis
    measure: Measure
    jobs: tuple[tuple[int, ModelJob], ...]
    fixed: dict[str, float]
    base: str
    reason: str = ""


def axes(base: ModelJob, size: str, weights: str) -> list[ScalingAxis]:
    """Return what is to be followed for a job; `weights` is a file of trained ones to translate with, or nothing."""
    spec, sizes = base.spec, SIZES[size]
    updates = UPDATES if size != "toy" else 1

    def at(spec: RunSpec, *, rows: int = BATCH, length: int = LENGTH) -> ModelJob:
        spec = replace(spec, training=replace(spec.training, batch_size=rows))
        synthetic = Synthetic(length=length)
        return replace(base, name=f"{base.name} {spec.threads} {rows} {length}", spec=spec, updates=updates,
                       weights="", synthetic=synthetic)  # fmt: skip

    fixed = {"batch_size": float(BATCH), "length": float(LENGTH), "threads": float(spec.threads)}
    made: dict[Axis, Callable[[int], ModelJob]] = {
        "batch_size": lambda value: at(spec, rows=value),
        "length": lambda value: at(spec, length=value),
        "threads": lambda value: at(replace(spec, threads=value)),
    }
    recipe = spec.recipe
    if recipe is not None:
        fixed["width"] = float(recipe.width)
        made["width"] = lambda value: at(replace(spec, recipe=reduced(recipe, value)))
    longest = getattr(recipe, "max_length", 10**9)
    found = []
    for axis, make in made.items():
        values = [one for one in sizes[axis] if _possible(axis, one, longest)]
        jobs = tuple((value, replace(make(value), name=f"{axis} {value}")) for value in values)
        found.append(
            ScalingAxis(axis, "training", jobs, {name: one for name, one in fixed.items() if name != axis}, base.name)
        )
    return [*found, _decoding(base, size, weights)]


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


def follow(line: ScalingAxis, crew: RoundRobin) -> Scaling:
    """Time every size of an axis in turns and fit how the cost grows; the processes are ended."""
    try:
        for _, job in line.jobs:
            crew.start(job)
        crew.run(
            f"scaling with {line.axis.replace('_', ' ')}",
            [TimedTask(job.name, line.measure) for _, job in line.jobs],
            ROUNDS,
        )
    finally:
        crew.end()
    points = []
    for size, job in line.jobs:
        values = crew.samples(job.name, line.measure)
        if not values:
            continue
        facts = crew.series[TimedTask(job.name, line.measure)].facts
        each = 1 if line.measure == "greedy" else job.updates
        length = job.synthetic.length if job.synthetic else 0
        tokens = facts.get("words") or 2 * length * job.spec.training.batch_size
        points.append(Point(size=float(size), seconds=Samples.of([one / each for one in values]), tokens=tokens))
    reason = line.reason or "; ".join(f"{name}: {why}" for name, why in crew.lost.items())
    found = Scaling(axis=line.axis, subject=line.base, fixed=line.fixed, points=tuple(points), reason=reason)
    if len(points) < 2:
        return replace(found, reason=reason or f"{len(points)} sizes can be had here: two are needed for a fit")
    fit = timing.growth([one.size for one in points], [one.seconds.median for one in points])
    return replace(found, exponent=fit.exponent, standard_error=fit.standard_error)
