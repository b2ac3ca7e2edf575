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


class Sources:
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

    def stay(self, rows: Rows) -> bool:
        """Return whether `select(rows)` would change nothing here."""
        return np.array_equal(self._of_rows[rows], self._of_rows)

    def select(self, rows: Rows) -> None:
        """Keep, drop, repeat or reorder rows. Shapes: [R]."""
        sources = self._of_rows[rows]
        first = np.flatnonzero(np.diff(sources, prepend=-1))
        each = max(1, len(rows) // max(1, len(first)))
        if not np.array_equal(first, np.arange(0, len(rows), each)):
            first, each = np.arange(len(rows)), 1
        self._of_rows = np.repeat(np.arange(len(first)), each)
        if not np.array_equal(sources[first], np.arange(len(self))):
            kept = torch.from_numpy(sources[first]).to(self.tensors[0].device)
            self.tensors = [one.index_select(0, kept) for one in self.tensors]


class Past(Protocol):
    """What self-attention has computed of the words so far: `length` words, in `room` places once the next is added."""

    @property
    def both(self) -> Sequence[torch.Tensor]:
        """Keys and values, [R,H,.,K] each; none where nothing is known of them yet."""

    @property
    def length(self) -> int | torch.Tensor:
        """The words so far, a number or the device's, []."""

    @property
    def room(self) -> int:
        """The places of what `append` will return; those after the newest word are to be hidden."""

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the newest word's, [R,H,1,K] each, and return those of all places, [R,H,room,K] each."""

    def select(self, rows: torch.Tensor) -> None:
        """Keep, drop, repeat or reorder rows. Shapes: [R]."""


class KeysAndValues:
    """A `Past` that grows with its words."""

    def __init__(self, length: int = 0, both: Sequence[torch.Tensor] = ()) -> None:
        self.length = length
        self._both = list(both)

    @property
    def room(self) -> int:
        """The newest word is the last."""
        return self.length + 1

    @property
    def both(self) -> list[torch.Tensor]:
        """Keys and values of the words so far, [R,H,length,K] each; none before the first word."""
        return [one[:, :, : self.length] for one in self._both]

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the newest word's, [R,H,1,K] each, and return those of all words, [R,H,length,K] each."""
        if self.length == (self._both[0].shape[2] if self._both else 0):
            room = key.new_empty((*key.shape[:2], CACHE_STEP, key.shape[3]))
            self._both = [torch.cat([one, room], dim=2) for one in self._both] or [room, room.clone()]
        for one, newest in zip(self._both, (key, value), strict=True):
            one[:, :, self.length] = newest[:, :, 0]
        self.length += 1
        keys, values = self.both
        return keys, values

    def select(self, rows: torch.Tensor) -> None:
        """Keep, drop, repeat or reorder rows."""
        self._both = [one.index_select(0, rows) for one in self._both]
