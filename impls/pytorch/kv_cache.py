"""What decoding in torch remembers from word to word: the encoded sources, and the words so far.

Shapes use the repository's letters, and A for sources, R for rows of words that translate them: R = A x beam.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

Rows = np.ndarray[Any, np.dtype[np.intp]]

CACHE_STEP = 8
"""Words by which the caches of decoding grow."""


class SourceMemory:
    """What was computed of A encoded sources for R rows: any number of tensors, A in their first dimension.

    While each source has equally many rows, one after the other, it is there once for all of them; else each row counts
    as a source of its own.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = list(tensors)
        self._of_rows = np.arange(len(self))

    def __len__(self) -> int:
        """Return A."""
        return len(self.tensors[0])

    def leaves_unchanged(self, rows: Rows) -> bool:
        """Return whether `reorder(rows)` would change nothing here."""
        return np.array_equal(self._of_rows[rows], self._of_rows)

    def reorder(self, rows: Rows) -> None:
        """Keep, drop, repeat or reorder rows. Shapes: [R]."""
        sources = self._of_rows[rows]
        first = np.flatnonzero(np.diff(sources, prepend=-1))
        rows_per_source = max(1, len(rows) // max(1, len(first)))
        if not np.array_equal(first, np.arange(0, len(rows), rows_per_source)):
            first, rows_per_source = np.arange(len(rows)), 1
        self._of_rows = np.repeat(np.arange(len(first)), rows_per_source)
        if not np.array_equal(sources[first], np.arange(len(self))):
            chosen = torch.from_numpy(sources[first]).to(self.tensors[0].device)
            self.tensors = [tensor.index_select(0, chosen) for tensor in self.tensors]


class LayerCache(Protocol):
    """The keys and values that self-attention has computed for the first `length` target positions."""

    @property
    def keys_and_values(self) -> Sequence[torch.Tensor]:
        """Keys and values, [R,H,.,K] each; none where nothing is known of them yet."""

    @property
    def length(self) -> int | torch.Tensor:
        """The words so far, a number or the device's, []."""

    @property
    def capacity(self) -> int:
        """The places of what `append` will return; those after the newest word are to be hidden."""

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the newest word's, [R,H,1,K] each, and return those of all places, [R,H,room,K] each."""

    def reorder(self, rows: torch.Tensor) -> None:
        """Keep, drop, repeat or reorder rows. Shapes: [R]."""


class GrowingLayerCache:
    """A `LayerCache` that grows with its words."""

    def __init__(self, length: int = 0, keys_and_values: Sequence[torch.Tensor] = ()) -> None:
        self.length = length
        self._buffers = list(keys_and_values)

    @property
    def capacity(self) -> int:
        """The newest word is the last."""
        return self.length + 1

    @property
    def keys_and_values(self) -> list[torch.Tensor]:
        """Keys and values of the words so far, [R,H,length,K] each; none before the first word."""
        return [tensor[:, :, : self.length] for tensor in self._buffers]

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the newest word's, [R,H,1,K] each, and return those of all words, [R,H,length,K] each."""
        if self.length == (self._buffers[0].shape[2] if self._buffers else 0):
            free = key.new_empty((*key.shape[:2], CACHE_STEP, key.shape[3]))
            self._buffers = [torch.cat([tensor, free], dim=2) for tensor in self._buffers] or [free, free.clone()]
        for buffer, newest in zip(self._buffers, (key, value), strict=True):
            buffer[:, :, self.length] = newest[:, :, 0]
        self.length += 1
        keys, values = self.keys_and_values
        return keys, values

    def reorder(self, rows: torch.Tensor) -> None:
        """Keep, drop, repeat or reorder rows."""
        self._buffers = [tensor.index_select(0, rows) for tensor in self._buffers]
