"""The result of a speed measurement: `SpeedDocument` and its parts, frozen dataclasses that are stored as JSON.

Every figure follows from the samples and is checked. Absolute figures hold for one machine and day; report ratios.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal

from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import CudaGraphs, DataSpec, MatmulPrecision, Unknown
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
"""Parts of the time of an update; "compute" replaces those up to "interpreter" if the framework shows no operators."""


@dataclass(frozen=True, kw_only=True)
class Settings(Validated):
    """The settings of a measurement.

    `size` is the name of the amounts; every round has `updates` updates on the same batches. `sentences` are translated
    in batches of `decoding_batch_size`, `single_sentences` one at a time; both are spread over the whole test set.
    `learning_updates` gave the weights to translate with, unless a run did.
    """

    size: str
    parts: tuple[str, ...]
    rounds: int
    decoding_rounds: int
    updates: int
    threads: int
    device: str
    precision: str
    matmul_precision: MatmulPrecision = "highest"
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
    """The machine. A fact that is not available is None.

    `load_before` and `load_after` are the load averages of the last minute; the first is due to other programs only.
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
    """The corpus: its digests, the size of an epoch, and the contents of the timed batches.

    `epoch_target` counts target tokens, `epoch_tokens` target and source tokens, both without padding. `source` and
    `target` count the tokens of the batches of a round, `positions` includes padding, and `stream` is their SHA-256.
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
        """The share of positions of the timed batches that are padding."""
        return 1 - (self.source + self.target) / self.positions


@dataclass(frozen=True, kw_only=True)
class TrainingTimes(Validated):
    """Training times: `seconds` has one sample for each round of updates; the figures after it are at its median.

    `first_update_seconds` is the time of the first update, compilation included, and `warmup_seconds` that of a round
    before the samples. `operations` are the multiplications and additions for the real tokens of the batches, by
    formula. `epoch_seconds` follows from `epoch_tokens` and the tokens per second. `limit_share` is the MFU of each
    round: operations / seconds over the measured matmul peak. `harness_seconds` is the time of the same updates with
    the harness's training loop, and `loop_ratio` that over the bare updates. Peak memory is that of the warm-up.
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
    """Evaluation times: the loss of `target` tokens in `batches`, forward pass only, and the result."""

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
    """Translation times: `seconds` for all `sentences`, in batches of `batch_size`.

    `thousand_seconds` is the time for 1,000 sentences. `words` counts the tokens of all translations without `<eos>`,
    and `unfinished` the translations without `<eos>`; those of an untrained model all are. `digest` is the SHA-256 of
    the translations. `compared_with` is the model with the same weights that translated the same sentences, and
    `equal` the number of identical translations.
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
    """The share of an update's time that a group of operators takes, from 0 to 1, and the number of calls."""

    group: Group
    share: float
    calls: int


@dataclass(frozen=True, kw_only=True)
class Breakdown(Validated):
    """How an update spends its time. The shares add up to 1.

    "data" is loading the batches, "harness" the other overhead of the training loop; neither is profiled. Groups with
    many calls appear somewhat too large: `overhead_ratio` is profiled over unprofiled seconds.
    """

    profiled_updates: int
    overhead_ratio: float | None
    shares: tuple[Share, ...]


@dataclass(frozen=True, kw_only=True)
class TimedModel(Validated):
    """The measurements of one model: a variant in a framework, or a baseline.

    `name` is unique in the document. `variant` is the variant whose recipe, weights and batches it has. `idle_share` is
    the CPU time of its process over the time that it waited for others; the figures of others are valid only if it is
    close to 0. `reason` says why a model is missing or failed, `left_out` why a measure is missing, by its name.
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
        """Whether anything has been measured."""
        return bool(self.training or self.evaluation or self.decoding)


@dataclass(frozen=True, kw_only=True)
class KernelProduct(Validated):
    """`count` equal matrix products, with a row for each of `rows`, that are part of a matmul peak."""

    name: str
    rows: str
    inputs: int
    outputs: int
    count: int


@dataclass(frozen=True, kw_only=True)
class MatrixRate(Validated):
    """The measured matmul peak for the kernels of some variants: forward and both gradients.

    Each product has one row for each real token of a batch. `operations` is their total, and `seconds` has one sample
    for each round, in turns with the models. The products inside attention are not included.
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
    """How many times as fast `subject` is as `baseline` in each round: the baseline's seconds over the subject's.

    `what` and `baseline_what` are "training" (per update) or the name of a decoding (per sentence).
    """

    subject: str
    baseline: str
    what: str
    baseline_what: str
    ratio: Samples


@dataclass(frozen=True, kw_only=True)
class Point(Validated):
    """The seconds of an update or a translation at one size, and the number of tokens."""

    size: float
    seconds: Samples
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second at the median."""
        return self.tokens / self.seconds.median


@dataclass(frozen=True, kw_only=True)
class Scaling(Validated):
    """How the cost grows along one axis while the settings in `fixed` do not change: cost = c · size ** exponent.

    `exponent` and its standard error are a log-log fit to the medians of the points; None with too few points.
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
    """One measurement on one machine. `reason` says why it is incomplete, or why there is no matmul peak."""

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
            raise ValueError(f"started={brief(self.started)}: expected a date and time in ISO 8601") from error
        names = [subject.name for subject in self.subjects]
        if len(set(names)) < len(names):
            raise ValueError(f"subjects: {max(names, key=names.count)!r} is there twice")
        for pair in self.comparisons:
            if not {pair.subject, pair.baseline} <= set(names):
                raise ValueError(f"comparisons: {pair.subject!r} or {pair.baseline!r} is no subject of the document")
        for subject in self.subjects:
            total = math.fsum(part.share for part in subject.breakdown.shares) if subject.breakdown else 1.0
            if not math.isclose(total, 1, abs_tol=1e-6):
                raise ValueError(f"subjects: the breakdown of {subject.name!r} adds up to {total!r}, not to 1")

    def subject(self, name: str) -> TimedModel:
        """Return the subject of that name. Raises: ValueError if there is none."""
        subjects = {subject.name: subject for subject in self.subjects}
        if name not in subjects:
            raise ValueError(f"subject {brief(name)}: expected one of {', '.join(subjects)}")
        return subjects[name]

    @property
    def id(self) -> str:
        """The name of its file: the day on which it was started, and a digest of its contents."""
        value = to_json(self)
        for name, earlier in {"matmul_precision": "highest", "cuda_graphs": "off", "unknown": "allowed"}.items():
            if value["settings"][name] == earlier:
                del value["settings"][name]  # so that the ids of older documents do not change
        digest = hashlib.sha256(canonical_json(value).encode()).hexdigest()
        return f"{KIND}-{self.started[:10]}-{digest[:10]}"
