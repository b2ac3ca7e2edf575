"""Rules that recompute evidence: initial weights, and with the corpus data, batches and scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np

from harness.analysis.fairness import initialiser
from harness.audit.batch_reference import Expected, expected
from harness.audit.digest_rules import before_digests
from harness.audit.metric_rules import is_current
from harness.audit.record_rules import shape_of
from harness.audit.run_folder import Skipped, StoredRun
from harness.data.batch_digest import STATISTICS
from harness.evaluation.metrics import as_version_1
from harness.experiments.serialization import canonical_json
from harness.processes.machine import array_digests
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls import weights
from impls.contract import Recipe

if TYPE_CHECKING:
    from harness.data.dataset import Dataset

MOST = 3
SCORE_TOLERANCE, OTHER_VERSION_TOLERANCE = 1e-6, 0.01
"""How far a score may be from its recomputed value, and how far where another version of a library computed it."""

OTHER_VERSION_SHARE = 0.01
"""The share of sentences whose counts may then differ."""

RMS_TOLERANCE = 1e-6
RMS = ("source_embedding_rms", "target_embedding_rms", "position_rms")
SCORING = ("sacrebleu", "sacremoses", "spacy", "sentencepiece", "subword-nmt")
MOST_NUMBERS, MOST_UPDATES = 2**29, 200_000
"""What is made again at most: a foreign record may name any size, and real ones are far below."""


def initial(stored: StoredRun) -> Iterator[str]:
    """The initial weights are those of the recipe and the seed, in every framework."""
    record = stored.known
    recipe, found = record.spec.recipe, record.fingerprints.get("weights") or {}
    if recipe is None or not found:
        raise Skipped("a model from outside, without a recipe" if recipe is None else "broke off before it began")
    wrong = []
    words = [int(record.sizes.get(f"{side}_words", 0)) for side in ("source", "target")]
    shapes = weights.shapes(recipe, *words)
    if sum(math.prod(shape_of(told)) for told in found.values()) > MOST_NUMBERS:
        raise Skipped(f"more than {MOST_NUMBERS:,} numbers to draw")
    for name, told in sorted(found.items()):
        if shapes.get(name) != shape_of(told):
            continue  # another rule's: a tensor that the recipe has not
        key = (record.spec.seed, name, shape_of(told), initialiser(record, name))
        if key not in stored.memory.drawn:
            drawn = weights.draw(recipe, name, shape_of(told), record.spec.seed)
            stored.memory.drawn[key] = array_digests({name: drawn})[name]
        if stored.memory.drawn[key] != told:
            wrong.append(name)
    if wrong:
        yield f"{_some(wrong)}: not what seed {record.spec.seed} draws{_other_versions(record, ('numpy',))}"
    elif record.sizes.keys() & set(RMS):
        yield from _embedding_rms(record, recipe, {name: shape_of(told) for name, told in found.items()})


def _embedding_rms(record: RunRecord, recipe: Recipe, shapes: dict[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield the RMS of embeddings and positions that differ from the initial weights."""
    tables = {name: shape for name, shape in shapes.items() if name.endswith((".embedding", ".positions"))}
    if "target.embedding" not in tables:
        return  # another rule's: a tensor is missing
    drawn = {name: weights.draw(recipe, name, shape, record.spec.seed) for name, shape in tables.items()}
    for name, value in weights.embedding_rms(recipe, drawn).items():
        told = record.sizes.get(name)
        if told is None or not math.isclose(told, value, rel_tol=RMS_TOLERANCE):
            yield f"sizes.{name}={told}, recomputed {value}"


def corpus(stored: StoredRun) -> Iterator[str]:
    """Files, vocabularies, token ids and sizes are those of the local corpus."""
    record = stored.known
    if not record.fingerprints:
        raise Skipped("broke off before it began")
    prepared = prepared_of(stored)
    if record.spec.data.corpus != "multi30k" and prepared.digests["files"] != record.fingerprints.get("files"):
        raise Skipped("the corpus here is another")  # multi30k's digests are fixed, generators and files change
    wrong = [name for name, one in prepared.digests.items() if record.fingerprints.get(name) != one]
    wrong += [name for name, one in prepared.figures.items() if record.sizes.get(name) != one]
    wrong += sorted(
        record.sizes.keys() - prepared.figures.keys() - {"parameters", "updates_per_epoch", *RMS, *STATISTICS}
    )
    if wrong:
        other = _other_versions(record, ("spacy", "sacremoses", "sentencepiece", "subword-nmt"))
        yield f"{_some(wrong)}: not that of the corpus here{other}"


def stream(stored: StoredRun) -> Iterator[str]:
    """The digests of the consumed batches are those of the corpus and the seed."""
    record = stored.known
    found = _expected(stored)
    if before_digests(record):
        if record.fingerprints.get("stream") != found.flat:
            yield f"stream is not the digest of the batches of seed {record.spec.seed}"
        return
    marks = record.fingerprints.get("batches") or {}
    wrong = [mark for mark in sorted(found.marks) if marks.get(str(mark)) != found.marks[mark]]
    if wrong:
        yield f"batches up to update {wrong[0]:,} are not those of seed {record.spec.seed}"
    if record.fingerprints.get("stream") != found.marks[max(found.marks)]:
        yield f"stream is not the digest of the batches up to update {max(found.marks):,}"
    for name, value in found.statistics.items():
        if record.sizes.get(name) != value:
            yield f"sizes.{name}={record.sizes.get(name)}, recomputed {value}"


def words(stored: StoredRun) -> Iterator[str]:
    """Epochs and test sentences have the numbers of target tokens of the corpus."""
    record = stored.known
    found, before = _expected(stored), 0
    for line in record.curve:
        own = found.tokens.get(line.updates, 0) - found.tokens.get(before, 0)
        if line.tokens != own:
            yield f"epoch {line.epoch}: {line.tokens:,} target words, its batches have {own:,}"
        before = line.updates
    if record.curve[0].updates not in (found.updates_per_epoch, record.curve[-1].updates):
        yield f"epoch 1 has {record.curve[0].updates:,} updates, the corpus makes {found.updates_per_epoch:,}"
    each = record.sizes.get("updates_per_epoch", found.updates_per_epoch)
    if each != found.updates_per_epoch:
        yield f"sizes.updates_per_epoch={each:,.0f}, recomputed {found.updates_per_epoch:,}"
    if record.status == "completed":
        lengths = [len(ids) - 1 for ids in prepared_of(stored).test.target]
        if stored.whole.sentences["tokens"].tolist() != lengths:
            yield "the target words of the test sentences are not those of the corpus"


def _expected(stored: StoredRun) -> Expected:
    """Return what a run must have consumed. Raises `Skipped` if the local corpus is another one."""
    record = stored.known
    if record.status not in run_store.FINISHED or not record.curve:
        raise Skipped("not completed")
    prepared = prepared_of(stored)
    if prepared.digests["tokenised"] != record.fingerprints.get("tokenised"):
        raise Skipped("the ids here are others")
    updates = frozenset(line.updates for line in record.curve)
    if min(updates) < 1 or max(updates) > MOST_UPDATES:
        raise Skipped(f"updates are not from 1 to {MOST_UPDATES:,}")
    training, seed = record.spec.training, record.spec.seed
    key = (record.spec.data, training.batching, training.batch_size, training.batch_tokens, seed, updates)
    if key not in stored.memory.streams:
        stored.memory.streams[key] = expected(prepared.train, training, seed=seed, updates=updates)
    return stored.memory.streams[key]


def scores(stored: StoredRun) -> Iterator[str]:
    """Scores, signatures and counts recomputed from the stored translations and the local corpus agree.

    If another version of a library computed them, scores must agree to 0.01 points, and 99 % of the counts.
    """
    from harness.evaluation.evaluate import check_words, test_scores

    record = stored.completed
    prepared = prepared_of(stored)
    if prepared.digests["files"] != record.fingerprints.get("files"):
        raise Skipped("the corpus here is another")
    hypotheses = stored.hypotheses
    try:
        check_words(hypotheses, run_store.HYPOTHESES)
    except ValueError as error:
        raise Skipped(str(error)) from error
    found, other = test_scores(prepared, hypotheses, record.spec.decoding.unknown), _other_versions(record, SCORING)
    if not is_current(stored):
        found = as_version_1(found)
    tolerance = OTHER_VERSION_TOLERANCE if other else SCORE_TOLERANCE
    for name, value in found.values.items():
        if not math.isclose(record.scores.get(name) or 0.0, value, rel_tol=0, abs_tol=tolerance):
            yield f"{name}={record.scores.get(name)}, recomputed {value}{other}"
    for name, signature in found.signatures.items():
        recorded = record.signatures.get(name)
        if recorded != signature and not (other and _unversioned(recorded) == _unversioned(signature)):
            yield f"signature of {name}: {recorded}, recomputed {signature}{other}"
    if run_store.has_sentences(stored.results, stored.name):
        for name, one in found.statistics.items():
            counted = stored.sentences.get(name)
            same = counted is not None and counted.shape == one.shape
            differing = int(np.any(counted != one, axis=1).sum()) if same else len(one)
            if differing > (OTHER_VERSION_SHARE * len(one) if other else 0):
                yield f"counts of {name} are not those of the translations in {differing:,} sentences{other}"


def _unversioned(signature: str | None) -> str:
    """Return a signature without the version of sacreBLEU, which another rule compares with the environment."""
    return "|".join(part for part in (signature or "").split("|") if not part.startswith("version:"))


def prepared_of(stored: StoredRun) -> Dataset:
    """Return the local corpus of a run; nothing is downloaded. Raises `Skipped` if it is not available."""
    from harness.data.dataset import at_hand

    record, memory = stored.known, stored.memory.prepared
    key = record.spec.data, canonical_json(record.fingerprints.get("files"))
    if key not in memory:
        try:
            memory[key] = at_hand(record) or "Multi30k is not here"
        except ValueError as error:
            memory[key] = " ".join(str(error).split())
    found = memory[key]
    if isinstance(found, str):
        raise Skipped(f"no corpus: {found}")
    prepared: Dataset = found
    return prepared


def _other_versions(record: RunRecord, libraries: Iterable[str]) -> str:
    """Return the libraries whose versions differ from those of the record, for a message; empty if none do."""
    versions = record.environment.get("versions") or {}
    found = []
    for name in libraries:
        try:
            here = metadata.version(name)
        except metadata.PackageNotFoundError:
            here = "not installed"
        if name in versions and versions[name] != here:
            found.append(f"{name} {versions[name]}, here {here}")
    return f" (made with {'; '.join(found)})" if found else ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
