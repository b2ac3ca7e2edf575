"""The measurements of one model, as stored in a speed document: training, evaluation, decoding and breakdown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt, MaxLen

from harness.speed.timing import Checked, Samples

Count = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[int, Gt(0), Lt(2**63)]
Number = Annotated[float, Ge(0)]
LONGEST_TEXT = 4_000
"""The most characters of a text in a document."""
String = Annotated[str, MaxLen(LONGEST_TEXT)]

Kind = Literal["variant", "peer"]
Ending = Literal["completed", "failed", "missing"]
Group = Literal[
    "matrix products",
    "attention",
    "softmax and loss",
    "norm and activation",
    "dropout",
    "optimiser",
    "clipping",
    "embedding",
    "copies and other",
    "interpreter",
    "data",
    "harness",
    "compute",
]
"""Parts of the time of an update; "compute" replaces those up to "interpreter" if the framework shows no operators."""


@dataclass(frozen=True, kw_only=True)
class Times(Checked):
    """The seconds of each round, and the peak memory of the process and of the device during the warm-up."""

    seconds: Samples
    peak_memory_bytes: Count | None = None
    device_memory_bytes: Count | None = None


@dataclass(frozen=True, kw_only=True)
class TokenTimes(Times):
    """Times of work on `target` tokens, which takes `operations` multiplications and additions."""

    target: Positive
    operations: Count

    @property
    def target_per_second(self) -> float:
        return self.target / self.seconds.median

    @property
    def operations_per_second(self) -> float:
        return self.operations / self.seconds.median


@dataclass(frozen=True, kw_only=True)
class TrainingTimes(TokenTimes):
    """Times of training: a round has `updates` updates. Rates are those of the median round.

    Attributes:
        target: Target tokens of the batches, without padding.
        operations: Multiplications and additions for the real tokens of the batches, by formula.
        first_update_seconds: The time of the first update, compilation included.
    """

    updates: Positive
    first_update_seconds: Number

    @property
    def update_seconds(self) -> float:
        return self.seconds.median / self.updates


@dataclass(frozen=True, kw_only=True)
class EvaluationTimes(TokenTimes):
    """Times of evaluation: the loss of `target` tokens, forward pass only, and the result."""

    nats_per_token: Number


@dataclass(frozen=True, kw_only=True)
class DecodingTimes(Times):
    """Times of translating all `sentences` in batches of `batch_size`.

    Attributes:
        words: The tokens of all translations without `<eos>`.
        unfinished: Translations without `<eos>` (of a baseline, which does not tell: those of the greatest length); an
            untrained model finishes none.
        digest: The SHA-256 of the translations.
        compared_with: The model with the same weights that translated the same sentences.
        equal: The number of translations that are identical with those of `compared_with`.
    """

    name: String
    beam: Positive
    batch_size: Positive
    sentences: Positive
    words: Count
    unfinished: Count
    digest: String
    compared_with: String | None = None
    equal: Count | None = None

    @property
    def thousand_seconds(self) -> float:
        """The seconds of 1,000 sentences."""
        return 1_000 * self.seconds.median / self.sentences


@dataclass(frozen=True, kw_only=True)
class Share(Checked):
    """The share of an update's time that a group of operators takes, from 0 to 1, and the number of calls."""

    group: Group
    share: Number
    calls: Count


@dataclass(frozen=True, kw_only=True)
class Breakdown(Checked):
    """How an update spends its time. The shares add up to 1.

    "data" is loading the batches, "harness" the other overhead of the training loop; neither is profiled. Profiling
    overstates groups with many calls: `overhead_ratio` is profiled over unprofiled seconds.
    """

    profiled_updates: Count
    overhead_ratio: Number | None
    shares: tuple[Share, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        total = math.fsum(part.share for part in self.shares)
        if not math.isclose(total, 1, abs_tol=1e-6):
            raise ValueError(f"breakdown.shares: they add up to {total!r}, not to 1")


@dataclass(frozen=True, kw_only=True)
class TimedModel(Checked):
    """The measurements of one model: a variant in a framework, or a baseline.

    Attributes:
        name: A unique name in the document.
        variant: The variant whose recipe, weights and batches the model has.
        reason: Why the model failed or is missing.
        idle_share: The CPU time of its process over the time that it waited for other models. Unless it is close to 0,
            the process disturbed their measurements.
        left_out: Why a measure is missing, by its name.
    """

    name: String
    kind: Kind
    variant: String
    framework: String
    backend: String | None = None
    ending: Ending = "completed"
    reason: String = ""
    parameters: Count | None = None
    weights_from: String = ""
    start_seconds: Number | None = None
    compilation_seconds: Number | None = None
    idle_share: Number | None = None
    environment: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    training: TrainingTimes | None = None
    evaluation: EvaluationTimes | None = None
    decoding: tuple[DecodingTimes, ...] = ()
    breakdown: Breakdown | None = None

    @property
    def measured(self) -> bool:
        return bool(self.training or self.evaluation or self.decoding)

    @property
    def costs(self) -> dict[str, list[float]]:
        """The seconds of each round: per update ("training") and per sentence (by name of the decoding)."""
        costs = {times.name: [value / times.sentences for value in times.seconds.values] for times in self.decoding}
        if self.training is not None:
            costs["training"] = [value / self.training.updates for value in self.training.seconds.values]
        return costs
