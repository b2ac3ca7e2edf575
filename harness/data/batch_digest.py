"""What a model was trained on: a running digest of its batches, and how much of them is padding."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from harness.data.batches import training_batches
from harness.data.vocabulary import Split
from impls.contract import PAD, Arrays, Batch, Training

MARKS = (1, 10, 50)
"""Updates after which the digest of the batches is kept, besides the ends of the epochs."""
WEIGHTS_MARK = 50
"""The update after which a digest of the weights is kept, besides the ends of the epochs."""


@dataclass
class ConsumedBatches:
    """A record of the batches that were passed to `train_step`, updated in the training loop itself.

    The digest is a chain, so that a checkpoint can hold it: SHA-256 of the digest before, then for each of source,
    target_in and target_out its shape (two 64-bit integers) and its ids (32-bit integers), little endian.

    Attributes:
        updates: number of batches so far.
        digest: hexadecimal digest after the last batch.
        marks: digest by the number of updates (a decimal string, for JSON) after which it was kept.
        source_ids: number of source ids, padding included; `target_ids` likewise.
        source_tokens: number of source ids that are not padding; `target_tokens` likewise.
        fewest_tokens: target tokens of the smallest update; `most_tokens` of the largest.
    """

    updates: int = 0
    digest: str = hashlib.sha256().hexdigest()
    marks: dict[str, str] = field(default_factory=dict)
    source_ids: int = 0
    source_tokens: int = 0
    target_ids: int = 0
    target_tokens: int = 0
    fewest_tokens: int = 0
    most_tokens: int = 0

    def add(self, batch: Batch) -> None:
        """Record a batch that the model is trained on now."""
        chain = hashlib.sha256(bytes.fromhex(self.digest))
        for ids in (batch.source, batch.target_in, batch.target_out):
            chain.update(np.array(ids.shape, dtype="<i8").tobytes())
            chain.update(ids.astype("<i4").tobytes())
        self.digest = chain.hexdigest()
        tokens = batch.tokens
        self.fewest_tokens = min(self.fewest_tokens, tokens) if self.updates else tokens
        self.most_tokens = max(self.most_tokens, tokens)
        self.source_ids += batch.source.size
        self.source_tokens += int((batch.source != PAD).sum())
        self.target_ids += batch.target_out.size
        self.target_tokens += tokens
        self.updates += 1
        if self.updates in MARKS:
            self.mark()

    def mark(self) -> None:
        """Keep the digest after the updates so far, as at the end of an epoch."""
        self.marks[str(self.updates)] = self.digest

    def statistics(self) -> dict[str, float]:
        """Return the shares of ids that are padding, 0 to 1, and the range of target tokens of an update."""
        if not self.updates:
            return {}
        return {
            "source_padding_rate": 1 - self.source_tokens / self.source_ids,
            "target_padding_rate": 1 - self.target_tokens / self.target_ids,
            "fewest_update_tokens": self.fewest_tokens,
            "most_update_tokens": self.most_tokens,
        }


STATISTICS = ("source_padding_rate", "target_padding_rate", "fewest_update_tokens", "most_update_tokens")
"""The names of `ConsumedBatches.statistics`."""


def expected_batches(split: Split, training: Training, *, seed: int, updates: Collection[int]) -> ConsumedBatches:
    """Return what a run consumes that is trained on `split`, computed from the corpus alone.

    `updates` are the numbers of updates after which the digest is kept besides `MARKS`; the largest is the last update.
    """
    consumed, last, epoch = ConsumedBatches(), max(updates, default=0), 0
    while consumed.updates < last and len(split):
        for batch in training_batches(split, training, seed=seed, epoch=epoch):
            consumed.add(batch)
            if consumed.updates in updates:
                consumed.mark()
            if consumed.updates == last:
                break
        epoch += 1
    return consumed


def weights_digest(weights: Arrays) -> str:
    """Return one SHA-256 of all weights: name, shape and float32 values of each tensor, in order of name."""
    digest = hashlib.sha256()
    for name, array in sorted(weights.items()):
        digest.update(f"{name}:{'x'.join(map(str, array.shape))}:".encode())
        digest.update(np.ascontiguousarray(array, "<f4").data)
    return digest.hexdigest()
