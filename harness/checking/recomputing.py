"""Rules that make evidence again and compare: the initial weights, and, where the corpus is here, data and scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from harness import store
from harness.checking.figures import is_current
from harness.checking.identity import shape_of
from harness.checking.stored import NotTried, Stored
from harness.data.consumed import STATISTICS, expected_batches
from harness.evidence import array_digests
from harness.reporting.fairness import drawing
from harness.scoring import as_version_1
from harness.specs import RunRecord, canonical_json
from impls import weights
from impls.contract import Recipe

if TYPE_CHECKING:
    from harness.data.prepared import Prepared

MOST = 3
SCORE_TOLERANCE = 1e-6
RMS_TOLERANCE = 1e-6
RMS = ("source_embedding_rms", "target_embedding_rms", "position_rms")
MOST_NUMBERS, MOST_UPDATES = 2**29, 200_000
"""What is made again at most: a foreign record may name any size, and real ones are far below."""


def initial(stored: Stored) -> Iterator[str]:
    """The initial weights are those that the recipe and the seed draw, whatever framework trained them."""
    record = stored.known
    recipe, found = record.spec.recipe, record.fingerprints.get("weights") or {}
    if recipe is None or not found:
        raise NotTried("a model from outside, without a recipe" if recipe is None else "broke off before it began")
    wrong = []
    words = [int(record.sizes.get(f"{side}_words", 0)) for side in ("source", "target")]
    shapes = weights.shapes(recipe, *words)
    if sum(math.prod(shape_of(told)) for told in found.values()) > MOST_NUMBERS:
        raise NotTried(f"more than {MOST_NUMBERS:,} numbers to draw")
    for name, told in sorted(found.items()):
        if shapes.get(name) != shape_of(told):
            continue  # another rule's: a tensor that the recipe has not
        key = (record.spec.seed, name, shape_of(told), drawing(record, name))
        if key not in stored.memory.drawn:
            drawn = weights.draw(recipe, name, shape_of(told), record.spec.seed)
            stored.memory.drawn[key] = array_digests({name: drawn})[name]
        if stored.memory.drawn[key] != told:
            wrong.append(name)
    if wrong:
        _trust(record, ("numpy",))
        yield f"{_some(wrong)}: not what seed {record.spec.seed} draws"
    elif record.sizes.keys() & set(RMS):
        yield from _embedding_rms(record, recipe, {name: shape_of(told) for name, told in found.items()})


def _embedding_rms(record: RunRecord, recipe: Recipe, shapes: dict[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield the sizes of word embeddings and positions that are not those of the initial weights."""
    tables = {name: shape for name, shape in shapes.items() if name.endswith((".embedding", ".positions"))}
    if "target.embedding" not in tables:
        return  # another rule's: a tensor is missing
    drawn = {name: weights.draw(recipe, name, shape, record.spec.seed) for name, shape in tables.items()}
    for name, value in weights.embedding_rms(recipe, drawn).items():
        told = record.sizes.get(name)
        if told is None or not math.isclose(told, value, rel_tol=RMS_TOLERANCE):
            yield f"sizes.{name}={told}, recomputed {value}"


def corpus(stored: Stored) -> Iterator[str]:
    """Files, vocabularies, ids and sizes are those of the corpus that is here."""
    record = stored.known
    if not record.fingerprints:
        raise NotTried("broke off before it began")
    prepared = _prepared(stored)
    if record.spec.data.corpus != "multi30k" and prepared.digests["files"] != record.fingerprints.get("files"):
        raise NotTried("the corpus here is another")  # multi30k's digests are fixed, generators and files change
    wrong = [name for name, one in prepared.digests.items() if record.fingerprints.get(name) != one]
    wrong += [name for name, one in prepared.figures.items() if record.sizes.get(name) != one]
    wrong += sorted(
        record.sizes.keys() - prepared.figures.keys() - {"parameters", "updates_per_epoch", *RMS, *STATISTICS}
    )
    if wrong:
        _trust(record, ("spacy", "sacremoses", "sentencepiece", "subword-nmt"))
        yield f"{_some(wrong)}: not that of the corpus here"


def stream(stored: Stored) -> Iterator[str]:
    """The digests of the consumed batches are those of the batches that the seed makes of the corpus."""
    record = stored.known
    if record.status not in store.FINISHED or not record.curve:
        raise NotTried("not completed")
    marks = record.fingerprints.get("batches")
    if marks is None:
        raise NotTried("recorded without digests of the consumed batches (schema 1)")
    prepared = _prepared(stored)
    if prepared.digests["tokenised"] != record.fingerprints.get("tokenised"):
        raise NotTried("the ids here are others")
    updates = frozenset(line.updates for line in record.curve)
    if max(updates) > MOST_UPDATES:
        raise NotTried(f"more than {MOST_UPDATES:,} updates")
    training, seed = record.spec.training, record.spec.seed
    key = (record.spec.data, training.batching, training.batch_size, training.batch_tokens, seed, updates)
    if key not in stored.memory.streams:
        stored.memory.streams[key] = expected_batches(prepared.train, training, seed=seed, updates=updates)
    expected = stored.memory.streams[key]
    for mark in sorted(expected.marks.keys() | marks.keys(), key=int):
        if marks.get(mark) != expected.marks.get(mark):
            yield f"batches up to update {int(mark):,} are not those of seed {seed}"
            return
    if expected.digest != record.fingerprints.get("stream"):
        yield f"stream is not the digest after update {max(updates):,}"
    for name, value in expected.statistics().items():
        if record.sizes.get(name) != value:
            yield f"sizes.{name}={record.sizes.get(name)}, recomputed {value}"


def scores(stored: Stored) -> Iterator[str]:
    """Every score, its signature and its counts come out again from the stored translations and the corpus here."""
    from harness.measuring import check_words, test_scores

    record = stored.completed
    prepared = _prepared(stored)
    if prepared.digests["files"] != record.fingerprints.get("files"):
        raise NotTried("the corpus here is another")
    hypotheses = store.load_hypotheses(stored.results, stored.name)
    try:
        check_words(hypotheses, store.HYPOTHESES)
    except ValueError as error:
        raise NotTried(str(error)) from error
    found = test_scores(prepared, hypotheses, record.spec.decoding.unknown)
    if not is_current(stored):
        found = as_version_1(found)
    wrong = [
        f"{name}={record.scores.get(name)}, recomputed {value}"
        for name, value in found.values.items()
        if not math.isclose(record.scores.get(name) or 0.0, value, rel_tol=0, abs_tol=SCORE_TOLERANCE)
    ]
    wrong += [
        f"signature of {name}: {record.signatures.get(name)}, recomputed {signature}"
        for name, signature in found.signatures.items()
        if record.signatures.get(name) != signature
    ]
    if store.has_sentences(stored.results, stored.name):
        counted = store.load_sentences(stored.results, stored.name)
        for name, one in found.statistics.items():
            if name not in counted or counted[name].tolist() != one.tolist():
                wrong.append(f"counts of {name} are not those of the translations")
    if wrong:
        _trust(record, ("sacrebleu", "sacremoses", "spacy", "sentencepiece", "subword-nmt"))
        yield from wrong


def _prepared(stored: Stored) -> Prepared:
    """Return the corpus of a run. Raises: NotTried where it is not here, and nothing is downloaded for it."""
    from harness.data.prepared import at_hand

    record, memory = stored.known, stored.memory.prepared
    key = record.spec.data, canonical_json(record.fingerprints.get("files"))
    if key not in memory:
        try:
            memory[key] = at_hand(record) or "Multi30k is not here"
        except ValueError as error:
            memory[key] = " ".join(str(error).split())
    found = memory[key]
    if isinstance(found, str):
        raise NotTried(f"no corpus: {found}")
    prepared: Prepared = found
    return prepared


def _trust(record: RunRecord, libraries: Iterable[str]) -> None:
    """Return where these libraries are the record's. Raises: NotTried where a difference may come from another one."""
    versions = record.environment.get("versions") or {}
    for name in libraries:
        try:
            here = metadata.version(name)
        except metadata.PackageNotFoundError:
            here = "none"
        if name in versions and versions[name] != here:
            raise NotTried(f"{name} {versions[name]} made it, here is {here}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
