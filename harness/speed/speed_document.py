"""The result of a speed measurement: `SpeedDocument` and its parts, frozen dataclasses that are stored as JSON.

A document lies in RESULTS/speed-DATE-DIGEST.json. It holds samples and counts; rates, ratios, MFU and exponents are
computed from them. Absolute values hold for one machine and day; report ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt

from harness.experiments.serialization import from_json, json_digest, to_json
from harness.experiments.specs import CudaGraphs, DataSpec, MatmulPrecision, Unknown
from harness.speed.plan import DECODINGS
from harness.speed.timed_model import Count, Number, Positive, String, TimedModel
from harness.speed.timing import Checked, Samples, growth, ratio
from harness.storage import files
from harness.text import brief

SCHEMA = 2
KIND = "speed"
Status = Literal["complete", "incomplete"]
Axis = Literal["batch_size", "length", "width", "threads", "decoding_batch_size"]


@dataclass(frozen=True, kw_only=True)
class Settings(Checked):
    """The settings of a measurement.

    Attributes:
        size: The name of the amounts.
        updates: Updates of a round, always on the same batches.
        sentences: Test sentences that are translated in batches of `decoding_batch_size`.
        single_sentences: Test sentences that are translated one at a time.
    """

    size: String
    parts: tuple[String, ...]
    rounds: Count
    decoding_rounds: Count
    updates: Count
    threads: Count
    device: String
    precision: String
    matmul_precision: MatmulPrecision
    cuda_graphs: CudaGraphs
    sentences: Count
    single_sentences: Count
    batch_size: Count
    decoding_batch_size: Count
    beam: Count
    length_penalty: Number
    max_tokens: Count
    unknown: Unknown
    scaling_variant: String


@dataclass(frozen=True, kw_only=True)
class Machine(Checked):
    """The machine; None for a fact that is not available.

    `load_before` and `load_after` are load averages of one minute; the first is due to other programs only.
    """

    processor: String | None
    cores: Count
    memory_bytes: Count | None
    gpu: String | None
    system: String
    python: String
    versions: dict[str, str]
    commit: String | None
    dirty: bool | None
    load_before: Number | None
    load_after: Number | None


@dataclass(frozen=True, kw_only=True)
class Data(Checked):
    """The corpus: its digests, the size of an epoch, and the contents of the timed batches.

    Attributes:
        stream: The SHA-256 of the batches.
        epoch_tokens: Source and target tokens of an epoch without padding.
        source: Source tokens of the batches of a round without padding; `target` are the target tokens.
        positions: All positions of the batches, padding included.
    """

    spec: DataSpec
    tokenised: String
    stream: String
    source_words: Count
    target_words: Count
    epoch_updates: Count
    epoch_tokens: Count
    sentences: Count
    source: Positive
    target: Positive
    positions: Positive

    @property
    def padding_share(self) -> float:
        """The share of positions of the timed batches that are padding."""
        return 1 - (self.source + self.target) / self.positions


@dataclass(frozen=True, kw_only=True)
class KernelProduct(Checked):
    """`count` equal matrix products, with a row for each of `rows`, that are part of a matmul peak."""

    name: String
    rows: String
    inputs: Count
    outputs: Count
    count: Count


@dataclass(frozen=True, kw_only=True)
class MatrixRate(Checked):
    """The measured matmul peak for the kernels of some variants: forward and both gradients.

    Each product has one row for each real token of a batch. `operations` is their total, and `seconds` has one sample
    for each round, in turns with the models. The products inside attention are not included.
    """

    variants: tuple[String, ...]
    library: String
    products: tuple[KernelProduct, ...]
    operations: Positive
    seconds: Samples

    @property
    def operations_per_second(self) -> float:
        """Multiplications and additions per second at the median."""
        return self.operations / self.seconds.median


@dataclass(frozen=True, kw_only=True)
class SpeedRatio(Checked):
    """How many times as fast `subject` is as `baseline` in each round: the baseline's seconds over the subject's.

    `work` is "training" or the name of a decoding.
    """

    subject: String
    baseline: String
    work: String
    ratio: Samples


@dataclass(frozen=True, kw_only=True)
class Point(Checked):
    """The seconds of an update or a translation at one size, and the number of tokens."""

    size: Annotated[float, Gt(0)]
    seconds: Samples
    tokens: Count

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second at the median."""
        return self.tokens / self.seconds.median


@dataclass(frozen=True, kw_only=True)
class Scaling(Checked):
    """How the cost grows along one axis while the settings in `fixed` do not change: cost = c · size ** exponent."""

    axis: Axis
    subject: String
    fixed: dict[str, Number]
    points: tuple[Point, ...]
    reason: String = ""

    @property
    def exponent(self) -> float | None:
        """The exponent of a log-log fit to the medians of the points; None with fewer than two sizes."""
        return self._fit[0]

    @property
    def standard_error(self) -> float | None:
        """The standard error of the exponent; None with fewer than three points."""
        return self._fit[1]

    @cached_property
    def _fit(self) -> tuple[float | None, float | None]:
        return growth([point.size for point in self.points], [point.seconds.median for point in self.points])


@dataclass(frozen=True, kw_only=True)
class SpeedDocument(Checked):
    """One measurement on one machine. `reason` says why it is incomplete, or why there is no matmul peak."""

    schema: ClassVar[int] = SCHEMA

    started: String
    ended: String
    command: String
    note: String
    status: Status
    reason: String
    settings: Settings
    machine: Machine
    data: Data
    subjects: tuple[TimedModel, ...]
    rates: tuple[MatrixRate, ...] = ()
    scaling: tuple[Scaling, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            datetime.fromisoformat(self.started)
        except ValueError as error:
            raise ValueError(f"started={brief(self.started)}: expected a date and time in ISO 8601") from error
        names = [subject.name for subject in self.subjects]
        if not names:
            raise ValueError("subjects=(): at least one subject is required")
        if len(set(names)) < len(names):
            raise ValueError(f"subjects: {max(names, key=names.count)!r} is there twice")

    def subject(self, name: str) -> TimedModel:
        """Return the subject of that name. Raises: ValueError if the document has no such subject."""
        subjects = {subject.name: subject for subject in self.subjects}
        if name not in subjects:
            raise ValueError(f"subject {brief(name)}: expected one of {', '.join(subjects)}")
        return subjects[name]

    @cached_property
    def comparisons(self) -> tuple[SpeedRatio, ...]:
        """The speed of each variant relative to each baseline of the same variant, in all work that both did."""
        return tuple(
            SpeedRatio(subject=subject.name, baseline=baseline.name, work=work, ratio=values)
            for subject in self.subjects
            for work in ("training", *DECODINGS)
            for baseline in self.subjects
            if (subject.kind, baseline.kind, subject.variant) == ("variant", "peer", baseline.variant)
            and (values := ratio(baseline.costs.get(work, ()), subject.costs.get(work, ()))) is not None
        )

    def mfu(self, subject: TimedModel) -> Samples | None:
        """Return the MFU of each round of training: operations per second over the matmul peak of the same round.

        None without training or without a matmul peak of the variant.
        """
        peak, times = next((rate for rate in self.rates if subject.variant in rate.variants), None), subject.training
        if peak is None or times is None or not times.operations:
            return None
        at_peak = [seconds * times.operations / peak.operations for seconds in peak.seconds.values]
        return ratio(at_peak, times.seconds.values)

    @property
    def id(self) -> str:
        """The name of its file: the day on which it was started, and a digest of its contents."""
        return f"{KIND}-{self.started[:10]}-{json_digest(to_json(self))[:10]}"


# Files ----------------------------------------------------------------------------------------------------------------


def save(results: Path, document: SpeedDocument) -> Path:
    """Write a document atomically under its own name, with its seal, and return its path."""
    path = results / f"{document.id}.json"
    files.write_sealed(path, {"kind": KIND, "schema": SCHEMA, **to_json(document)})
    return path


def load(path: Path) -> SpeedDocument:
    """Read a document, which may come from someone else.

    Raises:
        ValueError: The file is too large, not sealed as it was written, or of another kind or schema; or a field is
            unknown, missing or of the wrong type. The message names file and field.
    """
    value = files.read_sealed(path)
    kind, schema = value.pop("kind", None), value.pop("schema", None)
    if kind != KIND:
        raise ValueError(f"{path}: kind={brief(kind)}: expected {KIND!r}")
    if schema != SCHEMA:
        raise ValueError(f"{path}: schema={brief(schema)}: expected {SCHEMA}; measure again with `speed`")
    try:
        document: SpeedDocument = from_json(SpeedDocument, value, "document")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return document
