"""How long runs will take: from their arithmetic and this machine's speed at first, from the runs themselves later."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.data.batches import updates_per_epoch
from harness.data.dataset import Dataset
from harness.data.vocabulary import Split
from harness.experiments.specs import RunSpec
from harness.processes.progress import Event
from impls import weights
from impls.contract import GruRecipe, Recipe, TransformerRecipe
from impls.flops import Tokens, forward_operations, of_lengths

# Measured once on one core of a server, for all built-in variants at the widths 128 and 256: good to a third or so,
# which is why every forecast is corrected by the runs as soon as they are under way.
EFFICIENCY = 0.83  # of NumPy's own rate of matrix multiplication
ELEMENT_OPERATIONS = 170  # what reading and writing a number of an activation costs, in such operations
START_SECONDS = 6.0
UPDATE_SECONDS = 0.012
PARAMETER_SECONDS = 6e-9
DECODING_SECONDS = 0.004
SLOWER = {"tensorflow": 1.5, "jax": 4.0, "torch": 1.5}  # Keras's backends, in units of this package's torch models
COMPILING_SECONDS = {"tensorflow": 25.0, "jax": 90.0, "torch": 6.0}


def elements(recipe: Recipe, words: tuple[int, int], counted: Tokens) -> float:
    """Return about how many numbers of activations one pass forward writes: what is left when matrices cost nothing."""
    source, target, pairs = counted.source, counted.target, counted.cross_pairs
    logits = words[1] * target
    if isinstance(recipe, GruRecipe):
        return logits + 10 * recipe.width * (2 * source + target) + 2 * recipe.width * pairs
    inner = 4 * recipe.ffn_width
    of_source, of_target = 12 * recipe.width + inner, 20 * recipe.width + inner
    return logits + recipe.layers * (of_source * source + of_target * target) + 6 * recipe.layers * recipe.heads * pairs


def machine_rate(seconds: float = 0.4) -> float:
    """Return how many multiplications and additions of float32 numbers this process does in a second."""
    size = 768
    first = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    first @ first
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        first @ first
        done += 1
    return 2 * size**3 * done / (time.perf_counter() - began)


@dataclass(frozen=True)
class Estimate:
    """How long a whole run takes: its updates and validations, and all else, which each of its processes does anew."""

    training_seconds: float
    other_seconds: float = 0.0

    def seconds(self, done: float = 0.0) -> float:
        """Return how long a run takes of which this share of the updates is done already."""
        return (1 - done) * self.training_seconds + self.other_seconds


def all_updates(spec: RunSpec, prepared: Dataset) -> int:
    """Return the updates of a whole run."""
    each = updates_per_epoch(prepared.train, spec.training)
    return min(spec.updates or 2**62, spec.training.epochs * each)


def estimate(spec: RunSpec, prepared: Dataset, rate: float) -> Estimate:
    """Return about how long a run takes on a machine that multiplies matrices at `rate`."""
    recipe = spec.recipe or TransformerRecipe()
    words = len(prepared.source_words), len(prepared.target_words)
    updates = all_updates(spec, prepared)
    epochs = updates / updates_per_epoch(prepared.train, spec.training)
    train, validation, test = (
        forward_operations(recipe, words, counted) / (rate * EFFICIENCY)
        + elements(recipe, words, counted) * ELEMENT_OPERATIONS / rate
        for counted in map(_tokens, (prepared.train, prepared.validation, prepared.test))
    )
    each_update = UPDATE_SECONDS + PARAMETER_SECONDS * weights.count(recipe, *words)
    training = epochs * 3 * train + updates * each_update + math.ceil(epochs) * validation
    decoding = spec.decoding.beam * (2 * test + DECODING_SECONDS * len(prepared.test))
    slower, compiling = (SLOWER[spec.backend], COMPILING_SECONDS[spec.backend]) if spec.backend else (1.0, 0.0)
    return Estimate(slower * training, START_SECONDS + slower * decoding + compiling)


def _tokens(split: Split) -> Tokens:
    """Count what a pass forward over a split sees: of a target all words but the last are read."""
    source, target = (np.array([len(one) for one in side], dtype=np.int64) for side in (split.source, split.target))
    return of_lengths(source, target - 1)


@dataclass
class Forecast:
    """The time that a set of runs still takes, corrected by what is known of those that have begun.

    `estimates`: by id for each run of the set; empty where nothing is known of the machine. `done`: the share of the
    updates that the checkpoint of a run has.
    """

    estimates: Mapping[str, Estimate]
    jobs: int
    done: dict[str, float] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    remaining: dict[str, float] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)

    def start(self, run: str) -> None:
        """Note that a run begins now."""
        self.began[run] = time.monotonic()

    def note(self, event: Event) -> None:
        """Note what a run says of its own time."""
        if event.stage == "preparing" and event.all_updates:
            self.done[event.run] = event.updates / event.all_updates
        if event.remaining_seconds is not None:
            self.remaining[event.run] = time.monotonic() + event.remaining_seconds

    def end(self, run: str) -> None:
        """Note that a run has ended now; one that was never begun here tells nothing of how long the others take."""
        self.over.add(run)
        if run in self.began:
            self.took[run] = time.monotonic() - self.began.pop(run)
        self.remaining.pop(run, None)

    def put_back(self, run: str) -> None:
        """Note that a run that was begun is to be run again, or is another process's."""
        self.began.pop(run, None)
        self.remaining.pop(run, None)

    def seconds(self) -> float | None:
        """Return the seconds that are left; None where nothing is known yet."""
        if not self.estimates:
            return None
        now = time.monotonic()
        known = {run: self.took[run] for run in self.took}
        known |= {run: end - self.began[run] for run, end in self.remaining.items() if run in self.began}
        guesses = {run: one.seconds(self.done.get(run, 0.0)) for run, one in self.estimates.items()}
        guessed = sum(guesses[run] for run in known)
        factor = sum(known.values()) / guessed if guessed else 1.0
        left = []
        for run, guess in guesses.items():
            if run in self.over:
                continue
            whole = known.get(run, guess * factor)
            left.append(max(0.0, whole - (now - self.began[run] if run in self.began else 0.0)))
        if not math.isfinite(factor):
            return None
        return max(sum(left) / self.jobs, max(left, default=0.0))
