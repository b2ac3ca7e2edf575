"""The state of incremental decoding in torch: projected sources, and the keys and values of the tokens so far.

Shapes use the repository's letters, and A for sources, R for rows that translate them: R = A x beam.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

Rows = np.ndarray[Any, np.dtype[np.intp]]

CACHE_STEP = 8
"""The number of positions by which caches grow."""


class RowTensors(dict[str, torch.Tensor]):
    """A state of tensors by name; the first dimension of each is the row."""

    def reorder(self, rows: Rows) -> None:
        """Keep, drop, repeat or reorder rows."""
        for name, tensor in self.items():
            self[name] = tensor.index_select(0, torch.from_numpy(rows).to(tensor.device))


class SourceMemory:
    """Tensors computed from A encoded sources for R rows; their first dimension is A.

    Sources are stored once while each one has equally many consecutive rows; otherwise each row has its own copy.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = list(tensors)
        self._of_rows = np.arange(len(self))

    def __len__(self) -> int:
        """Return A."""
        return len(self.tensors[0])

    def leaves_unchanged(self, rows: Rows) -> bool:
        """Return whether `reorder(rows)` would leave the tensors unchanged."""
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
        """Keys and values, [R,H,.,K] each; empty before the first token."""

    @property
    def length(self) -> int | torch.Tensor:
        """The number of tokens so far, an int or a tensor []."""

    @property
    def capacity(self) -> int:
        """The number of positions that `append` returns; those after the newest token must be masked."""

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add those of the newest token, [R,H,1,K] each, and return all, [R,H,capacity,K] each."""

    def reorder(self, rows: torch.Tensor) -> None:
        """Keep, drop, repeat or reorder rows. Shapes: [R]."""


class GrowingLayerCache:
    """A `LayerCache` that grows as needed."""

    def __init__(self, length: int = 0, keys_and_values: Sequence[torch.Tensor] = ()) -> None:
        self.length = length
        self._buffers = list(keys_and_values)

    @property
    def capacity(self) -> int:
        """The newest token is the last position."""
        return self.length + 1

    @property
    def keys_and_values(self) -> list[torch.Tensor]:
        """Keys and values of the tokens so far, [R,H,length,K] each; empty before the first token."""
        return [tensor[:, :, : self.length] for tensor in self._buffers]

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add those of the newest token, [R,H,1,K] each, and return all, [R,H,length,K] each."""
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
