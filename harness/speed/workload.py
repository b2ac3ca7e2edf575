"""The workload that is timed: the same batches and sentences for every model, from the corpus or random."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from harness.data.batch_digest import add_to_digest
from harness.data.batches import evaluation_batches, training_batches
from harness.data.dataset import Dataset
from harness.data.vocabulary import Split
from harness.speed.plan import ModelJob
from impls.contract import EOS, SOS, SPECIAL_TOKENS, Batch, Ids


@dataclass(frozen=True)
class Workload:
    training: tuple[Batch, ...]
    validation: tuple[Batch, ...]
    sentences: tuple[Ids, ...]
    single: tuple[Ids, ...]


def build_workload(job: ModelJob, dataset: Dataset) -> Workload:
    """Return the workload of a job.

    The training batches are the first of epoch 0 of the run's seed. The sentences are spread evenly over the test set.
    """
    if job.synthetic_length is None:
        batches = training_batches(dataset.train, job.spec.training, seed=job.spec.seed, epoch=0)
        training = tuple(islice(batches, job.amounts.updates))
    else:
        training = synthetic_batches(job, *dataset.vocabulary_sizes)
    validation = islice(evaluation_batches(dataset.validation), job.amounts.validation_batches)
    return Workload(
        training=training,
        validation=tuple(batch for batch, _ in validation),
        sentences=spread_sentences(dataset.test, job.amounts.sentences),
        single=spread_sentences(dataset.test, job.amounts.single_sentences),
    )


def spread_sentences(split: Split, count: int | None) -> tuple[Ids, ...]:
    """Return `count` source sentences spread evenly over a split, or all of them for None."""
    length = len(split)
    count = length if count is None else min(count, length)
    return tuple(split.source[number * length // count] for number in range(count))


def synthetic_batches(job: ModelJob, source_vocabulary: int, target_vocabulary: int) -> tuple[Batch, ...]:
    """Return batches of random tokens without padding. The same job gives the same batches."""
    assert job.synthetic_length is not None
    rows, length = job.spec.training.batch_size, job.synthetic_length
    random = np.random.default_rng([length, rows])
    return tuple(
        Batch(
            source=_sentences(random, rows, length, source_vocabulary),
            target_in=(target := _sentences(random, rows, length + 1, target_vocabulary))[:, :-1],
            target_out=target[:, 1:],
        )
        for _ in range(job.amounts.updates)
    )


def _sentences(random: np.random.Generator, rows: int, length: int, vocabulary: int) -> Ids:
    ids = random.integers(len(SPECIAL_TOKENS), vocabulary, (rows, length), dtype=np.int32)
    ids[:, 0], ids[:, -1] = SOS, EOS
    return ids


def digest(batches: Sequence[Batch]) -> str:
    """Return the SHA-256 of batches, in order."""
    sha256 = hashlib.sha256()
    for batch in batches:
        add_to_digest(sha256, batch)
    return sha256.hexdigest()
