"""Rules about the other files of a run: translations, sentence statistics and weights."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator

import numpy as np

from harness.audit.digest_rules import kept_digest
from harness.audit.record_rules import equal, other_tensors, shape_of
from harness.audit.run_folder import Skipped, StoredRun
from harness.data.batch_digest import weights_digest
from harness.evaluation.metrics import (
    ORDERS,
    SMOOTHING,
    brevity_from_sums,
    perplexity_from_sums,
    score_from_sums,
    unknown_tokens,
)
from harness.storage import files, run_store
from harness.storage.records import RunRecord
from impls.contract import Arrays

OTHER_MACHINE = 1e-4
"""How far, as a share, the test perplexity may be from its sentences', which another machine may have evaluated later.

Edits below this show in other rules: the loss and its perplexity make each other up.
"""

HALF_PRECISION = 0.01
"""How far a sum of some hundred numbers of half precision may be from 1."""


def translations(stored: StoredRun) -> Iterator[str]:
    """The translations have the digest in the record."""
    expected = stored.completed.fingerprints.get("hypotheses")
    path = stored.folder / run_store.HYPOTHESES
    if expected and os.path.lexists(path) and stored.digest(run_store.HYPOTHESES) != expected:
        yield f"{path.name}: damaged (its SHA-256 is not {expected})"
    known = stored.hypotheses
    lines = files.read_bytes(path, run_store.HYPOTHESES_BYTES).removesuffix(b"\n").split(b"\n")
    for number, (line, _) in enumerate(zip(lines, known, strict=True), start=1):
        if json.loads(line).keys() != {"sentence", "text", "tokens"}:
            yield f"{path.name}: line {number} has other fields than sentence, text and tokens"
            return


def sentences(stored: StoredRun) -> Iterator[str]:
    """Each test sentence has one translation, in order, and none exceeds the maximum length."""
    record = stored.completed
    found = stored.hypotheses
    pairs, most = record.sizes.get("test_pairs"), record.spec.decoding.max_tokens
    if len(found) != pairs:
        yield f"{len(found):,} translations of {pairs or 0:,.0f} test sentences"
    wrong = next((number for number, one in enumerate(found) if one.sentence != number), None)
    if wrong is not None:
        yield f"line {wrong + 1} is of sentence {found[wrong].sentence}"
    longest = max((len(one.tokens) for one in found), default=0)
    if longest > most:
        yield f"a translation of {longest} words, decoding.max_tokens={most}"
    full = sum(len(one.tokens) == most for one in found)
    if record.decode.get("unfinished", 0) > full:
        yield f"{record.decode['unfinished']} unfinished translations, {full} have decoding.max_tokens={most} words"
    unknown = unknown_tokens([one.tokens for one in found])
    if record.decode.get("unknown_tokens", unknown) != unknown:
        yield f"unknown_tokens={record.decode['unknown_tokens']}, the translations have {unknown}"
    if unknown and record.spec.decoding.unknown == "never":
        yield f"{unknown} unknown tokens in the translations, decoding.unknown='never'"


def counts(stored: StoredRun) -> Iterator[str]:
    """The statistics of the sentences have the digest in the record, and add up to its scores."""
    record = stored.completed
    found = stored.sentences
    pairs = record.sizes.get("test_pairs")
    if len(found["nats"]) != pairs:
        yield f"counts of {len(found['nats']):,} sentences, of {pairs or 0:,.0f} test sentences"
    counted = {name for name in record.scores if name in SMOOTHING or name == "chrf"}
    yield from (f"no counts of {name}" for name in sorted(counted - found.keys()))
    yield from (f"counts of {name}, which is no score" for name in sorted(found.keys() - counted - {"nats", "tokens"}))
    perplexity = float(perplexity_from_sums(found["nats"].sum(), found["tokens"].sum()))
    if not math.isclose(record.scores.get("test_perplexity") or 0.0, perplexity, rel_tol=OTHER_MACHINE):
        yield f"test_perplexity={record.scores.get('test_perplexity')}, its sentences make {perplexity}"
    for name in sorted(counted & found.keys()):
        made = float(score_from_sums(name, found[name].sum(axis=0)))
        if not equal(record.scores[name], made):
            yield f"{name}={record.scores[name]}, its sentences make {made}"
    if "brevity_penalty" in record.scores and "bleu_sacre" in found:
        made = float(brevity_from_sums(found["bleu_sacre"].sum(axis=0)))
        if not equal(record.scores["brevity_penalty"], made):
            yield f"brevity_penalty={record.scores['brevity_penalty']}, its sentences make {made}"
    if "bleu_tutorial" in found:
        yield from _orders(record, found)


def _orders(record: RunRecord, found: Arrays) -> Iterator[str]:
    """Yield each individual BLEU that does not follow from the counts of `bleu_tutorial`."""
    sums = found["bleu_tutorial"].sum(axis=0)
    brevity = float(brevity_from_sums(sums))
    for order in ORDERS:
        total = float(sums[1 + len(ORDERS) + order])
        made = 100 * brevity * float(sums[1 + order]) / total if total else 0.0
        if not equal(record.scores.get(f"bleu_{order}_individual"), made):
            yield f"bleu_{order}_individual={record.scores.get(f'bleu_{order}_individual')}, its sentences make {made}"


def lengths(stored: StoredRun) -> Iterator[str]:
    """The statistics of each sentence are those of its stored translation."""
    record = stored.completed
    found, hypotheses = stored.sentences, stored.hypotheses
    if record.spec.data.has_subwords:
        raise Skipped("scored on other tokens than its own")
    words = [len(one.tokens) for one in hypotheses]
    if "bleu_tutorial" not in found or len(words) != len(found["bleu_tutorial"]):
        yield f"{len(words):,} translations, counts of {len(found.get('bleu_tutorial', ())):,}"
        return
    wrong = np.flatnonzero(found["bleu_tutorial"][:, 0] != words)
    if len(wrong):
        first = int(wrong[0])
        yield (
            f"{len(wrong)} translations are not those that were counted: sentence {first} has {words[first]} words, "
            f"{found['bleu_tutorial'][first, 0]} were counted"
        )


def weights(stored: StoredRun) -> Iterator[str]:
    """The stored weights have the digest in the record, are finite, and have the expected names and shapes."""
    record = stored.completed
    path = stored.folder / f"{run_store.WEIGHTS}.safetensors"
    manifest = stored.folder / f"{run_store.WEIGHTS}.json"
    if not path.exists() and not manifest.exists():
        raise Skipped("weights not stored")
    found = run_store.load_weights(stored.results, stored.name)
    if stored.digest(path.name) != record.fingerprints.get("trained_weights"):
        yield f"{path.name}: its SHA-256 is not the record's"
    initial = {name: shape_of(one) for name, one in (record.fingerprints.get("weights") or {}).items()}
    yield from other_tensors({name: one.shape for name, one in found.items()}, initial, "those it began with")
    digest = kept_digest(record)
    if digest is not None and weights_digest(found) != digest:
        yield f"{path.name}: not the weights after epoch {record.chosen_epochs[0]}, which the record has the digest of"
    odd = [name for name, one in sorted(found.items()) if not np.isfinite(one).all()]
    if odd:
        yield f"{', '.join(odd[:4])}: not finite"


def attention(stored: StoredRun) -> Iterator[str]:
    """The stored attention has the digest in the record, the lengths of the translations, and rows that add up to 1."""
    record = stored.completed
    digest = record.fingerprints.get("attention")
    if not run_store.has_attention(stored.results, stored.name):
        raise Skipped("attention not stored")
    if digest is None:
        raise ValueError(f"{run_store.ATTENTION} is there, and its digest is not in the record")
    found = run_store.load_attention(stored.results, stored.name, digest)
    words = {one.sentence: len(one.tokens) for one in stored.hypotheses}
    for number, weights in found.items():
        if weights.shape[1] != words.get(number, -1) + 1:
            yield f"sentence {number}: {weights.shape[1]} rows, its translation has {words.get(number, 0)} words"
        elif not np.allclose(weights.sum(axis=-1, dtype=np.float64), 1, atol=HALF_PRECISION):
            yield f"sentence {number}: its attention does not add up to 1"
