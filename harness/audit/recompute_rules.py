"""Rules that recompute evidence: initial weights, and with the corpus data, batches and scores."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from harness.analysis.fairness import initialiser
from harness.audit.batch_reference import Expected, expected
from harness.audit.file_rules import SUMS
from harness.audit.record_rules import RMS, SIZES_OF_RUNS, Shapes, tensor_shapes, vocabulary_sizes
from harness.audit.run_folder import NOT_COMPLETED, NOT_STARTED, Skipped, StoredRun, skip_unless, unequal
from harness.data.batch_digest import array_digests
from harness.experiments.serialization import canonical_json
from harness.processes import machine
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import first_few
from impls import weights
from impls.contract import Recipe

if TYPE_CHECKING:
    from harness.data.dataset import Dataset

SCORE_TOLERANCE, OTHER_VERSION_TOLERANCE = 1e-6, 0.01
"""Tolerance of recomputed scores, and if another version of a library computed them. Units: points."""

OTHER_VERSION_SHARE = 0.01
"""The share of sentences that may then have other counts."""

BATCH = 128
"""The batch size of evaluation; the tutorials' perplexity is a mean over its batches."""

NO_CORPUS = "no corpus: "
"""Begins the reason why a rule is skipped without the text of a run."""

PREPARING = ("spacy", "sacremoses", "sentencepiece", "subword-nmt")
SCORING = ("sacrebleu", "sacremoses", "spacy", "sentencepiece", "subword-nmt")
MOST_NUMBERS, MOST_UPDATES = run_store.WEIGHTS_BYTES // 4, 200_000
"""Limits of recomputation, because a record from elsewhere may state any size; no larger weights can be stored."""


def initial(stored: StoredRun) -> Iterator[str]:
    """The initial weights are those of the recipe and the seed, in every framework."""
    record, recipe = stored.record, stored.record.spec.recipe
    if recipe is None:
        raise Skipped("an external model, without a recipe")
    digests, seed = skip_unless(record.fingerprints.get("weights"), NOT_STARTED), record.spec.seed
    shapes, tensors = weights.shapes(recipe, *vocabulary_sizes(record)), tensor_shapes(record)
    numbers = sum(map(math.prod, tensors.values()))
    skip_unless(numbers <= MOST_NUMBERS, f"more than {MOST_NUMBERS:,} numbers to draw")
    wrong = []
    for name in sorted(name for name in tensors if tensors[name] == shapes.get(name)):  # another rule reports others
        digest = functools.partial(_tensor_digest, recipe, name, tensors[name], seed)
        if stored.context.cached((seed, name, tensors[name], initialiser(record, name)), digest) != digests[name]:
            wrong.append(name)
    if wrong:
        versions = _other_versions(record, ("numpy",))
        yield f"{first_few(wrong)}: not the initial values of seed {seed}{versions}"
    elif record.sizes.keys() & set(RMS):
        yield from _embedding_rms(record, recipe, tensors)


def _tensor_digest(recipe: Recipe, name: str, shape: tuple[int, ...], seed: int) -> str:
    return array_digests({name: weights.draw(recipe, name, shape, seed)})[name]


def _embedding_rms(record: RunRecord, recipe: Recipe, shapes: Shapes) -> Iterator[str]:
    """Yield the RMS of embeddings and positions that differ from the initial weights."""
    tables = {name: shape for name, shape in shapes.items() if name.endswith((".embedding", ".positions"))}
    if "target.embedding" not in tables:
        return  # another rule reports missing tensors
    tensors = {name: weights.draw(recipe, name, shape, record.spec.seed) for name, shape in tables.items()}
    for name, value in weights.embedding_rms(recipe, tensors).items():
        yield from unequal(f"sizes.{name}", record.sizes.get(name), value, "its initial weights")


def corpus(stored: StoredRun) -> Iterator[str]:
    """Files, vocabularies, token ids and sizes are those of the local corpus."""
    record = stored.record
    fingerprints, sizes = skip_unless(record.fingerprints, NOT_STARTED), record.sizes
    prepared = local_corpus(stored)
    if record.spec.data.corpus != "multi30k":  # other corpora may have changed since; the files of Multi30k are fixed
        skip_unless(prepared.digests["files"] == fingerprints.get("files"), "the local corpus has other files")
    wrong = [name for name, digest in prepared.digests.items() if fingerprints.get(name) != digest]
    wrong += [name for name, size in prepared.figures.items() if sizes.get(name) != size]
    wrong += sorted(sizes.keys() - prepared.figures.keys() - SIZES_OF_RUNS)
    if wrong:
        yield f"{first_few(wrong)}: not those of the local corpus{_other_versions(record, PREPARING)}"


def stream(stored: StoredRun) -> Iterator[str]:
    """The digests of the consumed batches are those of the corpus and the seed."""
    record = stored.record
    batches = _expected_batches(stored)
    fingerprints, seed = record.fingerprints, record.spec.seed
    last = max(batches.marks)
    if fingerprints.get("stream") != batches.marks[last]:
        yield f"stream is not the digest of the batches of seed {seed} up to update {last:,}"
    digests = fingerprints.get("batches") or {}
    wrong = [update for update, digest in sorted(batches.marks.items()) if digests.get(str(update)) != digest]
    if wrong:
        yield f"batches up to update {wrong[0]:,} are not those of seed {seed}"
    for name, value in batches.statistics.items():
        yield from unequal(f"sizes.{name}", record.sizes.get(name), value, "the batches", tolerance=0)


def words(stored: StoredRun) -> Iterator[str]:
    """Epochs and test sentences have the numbers of target tokens of the corpus."""
    record = stored.record
    batches, previous, source = _expected_batches(stored), 0, "the batches of the corpus"
    for line in record.curve:
        tokens = batches.tokens.get(line.updates, 0) - batches.tokens.get(previous, 0)
        yield from unequal(f"epoch {line.epoch}: tokens", line.tokens, tokens, source)
        previous = line.updates
    per_epoch, first = batches.updates_per_epoch, record.curve[0].updates
    if first != record.curve[-1].updates:
        yield from unequal("epoch 1: updates", first, per_epoch, source)
    yield from unequal("sizes.updates_per_epoch", record.sizes.get("updates_per_epoch", per_epoch), per_epoch, source)
    if record.status == "completed":
        lengths = [len(ids) - 1 for ids in local_corpus(stored).test.target]
        if stored.checked_sentences["tokens"].tolist() != lengths:
            yield "the test sentences have other numbers of target tokens than in the corpus"


def _expected_batches(stored: StoredRun) -> Expected:
    """Return what a run must have consumed. Raises: Skipped if the local corpus is another one."""
    record = stored.record
    skip_unless(record.status in run_store.FINISHED and record.curve, NOT_COMPLETED)
    prepared = local_corpus(stored)
    same = prepared.digests["tokenised"] == record.fingerprints.get("tokenised")
    skip_unless(same, "the local corpus has other token ids")
    updates = frozenset(line.updates for line in record.curve)
    skip_unless(1 <= min(updates) <= max(updates) <= MOST_UPDATES, f"updates are not from 1 to {MOST_UPDATES:,}")
    training, seed = record.spec.training, record.spec.seed
    batches = (training.batching, training.batch_size, training.batch_tokens)
    return stored.context.cached(
        ("stream", record.spec.data, *batches, seed, updates),
        lambda: expected(prepared.train, training, seed=seed, updates=updates),
    )


def scores(stored: StoredRun) -> Iterator[str]:
    """Scores, signatures and counts recomputed from the stored translations and the local corpus agree.

    If another version of a library computed them, scores must agree to 0.01 points, and 99 % of the counts.
    """
    from harness.evaluation.evaluate import check_words, test_scores

    record = stored.completed
    prepared = local_corpus(stored)
    skip_unless(prepared.digests["files"] == record.fingerprints.get("files"), "the local corpus has other files")
    hypotheses = stored.hypotheses
    try:
        check_words(hypotheses, run_store.HYPOTHESES)
    except ValueError as error:
        raise Skipped(str(error)) from error
    recomputed = test_scores(prepared, hypotheses, record.spec.decoding.unknown)
    versions = _other_versions(record, SCORING)
    tolerance = OTHER_VERSION_TOLERANCE if versions else SCORE_TOLERANCE
    for name, value in recomputed.values.items():
        if not math.isclose(record.scores.get(name) or 0.0, value, rel_tol=0, abs_tol=tolerance):
            yield f"{name}={record.scores.get(name)}, recomputed {value}{versions}"
    for name, signature in recomputed.signatures.items():
        recorded = record.signatures.get(name)
        if recorded != signature and not (versions and _unversioned(recorded) == _unversioned(signature)):
            yield f"signature of {name}: {recorded}, recomputed {signature}{versions}"
    if run_store.has(stored.results, stored.name, run_store.SENTENCES):
        for name, counts in recomputed.statistics.items():
            stored_counts = stored.sentences.get(name)
            same = stored_counts is not None and stored_counts.shape == counts.shape
            differing = int(np.any(stored_counts != counts, axis=1).sum()) if same else len(counts)
            if differing > (OTHER_VERSION_SHARE * len(counts) if versions else 0):
                yield f"counts of {name} are not those of the translations in {differing:,} sentences{versions}"


def _unversioned(signature: str | None) -> str:
    """Return a signature without the version of sacreBLEU, which another rule compares with the environment."""
    return "|".join(item for item in (signature or "").split("|") if not item.startswith("version:"))


def tutorial_perplexity(stored: StoredRun) -> Iterator[str]:
    """The tutorials' perplexity follows from the losses of the sentences in the batches of the corpus.

    It is exp of the mean over batches of each batch's nats per target token.
    """
    from harness.data.batches import evaluation_batches

    sentences, prepared = stored.checked_sentences, local_corpus(stored)
    nats, tokens = sentences["nats"], sentences["tokens"]
    skip_unless(len(prepared.test) == len(nats), "the local corpus has another test set")
    batches = [rows for _, rows in evaluation_batches(prepared.test, BATCH)]
    means = [float(nats[rows].sum() / max(1, tokens[rows].sum())) for rows in batches]
    expected = math.exp(math.fsum(means) / len(means))
    recorded = stored.completed.scores.get("tutorial_perplexity")
    yield from unequal("tutorial_perplexity", recorded, expected, SUMS)


def local_corpus(stored: StoredRun) -> Dataset:
    """Return the local corpus of a run; nothing is downloaded. Raises: Skipped if it is not available."""
    from harness.data.dataset import of_run_offline

    record = stored.record

    def load() -> Dataset | str:
        try:
            return of_run_offline(record) or "Multi30k is not available"
        except ValueError as error:
            return " ".join(str(error).split())

    key = ("corpus", record.spec.data, canonical_json(record.fingerprints.get("files")))
    prepared = stored.context.cached(key, load)
    if isinstance(prepared, str):
        raise Skipped(f"{NO_CORPUS}{prepared}")
    return prepared


def _other_versions(record: RunRecord, libraries: Iterable[str]) -> str:
    """Return the libraries with other versions than in the record, for a message; empty if there are none."""
    recorded, installed = record.environment.get("versions") or {}, machine.versions()
    different = [name for name in libraries if name in recorded and recorded[name] != installed.get(name)]
    versions = [f"{name} {recorded[name]}, here {installed.get(name, 'not installed')}" for name in different]
    return f" (made with {'; '.join(versions)})" if versions else ""
