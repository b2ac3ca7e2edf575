"""Cached decoding in torch in memory that stays where it is, so that a step is captured once and replayed from then on.

A step is some hundred small operations on a few rows of words, which a GPU does faster than it is told of them. A graph
of them always has the same shapes and the same memory: sources are padded, there are more places for words than words,
and how many there are is a number on the device. Padding and free places have a weight of exactly 0.

When the number of rows changes, the state moves from the memory of one shape to that of another by way of an ordinary
`DecoderCache`. The first token is decoded there too, because before it there are no keys and values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from impls.contract import Candidates, Ids
from impls.pytorch.kv_cache import GrowingLayerCache, Rows, SourceMemory
from impls.pytorch.torch_adapter import TorchDecoding, TorchModel, next_words
from impls.pytorch.torch_transformer import MASKED_SCORE, DecoderCache

SOURCES_STEP = 32
"""What the numbers of sources are multiples of, with those that fill up."""

POSITIONS_STEP = 16
"""What the padded lengths of sources are multiples of."""

WORDS_STEP = 32
"""What the numbers of places for words are multiples of.

The 1,000 test sentences of Multi30k in batches of 128 then have ten shapes, and ten more with beam 5.
"""

MOST_SHAPES = 32
"""Shapes that get memory of their own; any further ones, the rare ones, are decoded without graphs."""

Operation = Callable[[], object]
Capture = Callable[[Hashable, Operation, Sequence[torch.Tensor]], Operation]


class DecodingShape(NamedTuple):
    """A sources with S positions, R rows of words with room for more, and the candidates asked for of each row.

    A, and R with it, counts sources that only fill up.
    """

    sources: int
    positions: int
    rows: int
    capacity: int
    best: int


def rounded(size: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `size`."""
    return -(-size // step) * step


@dataclass(frozen=True)
class FixedLayerCache:
    """A `LayerCache` in one place: keys and values, [R,H,room,K] each, of which the first `length`, [], are words'."""

    keys_and_values: tuple[torch.Tensor, torch.Tensor]
    length: torch.Tensor

    @property
    def capacity(self) -> int:
        """All places, the free ones too."""
        return self.keys_and_values[0].shape[2]

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the newest word's, [R,H,1,K] each, into their place and return all."""
        for tensor, newest in zip(self.keys_and_values, (key, value), strict=True):
            tensor.index_copy_(2, self.length[None], newest)
        return self.keys_and_values

    def reorder(self, rows: torch.Tensor) -> None:
        """Repeat or reorder rows; there are R again."""
        for tensor in self.keys_and_values:
            tensor.copy_(tensor.index_select(0, rows))


def put(target: torch.Tensor, values: torch.Tensor, *, padding: float) -> None:
    """Replace all of `target`: by what is given at the beginning of each dimension, and the rest by a number."""
    target.fill_(padding)
    target[tuple(slice(size) for size in values.shape)] = values


class CapturedStep:
    """The step of one shape: all memory that it reads and changes, and which decoding's that is now."""

    def __init__(self, model: TorchModel, shape: DecodingShape, like: DecoderCache, capture: Capture) -> None:
        self.shape = shape
        self.owner: weakref.ref[GraphDecoding] | None = None
        self._model, self._capture = model, capture
        bias, *keys_and_values = like.sources.tensors
        device, (heads, width) = bias.device, keys_and_values[0].shape[1:3]
        ahead, behind = (heads, width, shape.positions), (heads, shape.positions, width)
        sizes = [(1, 1, shape.positions), *[ahead, behind] * (len(keys_and_values) // 2)]
        sources = [
            tensor.new_empty((shape.sources, *size))
            for tensor, size in zip((bias, *keys_and_values), sizes, strict=True)
        ]
        # The count of words, the newest word of each row, and the row it goes on from.
        self._ids = torch.zeros(1 + 2 * shape.rows, dtype=torch.int32, device=device)
        self._length = torch.zeros((), dtype=torch.int64, device=device)
        best = min(shape.best, len(model.module.output.weight))
        self._found = torch.zeros((2, shape.rows, best), dtype=torch.int32, device=device)
        size = (shape.rows, heads, shape.capacity, width)
        pairs = [[tensor.new_empty(size) for tensor in cache.keys_and_values] for cache in like.own]
        self._layer_caches = [FixedLayerCache((key, value), self._length) for key, value in pairs]
        self._cache = DecoderCache(SourceMemory(*sources), self._layer_caches)

    def fits(self, length: int, best: int) -> bool:
        """Return whether there is room after that many words, for a step that asks for that many candidates."""
        return length < self.shape.capacity and best == self.shape.best

    def load(self, cache: DecoderCache) -> None:
        """Take over what is remembered, and forget what was: even what is hidden must be finite."""
        bias, *others = zip(self._cache.sources.tensors, cache.sources.tensors, strict=True)
        put(*bias, padding=MASKED_SCORE)
        for target, values in others:
            put(target, values, padding=0.0)
        for layer, other in zip(self._layer_caches, cache.own, strict=True):
            for target, values in zip(layer.keys_and_values, other.keys_and_values, strict=True):
                put(target, values, padding=0.0)

    def words(self, rows: Rows, length: int) -> list[GrowingLayerCache]:
        """Return copies of what is remembered of the words, for these rows."""
        chosen = torch.from_numpy(rows).to(self._length.device)
        return [
            GrowingLayerCache(length, [tensor.index_select(0, chosen) for tensor in cache.keys_and_values])
            for cache in self._layer_caches
        ]

    def __call__(self, last: Ids, rows: Rows, length: int) -> Candidates:
        """Feed the newest word of each row, which goes on from that row of the last step. Shapes: [R], [R]."""
        block = torch.zeros(len(self._ids), dtype=torch.int32, pin_memory=self._ids.is_cuda)
        numbers = block.numpy()
        numbers[0], numbers[1:][: len(last)], numbers[1 + self.shape.rows :][: len(rows)] = length, last, rows
        self._ids.copy_(block, non_blocking=True)
        # Nothing is to be put back after a capture: in the first step of a shape each row goes on from itself,
        # and doing that twice is doing it once.
        self._capture(self.shape, self._run, ())()
        # On a processor, .cpu().numpy() copies nothing.
        scores, tokens = self._found.cpu().numpy()[:, : len(last)].copy()
        return Candidates(scores.view(np.float32), tokens)

    def _run(self) -> None:
        """Do one step. What is done, and where in memory, depends on the shape alone."""
        with self._model.evaluation():
            self._length.copy_(self._ids[0])
            last, rows = self._ids[1:].view(2, -1)
            for cache in self._layer_caches:
                cache.reorder(rows)
            scores, tokens = next_words(self._model.module, self._cache, last, self.shape.best)
            self._found[0].copy_(scores.view(torch.int32))
            self._found[1].copy_(tokens)


class CapturedSteps:
    """The steps of a model, one for each shape there was. `longest` is its recipe's `max_length`."""

    def __init__(self, model: TorchModel, longest: int, capture: Capture) -> None:
        self._model, self._longest, self._capture = model, longest, capture
        self._all: dict[DecodingShape, CapturedStep] = {}

    def bind(self, decoding: GraphDecoding, cache: Any, best: int) -> CapturedStep | None:
        """Return the step that serves this decoding, with all it remembers; None where it is to do without."""
        length = cache.own[0].length
        if length == 0 or length >= self._longest:
            return None
        sources, rows = len(cache.sources), len(cache.own[0].keys_and_values[0])
        filled_up = rounded(sources, SOURCES_STEP)
        shape = DecodingShape(
            sources=filled_up,
            positions=rounded(cache.sources.tensors[0].shape[-1], POSITIONS_STEP),
            rows=filled_up * (rows // sources),
            capacity=min(rounded(length + 1, WORDS_STEP), self._longest),
            best=best,
        )
        if shape not in self._all:
            if len(self._all) >= MOST_SHAPES:
                return None
            self._all[shape] = CapturedStep(self._model, shape, cache, self._capture)
        step = self._all[shape]
        before = step.owner() if step.owner is not None else None
        if before is not None:
            before.unbind()
        step.load(cache)
        step.owner = weakref.ref(decoding)
        return step


class GraphDecoding(TorchDecoding):
    """Sentences half way through decoding: in memory of their own, or in that of a `CapturedStep`."""

    def __init__(self, model: TorchModel, state: DecoderCache, steps: CapturedSteps) -> None:
        super().__init__(model, state)
        self._steps = steps
        self._step: CapturedStep | None = None
        self._length = 0
        self._rows: Rows = np.zeros(0, dtype=np.intp)

    def step(self, last: Ids, best: int) -> Candidates:
        """Feed the newest word of each row, [R], and return the `best` most probable next words."""
        with torch.inference_mode():
            if self._step is not None and not self._step.fits(self._length, best):
                self.unbind()
            if self._step is None:
                self._step = self._steps.bind(self, self._state, best)
                self._length, self._rows = self._state.own[0].length, np.arange(len(last))
            if self._step is None:
                return super().step(last, best)
            candidates = self._step(last, self._rows, self._length)
        self._length, self._rows = self._length + 1, np.arange(len(last))
        return candidates

    def reorder(self, rows: Rows) -> None:
        """Keep, drop, repeat or reorder rows."""
        if self._step is not None and self._state.sources.leaves_unchanged(rows):
            self._rows = self._rows[rows]
            return
        self.unbind()
        super().reorder(rows)

    def unbind(self) -> None:
        """Take what is remembered back out of the step's memory."""
        if self._step is not None:
            with torch.inference_mode():
                self._state.own = self._step.words(self._rows, self._length)
            self._step = None
