"""Recomputes the batches of a run from the corpus with code that is independent of training.

It shares no code with `harness.data.batches` and `harness.data.batch_digest`, so that an error there is not repeated
here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from harness.data.vocabulary import Split
from impls.contract import PAD, Training

MARKS = (1, 10, 50)
POOL = 100
ID_BYTES = 4


@dataclass
class Expected:
    """What a run must have consumed, computed from the corpus.

    `marks` maps numbers of updates to the chained digest of the batches so far, `tokens` to the target tokens so far.
    `flat` is the digest of the same bytes without a chain, which records of schema 1 have. `statistics` are those of
    `harness.data.batch_digest.ConsumedBatches`.
    """

    marks: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    flat: str = ""
    updates_per_epoch: int = 0
    statistics: dict[str, float] = field(default_factory=dict)


def expected(split: Split, training: Training, *, seed: int, updates: Collection[int]) -> Expected:
    """Return what training on `split` consumes up to the largest of `updates`, with a mark at each of them."""
    found, last = Expected(), max(updates)
    wanted = {*MARKS, *updates}
    sides = [[ids.astype("<i4").tobytes() for ids in side] for side in (split.source, split.target)]
    chain, flat = hashlib.sha256().digest(), hashlib.sha256()
    sizes, source_tokens, source_ids, target_ids = [0], 0, 0, 0
    for number, rows in enumerate(_batches(split, training, seed, last), start=1):
        source = [sides[0][row] for row in rows]
        target = [sides[1][row] for row in rows]
        link = hashlib.sha256(chain)
        for part in (source, [one[:-ID_BYTES] for one in target], [one[ID_BYTES:] for one in target]):
            content = _padded(part)
            link.update(content)
            flat.update(content)
        chain = link.digest()
        sizes.append(sum(map(len, target)) // ID_BYTES - len(rows))
        source_tokens += sum(map(len, source)) // ID_BYTES
        source_ids += len(rows) * max(map(len, source)) // ID_BYTES
        target_ids += len(rows) * (max(map(len, target)) // ID_BYTES - 1)
        if number in wanted:
            found.marks[number], found.tokens[number] = chain.hex(), sum(sizes)
    found.flat, found.updates_per_epoch = flat.hexdigest(), len(_epoch(split, training, seed, 0))
    found.statistics = {
        "source_padding_rate": 1 - source_tokens / source_ids,
        "target_padding_rate": 1 - sum(sizes) / target_ids,
        "fewest_update_tokens": min(sizes[1:]),
        "most_update_tokens": max(sizes[1:]),
    }
    return found


def _batches(split: Split, training: Training, seed: int, last: int) -> Iterator[list[int]]:
    """Yield the rows of each of the first `last` batches."""
    done = epoch = 0
    while done < last:
        for rows in _epoch(split, training, seed, epoch)[: last - done]:
            yield rows
            done += 1
        epoch += 1


def _epoch(split: Split, training: Training, seed: int, epoch: int) -> list[list[int]]:
    """Return the rows of each batch of an epoch, in order. Units: epochs count from 0."""
    numbers = np.random.PCG64([seed, epoch])
    lengths = [(len(source), len(target)) for source, target in zip(split.source, split.target, strict=True)]
    order = _shuffle(numbers, len(lengths))
    if training.batching == "random":
        return _slices(order, training.batch_size)
    if training.batching == "length":
        pools = _slices(order, POOL * training.batch_size)
        ordered = [sorted(pool, key=lambda row: (max(lengths[row]), *reversed(lengths[row]))) for pool in pools]
        batches = [batch for pool in ordered for batch in _slices(pool, training.batch_size)]
    else:
        batches = []
        for row in sorted(order, key=lambda row: max(lengths[row])):
            # Ascending, so that the last row is the longest: its length times the rows is what the batch takes.
            if batches and (len(batches[-1]) + 1) * max(lengths[row]) <= training.batch_tokens:
                batches[-1].append(row)
            else:
                batches.append([row])
    return [batches[place] for place in _shuffle(numbers, len(batches))]


def _shuffle(numbers: np.random.PCG64, count: int) -> list[int]:
    """Return 0 to `count` - 1 in the order of as many raw numbers."""
    keys = numbers.random_raw(count).tolist()
    return sorted(range(count), key=keys.__getitem__)


def _slices(rows: list[int], size: int) -> list[list[int]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _padded(rows: list[bytes]) -> bytes:
    """Return the shape and the padded ids of some rows as they are hashed: little endian, row by row."""
    longest = max(map(len, rows))
    padding = struct.pack("<i", PAD)
    filled = [row + padding * ((longest - len(row)) // ID_BYTES) for row in rows]
    return struct.pack("<2q", len(rows), longest // ID_BYTES) + b"".join(filled)
