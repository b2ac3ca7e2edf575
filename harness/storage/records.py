"""The result of a run (`RunRecord`) and its learning curve (`EpochRecord`), as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from harness.experiments.serialization import from_json, json_schema
from harness.experiments.specs import RunSpec
from harness.text import brief

RECORD_SCHEMA = 2
"""The version of run records. Version 1 was never part of a release."""
LATER_FIELDS = ("stopped_epoch",)
"""Fields of `RunRecord` that earlier records of the current version lack."""

Value = str | float | bool | None
"""A value in the free parts of a record; `float` includes integers."""

ENVIRONMENT_TYPES: dict[str, Any] = {
    "versions": dict[str, str | None],
    "variables": dict[str, str | None],
    "machine": dict[str, Value | list[str]],
    "commit": dict[str, Value],
    "threads": int,
    "resumed_after_epochs": list[float],
    "resumed_after_updates": list[float],
    "checkpoint_fallbacks": list[str],
    "lost_processes": list[str],
    "earlier_processes": list[dict[str, Any]],
    "trained_as": str,
}
"""The types of those parts of `RunRecord.environment` that are read again."""

FINGERPRINT_TYPES: dict[str, Any] = dict.fromkeys(("files", "weights", "batches", "weights_after"), dict[str, str])
"""The types of those fingerprints that are not a single digest."""

_UPDATES = re.compile("[1-9][0-9]{0,17}")

Status = Literal["completed", "interrupted", "failed", "diverged"]


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """An epoch of the learning curve. Losses are in nats per target token, and None if they are not finite.

    Attributes:
        epoch: The number of the epoch, from 1.
        updates: Updates since the start of training.
        tokens: Target tokens of the epoch.
        learning_rate: That of the last update.
        training_loss: The minimised loss, with label smoothing.
        training_perplexity: Without label smoothing, like the validation metrics.
        validation_bleu: BLEU of the validation set (see `harness.evaluation.evaluate`); None for epochs whose model
            did not translate it (`--score-every`).
    """

    epoch: int
    updates: int
    tokens: int
    learning_rate: float
    training_loss: float | None
    training_perplexity: float | None
    validation_loss: float | None
    validation_perplexity: float | None
    largest_gradient_norm: float | None
    training_seconds: float
    validation_seconds: float
    validation_bleu: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The result of a run, with the evidence of how it was obtained.

    Attributes:
        fingerprints: SHA-256 digests. `files` (by name, of the corpus text); `source_vocabulary`, `target_vocabulary`;
            `tokenised` (all ids of all splits); `batches` (by number of updates, the chained digest of the batches up
            to there, see `harness.data.batch_digest`); `stream` (the last of these); `weights_after` (by number of
            updates, the weights); `weights` (by canonical name, the initial tensors); `hypotheses`, `trained_weights`,
            `sentences` and `attention` (the stored files).
        environment: Versions, commit, machine, threads and backend.
        sizes: Parameters, vocabulary sizes, pairs, cut and left-out sentences, unknown-word rates.
        chosen_epochs: The epochs whose weights were kept; several are averaged.
        stopped_epoch: The epoch after which training stopped early (`Training.patience`); None if it did not.
        scores: Metrics of the test set. Those that are not finite are None, with status "diverged".
        signatures: How each BLEU and chrF was computed.
        speed: Seconds and rates.
        decode: Numbers of ties, unfinished hypotheses and unknown tokens.
    """

    schema: ClassVar[int] = RECORD_SCHEMA

    id: str
    spec: RunSpec
    status: Status
    reason: str = ""
    note: str = ""
    started: str = ""
    command: str = ""
    fingerprints: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)
    curve: tuple[EpochRecord, ...] = ()
    chosen_epochs: tuple[int, ...] = ()
    stopped_epoch: int | None = None
    scores: dict[str, float | None] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    decode: dict[str, int] = field(default_factory=dict)

    @property
    def ending(self) -> str:
        """The status, with the reason if there is one."""
        repeats = self.reason.startswith(self.status)
        return self.reason if repeats else ": ".join(filter(None, (self.status, self.reason)))


def record_from_json(value: Any) -> RunRecord:
    """Return a `RunRecord` read from JSON. Raises: ValueError for another schema, or naming a field that is wrong."""
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != RECORD_SCHEMA:
        raise ValueError(f"schema={brief(schema)}: expected {RECORD_SCHEMA}")
    record: RunRecord = from_json(RunRecord, {name: part for name, part in value.items() if name != "schema"}, "record")
    return record


def misfits(record: RunRecord) -> Iterator[str]:
    """Yield what is wrong in the free parts of a record, so that readers may rely on their types."""
    checks = [("fingerprints", name, FINGERPRINT_TYPES.get(name, str)) for name in record.fingerprints]
    checks += [("environment", name, kind) for name, kind in ENVIRONMENT_TYPES.items() if name in record.environment]
    for part, name, kind in checks:
        value = getattr(record, part)[name]
        if (value is None and part == "environment") or (kind is str and isinstance(value, str)):
            continue
        try:
            from_json(kind, value, f"{part}.{name}")
        except ValueError as error:
            yield str(error)
        else:
            if name in ("batches", "weights_after") and not all(map(_UPDATES.fullmatch, value)):
                yield f"{part}.{name}={brief(value)}: expected numbers of updates as names"
    machine = record.environment.get("machine")
    facts = machine if isinstance(machine, dict) else {}
    for name in ("cores", "memory_bytes"):
        value = facts.get(name)
        if value is not None and (not isinstance(value, int | float) or not 0 <= value < 2**63):
            yield f"environment.machine.{name}={brief(value)}: expected a number of at least 0"


def record_schema() -> dict[str, Any]:
    """Return the JSON schema of record.json in the current version, with its schema number and seal."""
    schema = json_schema(RunRecord)
    heads = {"schema": {"const": RECORD_SCHEMA}, "seal": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}
    return {**schema, "properties": {**heads, **schema["properties"]}, "required": [*heads, *schema["required"]]}
