"""What a report says of its evidence: the searches, the data, the machines, the digests, the commands and each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.analysis.grouping import BUDGETS, rows
from harness.storage.records import RunRecord
from harness.text import short_line

MISSING = "–"


def measured(records: Sequence[RunRecord]) -> list[str]:
    """Return in words how translations were searched for, on what the runs ran, and what the data left out."""
    lines = []
    for search, who in _holders(records, _search):
        lines.append(f"Decoding: {search}{who}.")
    for place, who in _holders(records, _place):
        lines.append(f"Trained on {place}{who}.")
    for sizes, who in _holders(records, _sizes):
        if sizes:
            lines.append(f"Data: {sizes}{who}.")
    return lines


def _search(record: RunRecord) -> str:
    spec = record.spec.decoding
    formula = " (length to this power)" * (spec.length_formula == "power")
    way = "greedy" if spec.beam == 1 else f"beam {spec.beam}, length penalty {spec.length_penalty:g}{formula}"
    return f"{way}, at most {spec.max_tokens} tokens, batches of {spec.batch_size}"


def _place(record: RunRecord) -> str:
    spec = record.spec
    threads = f"{spec.threads} thread" + ("" if spec.threads == 1 else "s")
    graphs = ", CUDA graphs" * (spec.cuda_graphs == "on")
    return f"{spec.framework}, {spec.device}, {spec.precision}{graphs}, {threads}"


def _sizes(record: RunRecord) -> str:
    data, sizes = record.spec.data, record.sizes
    words = {
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
    parts = [f"{sizes[name]:,.0f} {what}" for name, what in words.items() if sizes.get(name) is not None]
    for name, what in (("test_source_unknown_rate", "source"), ("test_target_unknown_rate", "target")):
        if sizes.get(name) is not None:
            parts.append(f"{100 * sizes[name]:.2f} % unknown {what} words in the test set")
    return f"{data.tokenizer} tokenizer, {', '.join(parts)}" if parts else ""


def _holders(records: Sequence[RunRecord], value: Callable[[RunRecord], str]) -> list[tuple[str, str]]:
    """Return each value, with " (who)" where there are several: variants, with their budget where that tells more."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        same = {value(other) for other in records if other.spec.variant == record.spec.variant}
        budget = f", {BUDGETS[record.spec.budget].lower()}" if len(same) > 1 else ""
        found.setdefault(value(record), {})[f"{short_line(record.spec.variant)}{budget}"] = None
    return [(one, f" ({'; '.join(who)})" if len(found) > 1 else "") for one, who in found.items()]


def signatures(records: Sequence[RunRecord]) -> list[tuple[str, str, str]]:
    """Return each score, how it was computed, and whose it is."""
    made = []
    for name in sorted({one for record in records for one in record.signatures}):
        having = [record for record in records if name in record.signatures]
        for signature, who in _holders(having, _signature(name)):
            made.append((name, signature, who[2:-1] or "all"))
    return made


def _signature(name: str) -> Callable[[RunRecord], str]:
    return lambda record: record.signatures[name]


def sources(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return each variant, and what it follows."""
    found: dict[str, str] = {}
    for row in rows(records):
        recipe = row.records[0].spec.recipe
        found.setdefault(row.variant, recipe.source if recipe else "")
    return [(variant, source or MISSING) for variant, source in found.items()]


def commands(records: Sequence[RunRecord], command: str) -> list[str]:
    """Return `command`, or where it is empty each command that made a run."""
    lines = [command] if command else list(dict.fromkeys(record.command for record in records if record.command))
    return [short_line(line, longest=2_000) for line in lines]


def environment(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return versions, commit, machine and threads, each value once."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in _flat(record.environment):
            if value:  # a run that nothing disturbed has lists of disturbances without an entry
                found.setdefault(name, {})[value] = None
    return [(name, "; ".join(values)) for name, values in sorted(found.items())]


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, one in value.items() for pair in _flat(one, f"{name} {key}".strip())]
    return [(name, short_line(", ".join(map(_told, value)) if isinstance(value, list | tuple) else str(value)))]


def _told(one: Any) -> str:
    return " ".join(f"{name} {value}" for name, value in _flat(one)) if isinstance(one, dict) else str(one)


def digests(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return the SHA-256 digests of data, vocabularies and batches."""
    found: dict[tuple[str, str], None] = {}
    for record in records:
        prints, data = record.fingerprints, record.spec.data
        where = f"{data.corpus} {data.direction}"
        for name, digest in (prints.get("files") or {}).items():
            found[f"{where}: {name}", str(digest)] = None
        for name in ("source_vocabulary", "target_vocabulary", "tokenised"):
            if prints.get(name):
                found[f"{where}: {name.replace('_', ' ')}", str(prints[name])] = None
        if prints.get("stream"):
            found[f"{where}: stream of batches, seed {record.spec.seed}", str(prints["stream"])] = None
    return sorted(found)


def runs(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Return for each run its id, status, start, and the digest of its translations."""
    return [
        {
            "id": record.id,
            "status": record.status,
            "started": record.started or MISSING,
            "hypotheses": str(record.fingerprints.get("hypotheses") or MISSING),
        }
        for record in records
    ]


def commit(record: RunRecord) -> str:
    """Return the commit that a run was made at; empty where it is unknown."""
    known = record.environment.get("commit")
    digest = known.get("digest") if isinstance(known, dict) else known
    return short_line(str(digest or ""), longest=60)
