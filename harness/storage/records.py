"""What a run gave (`RunRecord`) and its learning curve (`EpochRecord`), read from JSON of two schema versions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from harness.experiments.serialization import from_json, json_schema
from harness.experiments.specs import ADDED_FIELDS, RunSpec
from harness.text import brief
from impls.contract import TransformerRecipe

RECORD_SCHEMA = 2
"""The version of run records; records of version 1 are read and completed."""
RECORD_SCHEMAS = (1, 2)

Value = str | float | bool | None
"""What a free part of a record may hold by name; numbers include integers."""

ENVIRONMENT_TYPES: dict[str, Any] = {
    "versions": dict[str, str | None],
    "variables": dict[str, str | None],
    "machine": dict[str, Value | list[str]] | str,  # early records describe machine and commit in words
    "commit": dict[str, Value] | str,
    "threads": int,
    "resumed_after_epochs": list[float],
    "resumed_after_updates": list[float],
    "checkpoint_fallbacks": list[str],
    "lost_processes": list[str],
    "earlier_processes": list[dict[str, Any]],
}
"""The types of the parts of `RunRecord.environment` that are read again."""

_BY_UPDATES = ("batches", "weights_after")
_FINGERPRINTS: dict[str, type] = {"files": dict, "weights": dict, **dict.fromkeys(_BY_UPDATES, dict)}
"""What these hold; each other fingerprint is one digest."""

Status = Literal["completed", "interrupted", "failed", "diverged"]


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One line of the learning curve.

    Units: losses in nats per target word; `training_loss` is what was minimised (label smoothing included),
    `training_perplexity` and the validation figures are unsmoothed, and None where they are not finite.
    `learning_rate` is the last update's. `updates` counts from the start of training, `tokens` (target words to
    predict) from the start of the epoch. `validation_bleu` (see `harness.evaluation.evaluate`) is None for
    epochs that were not translated (`--score-every`).
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
    """What a run gave, and the evidence of what it was given.

    `fingerprints`: SHA-256 digests. `files` (name -> digest of the corpus text), `source_vocabulary`,
    `target_vocabulary`, `tokenised` (all ids of all splits), `batches` (number of updates -> chained digest of the
    batches passed to the model so far, see `harness.data.batch_digest`), `stream` (the last of these), `weights_after`
    (number of updates -> digest of the weights), `weights` (canonical name -> digest of the initial tensor),
    `hypotheses` (the stored translations),
    `trained_weights` (the stored checkpoint), `sentences` (what each test sentence adds to the scores) and `attention`
    (that of the first of them); older records are without the last two.
    `environment`: versions, commit, machine, threads, backend. `sizes`: parameters, vocabulary sizes, pairs, cut and
    left-out sentences, unknown-word rates. `chosen_epochs`: the epochs whose weights were kept (averaged if several).
    `scores`: figures of the test set by name; `signatures`: how each BLEU and chrF was computed, by the same name.
    `speed`: seconds and rates by name. `decode`: ties, unfinished hypotheses and unknown tokens.
    Losses and perplexities that are not finite are stored as None, with status "diverged".
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
    scores: dict[str, float | None] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    decode: dict[str, int] = field(default_factory=dict)


def record_from_json(value: Any) -> RunRecord:
    """Return a `RunRecord` read from JSON.

    Raises:
        ValueError: The schema is not supported, or a field is unknown, missing or not accepted.
    """
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema not in RECORD_SCHEMAS:
        raise ValueError(f"schema={brief(schema)}: expected one of {', '.join(map(str, RECORD_SCHEMAS))}")
    value = {name: part for name, part in value.items() if name != "schema"}
    record: RunRecord = from_json(RunRecord, completed(value) if schema == 1 else value, "record")
    return record


def completed(value: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a record of version 1 with the fields that later versions added to its spec."""
    spec = value.get("spec")
    if not isinstance(spec, dict):
        return value
    spec = dict(spec)
    for (part, name), earlier in ADDED_FIELDS.items():
        settings = spec.get(part)
        if isinstance(settings, dict) and (part != "recipe" or settings.get("family") == TransformerRecipe.family):
            spec[part] = {name: earlier, **settings}
    return {**value, "spec": spec}


def misfits(record: RunRecord) -> Iterator[str]:
    """Yield what is wrong in the free parts of a record, so that readers may rely on their types."""
    for name, value in record.fingerprints.items():
        kind = _FINGERPRINTS.get(name, str)
        inner = list(value.values()) if isinstance(value, dict) else []
        if not isinstance(value, kind) or not all(isinstance(one, str) for one in inner):
            yield f"fingerprints.{name}={brief(value)}: expected {'digests by name' if kind is dict else 'a digest'}"
        elif name in _BY_UPDATES and not all(
            re.fullmatch(r"[1-9][0-9]{0,17}", key) for key in record.fingerprints[name]
        ):
            yield f"fingerprints.{name}={brief(value)}: expected numbers of updates as names"
    for name, kind in ENVIRONMENT_TYPES.items():
        if record.environment.get(name) is not None:
            try:
                from_json(kind, record.environment[name], f"environment.{name}")
            except ValueError as error:
                yield str(error)
    machine = record.environment.get("machine")
    for name in ("cores", "memory_bytes"):
        value = machine.get(name) if isinstance(machine, dict) else None
        if value is not None and (not isinstance(value, int | float) or not 0 <= value < 2**63):
            yield f"environment.machine.{name}={brief(value)}: expected a number of at least 0"


def epochs_from_json(value: Any) -> list[EpochRecord]:
    """Return a learning curve read from JSON. Raises: ValueError naming a field that is not accepted."""
    return list(from_json(tuple[EpochRecord, ...], value, "curve"))


def record_schema() -> dict[str, Any]:
    """Return the JSON schema of record.json, as written now: with its schema number and its seal."""
    schema = json_schema(RunRecord)
    heads = {"schema": {"const": RECORD_SCHEMA}, "seal": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}
    return {**schema, "properties": {**heads, **schema["properties"]}, "required": ["schema", *schema["required"]]}
