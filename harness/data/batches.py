"""Batches of a split: the same pairs in the same order for every model, as a function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized

import numpy as np
import numpy.typing as npt

from harness.data.vocabulary import Split
from impls.contract import PAD, Batch, Ids, Training

POOL_BATCHES = 100
Rows = npt.NDArray[np.intp]


def training_batches(split: Split, training: Training, *, seed: int, epoch: int, skip: int = 0) -> Iterator[Batch]:
    """Yield the batches of an epoch, in the order in which the model is trained on them.

    Every pair of `split` is in exactly one batch. `training.batching` decides which pairs share a batch:

    - "random": the pairs are shuffled and cut into batches of `batch_size`. This is the distribution of torchtext's
      `BucketIterator` as the tutorials call it: it sorts pools by length only if `sort_within_batch` is set.
    - "length": the pairs are shuffled and cut into pools of 100 batches; each pool is sorted by length and cut into
      batches of `batch_size`; the batches of the epoch are shuffled.
    - "tokens": the shuffled pairs are sorted by the length of their longer side and cut into batches of at most
      `batch_tokens` tokens (pairs times the longer side of the longest pair); the batches are shuffled.

    For "length", pairs are sorted by their longer side, then their target, then their source: of the simple orders it
    leaves the least padding on Multi30k.

    The order is a function of (seed, epoch) alone. Epochs count from 0. A resumed run passes `skip`, the number of
    batches that it has already been trained on.

    Source: torchtext 0.6.0, `BucketIterator` and `pool`; fairseq, `batch_by_size`, for "tokens".
    """
    # NumPy guarantees the same raw 64-bit words in every version, but not the same shuffling.
    random = np.random.PCG64([seed, epoch])
    order = _shuffled(np.arange(len(split)), random)
    if training.batching == "random":
        groups = _cut(order, training.batch_size)
    else:
        if training.batching == "length":
            pools = _cut(order, POOL_BATCHES * training.batch_size)
            groups = [group for pool in pools for group in _cut(_by_length(split, pool), training.batch_size)]
        else:
            groups = _cut_by_tokens(split, order, training.batch_tokens)
        groups = [groups[index] for index in _shuffled(np.arange(len(groups)), random)]
    for rows in groups[skip:]:
        yield _batch(split, rows)


def updates_per_epoch(split: Split, training: Training) -> int:
    """Return the number of batches that `training_batches` yields; it is the same in every epoch."""
    if training.batching == "tokens":
        return len(_cut_by_tokens(split, np.arange(len(split)), training.batch_tokens))
    return -(-len(split) // training.batch_size)


def evaluation_batches(split: Split, batch_size: int = 128) -> Iterator[tuple[Batch, Rows]]:
    """Yield the pairs in ascending order of length, and for each batch the indices of its rows in `split`.

    Length is torchtext's `interleave_keys`, which alternates the bits of the source and target lengths. So the batches
    are those of the tutorials' test iterator, whose perplexity is a mean over batches.

    Source: torchtext 0.6.0, `TranslationDataset.sort_key` and `BucketIterator` with train=False.
    """
    keys = _interleaved(_lengths(split.source) - 2, _lengths(split.target) - 2)
    order = np.argsort(keys, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield _batch(split, rows), rows


def pad(sentences: Sequence[Ids] | Sequence[Sequence[int]]) -> Ids:
    """Return sentences as the rows of an array [B, longest], padded on the right."""
    lengths = _lengths(sentences)
    padded = np.full((len(sentences), int(lengths.max(initial=0))), PAD, dtype=np.int32)
    if len(sentences):
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(sentences)
    return padded


def _batch(split: Split, rows: Rows) -> Batch:
    target = [split.target[row] for row in rows]
    return Batch(
        source=pad([split.source[row] for row in rows]),
        target_in=pad([ids[:-1] for ids in target]),
        target_out=pad([ids[1:] for ids in target]),
    )


def _lengths(sentences: Sequence[Sized]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))


def _cut(rows: Rows, size: int) -> list[Rows]:
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _by_length(split: Split, rows: Rows) -> Rows:
    """Return the rows in ascending order of length; rows of equal lengths keep their order."""
    source, target = _lengths(split.source)[rows], _lengths(split.target)[rows]
    sorted_rows: Rows = rows[np.lexsort((source, target, np.maximum(source, target)))]
    return sorted_rows


def _cut_by_tokens(split: Split, rows: Rows, batch_tokens: int) -> list[Rows]:
    """Sort rows by their longer side and cut them into the fullest possible batches of `batch_tokens` tokens.

    The cuts depend only on the sorted lengths, so the number of batches is the same in every epoch. A pair that is
    longer than `batch_tokens` forms a batch alone.
    """
    longer = np.maximum(_lengths(split.source), _lengths(split.target))[rows]
    order = np.argsort(longer, kind="stable")
    rows, longer = rows[order], longer[order]
    batches, first = [], 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or (end + 1 - first) * longer[end] > batch_tokens:
            batches.append(rows[first:end])
            first = end
    return batches


def _shuffled(rows: Rows, random: np.random.PCG64) -> Rows:
    shuffled: Rows = rows[np.argsort(random.random_raw(len(rows)), kind="stable")]
    return shuffled


def _interleaved(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return numbers whose bits alternate between the lowest 16 of `first` and of `second`, beginning with `first`."""
    interleaved = np.zeros_like(first)
    for bit in range(16):
        interleaved |= ((first >> bit) & 1) << (2 * bit + 1) | ((second >> bit) & 1) << (2 * bit)
    return interleaved
