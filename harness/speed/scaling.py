"""How the cost of updates and of translation grows along one axis at a time. Each size has its own process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.experiments.suites import reduced
from harness.processes import machine
from harness.speed.plan import Measure, ModelJob
from harness.speed.scheduler import RoundRobin, TimedTask
from harness.speed.speed_document import Axis, Point, Scaling
from harness.speed.timing import Samples
from harness.text import count

ROUNDS = 3
UPDATES = 2
BATCH, LENGTH = 64, 16
"""Sentences of an update, and tokens of each side, while another axis varies."""

SIZES: dict[str, dict[Axis, tuple[int, ...]]] = {
    "tutorial": {
        "batch_size": (16, 32, 64, 128, 256),
        "length": (8, 16, 32, 64),
        "threads": (1, 2, 4, 8, 16),
        "width": (64, 128, 256, 512),
        "decoding_batch_size": (1, 4, 16, 64, 256),
    },
    "quick": {
        "batch_size": (16, 64, 256),
        "length": (8, 24, 72),
        "threads": (1, 2, 4),
        "width": (64, 256),
        "decoding_batch_size": (1, 8, 64),
    },
    "toy": {
        "batch_size": (4, 16),
        "length": (4, 12),
        "threads": (1, 2),
        "width": (16, 64),
        "decoding_batch_size": (1, 4),
    },
}

DECODED = {"tutorial": 256, "quick": 64, "toy": 8}
"""The number of sentences translated at each size."""


@dataclass(frozen=True)
class ScalingAxis:
    """One axis: a job for each size, the settings that stay fixed, and why there are no jobs or some are left out."""

    axis: Axis
    measure: Measure
    jobs: tuple[tuple[int, ModelJob], ...]
    fixed: dict[str, float]
    base: str
    reason: str = ""


def axes(base: ModelJob, size: str, weights: str) -> list[ScalingAxis]:
    """Return all axes for a job; `weights` is a file of trained weights to translate with, or empty."""
    recipe, threads = base.spec.recipe, float(base.spec.threads)
    training = {"batch_size": float(BATCH), "length": float(LENGTH), "threads": threads}
    if recipe is not None:
        training["width"] = float(recipe.width)
    decoding = {"beam": 1.0, "sentences": float(DECODED[size]), "threads": threads}
    largest = {"threads": machine.cores(), "length": getattr(recipe, "max_length", None)}
    lines = []
    for axis, values in SIZES[size].items():
        measure: Measure = "greedy" if axis == "decoding_batch_size" else "training"
        if measure == "training" and axis not in training:
            continue
        reason = "" if measure == "training" or weights else "there are no trained weights to translate with"
        possible = [value for value in values if value <= (largest.get(axis) or value) and not reason]
        jobs: list[tuple[int, ModelJob]] = []
        for value in possible:
            try:
                jobs.append((value, _job(base, axis, value, size, weights)))
            except ValueError as error:  # a number of heads does not divide every width
                reason += f"{'; ' * bool(reason)}{axis} {value}: {error}"
        fixed = decoding if measure == "greedy" else {name: value for name, value in training.items() if name != axis}
        lines.append(ScalingAxis(axis, measure, tuple(jobs), fixed, base.name, reason))
    return lines


def _job(base: ModelJob, axis: Axis, value: int, size: str, weights: str) -> ModelJob:
    """Return the job of one size: updates on synthetic batches, or translation with trained weights."""
    spec = base.spec
    if axis == "decoding_batch_size":
        spec = replace(spec, decoding=replace(spec.decoding, batch_size=value))
        amounts = replace(base.amounts, sentences=DECODED[size])
        return replace(base, name=f"{axis} {value}", spec=spec, amounts=amounts, weights=weights)
    spec = replace(spec, training=replace(spec.training, batch_size=value if axis == "batch_size" else BATCH))
    if axis == "threads":
        spec = replace(spec, threads=value)
    if axis == "width" and spec.recipe is not None:
        spec = replace(spec, recipe=reduced(spec.recipe, value))
    amounts = replace(base.amounts, updates=UPDATES if size != "toy" else 1)
    length = value if axis == "length" else LENGTH
    return replace(base, name=f"{axis} {value}", spec=spec, amounts=amounts, weights="", synthetic_length=length)


def measure_axis(axis: ScalingAxis, scheduler: RoundRobin) -> Scaling:
    """Time every size of an axis in turns, end the processes, and fit the exponent of the cost."""
    tasks = [TimedTask(job.name, axis.measure) for _, job in axis.jobs]
    try:
        for _, job in axis.jobs:
            scheduler.start(job)
        scheduler.run(f"scaling with {axis.axis.replace('_', ' ')}", tasks, ROUNDS)
    finally:
        scheduler.close()
    points = []
    for (size, job), task in zip(axis.jobs, tasks, strict=True):
        values = scheduler.samples(job.name, axis.measure)
        if values:
            updates = 1 if axis.measure == "greedy" else job.amounts.updates
            synthetic_tokens = 2 * (job.synthetic_length or 0) * job.spec.training.batch_size
            tokens = scheduler.series[task].facts.get("words") or synthetic_tokens
            samples = Samples.of([seconds / updates for seconds in values])
            points.append(Point(size=float(size), seconds=samples, tokens=tokens))
    failures = scheduler.lost | {task.model: error for task, error in scheduler.refused.items()}
    reason = "; ".join(filter(None, [axis.reason, *(f"{name}: {error}" for name, error in failures.items())]))
    if len(points) < 2 and not reason:
        reason = f"{count(len(points), 'size')} can be measured on this machine; a fit needs two"
    return Scaling(axis=axis.axis, subject=axis.base, fixed=axis.fixed, points=tuple(points), reason=reason)
