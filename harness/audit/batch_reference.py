"""Recomputes the batches of a run from the corpus with code that is independent of training.

It shares no code with `harness.data.batches` and `harness.data.batch_digest`, so that an error there is not repeated
here.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.data.vocabulary import Split
from impls.contract import PAD, Ids, Numbers, Training

MARKS = (1, 10, 50)
POOL = 100
BLOCK = 100
"""The number of batches that are padded at once."""

Lengths = Sequence[tuple[int, int]]


@dataclass
class Expected:
    """What a run must have consumed, computed from the corpus.

    Attributes:
        marks: The digest of the batches so far by number of updates.
        tokens: The target tokens so far by number of updates.
        updates_per_epoch: The number of batches in the first epoch.
        statistics: Those of `harness.data.batch_digest.ConsumedBatches`.
    """

    marks: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    updates_per_epoch: int = 0
    statistics: dict[str, float] = field(default_factory=dict)


class _Sentences:
    """The ids of some sentences in one array, from which batches are padded."""

    def __init__(self, sentences: Sequence[Ids]) -> None:
        self._lengths = np.array(list(map(len, sentences)))
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._ids = np.concatenate(sentences).astype("<i4")

    def padded(self, batches: list[list[int]]) -> tuple[list[bytes], Numbers, int]:
        """Return batches of rows as they are hashed, their tokens, and the number of ids of all with padding.

        They are hashed as their shape and their ids row by row, little endian.
        """
        sizes = np.array(list(map(len, batches)))
        firsts = np.cumsum(sizes) - sizes
        rows = np.fromiter(itertools.chain.from_iterable(batches), int, int(sizes.sum()))
        lengths = self._lengths[rows]
        longest = np.maximum.reduceat(lengths, firsts)
        columns = np.arange(longest.max())
        ids = self._ids.take(self._starts[rows][:, None] + columns, mode="clip")
        ids[columns >= lengths[:, None]] = PAD
        contents = [
            struct.pack("<2q", size, width) + ids[first : first + size, :width].tobytes()
            for first, size, width in zip(firsts.tolist(), sizes.tolist(), longest.tolist(), strict=True)
        ]
        return contents, np.add.reduceat(lengths, firsts), int(sizes @ longest)


def expected(split: Split, training: Training, *, seed: int, updates: Collection[int]) -> Expected:
    """Return what training on `split` consumes up to the largest of `updates`, with a mark at each of them.

    The digest of a batch includes that of the batches before it.
    """
    lengths = [(len(source), len(target)) for source, target in zip(split.source, split.target, strict=True)]
    result = Expected(updates_per_epoch=len(_epoch(lengths, training, seed, 0)))
    targets = ([ids[:-1] for ids in split.target], [ids[1:] for ids in split.target])
    parts = [_Sentences(side) for side in (split.source, *targets)]
    epochs = (_epoch(lengths, training, seed, epoch) for epoch in itertools.count())
    batches, marks = itertools.islice(itertools.chain.from_iterable(epochs), max(updates)), {*MARKS, *updates}
    hashed, tokens, number, total = hashlib.sha256(), [], 0, 0
    source_tokens = source_ids = target_ids = 0
    while block := list(itertools.islice(batches, BLOCK)):
        (source, words, ids), (target_in, _, _), (target_out, block_tokens, all_ids) = (
            part.padded(block) for part in parts
        )
        source_tokens, source_ids, target_ids = source_tokens + int(words.sum()), source_ids + ids, target_ids + all_ids
        tokens += block_tokens.tolist()
        for contents in zip(source, target_in, target_out, strict=True):
            hashed = hashlib.sha256(hashed.digest())
            hashed.update(b"".join(contents))
            total, number = total + tokens[number], number + 1
            if number in marks:
                result.marks[number], result.tokens[number] = hashed.hexdigest(), total
    result.statistics = {
        "source_padding_rate": 1 - source_tokens / source_ids,
        "target_padding_rate": 1 - total / target_ids,
        "fewest_update_tokens": min(tokens),
        "most_update_tokens": max(tokens),
    }
    return result


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
