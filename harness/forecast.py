"""How long runs will take: from their arithmetic and this machine's speed at first, from the runs themselves later."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.data.prepared import Prepared
from harness.data.vocabulary import Split
from harness.progress import Event
from harness.specs import RunSpec
from impls import weights
from impls.contract import GruRecipe, Recipe, TransformerRecipe

# Measured once on two cores, as shares of the rate of NumPy's matrix multiplication there; good to a factor of about
# 1.5, which is why every forecast is corrected by the runs as soon as they are under way.
EFFICIENCY = {"transformer": 0.45, "torch_reference": 0.40, "gru": 0.40}
START_SECONDS = 6.0
UPDATE_SECONDS = 0.012
PARAMETER_SECONDS = 6e-9
ENERGY_OPERATIONS = 16
DECODING_SECONDS = 0.004


def operations(recipe: Recipe, words: tuple[int, int], source: float, target: float, pairs: float) -> float:
    """Return about how many multiplications and additions one pass forward takes over so many tokens of each side.

    Every weight of a kernel is used once a token; the additive attention of the GRU once a pair of positions besides,
    and `pairs` counts these.
    """
    total = 0.0
    for name, shape in weights.shapes(recipe, *words).items():
        if not name.endswith(".kernel") and name != "target.embedding":
            continue
        if name == "target.embedding" and getattr(recipe, "tying", "none") == "none":
            continue
        of_source = name.startswith(("encoder", "attention")) or ".cross.key" in name or ".cross.value" in name
        total += 2 * math.prod(shape) * (source if of_source else target)
    width = recipe.width
    return total + (ENERGY_OPERATIONS if isinstance(recipe, GruRecipe) else 4) * width * pairs


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


def estimate_seconds(spec: RunSpec, prepared: Prepared, rate: float) -> float:
    """Return about how long a run takes on a machine that multiplies matrices at `rate`."""
    recipe = spec.recipe or TransformerRecipe()
    words = len(prepared.source_words), len(prepared.target_words)
    per_epoch = -(-len(prepared.train) // spec.training.batch_size)
    updates = min(spec.updates or 2**62, spec.training.epochs * per_epoch)
    epochs = updates / per_epoch
    speed = rate * EFFICIENCY[recipe.family]
    forward = {
        name: operations(recipe, words, *_lengths(split)) / speed
        for name, split in (("train", prepared.train), ("validation", prepared.validation), ("test", prepared.test))
    }
    each_update = UPDATE_SECONDS + PARAMETER_SECONDS * weights.count(recipe, *words)
    training = epochs * 3 * forward["train"] + updates * each_update
    decoding = spec.decoding.beam * (forward["test"] * 2 + DECODING_SECONDS * len(prepared.test))
    return START_SECONDS + training + math.ceil(epochs) * forward["validation"] + decoding


def _lengths(split: Split) -> tuple[float, float, float]:
    """Return the tokens of each side and the pairs of positions of a split."""
    source, target = np.array([len(one) for one in split.source]), np.array([len(one) for one in split.target])
    return float(source.sum()), float(target.sum()), float((source * target).sum())


@dataclass
class Forecast:
    """The time that a set of runs still takes, corrected by what is known of those that have begun.

    `estimates`: seconds by id for each run of the set; empty where nothing is known of the machine.
    """

    estimates: Mapping[str, float]
    jobs: int
    began: dict[str, float] = field(default_factory=dict)
    remaining: dict[str, float] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    def start(self, run: str) -> None:
        """Note that a run begins now."""
        self.began[run] = time.monotonic()

    def note(self, event: Event) -> None:
        """Note what a run says of its own time."""
        if event.remaining_seconds is not None:
            self.remaining[event.run] = time.monotonic() + event.remaining_seconds

    def end(self, run: str) -> None:
        """Note that a run has ended now."""
        self.took[run] = time.monotonic() - self.began.pop(run)
        self.remaining.pop(run, None)

    def seconds(self) -> float | None:
        """Return the seconds that are left; None where nothing is known yet."""
        now = time.monotonic()
        known = {run: self.took[run] for run in self.took}
        known |= {run: end - self.began[run] for run, end in self.remaining.items() if run in self.began}
        guessed = sum(self.estimates[run] for run in known)
        factor = sum(known.values()) / guessed if guessed else 1.0
        left = []
        for run, estimate in self.estimates.items():
            if run in self.took:
                continue
            whole = known.get(run, estimate * factor)
            left.append(max(0.0, whole - (now - self.began[run] if run in self.began else 0.0)))
        if not self.estimates or not math.isfinite(factor):
            return None
        return max(sum(left) / self.jobs, max(left, default=0.0))
