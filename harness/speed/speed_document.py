"""The result of a speed measurement: `SpeedDocument` and its parts, frozen dataclasses that are stored as JSON.

A document lies in RESULTS/speed-DATE-DIGEST.json. Every value that follows from the samples is checked against them.
Absolute values hold for one machine and day; report ratios.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt

from harness.experiments.serialization import canonical_json, from_json, to_json
from harness.experiments.specs import CudaGraphs, DataSpec, MatmulPrecision, Unknown
from harness.speed.timed_model import Count, Number, Positive, String, TimedModel, TrainingTimes
from harness.speed.timing import DERIVED, Derived, Samples, growth, is_close, ratio
from harness.storage import files
from harness.text import brief

SCHEMA = 1
KIND = "speed"
Status = Literal["complete", "incomplete"]
Axis = Literal["batch_size", "length", "width", "threads", "decoding_batch_size"]


@dataclass(frozen=True, kw_only=True)
class Settings(Derived):
    """The settings of a measurement.

    Attributes:
        size: The name of the amounts.
        updates: Updates of a round, always on the same batches.
        sentences: Test sentences that are translated in batches of `decoding_batch_size`.
        single_sentences: Test sentences that are translated one at a time.
        learning_updates: Updates that gave the weights to translate with, unless a run did.
    """

    size: String
    parts: tuple[String, ...]
    rounds: Count
    decoding_rounds: Count
    updates: Count
    threads: Count
    device: String
    precision: String
    matmul_precision: MatmulPrecision = "highest"
    cuda_graphs: CudaGraphs = "off"
    sentences: Count
    single_sentences: Count
    batch_size: Count
    decoding_batch_size: Count
    beam: Count
    length_penalty: Number
    max_tokens: Count
    unknown: Unknown = "allowed"
    learning_updates: Count
    scaling_variant: String


@dataclass(frozen=True, kw_only=True)
class Machine(Derived):
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
class Data(Derived):
    """The corpus: its digests, the size of an epoch, and the contents of the timed batches.

    Attributes:
        stream: The SHA-256 of the batches.
        epoch_target: Target tokens of an epoch without padding; `epoch_tokens` are source and target tokens.
        source: Source tokens of the batches of a round without padding; `target` are the target tokens.
        positions: All positions of the batches, padding included.
    """

    spec: DataSpec
    tokenised: String
    stream: String
    source_words: Count
    target_words: Count
    epoch_updates: Count
    epoch_target: Count
    epoch_tokens: Count
    batches: Count
    sentences: Count
    source: Count
    target: Count
    positions: Positive

    @property
    def padding_share(self) -> float:
        """The share of positions of the timed batches that are padding."""
        return 1 - (self.source + self.target) / self.positions


@dataclass(frozen=True, kw_only=True)
class KernelProduct(Derived):
    """`count` equal matrix products, with a row for each of `rows`, that are part of a matmul peak."""

    name: String
    rows: String
    inputs: Count
    outputs: Count
    count: Count


@dataclass(frozen=True, kw_only=True)
class MatrixRate(Derived):
    """The measured matmul peak for the kernels of some variants: forward and both gradients.

    Each product has one row for each real token of a batch. `operations` is their total, and `seconds` has one sample
    for each round, in turns with the models. The products inside attention are not included.
    """

    variants: tuple[String, ...]
    library: String
    products: tuple[KernelProduct, ...]
    operations: Positive
    seconds: Samples
    operations_per_second: float = DERIVED

    def derived(self) -> dict[str, float]:
        return {"operations_per_second": self.operations / self.seconds.median}

    def utilisation(self, operations: int, seconds: Sequence[float]) -> Samples | None:
        """Return the MFU of each round: operations per second over the matmul peak of the same round."""
        return ratio([peak * operations / self.operations for peak in self.seconds.values], seconds)


@dataclass(frozen=True, kw_only=True)
class SpeedRatio(Derived):
    """How many times as fast `subject` is as `baseline` in each round: the baseline's seconds over the subject's.

    `what` and `baseline_what` are "training" (per update) or the name of a decoding (per sentence).
    """

    subject: String
    baseline: String
    what: String
    baseline_what: String
    ratio: Samples


@dataclass(frozen=True, kw_only=True)
class Point(Derived):
    """The seconds of an update or a translation at one size, and the number of tokens."""

    size: Annotated[float, Gt(0)]
    seconds: Samples
    tokens: Count

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second at the median."""
        return self.tokens / self.seconds.median


@dataclass(frozen=True, kw_only=True)
class Scaling(Derived):
    """How the cost grows along one axis while the settings in `fixed` do not change: cost = c · size ** exponent.

    `exponent` and its standard error are a log-log fit to the medians of the points; None with too few points.
    """

    axis: Axis
    subject: String
    fixed: dict[str, Number]
    points: tuple[Point, ...]
    exponent: float | None = None
    standard_error: float | None = None
    reason: String = ""

    def derived(self) -> dict[str, float | None]:
        fit = growth([point.size for point in self.points], [point.seconds.median for point in self.points])
        return dict(zip(("exponent", "standard_error"), fit, strict=True))


@dataclass(frozen=True, kw_only=True)
class SpeedDocument(Derived):
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
        for subject in self.subjects:
            self._check_counts(subject)
            self._check_utilisation(subject.variant, subject.training)
        self._check_comparisons()

    def _check_comparisons(self) -> None:
        """Raise ValueError for a ratio that is not the ratio of the samples of two subjects."""
        expected = {_key(pair): pair.ratio for pair in comparisons(self.subjects)}
        for pair in self.comparisons:
            path = f"comparisons: {pair.subject!r} to {pair.baseline!r}, {pair.what}"
            if _key(pair) not in expected:
                raise ValueError(f"{path}: expected a variant and a baseline that were both timed at this")
            _check_series(f"{path}: ratio", pair.ratio, [expected[_key(pair)]])

    def _check_counts(self, subject: TimedModel) -> None:
        """Raise ValueError for a count of a subject, on which its rates depend, that is not that of the workload."""
        settings, data = self.settings, self.data
        workload = {
            "updates": settings.updates,
            "target": data.target,
            "tokens": data.source + data.target,
            "epoch_tokens": data.epoch_tokens,
        }
        counts = [
            (f"training.{name}", getattr(subject.training, name, value), value) for name, value in workload.items()
        ]
        for times in subject.decoding:
            single = times.name.startswith("single_")
            expected = settings.single_sentences if single else settings.sentences
            counts.append((f"{times.name}.sentences", times.sentences, expected))
        for name, value, expected in counts:
            if value != expected:
                raise ValueError(
                    f"subjects: {name} of {subject.name}={value}: expected {expected}, that of the workload"
                )

    def _check_utilisation(self, variant: str, training: TrainingTimes | None) -> None:
        """Raise ValueError for an MFU that does not follow from a matmul peak of the document."""
        if training is not None and training.limit_share is not None:
            peaks = [rate for rate in self.rates if variant in rate.variants]
            series = [rate.utilisation(training.operations, training.seconds.values) for rate in peaks]
            _check_series(f"subjects: limit_share of {variant}", training.limit_share, series)

    def subject(self, name: str) -> TimedModel:
        """Return the subject of that name. Raises: ValueError if the document has no such subject."""
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


def comparisons(subjects: Sequence[TimedModel]) -> list[SpeedRatio]:
    """Return how many times as fast each variant is as each baseline, in everything that both do.

    Seconds per sentence of a baseline that translates one sentence at a time are also compared with batches.
    """
    ratios = []
    variants = [subject for subject in subjects if subject.kind == "variant"]
    baselines = [subject for subject in subjects if subject.kind == "peer"]
    for variant in variants:
        for baseline in baselines:
            costs, baseline_costs = variant.costs, baseline.costs
            pairs = [(name, name) for name in costs if name in baseline_costs]
            pairs += [(name, f"single_{name}") for name in costs if name not in baseline_costs]
            for name, baseline_name in pairs:
                values = ratio(baseline_costs.get(baseline_name, ()), costs[name])
                if values is not None:
                    settings = {"subject": variant.name, "baseline": baseline.name}
                    ratios.append(SpeedRatio(**settings, what=name, baseline_what=baseline_name, ratio=values))
    return ratios


def _key(pair: SpeedRatio) -> tuple[str, ...]:
    return pair.subject, pair.baseline, pair.what, pair.baseline_what


def _check_series(path: str, series: Samples, expected: Sequence[Samples | None]) -> None:
    if not any(is_close(series, candidate) for candidate in expected):
        medians = ", ".join(f"{candidate.median:.6g}" for candidate in expected if candidate) or "none"
        raise ValueError(f"{path}={series.median:.6g}: expected the value that the samples give, {medians}")


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
            unknown, missing, of the wrong type, or does not follow from the samples. The message names file and field.
    """
    value = files.read_sealed(path)
    kind, schema = value.pop("kind", None), value.pop("schema", None)
    if (kind, schema) != (KIND, SCHEMA):
        raise ValueError(f"{path}: kind={brief(kind)}, schema={brief(schema)}: expected {KIND!r} and {SCHEMA}")
    try:
        document: SpeedDocument = from_json(SpeedDocument, value, "document")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return document
