"""Checks that runs which share a table are comparable, and names each difference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.grouping import group_by, rows
from harness.evaluation.metrics import without_unknown
from harness.experiments.serialization import to_json
from harness.experiments.specs import Budget
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import first_few, named_seeds, short_line
from impls.contract import GruRecipe, TransformerRecipe

Kind = Literal[
    "settings", "files", "vocabularies", "decoding", "signatures", "training", "updates", "stream", "seeds", "weights"
]
"""What runs that share a table must agree in; `check` has a rule for each."""

SOURCE_KINDS: tuple[Kind, ...] = ("settings", "files", "signatures")
"""The kinds that apply to runs trained as their sources train them."""

RATE, BATCHING = "training.peak_rate", "training.batching"
DECLARED: dict[Budget, frozenset[str]] = {"tuned": frozenset({RATE}), "pilot": frozenset({RATE})}
"""The settings that may differ between the runs of a budget."""

DETOKENISED = ("bleu_sacre", "brevity_penalty", "chrf")
DIGESTS = ("source_vocabulary", "target_vocabulary", "tokenised")
MOST_NAMES = 8

Value = tuple[Kind, str, str, RunRecord]
"""The kind, the name and the value of something that must agree, and the run that has it."""


@dataclass(frozen=True)
class Mismatch:
    """Something that must agree and does not: its name, and each value with the labels of the rows that have it."""

    kind: Kind
    name: str
    sides: str

    def __str__(self) -> str:
        return f"{self.name}: {self.sides}"


def find_mismatches(records: Iterable[RunRecord], budget: Budget) -> list[Mismatch]:
    """Return the differences between the runs of a budget in what must agree; empty if there are none.

    In all budgets, the finished runs of an external builder must have one version of its module.
    In `controlled`, all of `Kind` must agree, the initial tensors if two recipes share them by name, shape and
    initialiser. In `source`, data, test set and signatures must agree, those of token-based scores only between runs
    with equal vocabularies; whether translations may contain `<unk>` is part of the search of a source, as the beam is.
    `tuned` and `pilot` are like `controlled`, but the learning rate may differ. A completed run that lacks a
    fingerprint differs from those that have it. Other runs are checked as far as they got.
    """
    selected = [record for record in records if record.spec.budget == budget]
    if budget == "source":
        return _differences(selected, _values(selected, source=True)) + _modules(selected)
    return undeclared(selected, DECLARED.get(budget, frozenset()))


def undeclared(records: Sequence[RunRecord], declared: Collection[str]) -> list[Mismatch]:
    """Return the differences between runs of any budget that must agree in all but the settings `declared`.

    If "training.batching" is declared, the number of updates and the stream of batches must agree among the runs with
    the same batching.
    """
    return _differences(records, _values(records, declared)) + _modules(records) + _seeds(records) + _weights(records)


def initialiser(record: RunRecord, name: str) -> str:
    """Return the initialiser of a tensor; recipes with different initialisers do not share the tensor."""
    recipe = record.spec.recipe
    if name.endswith((".bias", ".shift", ".scale")):
        return "constant"
    if isinstance(recipe, GruRecipe):
        return "gru"
    is_embedding = name.endswith((".embedding", ".positions"))
    return recipe.embedding_init if is_embedding and isinstance(recipe, TransformerRecipe) else "xavier"


# Settings and fingerprints --------------------------------------------------------------------------------------------


def _values(records: Sequence[RunRecord], declared: Collection[str] = (), *, source: bool = False) -> Iterator[Value]:
    """Yield the value of everything that must agree, for each run."""
    file_names = sorted({name for record in records for name in record.fingerprints.get("files") or {}})
    scores = sorted({name for record in records for name in record.signatures})
    for record in records:
        yield from (value for value in _settings(record, source=source) if value[1] not in declared)
        completed = record.status == "completed"
        files = record.fingerprints.get("files") or {}
        proofs: dict[tuple[Kind, str], object] = {("files", f"file {name}"): files.get(name) for name in file_names}
        if not source:
            proofs |= {("vocabularies", name.replace("_", " ")): record.fingerprints.get(name) for name in DIGESTS}
        if completed:
            proofs |= _signatures(record, scores, source=source)
        if completed and not source:
            batching = f", batching={record.spec.training.batching}" if BATCHING in declared else ""
            proofs |= _batches(record, batching)
        for (kind, name), value in proofs.items():
            if value is not None or completed:
                yield kind, name, "missing" if value is None else str(value), record


def _batches(record: RunRecord, batching: str) -> dict[tuple[Kind, str], object]:
    """Return the fingerprint of all batches, or of those of the first epoch for runs that stop early."""
    if record.spec.training.patience is not None and record.curve:
        digest = (record.fingerprints.get("batches") or {}).get(str(record.curve[0].updates))
        return {("stream", f"batches of epoch 1, seed {record.spec.seed}{batching}"): digest}
    return {
        ("stream", f"stream of batches, seed {record.spec.seed}{batching}"): record.fingerprints.get("stream"),
        ("updates", f"updates{batching}"): record.curve[-1].updates if record.curve else None,
    }


def _settings(record: RunRecord, *, source: bool) -> Iterator[Value]:
    """Yield the settings that must agree; names of files may differ, because their digests are compared."""
    spec = record.spec
    if source:
        for name in ("corpus", "direction", "test_split", "training_pairs"):
            yield "settings", f"data.{name}", str(getattr(spec.data, name)), record
        return
    kinds: dict[str, Kind] = {"data": "settings", "training": "training", "decoding": "decoding"}
    unused = {"files"} if isinstance(spec.recipe, GruRecipe) else {"files", "teacher_forcing"}
    for part, kind in kinds.items():
        for name, value in to_json(getattr(spec, part)).items():
            if name not in unused:
                yield kind, f"{part}.{name}", str(value), record
    yield "training", "update limit", str(spec.updates), record


def _signatures(record: RunRecord, scores: Sequence[str], *, source: bool) -> Iterator[tuple[tuple[Kind, str], object]]:
    """Yield the signature of each score; in `source` those of token-based scores by vocabulary."""
    vocabulary = str(record.fingerprints.get("target_vocabulary"))[:12]
    for score in scores:
        name, signature = f"signature of {score}", record.signatures.get(score)
        if source:
            name += "" if score in DETOKENISED else f" (vocabulary {vocabulary})"
            signature = signature and without_unknown(signature)
        yield ("signatures", name), signature


def _differences(records: Sequence[RunRecord], values: Iterable[Value]) -> list[Mismatch]:
    labels = {record.id: row.label for row in rows(records) for record in row.records}
    holders: dict[tuple[Kind, str], dict[str, dict[str, None]]] = {}
    for kind, name, value, record in values:
        holders.setdefault((kind, name), {}).setdefault(value, {})[labels[record.id]] = None
    return [Mismatch(kind, name, _sides(sides)) for (kind, name), sides in holders.items() if len(sides) > 1]


def _sides(sides: Mapping[str, Iterable[str]]) -> str:
    """Return each value with the labels that have it, such as "1 in paper; 2 in conv_ffn"."""
    return "; ".join(f"{_short(value)} in {', '.join(labels)}" for value, labels in sides.items())


def _short(value: str) -> str:
    is_digest = len(value) >= 32 and all(letter in "0123456789abcdef" for letter in value)
    return value[:12] + "…" if is_digest else short_line(value)


def _modules(records: Sequence[RunRecord]) -> list[Mismatch]:
    """Return the external builders whose finished runs were built by different versions of their module."""
    finished = (record for record in records if record.status in run_store.FINISHED)
    built = [record for record in finished if record.fingerprints.get("builder")]
    mismatches = []
    for variant, runs in group_by(built, lambda record: record.spec.variant).items():
        versions = group_by(runs, lambda record: str(record.fingerprints["builder"]))
        if len(versions) > 1:
            seeds = {module: sorted({run.spec.seed for run in same}) for module, same in versions.items()}
            sides = _sides({module: [named_seeds(numbers)] for module, numbers in seeds.items()})
            mismatches.append(Mismatch("files", f"module of {variant}", sides))
    return mismatches


# Seeds and initial weights --------------------------------------------------------------------------------------------


def _seeds(records: Sequence[RunRecord]) -> list[Mismatch]:
    by_seeds = group_by(rows(records), lambda row: ", ".join(str(record.spec.seed) for record in row.records))
    sides = {seeds: [row.label for row in same] for seeds, same in by_seeds.items()}
    return [Mismatch("seeds", "seeds", _sides(sides))] if len(sides) > 1 else []


def _weights(records: Sequence[RunRecord]) -> list[Mismatch]:
    """Return the differences between initial tensors of one seed; a variant without a recipe shares none."""
    mismatches = []
    holders: dict[tuple[int, str, str, str], dict[str, list[str]]] = {}
    for row in rows(records):
        for record in row.records:
            if record.spec.recipe is None:
                continue
            seed, weights = record.spec.seed, record.fingerprints.get("weights") or {}
            if not weights and record.status == "completed":
                mismatches.append(Mismatch("weights", f"initial weights, seed {seed}", f"missing in {row.label}"))
            for name, value in weights.items():
                shape, _, digest = str(value).rpartition(":")
                key = (seed, name, shape, initialiser(record, name))
                holders.setdefault(key, {}).setdefault(digest, []).append(row.label)
    tensors: dict[tuple[int, str], list[str]] = {}
    for (seed, name, _, _), sides in holders.items():
        if len(sides) > 1:
            against = " against ".join(", ".join(labels) for labels in sides.values())
            tensors.setdefault((seed, against), []).append(name)
    for (seed, against), names in tensors.items():
        sides_text = f"{first_few(names, MOST_NAMES)} differ: {against}"
        mismatches.append(Mismatch("weights", f"initial weights, seed {seed}", sides_text))
    return mismatches
