"""Checks that runs which share a table are comparable, and names each difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.reporting.groups import plain, rows
from harness.specs import RunRecord, to_json
from impls.contract import GruRecipe, TransformerRecipe

Holders = dict[str, list[str]]
"""value -> who has it."""

DETOKENISED = ("bleu_sacre", "chrf")
DIGESTS = ("source_vocabulary", "target_vocabulary", "tokenised")
MOST_NAMES = 8


def fairness(records: Iterable[RunRecord]) -> list[str]:
    """Return what differs between controlled runs that should agree, each difference by name; empty where all agree.

    Checked: data settings, files, vocabularies and ids; test set, decoding and signatures; training settings, updates,
    seeds and the stream of batches; and for each seed every initial tensor that two recipes share by name, shape and
    way of drawing. A completed run that lacks a proof differs from those that have it. Runs that did not complete are
    checked as far as they got.
    """
    controlled = [record for record in records if record.spec.budget == "controlled"]
    found = _differences(controlled, _evidence(controlled))
    return found + _seeds(controlled) + _weights(controlled)


def source_differences(records: Iterable[RunRecord]) -> list[str]:
    """Return what differs between runs trained as their sources train them, in data, test set or signatures.

    Signatures of scores on tokens must agree only between runs with equal vocabularies.
    """
    chosen = [record for record in records if record.spec.budget == "source"]
    return _differences(chosen, _source_evidence(chosen))


def other_vocabulary(records: Iterable[RunRecord]) -> frozenset[str]:
    """Return the ids of runs whose target vocabulary is not that of most runs: their perplexities compare to no other.

    The vocabulary of the first run wins a tie; runs without a digest are taken to have the vocabulary of most.
    """
    found = [(record.id, record.fingerprints.get("target_vocabulary")) for record in records]
    digests = [digest for _, digest in found if digest]
    most = max(dict.fromkeys(digests), key=digests.count, default=None)
    return frozenset(run for run, digest in found if digest and digest != most)


Evidence = Iterator[tuple[str, str, RunRecord]]
"""(what must agree, its value, whose it is)."""


def _evidence(records: list[RunRecord]) -> Evidence:
    file_names, signature_names = _names(records, "files"), sorted({one for r in records for one in r.signatures})
    for record in records:
        yield from _settings(record)
        done = record.status == "completed"
        files = record.fingerprints.get("files") or {}
        proofs: dict[str, object] = {f"file {name}": files.get(name) for name in file_names}
        proofs |= {name.replace("_", " "): record.fingerprints.get(name) for name in DIGESTS}
        if not file_names:
            proofs["files"] = None
        if done:
            proofs |= {f"signature of {name}": record.signatures.get(name) for name in signature_names}
            proofs[f"stream of batches, seed {record.spec.seed}"] = record.fingerprints.get("stream")
            proofs["updates"] = record.curve[-1].updates if record.curve else None
        for name, value in proofs.items():
            if value is not None or done:
                yield name, "missing" if value is None else str(value), record


def _settings(record: RunRecord) -> Evidence:
    """Yield the settings of data, training and decoding; file names do not matter where the digests agree."""
    spec = record.spec
    for part in ("data", "training", "decoding"):
        for name, value in to_json(getattr(spec, part)).items():
            recurrent = isinstance(spec.recipe, GruRecipe)
            if name != "files" and (name != "teacher_forcing" or recurrent):
                yield f"{part}.{name}", str(value), record
    yield "update limit", str(spec.updates), record


def _source_evidence(records: list[RunRecord]) -> Evidence:
    file_names, signature_names = _names(records, "files"), sorted({one for r in records for one in r.signatures})
    for record in records:
        data = record.spec.data
        for name in ("corpus", "direction", "test_split", "training_pairs"):
            yield f"data.{name}", str(getattr(data, name)), record
        done = record.status == "completed"
        files = record.fingerprints.get("files") or {}
        proofs: dict[str, str | None] = {f"file {name}": files.get(name) for name in file_names or ("digests",)}
        vocabulary = str(record.fingerprints.get("target_vocabulary"))[:12]
        for name in signature_names if done else ():
            among = "" if name in DETOKENISED else f" (vocabulary {vocabulary})"
            proofs[f"signature of {name}{among}"] = record.signatures.get(name)
        for name, value in proofs.items():
            if value is not None or done:
                yield name, "missing" if value is None else value, record


def _names(records: list[RunRecord], part: str) -> list[str]:
    return sorted({name for record in records for name in record.fingerprints.get(part) or {}})


def _differences(records: list[RunRecord], evidence: Evidence) -> list[str]:
    labels = {record.id: row.label for row in rows(records) for record in row.records}
    found: dict[str, Holders] = {}
    for name, value, record in evidence:
        holders = found.setdefault(name, {}).setdefault(value, [])
        if labels[record.id] not in holders:
            holders.append(labels[record.id])
    return [f"{name}: {_sides(sides)}" for name, sides in found.items() if len(sides) > 1]


def _sides(sides: Holders) -> str:
    return "; ".join(f"{_short(value)} in {', '.join(who)}" for value, who in sides.items())


def _short(value: str) -> str:
    hexadecimal = len(value) >= 32 and all(letter in "0123456789abcdef" for letter in value)
    return value[:12] + "…" if hexadecimal else plain(value)


def _seeds(records: list[RunRecord]) -> list[str]:
    sides: Holders = {}
    for row in rows(records):
        sides.setdefault(", ".join(str(record.spec.seed) for record in row.records), []).append(row.label)
    return [f"seeds: {_sides(sides)}"] if len(sides) > 1 else []


def _drawing(record: RunRecord, name: str) -> str:
    """Return how the tensor is drawn: recipes that start an embedding differently do not share it."""
    recipe = record.spec.recipe
    if name.endswith((".bias", ".shift", ".scale")):
        return "constant"
    if isinstance(recipe, GruRecipe):
        return "gru"
    embedded = name.endswith((".embedding", ".positions"))
    return recipe.embedding_init if embedded and isinstance(recipe, TransformerRecipe) else "xavier"


def _weights(records: list[RunRecord]) -> list[str]:
    """Compare initial tensors of one seed; a variant without a recipe shares none."""
    found: dict[tuple[int, str, str, str], dict[str, list[str]]] = {}
    lines = []
    for row in rows(records):
        for record in row.records:
            weights = record.fingerprints.get("weights") or {}
            if not weights and record.status == "completed" and record.spec.recipe is not None:
                lines.append(f"initial weights, seed {record.spec.seed}: missing in {row.label}")
            for name, digest in weights.items() if record.spec.recipe is not None else ():
                shape, _, code = str(digest).rpartition(":")
                key = (record.spec.seed, name, shape, _drawing(record, name))
                found.setdefault(key, {}).setdefault(code, []).append(row.label)
    tensors: dict[tuple[int, str], list[str]] = {}
    for (seed, name, _, _), sides in found.items():
        if len(sides) > 1:
            who = " against ".join(", ".join(labels) for labels in sides.values())
            tensors.setdefault((seed, who), []).append(name)
    for (seed, who), names in tensors.items():
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        lines.append(f"initial weights, seed {seed}: {', '.join(names[:MOST_NAMES])}{more} differ: {who}")
    return lines
