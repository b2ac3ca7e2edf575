"""Recomputes the batches of a run from the corpus with code that is independent of training.

It shares no code with `harness.data.batches` and `harness.data.batch_digest`, so that an error there is not repeated
here.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from harness.data.vocabulary import Split
from impls.contract import PAD, Ids, Training

MARKS = (1, 10, 50)
POOL = 100
Lengths = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Expected:
    """What a run must have consumed, computed from the corpus.

    Attributes:
        marks: The digest of the batches so far by number of updates.
        tokens: The target tokens so far by number of updates.
        updates_per_epoch: The number of batches in the first epoch.
        statistics: Those of `harness.data.batch_digest.ConsumedBatches`.
    """

    marks: dict[int, str]
    tokens: dict[int, int]
    updates_per_epoch: int
    statistics: dict[str, float]


def expected(split: Split, training: Training, *, seed: int, updates: Collection[int]) -> Expected:
    """Return what training on `split` consumes up to the largest of `updates`, with a mark at each of them.

    The digest of a batch includes that of the batches before it.
    """
    lengths = [(len(source), len(target)) for source, target in zip(split.source, split.target, strict=True)]
    parts = split.source, [ids[:-1] for ids in split.target], [ids[1:] for ids in split.target]
    epochs = (_epoch(lengths, training, seed, epoch) for epoch in itertools.count())
    batches, marked = itertools.islice(itertools.chain.from_iterable(epochs), max(updates)), {*MARKS, *updates}
    hashed, tokens, sizes = hashlib.sha256(), np.zeros(2, int), np.zeros(2, int)
    marks, tokens_so_far, tokens_of_updates = {}, {}, []
    for number, rows in enumerate(batches, start=1):
        source, target_in, target_out = (_padded(part, rows) for part in parts)
        hashed = hashlib.sha256(hashed.digest())
        for ids in (source, target_in, target_out):
            hashed.update(struct.pack("<2q", *ids.shape) + ids.tobytes())
        of_update = [sum(lengths[row][0] for row in rows), sum(lengths[row][1] - 1 for row in rows)]
        tokens, sizes = tokens + of_update, sizes + [source.size, target_out.size]
        tokens_of_updates.append(of_update[1])
        if number in marked:
            marks[number], tokens_so_far[number] = hashed.hexdigest(), int(tokens[1])
    source_padding, target_padding = (1 - tokens / sizes).tolist()
    statistics = {
        "source_padding_rate": source_padding,
        "target_padding_rate": target_padding,
        "fewest_update_tokens": min(tokens_of_updates),
        "most_update_tokens": max(tokens_of_updates),
    }
    return Expected(marks, tokens_so_far, len(_epoch(lengths, training, seed, 0)), statistics)


def _padded(sentences: Sequence[Ids], rows: Sequence[int]) -> Ids:
    """Return a batch as it is hashed: with its shape, its ids row by row, little endian."""
    chosen = [sentences[row] for row in rows]
    ids = np.full((len(rows), max(map(len, chosen))), PAD, "<i4")
    for line, sentence in zip(ids, chosen, strict=True):
        line[: len(sentence)] = sentence
    return ids


def _epoch(lengths: Lengths, training: Training, seed: int, epoch: int) -> list[list[int]]:
    """Return the rows of each batch of an epoch, in order. Units: epochs count from 0."""
    generator = np.random.PCG64([seed, epoch])
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
    order: list[int] = np.argsort(generator.random_raw(count), kind="stable").tolist()
    return order


def _slices(rows: list[int], size: int) -> list[list[int]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
