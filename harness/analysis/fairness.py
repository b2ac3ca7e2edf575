"""Checks that runs which share a table are comparable, and names each difference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.grouping import RunTable, rows
from harness.evaluation.metrics import without_unknown
from harness.experiments.serialization import to_json
from harness.experiments.specs import Budget
from harness.storage.records import RunRecord
from harness.text import short_line
from impls.contract import GruRecipe, TransformerRecipe

Holders = dict[str, list[str]]
"""value -> who has it."""

Kind = Literal[
    "settings", "files", "vocabularies", "decoding", "signatures", "training", "updates", "stream", "seeds", "weights"
]
"""What runs that share a table must agree in; `harness check` has a rule for each."""

SOURCE_KINDS: tuple[Kind, ...] = ("settings", "files", "signatures")
"""Those of them that hold between runs trained as their sources train them."""

DETOKENISED = ("bleu_sacre", "brevity_penalty", "chrf")
DIGESTS = ("source_vocabulary", "target_vocabulary", "tokenised")
MOST_NAMES = 8


@dataclass(frozen=True)
class Mismatch:
    """One thing in which runs differ that should agree: what, and who has which value."""

    kind: Kind
    what: str
    sides: str

    def __str__(self) -> str:
        return f"{self.what}: {self.sides}"


RATE, BATCHING = "training.peak_rate", "training.batching"
DECLARED: dict[Budget, frozenset[str]] = {"tuned": frozenset({RATE}), "pilot": frozenset({RATE})}
"""The settings that may differ between the runs of a budget, because the budget says so."""


def unfair(records: Iterable[RunRecord], budget: Budget) -> list[Mismatch]:
    """Return the differences between the runs of a budget in what must agree; empty if there are none.

    Checked in `controlled`: data settings, files, vocabularies and ids; test set, decoding and signatures; training
    settings, updates, seeds and the stream of batches; and for each seed every initial tensor that two recipes share by
    name, shape and way of drawing. In `source`: data, test set and signatures, those of scores on tokens only between
    runs with equal vocabularies; whether translations may contain `<unk>` is part of a source's search, as the beam is.
    In `tuned` and `pilot`: as in `controlled`, but the learning rate may differ. A completed run that lacks a proof
    differs from those that have it. Runs that did not complete are checked as far as they got.
    """
    chosen = [record for record in records if record.spec.budget == budget]
    if budget == "source":
        return _differences(chosen, _source_evidence(chosen))
    return undeclared(chosen, DECLARED.get(budget, frozenset()))


def undeclared(records: Sequence[RunRecord], declared: Collection[str]) -> list[Mismatch]:
    """Return the differences between runs that must agree in all but the settings `declared`, whatever their budgets.

    If "training.batching" is declared, the number of updates and the stream of batches must agree among the runs
    with the same value of it.
    """
    return _differences(records, _evidence(records, declared)) + _seeds(records) + _weights(records)


def fairness(records: Iterable[RunRecord]) -> list[str]:
    """Return the differences between controlled runs in what must agree, as text; see `unfair`."""
    return list(map(str, unfair(records, "controlled")))


def other_vocabulary(records: Iterable[RunRecord]) -> frozenset[str]:
    """Return the ids of runs whose target vocabulary is not that of most runs: their perplexities compare to no other.

    The vocabulary of the first run wins a tie; runs without a digest are taken to have the vocabulary of most.
    """
    found = [(record.id, record.fingerprints.get("target_vocabulary")) for record in records]
    digests = [digest for _, digest in found if digest]
    most = max(dict.fromkeys(digests), key=digests.count, default=None)
    return frozenset(run for run, digest in found if digest and digest != most)


Evidence = Iterator[tuple[Kind, str, str, RunRecord]]
"""(of which kind, what must agree, its value, whose it is)."""


def _evidence(records: Sequence[RunRecord], declared: Collection[str]) -> Evidence:
    file_names, signature_names = _names(records, "files"), sorted({one for r in records for one in r.signatures})
    for record in records:
        yield from (one for one in _settings(record) if one[1] not in declared)
        batching = f", batching={record.spec.training.batching}" if BATCHING in declared else ""
        done = record.status == "completed"
        files = record.fingerprints.get("files") or {}
        proofs: dict[tuple[Kind, str], object] = {("files", f"file {name}"): files.get(name) for name in file_names}
        proofs |= {("vocabularies", name.replace("_", " ")): record.fingerprints.get(name) for name in DIGESTS}
        if not file_names:
            proofs["files", "files"] = None
        if done:
            for name in signature_names:
                proofs["signatures", f"signature of {name}"] = record.signatures.get(name)
            proofs |= _stream(record, batching)
        for (kind, name), value in proofs.items():
            if value is not None or done:
                yield kind, name, "missing" if value is None else str(value), record


def _stream(record: RunRecord, batching: str) -> dict[tuple[Kind, str], object]:
    """Return the evidence of equal batches: of the first epoch only for runs that stop early, of all for others."""
    if record.spec.training.patience is not None and record.curve:
        digest = (record.fingerprints.get("batches") or {}).get(str(record.curve[0].updates))
        return {("stream", f"batches of epoch 1, seed {record.spec.seed}{batching}"): digest}
    return {
        ("stream", f"stream of batches, seed {record.spec.seed}{batching}"): record.fingerprints.get("stream"),
        ("updates", f"updates{batching}"): record.curve[-1].updates if record.curve else None,
    }


def _settings(record: RunRecord) -> Evidence:
    """Yield the settings of data, training and decoding; file names do not matter, because digests are compared."""
    spec = record.spec
    kinds: dict[str, Kind] = {"data": "settings", "training": "training", "decoding": "decoding"}
    for part, kind in kinds.items():
        for name, value in to_json(getattr(spec, part)).items():
            recurrent = isinstance(spec.recipe, GruRecipe)
            if name != "files" and (name != "teacher_forcing" or recurrent):
                yield kind, f"{part}.{name}", str(value), record
    yield "training", "update limit", str(spec.updates), record


def _source_evidence(records: list[RunRecord]) -> Evidence:
    file_names, signature_names = _names(records, "files"), sorted({one for r in records for one in r.signatures})
    for record in records:
        data = record.spec.data
        for name in ("corpus", "direction", "test_split", "training_pairs"):
            yield "settings", f"data.{name}", str(getattr(data, name)), record
        done = record.status == "completed"
        files = record.fingerprints.get("files") or {}
        proofs: dict[tuple[Kind, str], str | None] = {
            ("files", f"file {name}"): files.get(name) for name in file_names or ("digests",)
        }
        vocabulary = str(record.fingerprints.get("target_vocabulary"))[:12]
        for name in signature_names if done else ():
            among = "" if name in DETOKENISED else f" (vocabulary {vocabulary})"
            signature = record.signatures.get(name)
            proofs["signatures", f"signature of {name}{among}"] = signature and without_unknown(signature)
        for (kind, name), value in proofs.items():
            if value is not None or done:
                yield kind, name, "missing" if value is None else value, record


def _names(records: Sequence[RunRecord], part: str) -> list[str]:
    return sorted({name for record in records for name in record.fingerprints.get(part) or {}})


def _differences(records: Sequence[RunRecord], evidence: Evidence) -> list[Mismatch]:
    labels = {record.id: row.label for row in rows(records) for record in row.records}
    found: dict[tuple[Kind, str], Holders] = {}
    for kind, name, value, record in evidence:
        holders = found.setdefault((kind, name), {}).setdefault(value, [])
        if labels[record.id] not in holders:
            holders.append(labels[record.id])
    return [Mismatch(kind, name, _sides(sides)) for (kind, name), sides in found.items() if len(sides) > 1]


def _sides(sides: Holders) -> str:
    return "; ".join(f"{_short(value)} in {', '.join(who)}" for value, who in sides.items())


def _short(value: str) -> str:
    hexadecimal = len(value) >= 32 and all(letter in "0123456789abcdef" for letter in value)
    return value[:12] + "…" if hexadecimal else short_line(value)


def _seeds(records: Sequence[RunRecord]) -> list[Mismatch]:
    sides: Holders = {}
    for row in rows(records):
        sides.setdefault(", ".join(str(record.spec.seed) for record in row.records), []).append(row.label)
    return [Mismatch("seeds", "seeds", _sides(sides))] if len(sides) > 1 else []


def drawing(record: RunRecord, name: str) -> str:
    """Return how the tensor is drawn: recipes that start an embedding differently do not share it."""
    recipe = record.spec.recipe
    if name.endswith((".bias", ".shift", ".scale")):
        return "constant"
    if isinstance(recipe, GruRecipe):
        return "gru"
    embedded = name.endswith((".embedding", ".positions"))
    return recipe.embedding_init if embedded and isinstance(recipe, TransformerRecipe) else "xavier"


def _weights(records: Sequence[RunRecord]) -> list[Mismatch]:
    """Compare initial tensors of one seed; a variant without a recipe shares none."""
    found: dict[tuple[int, str, str, str], dict[str, list[str]]] = {}
    lines = []
    for row in rows(records):
        for record in row.records:
            weights = record.fingerprints.get("weights") or {}
            if not weights and record.status == "completed" and record.spec.recipe is not None:
                lines.append(
                    Mismatch("weights", f"initial weights, seed {record.spec.seed}", f"missing in {row.label}")
                )
            for name, digest in weights.items() if record.spec.recipe is not None else ():
                shape, _, code = str(digest).rpartition(":")
                key = (record.spec.seed, name, shape, drawing(record, name))
                found.setdefault(key, {}).setdefault(code, []).append(row.label)
    tensors: dict[tuple[int, str], list[str]] = {}
    for (seed, name, _, _), sides in found.items():
        if len(sides) > 1:
            who = " against ".join(", ".join(labels) for labels in sides.values())
            tensors.setdefault((seed, who), []).append(name)
    for (seed, who), names in tensors.items():
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        what = f"{', '.join(names[:MOST_NAMES])}{more} differ: {who}"
        lines.append(Mismatch("weights", f"initial weights, seed {seed}", what))
    return lines


def differences(group: RunTable) -> list[str]:
    """Return why the rows of a table are not comparable; empty if they are."""
    return list(map(str, unfair(group.records, group.budget)))
