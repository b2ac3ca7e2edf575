"""What one measurement of speed found: `SpeedDocument` and its parts, frozen dataclasses that are JSON in a file.

Samples alone decide: every other figure follows from them, and is checked wherever a document is made or read. Figures
are absolute for the machine that is named; ratios of one document are what may be claimed.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal

from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import CudaGraphs, DataSpec, Unknown
from harness.speed.checked import DERIVED, Validated
from harness.speed.timing import Samples
from harness.text import brief

SCHEMA = 1
KIND = "speed"
Kind = Literal["variant", "peer"]
Ending = Literal["completed", "failed", "missing"]
Status = Literal["complete", "incomplete"]
Axis = Literal["batch_size", "length", "width", "threads", "decoding_batch_size"]
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
"""What a training update's time is spent on; "compute" stands for all from the first to "interpreter" where the
framework shows no operators."""


@dataclass(frozen=True, kw_only=True)
class Settings(Validated):
    """What was asked for.

    `size` names the amounts; `updates` are those of one round, over the same batches every time. Translations are of
    `sentences` test sentences in batches of `decoding_batch_size`, and of `single_sentences` one at a time, both taken
    evenly from the whole set. `learning_updates` are those that gave the weights to translate with, where no run's
    were taken.
    """

    size: str
    parts: tuple[str, ...]
    rounds: int
    decoding_rounds: int
    updates: int
    threads: int
    device: str
    precision: str
    cuda_graphs: CudaGraphs = "off"
    sentences: int
    single_sentences: int
    batch_size: int
    decoding_batch_size: int
    beam: int
    length_penalty: float
    max_tokens: int
    unknown: Unknown = "allowed"
    learning_updates: int
    scaling_variant: str


@dataclass(frozen=True, kw_only=True)
class Machine(Validated):
    """Where it was measured. Figures that the system does not say are None.

    `load_before` and `load_after`: the system's mean count of running processes in the last minute; at the start it is
    other programs' alone.
    """

    processor: str | None
    cores: int
    memory_bytes: int | None
    gpu: str | None
    system: str
    python: str
    versions: dict[str, str]
    commit: str | None
    dirty: bool | None
    load_before: float | None
    load_after: float | None


@dataclass(frozen=True, kw_only=True)
class Data(Validated):
    """The text: its digests, the epoch that figures are given for, and what the timed batches hold.

    `epoch_target` counts target words to predict, `epoch_tokens` these and source tokens, without padding; `source` and
    `target` are of the batches of a round, `positions` what these hold with padding. `stream` is their SHA-256.
    """

    spec: DataSpec
    tokenised: str
    stream: str
    source_words: int
    target_words: int
    epoch_updates: int
    epoch_target: int
    epoch_tokens: int
    batches: int
    sentences: int
    source: int
    target: int
    positions: int

    @property
    def padding_share(self) -> float:
        """The share of padding among all positions of the timed batches."""
        return 1 - (self.source + self.target) / self.positions


@dataclass(frozen=True, kw_only=True)
class TrainingTimes(Validated):
    """Training: `seconds` of one round of updates, one sample a round; the figures after them are at their median.

    `first_update_seconds` is the very first update, compilation included; `warmup_seconds` the first round, first
    update included, that is not a sample. `operations` are the multiplications and additions that the batches' real
    tokens take by formula. `epoch_seconds` are those of `epoch_tokens` at the round's tokens per second. `limit_share`
    is, round by round, operations / seconds over the machine's rate at the model's own products. `harness_seconds` is
    the same round driven by the harness's own training loop, `loop_ratio` that over the bare loop, round by round. Peak
    memory is that of the warm-up; None where the system does not say.
    """

    updates: int
    target: int
    tokens: int
    operations: int
    first_update_seconds: float
    warmup_seconds: float
    seconds: Samples
    epoch_tokens: int
    update_seconds: float = DERIVED
    target_per_second: float = DERIVED
    tokens_per_second: float = DERIVED
    epoch_seconds: float = DERIVED
    operations_per_second: float = DERIVED
    limit_share: Samples | None = None
    harness_seconds: Samples | None = None
    loop_ratio: Samples | None = None
    peak_memory_bytes: int | None = None
    device_memory_bytes: int | None = None

    def derived(self) -> dict[str, float]:
        median = self.seconds.median
        return {
            "update_seconds": median / self.updates,
            "target_per_second": self.target / median,
            "tokens_per_second": self.tokens / median,
            "epoch_seconds": median / self.tokens * self.epoch_tokens,
            "operations_per_second": self.operations / median,
        }


@dataclass(frozen=True, kw_only=True)
class EvaluationTimes(Validated):
    """Evaluation: the nats of `target` words in `batches`, forward alone. `nats_per_token` shows what was computed."""

    batches: int
    target: int
    operations: int
    nats_per_token: float
    seconds: Samples
    target_per_second: float = DERIVED
    operations_per_second: float = DERIVED
    peak_memory_bytes: int | None = None
    device_memory_bytes: int | None = None

    def derived(self) -> dict[str, float]:
        median = self.seconds.median
        return {"target_per_second": self.target / median, "operations_per_second": self.operations / median}


@dataclass(frozen=True, kw_only=True)
class DecodingTimes(Validated):
    """Translating `sentences` in batches of `batch_size`; `seconds` are those of all of them.

    `thousand_seconds` is what 1,000 sentences take at this rate. `words` are those of all translations without `<eos>`,
    `unfinished` the translations that reached the most words without it: an untrained model's all do. `digest` is the
    SHA-256 of the translations. `compared_with` names the subject with the same weights whose translations of the same
    sentences theirs were compared with, `equal` counts those that are the same, word for word.
    """

    name: str
    beam: int
    batch_size: int
    sentences: int
    words: int
    unfinished: int
    digest: str
    warmup_seconds: float
    seconds: Samples
    sentences_per_second: float = DERIVED
    thousand_seconds: float = DERIVED
    compared_with: str | None = None
    equal: int | None = None
    peak_memory_bytes: int | None = None
    device_memory_bytes: int | None = None

    def derived(self) -> dict[str, float]:
        each = self.seconds.median / self.sentences
        return {"sentences_per_second": 1 / each, "thousand_seconds": 1_000 * each}


@dataclass(frozen=True, kw_only=True)
class Share(Validated):
    """What part of an update's time a group of operators takes, from 0 to 1, and how often its operators ran."""

    group: Group
    share: float
    calls: int


@dataclass(frozen=True, kw_only=True)
class Breakdown(Validated):
    """What an update spends its time on. The shares add up to 1.

    `data` is making the batches, `harness` what the harness's loop takes beyond data and the bare loop; both are timed
    without the profiler. Inside the update, shares are of the profiled time, in which `overhead_ratio` is profiled
    seconds over unprofiled ones: what is called often is shown somewhat too large.
    """

    profiled_updates: int
    overhead_ratio: float | None
    shares: tuple[Share, ...]


@dataclass(frozen=True, kw_only=True)
class TimedModel(Validated):
    """What was measured of one subject: a variant in a framework, or a baseline.

    `name` is unique in the document. `variant` is the registered variant whose recipe, weights and batches it has.
    `idle_share` is the processor time that its process took while others were timed, over that time: the figures of
    others are what they are only while it is near 0. A missing or failed one says why in `reason`; `left_out` says why
    something is not measured of one, by the measure's name.
    """

    name: str
    kind: Kind
    variant: str
    framework: str
    backend: str | None = None
    ending: Ending = "completed"
    reason: str = ""
    parameters: int | None = None
    weights_from: str = ""
    start_seconds: float | None = None
    compilation_seconds: float | None = None
    idle_share: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    training: TrainingTimes | None = None
    evaluation: EvaluationTimes | None = None
    decoding: tuple[DecodingTimes, ...] = ()
    breakdown: Breakdown | None = None

    @property
    def measured(self) -> bool:
        """Whether there is any figure of it."""
        return bool(self.training or self.evaluation or self.decoding)


@dataclass(frozen=True, kw_only=True)
class KernelProduct(Validated):
    """One of the products that a rate was measured with: `count` alike, with a row for each of `rows`."""

    name: str
    rows: str
    inputs: int
    outputs: int
    count: int


@dataclass(frozen=True, kw_only=True)
class MatrixRate(Validated):
    """The machine's rate at the products of some variants' kernels, forward and both gradients.

    Each product has as many rows as the timed batches have real tokens, batch by batch; `operations` are all of them,
    `seconds` one sample a round, taken in turns with the subjects. Attention's own products are not among them.
    """

    variants: tuple[str, ...]
    library: str
    products: tuple[KernelProduct, ...]
    operations: int
    seconds: Samples
    operations_per_second: float = DERIVED

    def derived(self) -> dict[str, float]:
        return {"operations_per_second": self.operations / self.seconds.median}


@dataclass(frozen=True, kw_only=True)
class SpeedRatio(Validated):
    """How many times as fast `subject` is as `baseline`, round by round: the baseline's seconds over its own.

    `what` and `baseline_what` are "training", "evaluation", or the name of a decoding; seconds are per update, target
    word or sentence where the two are not of the same amount.
    """

    subject: str
    baseline: str
    what: str
    baseline_what: str
    ratio: Samples


@dataclass(frozen=True, kw_only=True)
class Point(Validated):
    """The seconds at one size: of an update, or of `sentences` translations. `tokens` are what they hold in all."""

    size: float
    seconds: Samples
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens at the median."""
        return self.tokens / self.seconds.median


@dataclass(frozen=True, kw_only=True)
class Scaling(Validated):
    """How the cost grows along one axis, all else fixed as `fixed` says: cost = c · size ** exponent.

    `exponent` and its standard error are fitted to the points' medians in logarithms; None with too few points.
    """

    axis: Axis
    subject: str
    fixed: dict[str, float]
    points: tuple[Point, ...]
    exponent: float | None = None
    standard_error: float | None = None
    reason: str = ""

    @classmethod
    def least(cls, name: str) -> float:
        return -math.inf if name == "exponent" else 0.0


@dataclass(frozen=True, kw_only=True)
class SpeedDocument(Validated):
    """One measurement of speed, of one machine. `status` "incomplete" was broken off.

    `reason` says how it was broken off, or why the machine's rate is not there.
    """

    schema: ClassVar[int] = SCHEMA

    started: str
    ended: str
    command: str
    note: str
    status: Status
    reason: str
    settings: Settings
    machine: Machine
    data: Data
    subjects: tuple[TimedModel, ...]
    rates: tuple[MatrixRate, ...] = ()
    comparisons: tuple[SpeedRatio, ...] = ()
    scaling: tuple[Scaling, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            datetime.fromisoformat(self.started)
        except ValueError as error:
            raise ValueError(f"started={brief(self.started)}: allowed is a date with its time") from error
        names = [one.name for one in self.subjects]
        if len(set(names)) < len(names):
            raise ValueError(f"subjects: {max(names, key=names.count)!r} is there twice: allowed is once each")
        for one in self.comparisons:
            if not {one.subject, one.baseline} <= set(names):
                raise ValueError(
                    f"comparisons: {one.subject!r}, {one.baseline!r}: allowed are subjects of the document"
                )
        for subject in self.subjects:
            total = math.fsum(one.share for one in subject.breakdown.shares) if subject.breakdown else 1.0
            if not math.isclose(total, 1, abs_tol=1e-6):
                raise ValueError(f"subjects: the breakdown of {subject.name!r} adds up to {total!r}: allowed is 1")

    def subject(self, name: str) -> TimedModel:
        """Return the subject of that name. Raises: ValueError where there is none."""
        found = next((one for one in self.subjects if one.name == name), None)
        if found is None:
            raise ValueError(f"subject {brief(name)}: allowed is {', '.join(one.name for one in self.subjects)}")
        return found

    @property
    def id(self) -> str:
        """The name of its file: the day it was started, and a digest of all that it says."""
        told = to_json(self)
        if self.settings.cuda_graphs == "off":
            del told["settings"]["cuda_graphs"]  # as in the id of a run: older documents keep theirs
        if self.settings.unknown == "allowed":
            del told["settings"]["unknown"]
        digest = hashlib.sha256(canonical_json(told).encode()).hexdigest()
        return f"{KIND}-{self.started[:10]}-{digest[:10]}"
