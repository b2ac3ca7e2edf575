"""Incremental decoding with CUDA graphs: each step is captured once per shape and then replayed.

A step is about a hundred small kernels, so decoding is launch-bound. A graph needs fixed shapes and fixed memory:
sources are padded, caches have spare capacity, and the number of tokens is a tensor on the device. Padding and spare
positions get an attention weight of exactly 0.

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
from impls.pytorch.torch_adapter import TorchModel
from impls.pytorch.torch_decoding import TorchDecoding, most_probable
from impls.pytorch.torch_transformer import MASKED_SCORE, DecoderCache

SOURCE_COUNT_STEP = 32
"""The number of sources is padded to a multiple of this."""

SOURCE_LENGTH_STEP = 16
"""The lengths of sources are padded to a multiple of this."""

CAPACITY_STEP = 32
"""The capacity of caches is a multiple of this.

The 1,000 test sentences of Multi30k in batches of 128 then have ten shapes, and ten more with beam 5.
"""

MAX_SHAPES = 32
"""The maximum number of captured shapes; further, rarer shapes are decoded without graphs."""

Operation = Callable[[], object]
Capture = Callable[[Hashable, Operation, Sequence[torch.Tensor]], Operation]


class DecodingShape(NamedTuple):
    """The shape of a captured step.

    Attributes:
        sources: The number of sources A, including padding.
        positions: Source positions S.
        rows: The number of rows R, including padding.
        capacity: Target positions of the caches.
        best: Candidates per row.
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
    """A `LayerCache` in fixed memory: keys and values, [R,H,capacity,K] each; the first `length`, [], are used."""

    keys_and_values: tuple[torch.Tensor, torch.Tensor]
    length: torch.Tensor

    @property
    def capacity(self) -> int:
        """The number of positions, including unused ones."""
        return self.keys_and_values[0].shape[2]

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write those of the newest token, [R,H,1,K] each, and return all."""
        for tensor, newest in zip(self.keys_and_values, (key, value), strict=True):
            tensor.index_copy_(2, self.length[None], newest)
        return self.keys_and_values

    def reorder(self, rows: torch.Tensor) -> None:
        """Repeat or reorder rows; their number R stays the same."""
        for tensor in self.keys_and_values:
            tensor.copy_(tensor.index_select(0, rows))


def copy_padded(target: torch.Tensor, values: torch.Tensor, *, padding: float) -> None:
    """Copy `values` to the beginning of each dimension of `target` and fill the rest with `padding`."""
    target.fill_(padding)
    target[tuple(slice(size) for size in values.shape)] = values


class CapturedStep:
    """The step of one shape, its memory, and the decoding that owns the memory at present."""

    def __init__(self, model: TorchModel, shape: DecodingShape, template: DecoderCache, capture: Capture) -> None:
        self.shape = shape
        self.owner: weakref.ref[GraphDecoding] | None = None
        self._model, self._capture = model, capture
        bias, *keys_and_values = template.sources.tensors
        device, (heads, width) = bias.device, keys_and_values[0].shape[1:3]
        key_size, value_size = (heads, width, shape.positions), (heads, shape.positions, width)
        sizes = [(1, 1, shape.positions), *[key_size, value_size] * (len(keys_and_values) // 2)]
        sources = [
            tensor.new_empty((shape.sources, *size))
            for tensor, size in zip((bias, *keys_and_values), sizes, strict=True)
        ]
        # The number of tokens; the newest token of each row; and the row of the last step that it continues.
        self._ids = torch.zeros(1 + 2 * shape.rows, dtype=torch.int32, device=device)
        self._length = torch.zeros((), dtype=torch.int64, device=device)
        best = min(shape.best, len(model.module.output.weight))
        self._candidates = torch.zeros((2, shape.rows, best), dtype=torch.int32, device=device)
        size = (shape.rows, heads, shape.capacity, width)
        pairs = [[tensor.new_empty(size) for tensor in cache.keys_and_values] for cache in template.layers]
        self._layer_caches = [FixedLayerCache((key, value), self._length) for key, value in pairs]
        self._cache = DecoderCache(SourceMemory(*sources), self._layer_caches)

    def fits(self, length: int, best: int) -> bool:
        """Return whether the step has capacity after `length` tokens and returns `best` candidates."""
        return length < self.shape.capacity and best == self.shape.best

    def load(self, cache: DecoderCache) -> None:
        """Copy a cache into the step's memory. Padding is overwritten too, since masked values must be finite."""
        bias, *others = zip(self._cache.sources.tensors, cache.sources.tensors, strict=True)
        copy_padded(*bias, padding=MASKED_SCORE)
        for target, values in others:
            copy_padded(target, values, padding=0.0)
        for layer, other in zip(self._layer_caches, cache.layers, strict=True):
            for target, values in zip(layer.keys_and_values, other.keys_and_values, strict=True):
                copy_padded(target, values, padding=0.0)

    def layer_caches(self, rows: Rows, length: int) -> list[GrowingLayerCache]:
        """Return copies of the caches of self-attention, for these rows."""
        chosen = torch.from_numpy(rows).to(self._length.device)
        return [
            GrowingLayerCache(length, [tensor.index_select(0, chosen) for tensor in cache.keys_and_values])
            for cache in self._layer_caches
        ]

    def __call__(self, last: Ids, rows: Rows, length: int) -> Candidates:
        """Feed the newest token of each row, which continues that row of the last step. Shapes: [R], [R]."""
        block = torch.zeros(len(self._ids), dtype=torch.int32, pin_memory=self._ids.is_cuda)
        numbers = block.numpy()
        numbers[0], numbers[1:][: len(last)], numbers[1 + self.shape.rows :][: len(rows)] = length, last, rows
        self._ids.copy_(block, non_blocking=True)
        # A capture needs no state to restore: in the first step of a shape each row continues itself, and running
        # that twice has the same effect as once.
        self._capture(self.shape, self._run, ())()
        # On a CPU, .cpu().numpy() does not copy.
        scores, tokens = self._candidates.cpu().numpy()[:, : len(last)].copy()
        return Candidates(scores.view(np.float32), tokens)

    def _run(self) -> None:
        """Run one step. Its operations and memory depend on the shape only."""
        with self._model.evaluation():
            self._length.copy_(self._ids[0])
            last, rows = self._ids[1:].view(2, -1)
            for cache in self._layer_caches:
                cache.reorder(rows)
            logits = self._model.module.output(self._model.module.step(self._cache, last)).float()
            scores, tokens = most_probable(logits, min(self.shape.best, logits.shape[-1]))
            self._candidates[0].copy_(scores.view(torch.int32))
            self._candidates[1].copy_(tokens)


class CapturedSteps:
    """The captured steps of a model, one per shape."""

    def __init__(self, model: TorchModel, max_length: int, capture: Capture) -> None:
        self._model, self._max_length, self._capture = model, max_length, capture
        self._by_shape: dict[DecodingShape, CapturedStep] = {}

    def bind(self, decoding: GraphDecoding, cache: Any, best: int) -> CapturedStep | None:
        """Return the step for this decoding, loaded with its cache; None if it must run without a graph."""
        length = cache.layers[0].length
        if length == 0 or length >= self._max_length:
            return None
        sources, rows = len(cache.sources), len(cache.layers[0].keys_and_values[0])
        padded_sources = rounded(sources, SOURCE_COUNT_STEP)
        shape = DecodingShape(
            sources=padded_sources,
            positions=rounded(cache.sources.tensors[0].shape[-1], SOURCE_LENGTH_STEP),
            rows=padded_sources * (rows // sources),
            capacity=min(rounded(length + 1, CAPACITY_STEP), self._max_length),
            best=best,
        )
        if shape not in self._by_shape:
            if len(self._by_shape) >= MAX_SHAPES:
                return None
            self._by_shape[shape] = CapturedStep(self._model, shape, cache, self._capture)
        step = self._by_shape[shape]
        before = step.owner() if step.owner is not None else None
        if before is not None:
            before.unbind()
        step.load(cache)
        step.owner = weakref.ref(decoding)
        return step


class GraphDecoding(TorchDecoding):
    """Incremental decoding whose state is in its own cache or in the memory of a `CapturedStep`."""

    def __init__(self, model: TorchModel, state: DecoderCache, steps: CapturedSteps) -> None:
        super().__init__(model, state)
        self._steps = steps
        self._step: CapturedStep | None = None
        self._length = 0
        self._rows: Rows = np.zeros(0, dtype=np.intp)

    def step(self, last: Ids, best: int) -> Candidates:
        """Feed the newest token of each row, [R], and return the `best` most probable next tokens."""
        with torch.inference_mode():
            if self._step is not None and not self._step.fits(self._length, best):
                self.unbind()
            if self._step is None:
                self._step = self._steps.bind(self, self._state, best)
                self._length, self._rows = self._state.layers[0].length, np.arange(len(last))
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
        """Copy the state back from the step's memory to the decoding's own cache."""
        if self._step is not None:
            with torch.inference_mode():
                self._state.layers = self._step.layer_caches(self._rows, self._length)
            self._step = None
