"""What is timed on: the same batches and sentences for every subject, from the corpus or made up at random."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from harness.data.batches import evaluation_batches, training_batches
from harness.data.dataset import Dataset
from harness.data.vocabulary import Split
from harness.speed.plan import ModelJob
from impls.contract import EOS, SOS, SPECIAL_TOKENS, Batch, Ids


@dataclass(frozen=True)
class Material:
    """Batches to train and to evaluate on, sentences to translate at once and one at a time."""

    training: tuple[Batch, ...]
    validation: tuple[Batch, ...]
    sentences: tuple[Ids, ...]
    single: tuple[Ids, ...]


def material(job: ModelJob, prepared: Dataset) -> Material:
    """Return what a job is timed on.

    The batches are the first of epoch 0 of the run's seed; the sentences are taken evenly from the whole test set.
    """
    split = prepared.test
    if job.synthetic is None:
        batches = training_batches(prepared.train, job.spec.training, seed=job.spec.seed, epoch=0)
        training = tuple(islice(batches, job.updates))
    else:
        training = synthetic_batches(job, len(prepared.source_words), len(prepared.target_words))
    return Material(
        training=training,
        validation=tuple(one for one, _ in islice(evaluation_batches(prepared.validation), job.validation_batches)),
        sentences=evenly(split, job.sentences),
        single=evenly(split, job.single_sentences),
    )


def evenly(split: Split, count: int | None) -> tuple[Ids, ...]:
    """Return so many source sentences from places that lie evenly over a split; all of them for None."""
    length = len(split)
    count = length if count is None else min(count, length)
    return tuple(split.source[number * length // count] for number in range(count))


def synthetic_batches(job: ModelJob, source_words: int, target_words: int) -> tuple[Batch, ...]:
    """Return batches of random words, every sentence of the job's length; the same for the same job."""
    assert job.synthetic is not None
    rows, length = job.spec.training.batch_size, job.synthetic.length
    random = np.random.default_rng([length, rows])
    return tuple(
        Batch(
            source=_sentences(random, rows, length, source_words),
            target_in=(target := _sentences(random, rows, length + 1, target_words))[:, :-1],
            target_out=target[:, 1:],
        )
        for _ in range(job.updates)
    )


def _sentences(random: np.random.Generator, rows: int, length: int, words: int) -> Ids:
    found = random.integers(len(SPECIAL_TOKENS), words, (rows, length), dtype=np.int32)
    found[:, 0], found[:, -1] = SOS, EOS
    return found


def digest(batches: Sequence[Batch]) -> str:
    """Return the SHA-256 of batches: shapes and ids, in order."""
    found = hashlib.sha256()
    for batch in batches:
        for ids in (batch.source, batch.target_in, batch.target_out):
            found.update(np.array(ids.shape, dtype="<i8").tobytes())
            found.update(ids.astype("<i4").tobytes())
    return found.hexdigest()
