"""Digests of the batches that a model is trained on, with their share of padding, and of its weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from impls.contract import PAD, Arrays, Batch

MARKS = (1, 10, 50)
"""Updates after which the digest of the batches is recorded, in addition to the ends of epochs."""
WEIGHTS_MARK = 50
"""The update after which a digest of the weights is recorded, in addition to the ends of epochs."""


@dataclass
class ConsumedBatches:
    """The batches that were passed to `train_step`, recorded in the training loop.

    The digest is a chain, so that a checkpoint can hold it: the SHA-256 of the previous digest, followed by the batch.

    Attributes:
        updates: Number of batches so far.
        digest: Hexadecimal digest after the last batch.
        marks: Recorded digests by the number of updates (a decimal string, for JSON).
        source_ids, target_ids: Number of ids, including padding.
        source_tokens, target_tokens: Number of ids without padding.
        fewest_tokens, most_tokens: Target tokens of the smallest and of the largest batch.
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
        """Add a batch."""
        chain = hashlib.sha256(bytes.fromhex(self.digest))
        add_to_digest(chain, batch)
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
        """Record the digest after the updates so far."""
        self.marks[str(self.updates)] = self.digest

    def statistics(self) -> dict[str, float]:
        """Return the shares of padding, 0 to 1, and the smallest and largest number of target tokens of a batch."""
        if not self.updates:
            return {}
        return {
            "source_padding_rate": 1 - self.source_tokens / self.source_ids,
            "target_padding_rate": 1 - self.target_tokens / self.target_ids,
            "fewest_update_tokens": self.fewest_tokens,
            "most_update_tokens": self.most_tokens,
        }


def add_to_digest(digest: hashlib._Hash, batch: Batch) -> None:
    """Add the shapes (64-bit) and ids (32-bit integers) of source, target_in and target_out, little endian."""
    for ids in (batch.source, batch.target_in, batch.target_out):
        digest.update(np.array(ids.shape, dtype="<i8").tobytes())
        digest.update(ids.astype("<i4").tobytes())


STATISTICS = ("source_padding_rate", "target_padding_rate", "fewest_update_tokens", "most_update_tokens")
"""The keys of `ConsumedBatches.statistics`."""


def array_digests(arrays: Arrays) -> dict[str, str]:
    """Return the shape and the SHA-256 of the float32 values of each tensor, in row-major order: "256x512:ab12..."."""
    digests = {}
    for name, array in sorted(arrays.items()):
        values = hashlib.sha256(np.ascontiguousarray(array, "<f4").data).hexdigest()
        digests[name] = f"{'x'.join(map(str, array.shape))}:{values}"
    return digests


def weights_digest(weights: Arrays) -> str:
    """Return the SHA-256 of the names, shapes and float32 values of all weights, sorted by name."""
    digest = hashlib.sha256()
    for name, array in sorted(weights.items()):
        digest.update(f"{name}:{'x'.join(map(str, array.shape))}:".encode())
        digest.update(np.ascontiguousarray(array, "<f4").data)
    return digest.hexdigest()
