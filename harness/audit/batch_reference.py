"""Recomputes the batches of a run from the corpus with code that is independent of training.

It shares no code with `harness.data.batches` and `harness.data.batch_digest`, so that an error there is not repeated
here.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from harness.data.vocabulary import Split
from impls.contract import PAD, Training

MARKS = (1, 10, 50)
POOL = 100
ID_BYTES, SHAPE_BYTES = 4, 16


@dataclass
class Expected:
    """What a run must have consumed, computed from the corpus.

    Attributes:
        marks: The chained digest of the batches so far by number of updates.
        tokens: The target tokens so far by number of updates.
        flat: The digest of the same bytes without a chain, which records before digests of batches have.
        updates_per_epoch: The number of batches in the first epoch.
        statistics: Those of `harness.data.batch_digest.ConsumedBatches`.
    """

    marks: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    flat: str = ""
    updates_per_epoch: int = 0
    statistics: dict[str, float] = field(default_factory=dict)


def expected(split: Split, training: Training, *, seed: int, updates: Collection[int]) -> Expected:
    """Return what training on `split` consumes up to the largest of `updates`, with a mark at each of them."""
    result = Expected(updates_per_epoch=len(_epoch(split, training, seed, 0)))
    sources, targets = ([ids.astype("<i4").tobytes() for ids in side] for side in (split.source, split.target))
    chain, flat = hashlib.sha256().digest(), hashlib.sha256()
    tokens: list[int] = []
    source_tokens, source_ids, target_ids = 0, 0, 0
    for number, rows in enumerate(_batches(split, training, seed, max(updates)), start=1):
        source, target = [sources[row] for row in rows], [targets[row] for row in rows]
        shifted = [ids[:-ID_BYTES] for ids in target], [ids[ID_BYTES:] for ids in target]
        parts = [_padded(ids) for ids in (source, *shifted)]
        chain = hashlib.sha256(chain + b"".join(parts)).digest()
        flat.update(b"".join(parts))
        tokens.append(sum(map(len, target)) // ID_BYTES - len(rows))
        source_tokens += sum(map(len, source)) // ID_BYTES
        source_ids += (len(parts[0]) - SHAPE_BYTES) // ID_BYTES
        target_ids += (len(parts[2]) - SHAPE_BYTES) // ID_BYTES
        if number in {*MARKS, *updates}:
            result.marks[number], result.tokens[number] = chain.hex(), sum(tokens)
    result.flat = flat.hexdigest()
    result.statistics = {
        "source_padding_rate": 1 - source_tokens / source_ids,
        "target_padding_rate": 1 - sum(tokens) / target_ids,
        "fewest_update_tokens": min(tokens),
        "most_update_tokens": max(tokens),
    }
    return result


def _batches(split: Split, training: Training, seed: int, last: int) -> Iterator[list[int]]:
    """Yield the rows of each of the first `last` batches."""
    epochs = (_epoch(split, training, seed, epoch) for epoch in itertools.count())
    return itertools.islice(itertools.chain.from_iterable(epochs), last)


def _epoch(split: Split, training: Training, seed: int, epoch: int) -> list[list[int]]:
    """Return the rows of each batch of an epoch, in order. Units: epochs count from 0."""
    generator = np.random.PCG64([seed, epoch])
    lengths = [(len(source), len(target)) for source, target in zip(split.source, split.target, strict=True)]
    order = _shuffle(generator, len(lengths))
    if training.batching == "random":
        return _slices(order, training.batch_size)
    batches: list[list[int]] = []
    if training.batching == "length":
        for pool in _slices(order, POOL * training.batch_size):
            ordered = sorted(pool, key=lambda row: (max(lengths[row]), *reversed(lengths[row])))
            batches += _slices(ordered, training.batch_size)
    else:
        for row in sorted(order, key=lambda row: max(lengths[row])):
            # The last row is the longest, so its length times the number of rows is the size of the batch.
            if batches and (len(batches[-1]) + 1) * max(lengths[row]) <= training.batch_tokens:
                batches[-1].append(row)
            else:
                batches.append([row])
    return [batches[index] for index in _shuffle(generator, len(batches))]


def _shuffle(generator: np.random.PCG64, count: int) -> list[int]:
    """Return 0 to `count` - 1 in the order of as many raw numbers."""
    keys = generator.random_raw(count).tolist()
    return sorted(range(count), key=keys.__getitem__)


def _slices(rows: list[int], size: int) -> list[list[int]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _padded(rows: list[bytes]) -> bytes:
    """Return the shape and the padded ids of some rows as they are hashed: little endian, row by row."""
    longest, padding = max(map(len, rows)), struct.pack("<i", PAD)
    filled = [row + padding * ((longest - len(row)) // ID_BYTES) for row in rows]
    return struct.pack("<2q", len(rows), longest // ID_BYTES) + b"".join(filled)
