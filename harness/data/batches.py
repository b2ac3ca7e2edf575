"""The batches of a split: the same pairs in the same order for every model, from nothing but (seed, epoch)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from harness.data.vocabulary import Split
from impls.contract import PAD, Batch, Ids

POOL_BATCHES = 100
Rows = npt.NDArray[np.intp]


def training_batches(split: Split, *, batch_size: int, seed: int, epoch: int, skip: int = 0) -> Iterator[Batch]:
    """Yield every pair of `split` once, in batches of `batch_size` pairs of similar lengths, one batch less full.

    The pairs are shuffled, cut into pools of 100 batches, each pool sorted by length and cut into batches, and all
    batches of the epoch shuffled. Length is that of the longer side, then of the target, then of the source: of the
    simple orders it leaves the least padding on Multi30k (5 % of all ids; source before target: 8 %).

    Nothing is remembered: (seed, epoch) gives the order, and `skip` batches that are already done are passed over.
    Epochs count from 0.

    Raises: ValueError for a number that is out of range.
    """
    _check(batch_size=(batch_size, 1), seed=(seed, 0), epoch=(epoch, 0), skip=(skip, 0))
    # Raw 64-bit words, because NumPy promises those, and not the ways it shuffles, to stay the same in every version.
    random = np.random.PCG64([seed, epoch])
    order = _shuffled(np.arange(len(split)), random)
    source, target = _lengths(split.source), _lengths(split.target)
    sort_keys = (source, target, np.maximum(source, target))
    batches: list[Rows] = []
    for start in range(0, len(order), POOL_BATCHES * batch_size):
        pool = order[start : start + POOL_BATCHES * batch_size]
        pool = pool[np.lexsort([key[pool] for key in sort_keys])]
        batches += [pool[first : first + batch_size] for first in range(0, len(pool), batch_size)]
    for number in _shuffled(np.arange(len(batches)), random)[skip:]:
        yield _batch(split, batches[number])


def updates_per_epoch(split: Split, batch_size: int) -> int:
    """Return the number of batches that `training_batches` yields."""
    _check(batch_size=(batch_size, 1))
    return -(-len(split) // batch_size)


def evaluation_batches(split: Split, batch_size: int = 128) -> Iterator[tuple[Batch, Rows]]:
    """Yield the pairs in ascending order of length, with the places in `split` that the rows of each batch come from.

    Length is torchtext's `interleave_keys`: the bits of the source's and the target's length, in turn. The means of
    these batches are therefore the means of the tutorials' test iterator, which their perplexity is a mean of.

    Source: torchtext 0.6.0, `TranslationDataset.sort_key` and `BucketIterator` with train=False.
    """
    _check(batch_size=(batch_size, 1))
    keys = _interleaved(_lengths(split.source) - 2, _lengths(split.target) - 2)
    order = np.argsort(keys, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield _batch(split, rows), rows


def stream_digest(split: Split, *, batch_size: int, seed: int, updates: int) -> str:
    """Return the SHA-256 of the first `updates` training batches from epoch 0 on: shapes and ids, in order."""
    _check(updates=(updates, 0), pairs=(len(split), 1))
    digest = hashlib.sha256()
    epoch = 0
    while updates:
        for batch in training_batches(split, batch_size=batch_size, seed=seed, epoch=epoch):
            for ids in (batch.source, batch.target_in, batch.target_out):
                digest.update(np.array(ids.shape, dtype="<i8").tobytes())
                digest.update(ids.astype("<i4").tobytes())
            updates -= 1
            if not updates:
                break
        epoch += 1
    return digest.hexdigest()


def padding_share(split: Split, *, batch_size: int, seed: int = 0, epoch: int = 0) -> tuple[float, float]:
    """Return which share of the source and of the target ids of an epoch's batches is padding."""
    batches = list(training_batches(split, batch_size=batch_size, seed=seed, epoch=epoch))
    source = sum(batch.source.size for batch in batches)
    target = sum(batch.target_out.size for batch in batches)
    padding = sum(int((batch.source == PAD).sum()) for batch in batches)
    return padding / source, 1 - sum(batch.tokens for batch in batches) / target


def pad(sentences: Sequence[Ids]) -> Ids:
    """Return the sentences as the rows of one array, [B, longest], padded on the right."""
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


def _lengths(sentences: Sequence[Ids]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))


def _shuffled(rows: Rows, random: np.random.PCG64) -> Rows:
    shuffled: Rows = rows[np.argsort(random.random_raw(len(rows)), kind="stable")]
    return shuffled


def _interleaved(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers whose bits are those of `first` and `second` in turn, the highest of `first` first."""
    found = np.zeros_like(first)
    for bit in range(16):
        found |= ((first >> bit) & 1) << (2 * bit + 1) | ((second >> bit) & 1) << (2 * bit)
    return found


def _check(**numbers: tuple[int, int]) -> None:
    for name, (value, least) in numbers.items():
        if value < least:
            raise ValueError(f"{name}={value!r}: allowed is a whole number of at least {least}")
