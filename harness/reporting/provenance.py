"""Where the figures of a report come from: decoding, data, machines, digests, commands and runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.analysis.grouping import BUDGETS, rows
from harness.experiments.specs import execution
from harness.reporting.formatting import MISSING
from harness.storage.records import RunRecord
from harness.text import count, short_line

_SIZES = {
    "train_pairs": "training pairs",
    "validation_pairs": "validation pairs",
    "test_pairs": "test pairs",
    "train_duplicate_pairs": "training pairs that repeat another",
    "test_pairs_in_train": "test pairs that are in training too",
    "train_left_out": "training pairs left out as too long",
    "validation_cut": "validation sentences cut",
    "test_cut": "test sentences cut",
    "source_words": "source words",
    "target_words": "target words",
}


def measured(records: Sequence[RunRecord]) -> list[str]:
    """Return sentences on the decoding, the machine settings and the data of the runs."""
    return [
        f"{start} {value}{variants}."
        for start, describe in (("Decoding:", _decoding), ("Trained on", _machine), ("Data:", _data))
        for value, variants in _by_value(records, map(describe, records))
        if value
    ]


def _decoding(record: RunRecord) -> str:
    spec = record.spec.decoding
    formula = " (length to this power)" * (spec.length_formula == "power")
    search = "greedy" if spec.beam == 1 else f"beam {spec.beam}, length penalty {spec.length_penalty:g}{formula}"
    return f"{search}, at most {spec.max_tokens} tokens, batches of {spec.batch_size}"


def _machine(record: RunRecord) -> str:
    spec = record.spec
    framework = f"{spec.framework} on {spec.backend}" if spec.backend else spec.framework
    return f"{framework}, {execution(spec)}, {count(spec.threads, 'thread')}"


def _data(record: RunRecord) -> str:
    sizes = record.sizes
    parts = [f"{sizes[name]:,.0f} {noun}" for name, noun in _SIZES.items() if sizes.get(name) is not None]
    for side in ("source", "target"):
        rate = sizes.get(f"test_{side}_unknown_rate")
        parts += [] if rate is None else [f"{100 * rate:.2f} % unknown {side} words in the test set"]
    return f"{record.spec.data.tokenizer} tokenizer, {', '.join(parts)}" if parts else ""


def _by_value(records: Sequence[RunRecord], values: Iterable[str]) -> list[tuple[str, str]]:
    """Return the different values of the records, each with " (variants)" that have it; empty if it is the only value.

    Variants are named with their budget if their values differ between budgets.
    """
    pairs = list(zip(records, values, strict=True))
    of_variant: dict[str, set[str]] = {}
    for record, value in pairs:
        of_variant.setdefault(record.spec.variant, set()).add(value)
    variants: dict[str, dict[str, None]] = {}
    for record, value in pairs:
        budget = f", {BUDGETS[record.spec.budget].lower()}" if len(of_variant[record.spec.variant]) > 1 else ""
        variants.setdefault(value, {})[f"{short_line(record.spec.variant)}{budget}"] = None
    several = len(variants) > 1
    return [(value, f" ({'; '.join(names)})" if several else "") for value, names in variants.items()]


def signatures(records: Sequence[RunRecord]) -> list[tuple[str, str, str]]:
    """Return each score, its signature, and the variants that it holds for."""
    lines = []
    for name in sorted({name for record in records for name in record.signatures}):
        scored = [record for record in records if name in record.signatures]
        values = [record.signatures[name] for record in scored]
        lines += [(name, signature, variants[2:-1] or "all") for signature, variants in _by_value(scored, values)]
    return lines


def sources(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return each variant with the source that it follows."""
    names: dict[str, str] = {}
    for row in rows(records):
        recipe = row.records[0].spec.recipe
        names.setdefault(row.variant, recipe.source if recipe else "")
    return [(variant, source or MISSING) for variant, source in names.items()]


def commands(records: Sequence[RunRecord]) -> list[str]:
    """Return the different commands of the records."""
    lines = dict.fromkeys(record.command for record in records if record.command)
    return [short_line(line, longest=2_000) for line in lines]


def environment(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return versions, commit, machine and threads, with all their different values."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in _flat(record.environment):
            if value:  # lists of disturbances are empty if nothing disturbed a run
                values.setdefault(name, {})[value] = None
    return [(name, "; ".join(texts)) for name, texts in sorted(values.items())]


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Return nested settings as pairs of a name, such as "machine cores", and a value."""
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _flat(item, f"{name} {key}".strip())]
    if isinstance(value, list | tuple):
        items = [" ".join(f"{key} {text}".strip() for key, text in _flat(item)) for item in value]
        value = ", ".join(items)
    return [(name, short_line(str(value)))]


def digests(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return the SHA-256 digests of data, vocabularies and batches."""
    pairs: set[tuple[str, str]] = set()
    for record in records:
        fingerprints = record.fingerprints
        values = {name.replace("_", " "): fingerprints.get(name) for name in ("source_vocabulary", "target_vocabulary")}
        values["tokenised"] = fingerprints.get("tokenised")
        values[f"stream of batches, seed {record.spec.seed}"] = fingerprints.get("stream")
        values |= fingerprints.get("files") or {}
        data = f"{record.spec.data.corpus} {record.spec.data.direction}"
        pairs |= {(f"{data}: {name}", str(digest)) for name, digest in values.items() if digest}
    return sorted(pairs)


def runs(records: Sequence[RunRecord]) -> list[tuple[str, str, str, str]]:
    """Return the id, the status, the start and the digest of the translations of each run."""
    return [
        (record.id, record.status, record.started or MISSING, str(record.fingerprints.get("hypotheses") or MISSING))
        for record in records
    ]


def commit(record: RunRecord) -> str:
    """Return the commit of a run; empty if it is unknown."""
    digest = (record.environment.get("commit") or {}).get("digest")
    return short_line(str(digest or ""), longest=60)
