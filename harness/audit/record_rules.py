"""Rules about a record as a document: complete, unedited, and with its settings and environment."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from harness.audit.run_folder import Skipped, StoredRun
from harness.experiments.specs import ADDED_FIELDS
from harness.storage import files, run_store
from harness.storage.records import RunRecord
from impls.weights import count, shapes

SEALED_SCHEMA = 2
"""Records from this schema on must have a seal; many of schema 1 were written before seals existed."""

TRAINING_DIGESTS = ("batches", "weights_after")
"""Fingerprints that training takes while it runs, from schema 2 on."""

DIGESTS = ("source_vocabulary", "target_vocabulary", "tokenised")
SIZES = ("parameters", "source_words", "target_words", "train_pairs", "validation_pairs", "test_pairs")
SPEEDS = ("total_seconds", "first_update_seconds", "decoding_sentences_per_second")
LOSSES = ("training_loss", "training_perplexity", "validation_loss", "validation_perplexity")
PLACE = ("framework", "device", "precision", "threads")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ROUNDING = 1e-6
"""How far, as a share, two figures may be apart that are one figure computed in two ways."""

_SHA_256 = re.compile(r"[0-9a-f]{64}")
_TENSOR = re.compile(r"(\d+(x\d+)*)?:[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def equal(one: float | None, other: float | None) -> bool:
    """Return whether two numbers are equal up to rounding; two missing ones are."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=1e-9)


def readable(stored: StoredRun) -> Iterator[str]:
    """`record.json` is a record of a known schema."""
    if stored.unreadable:
        yield stored.unreadable


def fields(stored: StoredRun) -> Iterator[str]:
    """Every field of the record is known, present and of its type."""
    if stored.unreadable:
        raise Skipped("no record can be read")
    yield from stored.misfits
    if stored.raw["schema"] == 1:
        yield from (f"{name}: schema 1 has no such field" for name in _later_fields(stored.raw))


def _later_fields(raw: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of schema 2 that a record of schema 1 has."""
    spec, fingerprints = raw.get("spec"), raw.get("fingerprints")
    for part, name in ADDED_FIELDS:
        settings = spec.get(part) if isinstance(spec, dict) else None
        if isinstance(settings, dict) and name in settings:
            yield f"spec.{part}.{name}"
    yield from (f"fingerprints.{name}" for name in TRAINING_DIGESTS if name in (fingerprints or {}))


def own_id(stored: StoredRun) -> Iterator[str]:
    """The id is the digest of the settings."""
    record = stored.known
    if record.id != record.spec.id:
        yield f"its id is {record.id}, that of its settings {record.spec.id}"


def folder(stored: StoredRun) -> Iterator[str]:
    """The name of the folder is the id of its record."""
    if stored.known.id != stored.name:
        yield f"holds the record of {stored.known.id}"


def seal(stored: StoredRun) -> Iterator[str]:
    """The record is unchanged since it was written: its digest equals its seal."""
    if stored.unreadable:
        raise Skipped("no record can be read")
    if run_store.SEAL not in stored.raw:
        if stored.raw.get("schema", 0) >= SEALED_SCHEMA:
            yield f"no seal: records of schema {stored.raw['schema']} are sealed when they are written"
            return
        raise Skipped("not sealed: made by an older version")
    if files.seal(stored.raw) != stored.raw[run_store.SEAL]:
        yield "edited since it was written: its digest is not its seal"


def ended(stored: StoredRun) -> Iterator[str]:
    """Every run completed or diverged; none is missing, unfinished, interrupted or failed."""
    if stored.record is None:
        yield "has no record that can be read"
    elif stored.record.status not in run_store.FINISHED:
        yield f"{stored.record.status}: {' '.join(stored.record.reason.split()) or 'without a reason'}"


def contents(stored: StoredRun) -> Iterator[str]:
    """A completed run has all results; a diverged one ends with a loss that is not finite."""
    record = stored.known
    if record.status == "completed":
        for name in ("curve", "chosen_epochs", "scores", "signatures", "decode"):
            if not getattr(record, name):
                yield f"completed without {name}"
        yield from (f"completed without sizes.{name}" for name in SIZES if name not in record.sizes)
        yield from (f"completed without speed.{name}" for name in SPEEDS if name not in record.speed)
        if record.reason:
            yield f"completed, and gives a reason: {record.reason!r}"
    elif record.scores:
        yield f"{record.status}, and has scores"
    if record.status == "diverged":
        last = record.curve[-1] if record.curve else None
        if last is None or None not in (getattr(last, name) for name in LOSSES):
            yield "diverged, and its last epoch is finite"


def digests(stored: StoredRun) -> Iterator[str]:
    """Every fingerprint is present and a SHA-256 digest."""
    found, done = stored.known.fingerprints, stored.known.status == "completed"
    of_all = ("stream",) if stored.known.status in run_store.FINISHED else ()
    expected = (*DIGESTS, *of_all, *(("hypotheses", "trained_weights") if done else ()))
    if found or done:
        yield from (f"no digest of {name}" for name in ("files", "weights", *expected) if not found.get(name))
    for name, value in found.items():
        if isinstance(value, str) and not _SHA_256.fullmatch(value):
            yield f"{name}={value!r} is not a SHA-256"
    for name, value in (found.get("files") or {}).items():
        if not _SHA_256.fullmatch(value):
            yield f"files.{name}={value!r} is not a SHA-256"
    for name, value in (found.get("weights") or {}).items():
        if not _TENSOR.fullmatch(value):
            yield f"weights.{name}={value!r} is not a shape, a colon and a SHA-256"


def environment(stored: StoredRun) -> Iterator[str]:
    """Versions and machine are recorded, and threads, device and framework match the settings."""
    record = stored.known
    found, spec = record.environment, record.spec
    if not found and record.status != "completed":
        raise Skipped("broke off before it began")
    for name in ("python", "versions", "machine", "backend"):
        if not found.get(name):
            yield f"no {name}"
    for name in PLACE:
        if found.get(name) != getattr(spec, name):
            yield f"{name} {found.get(name)!r}, in its settings {getattr(spec, name)!r}"
    if found.get("backend") not in (None, spec.computes):
        yield f"backend {found.get('backend')!r}, in its settings {spec.computes!r}"
    versions = found.get("versions") or {}
    for name in ("numpy", "sacrebleu", *([spec.framework] if spec.recipe else [])):
        if not versions.get(name):
            yield f"no version of {name}"
    variables = found.get("variables") or {}
    for name in THREADS:
        if isinstance(variables, dict) and variables.get(name, str(spec.threads)) != str(spec.threads):
            yield f"{name}={variables[name]} with {spec.threads} threads in its settings"


def commit(stored: StoredRun) -> Iterator[str]:
    """The record names the commit, and says whether its files were changed."""
    record = stored.known
    if not record.environment and record.status != "completed":
        raise Skipped("broke off before it began")
    found = record.environment.get("commit")
    if not found:
        yield "no commit: the code it was made with cannot be found again"
    elif not isinstance(found.get("digest"), str) or not _COMMIT.fullmatch(found["digest"]):
        yield f"commit.digest={found.get('digest')!r} is not the digest of a commit"
    elif not isinstance(found.get("dirty"), bool):
        yield f"commit.dirty={found.get('dirty')!r} must be true or false"


def updates_per_epoch(record: RunRecord) -> int:
    """Return the number of batches per epoch, from the batch size, or as recorded if batch sizes vary."""
    training, pairs = record.spec.training, record.sizes.get("train_pairs", 0)
    if training.batching == "tokens":
        return max(1, int(record.sizes.get("updates_per_epoch", 1)))
    return math.ceil(pairs / training.batch_size)


def sizes(stored: StoredRun) -> Iterator[str]:
    """Sizes, shares and lengths are possible and match the settings."""
    record = stored.known
    found, data = record.sizes, record.spec.data
    if not found:
        raise Skipped("broke off before it began")
    for name, value in found.items():
        least, most = (0, 1) if name.endswith("_rate") else (0, math.inf)
        whole = most > 1 and not name.endswith("_rms")
        if not least <= value <= most or (whole and value % 1):
            yield f"{name}={value!r} is not {'a share' if most == 1 else 'a whole number'}"
    if not equal(found.get("source_words"), found.get("target_words")) and data.vocabulary == "joint":
        yield f"{found.get('source_words')} and {found.get('target_words')} words in one joint vocabulary"
    kept = found.get("train_pairs", 0) + found.get("train_left_out", 0)
    if data.training_pairs is not None and kept > data.training_pairs:
        yield f"{kept:,.0f} training pairs, in its settings {data.training_pairs:,}"
    for side in ("source", "target"):
        for split in ("train", "validation", "test"):
            start = f"{split}_{side}_length_"
            places = sorted((int(name[len(start) :]), value) for name, value in found.items() if name.startswith(start))
            lengths = [value for _, value in places]
            if lengths != sorted(lengths):
                yield f"{split}_{side}_length: its quantiles do not rise"


def parameters(stored: StoredRun) -> Iterator[str]:
    """The number of parameters and the initial tensors are those of the recipe."""
    record = stored.known
    if "parameters" not in record.sizes:
        raise Skipped("broke off before it began")
    tensors = {name: shape_of(one) for name, one in (record.fingerprints.get("weights") or {}).items()}
    total = sum(math.prod(shape) for shape in tensors.values())
    if tensors and total != record.sizes["parameters"]:
        yield f"parameters={record.sizes['parameters']:,.0f}, its tensors have {total:,}"
    if record.spec.recipe is None:
        return
    words = [int(record.sizes.get(f"{side}_words", 0)) for side in ("source", "target")]
    expected: dict[str, Any] = dict(shapes(record.spec.recipe, *words))
    if record.sizes["parameters"] != count(record.spec.recipe, *words):
        yield f"parameters={record.sizes['parameters']:,.0f}, its recipe has {count(record.spec.recipe, *words):,}"
    yield from other_tensors(tensors, expected, "its recipe")


def shape_of(digest: str) -> tuple[int, ...]:
    """Return the shape before the colon of a tensor's digest; empty if it is not readable."""
    sizes = digest.rpartition(":")[0].split("x")
    return tuple(map(int, sizes)) if all(one.isdecimal() for one in sizes) else ()


def other_tensors(found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]], whose: str) -> Iterator[str]:
    """Yield the tensors that are missing, unknown, or of another shape than those of `whose`."""
    lines = [f"without {name}" for name in sorted(expected.keys() - found.keys())]
    lines += [f"{name} is no tensor of {whose}" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(found.keys() & expected.keys()):
        if tuple(found[name]) != tuple(expected[name]):
            lines.append(f"{name} is {list(found[name])}, that of {whose} {list(expected[name])}")
    yield from lines[:4]
    if len(lines) > 4:
        yield f"and {len(lines) - 4} tensors more"
