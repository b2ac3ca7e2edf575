"""Scores a stored run again from its tokens, so that a record of an earlier version gets the scores of this version.

The tokens, the losses and the `environment` of the run do not change. The `note` says that it was scored again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from harness.data.dataset import Dataset, detokenise
from harness.evaluation.evaluate import check_words, test_scores
from harness.evaluation.metrics import Scores, as_version_1, unknown_tokens
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.storage.run_store import Hypothesis

NOTE = "Scored again from the stored tokens, with one character, ⁇, for each unknown word in the text."
TOLERANCE = 1e-6
LIBRARIES = ("sacrebleu", "sacremoses")


@dataclass(frozen=True)
class Rescored:
    """The new record, translations and scores of a run, and the number of texts that differ from the stored ones."""

    record: RunRecord
    hypotheses: list[Hypothesis]
    scores: Scores
    changed_texts: int


def rescore(results: Path, record: RunRecord, prepared: Dataset) -> Rescored | None:
    """Score the stored tokens of a run again and write its translations, counts and record.

    The record is written last. If the process is killed before that, the files no longer match the record and have to
    be restored from a copy.

    Returns:
        The result; None if the run already has everything that this version computes, and nothing was written.

    Raises:
        ValueError: The run is not completed, its stored scores are not those of its stored text, the corpus has
            changed, or a library that scores has another version than when the run was scored.
    """
    stored = _checked_hypotheses(results, record, prepared)
    _check_versions(record)
    _check_scores(record, test_scores(prepared, stored, record.spec.decoding.unknown))
    result = rescored(record, stored, prepared)
    if result.record == record:
        return None
    fingerprints = dict(record.fingerprints)
    if run_store.has_sentences(results, record.id):
        sentences = run_store.load_sentences(results, record.id, record.fingerprints.get("sentences"))
        losses = {name: sentences[name] for name in ("nats", "tokens")}
        fingerprints["sentences"] = run_store.save_sentences(results, record.id, {**losses, **result.scores.statistics})
    fingerprints["hypotheses"] = run_store.save_hypotheses(results, record.id, result.hypotheses)
    result = replace(result, record=replace(result.record, fingerprints=fingerprints))
    run_store.update_record(results, result.record)
    return result


def rescored(record: RunRecord, stored: list[Hypothesis], prepared: Dataset) -> Rescored:
    """Return the translations and the record of a run scored from its tokens; the digests in it are the old ones."""
    texts = detokenise(prepared, [hypothesis.tokens for hypothesis in stored])
    hypotheses = [replace(hypothesis, text=text) for hypothesis, text in zip(stored, texts, strict=True)]
    changed = sum(old.text != new.text for old, new in zip(stored, hypotheses, strict=True))
    scores = test_scores(prepared, hypotheses, record.spec.decoding.unknown)
    count = unknown_tokens([hypothesis.tokens for hypothesis in hypotheses])
    new = replace(
        record,
        scores={**record.scores, **scores.values},
        signatures=dict(scores.signatures),
        decode={**record.decode, "unknown_tokens": count},
    )
    if new != record:
        new = replace(new, note=" ".join(filter(None, (record.note.replace(NOTE, "").strip(), NOTE))))
    return Rescored(new, hypotheses, scores, changed)


def _checked_hypotheses(results: Path, record: RunRecord, prepared: Dataset) -> list[Hypothesis]:
    """Return the stored translations. Raises: ValueError if they or the corpus are not those of the run."""
    if record.status != "completed":
        raise ValueError(f"run {record.id}: its status is {record.status}; only completed runs have scores")
    digest = record.fingerprints.get("hypotheses")
    if digest is None:
        raise ValueError(f"run {record.id}: its record has no digest of {run_store.HYPOTHESES}")
    stored = run_store.load_hypotheses(results, record.id, digest)
    check_words(stored, f"run {record.id}: {run_store.HYPOTHESES}")
    for name in ("files", "tokenised", "target_vocabulary"):
        if prepared.digests.get(name) != record.fingerprints.get(name):
            raise ValueError(f"run {record.id}: {name} of the corpus here is not that of the run")
    if [hypothesis.sentence for hypothesis in stored] != list(range(len(prepared.test))):
        raise ValueError(f"run {record.id}: {run_store.HYPOTHESES} does not hold each test sentence once, in order")
    return stored


def _check_versions(record: RunRecord) -> None:
    versions = record.environment.get("versions") or {}
    for name in LIBRARIES:
        installed = metadata.version(name)
        if versions.get(name, installed) != installed:
            raise ValueError(
                f"run {record.id}: it was scored with {name} {versions[name]}, installed is {installed}; "
                f"install {name}=={versions[name]} to score it again"
            )


def _check_scores(record: RunRecord, scores: Scores) -> None:
    """Raise ValueError if the stored scores are not those of the stored text."""
    if "brevity_penalty" not in record.scores:
        scores = as_version_1(scores)
    for name, value in scores.values.items():
        recorded = record.scores.get(name)
        if recorded is None or not math.isclose(recorded, value, rel_tol=0, abs_tol=TOLERANCE):
            raise ValueError(
                f"run {record.id}: {name}={recorded}, expected {value} (its stored text); not scored again"
            )
        signature, expected = record.signatures.get(name), scores.signatures[name]
        if signature != expected:
            raise ValueError(
                f"run {record.id}: the signature of {name} is {signature}, expected {expected}; not rescored"
            )
