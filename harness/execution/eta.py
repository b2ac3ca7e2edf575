"""Estimates how long runs take: from their arithmetic and the speed of this machine, then from the runs themselves."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.data.batches import updates_per_epoch
from harness.data.dataset import Dataset
from harness.data.vocabulary import Split
from harness.experiments.specs import RunSpec
from harness.processes.environment_variables import thread_environment
from harness.processes.machine import REPOSITORY
from harness.processes.progress import Event
from impls import weights
from impls.contract import GruRecipe, Recipe, TransformerRecipe
from impls.flops import Tokens, forward_operations, of_lengths

# Measured on one core of a server for all built-in variants at the widths 128 and 256. Estimates are within about a
# third of the measured times, and are corrected as soon as runs are in progress.
EFFICIENCY = 0.83  # of the rate of matrix multiplication
ELEMENT_OPERATIONS = 170  # the time to read and write one activation, in multiplications and additions
START_SECONDS = 6.0
UPDATE_SECONDS = 0.012
PARAMETER_SECONDS = 6e-9
DECODING_SECONDS = 0.004
SLOWER = {"tensorflow": 1.5, "jax": 4.0, "torch": 1.5}  # Keras backends, relative to the torch models
COMPILING_SECONDS = {"tensorflow": 25.0, "jax": 90.0, "torch": 6.0}

_MEASURE_RATE = f"""
import contextlib, sys, time, numpy
context = contextlib.nullcontext()
matrix = numpy.random.default_rng(0).standard_normal((512, 512)).astype(numpy.float32)
with contextlib.suppress(ImportError):
    import torch
    sys.path.insert(0, {str(REPOSITORY)!r})
    from impls.pytorch.matmul_precision import training_products
    matrix, context = torch.from_numpy(matrix), training_products("highest", "cpu")
with context:
    matrix @ matrix
    products, start = 0, time.process_time()
    while time.process_time() - start < 0.2:
        matrix @ matrix
        products += 1
    print(2 * 512**3 * products / (time.process_time() - start))
"""


def elements(recipe: Recipe, vocabulary_sizes: tuple[int, int], tokens: Tokens) -> float:
    """Return the approximate number of activations that one forward pass writes."""
    source, target, pairs = tokens.source, tokens.target, tokens.cross_pairs
    logits = vocabulary_sizes[1] * target
    if isinstance(recipe, GruRecipe):
        return logits + 10 * recipe.width * (2 * source + target) + 2 * recipe.width * pairs
    ffn = 4 * recipe.ffn_width
    encoder, decoder = 12 * recipe.width + ffn, 20 * recipe.width + ffn
    return logits + recipe.layers * (encoder * source + decoder * target) + 6 * recipe.layers * recipe.heads * pairs


@functools.cache
def core_rate() -> float:
    """Measure how fast one core multiplies float32 matrices, once per process. Units: operations per second.

    It is measured with one thread and in CPU time, so that other processes hardly change it; as models in torch
    multiply in training, or with NumPy if torch is not installed.
    """
    command, environment = [sys.executable, "-c", _MEASURE_RATE], os.environ | thread_environment(1, None)
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(process.stdout)


@dataclass(frozen=True)
class Estimate:
    """The time of a whole run: its updates and validations, and the rest, which a resumed run repeats."""

    training_seconds: float
    other_seconds: float = 0.0

    def seconds(self, progress: float = 0.0) -> float:
        """Return the remaining time of a run if this share of its updates is done."""
        return (1 - progress) * self.training_seconds + self.other_seconds


def all_updates(spec: RunSpec, dataset: Dataset) -> int:
    """Return the number of updates of a whole run."""
    return min(spec.updates or 2**62, spec.training.epochs * updates_per_epoch(dataset.train, spec.training))


def estimate(spec: RunSpec, dataset: Dataset, rate: float) -> Estimate:
    """Estimate the time of a run on cores with this rate of matrix multiplication that nothing else uses."""
    recipe = spec.recipe or TransformerRecipe()
    sizes, updates = dataset.vocabulary_sizes, all_updates(spec, dataset)
    epochs = updates / updates_per_epoch(dataset.train, spec.training)
    train, validation, test = (
        forward_operations(recipe, sizes, tokens) / (rate * EFFICIENCY)
        + elements(recipe, sizes, tokens) * ELEMENT_OPERATIONS / rate
        for tokens in map(_tokens, (dataset.train, dataset.validation, dataset.test))
    )
    update_overhead = UPDATE_SECONDS + PARAMETER_SECONDS * weights.count(recipe, *sizes)
    training = epochs * 3 * train + updates * update_overhead + math.ceil(epochs) * validation
    decoding = spec.decoding.beam * (2 * test + DECODING_SECONDS * len(dataset.test))
    slower, compiling = (SLOWER[spec.backend], COMPILING_SECONDS[spec.backend]) if spec.backend else (1.0, 0.0)
    return Estimate(slower * training, START_SECONDS + slower * decoding + compiling)


def _tokens(split: Split) -> Tokens:
    """Count the tokens of a forward pass over a split: the decoder reads all target tokens but the last."""
    source, target = (np.array([len(ids) for ids in side], dtype=np.int64) for side in (split.source, split.target))
    return of_lengths(source, target - 1)


@dataclass
class Forecast:
    """The remaining time of a set of runs, corrected by the times of those in progress.

    Attributes:
        estimates: The estimate of each run by id; empty if the speed of the machine is unknown.
        jobs: The number of simultaneous runs.
        progress: The share of the updates that the checkpoint of a run has, by id.
    """

    estimates: Mapping[str, Estimate]
    jobs: int
    progress: dict[str, float] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)
    _ends: dict[str, float] = field(default_factory=dict)
    _took: dict[str, float] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def start(self, run: str) -> None:
        """Note that a run starts now."""
        self._started[run] = time.monotonic()

    def note(self, event: Event) -> None:
        """Note the progress that a run reports."""
        if event.stage == "preparing" and event.all_updates:
            self.progress[event.run] = event.updates / event.all_updates
        if event.remaining_seconds is not None:
            self._ends[event.run] = time.monotonic() + event.remaining_seconds

    def end(self, run: str, *, completed: bool = True) -> None:
        """Note that a run ends now, here or in another process; only completed ones show how long runs take."""
        self._ended.add(run)
        if run in self._started and completed:
            self._took[run] = time.monotonic() - self._started[run]
        self.put_back(run)

    def put_back(self, run: str) -> None:
        """Note that a run is no longer in progress here."""
        self._started.pop(run, None)
        self._ends.pop(run, None)

    def seconds(self) -> float | None:
        """Return the remaining seconds, or None if they are unknown, as when a run has used up its estimate."""
        if not self.estimates:
            return None
        now = time.monotonic()
        expected = {run: estimate.seconds(self.progress.get(run, 0.0)) for run, estimate in self.estimates.items()}
        measured = self._took | {
            run: end - self._started[run] for run, end in self._ends.items() if run in self._started
        }
        expected_of_measured = sum(expected[run] for run in measured)
        factor = sum(measured.values()) / expected_of_measured if expected_of_measured else 1.0
        if not math.isfinite(factor):
            return None
        remaining = [
            max(0.0, measured.get(run, seconds * factor) - (now - self._started.get(run, now)))
            for run, seconds in expected.items()
            if run not in self._ended
        ]
        return max(sum(remaining) / self.jobs, max(remaining, default=0.0)) or None
