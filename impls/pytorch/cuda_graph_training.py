"""A Transformer's updates and decoding at a few fixed shapes, each captured once as a CUDA graph and then replayed.

At this size a GPU waits for its orders: an update is hundreds of small operations, and ordering them one by one takes
longer than doing them. A graph is one order for all of them, but always for the same operations on the same memory: a
batch is padded to one of few shapes and copied to where the graph reads, and weights, moments and sums stay where they
are. Padding changes no loss and no gradient, but for rounding; dropout draws numbers for the padding too.

Source: PyTorch's notes on CUDA semantics, section "CUDA Graphs".
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import cuda
from torch.nn.functional import linear, log_softmax, nll_loss

from impls.contract import PAD, Batch, Compilation, Ids, TransformerRecipe
from impls.pytorch.cuda_graph_decoding import Capture, CapturedSteps, GraphDecoding, Operation, rounded
from impls.pytorch.torch_adapter import TorchModel, build_transformer

LENGTH_STEP = 4
"""What the padded lengths are multiples of.

Ten epochs of Multi30k in batches of 128 then have 20 shapes, and 14 % of their ids are padding; exact lengths would be
89 shapes with 5 %, steps of 2 are 36 with 8 %, of 8 11 with 24 %.
"""

MOST_GRAPHS = 64
"""Shapes that are captured; updates of any further ones, the rare ones, are given operation by operation."""

NUMBERS = 2
"""Places of four bytes before the ids of an update: its learning rate and its count of target words."""


@dataclass(frozen=True)
class BatchShape:
    """A batch's sizes with its padding: B rows, S source and T target positions."""

    rows: int
    source: int
    target: int

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The shapes of `Batch.source`, `target_in` and `target_out`."""
        return (self.rows, self.source), (self.rows, self.target), (self.rows, self.target)


def padded_shape(batch: Batch, rows: int, longest: int) -> BatchShape:
    """Return the shape that `batch` is padded to: at least `rows` rows, and no padding beyond `longest` positions."""

    def padded(length: int) -> int:
        return max(length, min(rounded(length, LENGTH_STEP), longest))

    return BatchShape(max(rows, len(batch.source)), padded(batch.source.shape[1]), padded(batch.target_in.shape[1]))


class Inputs:
    """What the updates of one shape read, always in the same places of the device's memory.

    `rate` is the learning rate, `tokens` the count of target words; `source`, `target_in` and `target_out` are ids.
    """

    def __init__(self, shape: BatchShape, device: torch.device) -> None:
        self._parts = shape.parts
        self._sizes = [rows * length for rows, length in self._parts]
        self._block = torch.full((NUMBERS + sum(self._sizes),), PAD, dtype=torch.int32, device=device)
        self.rate, self.tokens = self._block[:NUMBERS].view(torch.float32).unbind()
        self.source, self.target_in, self.target_out = self._ids(self._block)

    def _ids(self, block: torch.Tensor) -> list[torch.Tensor]:
        sections = block[NUMBERS:].split(self._sizes)
        return [section.view(part) for section, part in zip(sections, self._parts, strict=True)]

    def fill(self, batch: Batch, learning_rate: float) -> None:
        """Replace everything in one copy, which nothing waits for."""
        # On a GPU, page-locked memory: torch does not give it to anyone else before the copy is made.
        block = torch.empty(len(self._block), dtype=torch.int32, pin_memory=self._block.is_cuda).fill_(PAD)
        block[:NUMBERS].view(torch.float32).numpy()[:] = learning_rate, max(batch.tokens, 1)
        for target, ids in zip(self._ids(block), (batch.source, batch.target_in, batch.target_out), strict=True):
            target.numpy()[: ids.shape[0], : ids.shape[1]] = ids
        self._block.copy_(block, non_blocking=True)


def padded_loss(
    features: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor, target: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `torch_operations.output_loss` returns of those rows whose target is not PAD.

    Shapes: features [N,D], kernel [V,D], bias [V], target [N].
    """
    exact = torch.promote_types(features.dtype, torch.float32)
    log_probabilities = log_softmax(linear(features, kernel, bias), dim=-1, dtype=exact)
    nats = nll_loss(log_probabilities, target, ignore_index=PAD, reduction="sum")
    if smoothing == 0:
        return nats, nats
    even = log_probabilities.mean(dim=-1).masked_fill(target == PAD, 0).sum()
    return (1 - smoothing) * nats - smoothing * even, nats


class Graphs:
    """Captures what is done again and again as CUDA graphs: one for each name, and at most `MOST_GRAPHS`.

    `generator` draws the random numbers. All graphs share their memory: no two run at once, and none leaves anything
    there that another reads.
    """

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        self._device, self._generator = device, generator
        self._stream, self._pool = cuda.Stream(device), cuda.graph_pool_handle()
        self._graphs: dict[Hashable, cuda.CUDAGraph] = {}
        self.seconds = 0.0

    @property
    def count(self) -> int:
        """How many graphs were captured."""
        return len(self._graphs)

    def capture(self, name: Hashable, operation: Operation, state: Sequence[torch.Tensor]) -> Operation:
        """Return what does `operation`: its graph, captured the first time, or itself where there are enough of them.

        `state` is every tensor that `operation` changes and reads again; capturing restores it. Capturing draws random
        numbers and waits for the device.
        """
        if name not in self._graphs and len(self._graphs) < MOST_GRAPHS:
            cuda.synchronize(self._device)  # what was enqueued before is no part of the seconds
            began = time.perf_counter()
            with cuda.device(self._device):
                self._graphs[name] = self._captured(operation, state)
            self.seconds += time.perf_counter() - began
        graph = self._graphs.get(name)
        return operation if graph is None else graph.replay

    def _captured(self, operation: Operation, state: Sequence[torch.Tensor]) -> cuda.CUDAGraph:
        self._warm_up(operation, state)
        graph = cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with cuda.graph(graph, pool=self._pool, stream=self._stream):
            operation()
        return graph

    def _warm_up(self, operation: Operation, state: Sequence[torch.Tensor]) -> None:
        """Do `operation` once, so that libraries load and choose what cannot be loaded in a capture, and undo it."""
        current = cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with cuda.stream(self._stream):
            before = [tensor.clone() for tensor in state]
            operation()
            for tensor, saved in zip(state, before, strict=True):
                tensor.copy_(saved)
        current.wait_stream(self._stream)


class GraphModel(TorchModel):
    """A Transformer that trains and decodes like `TorchModel` at padded shapes: replayed on a GPU, called elsewhere."""

    def __init__(self, recipe: TransformerRecipe, *others: Any, **settings: Any) -> None:
        super().__init__(recipe, *others, **settings)
        self._longest = recipe.max_length
        self._inputs: dict[BatchShape, Inputs] = {}
        for group in self._optimiser.param_groups:
            group["capturable"] = True
        moments = [tensor for state in self._optimiser.state.values() for tensor in state.values()]
        changed = [*self._parameters, *moments, self._sums, self._largest, self._finite]
        self._changed = [tensor.detach() for tensor in changed]
        self._graphs: list[Graphs] = []
        # Updates and steps of decoding have graphs of their own, so that neither uses up the other's.
        self._capture_update = self._new_capture()
        self._steps = CapturedSteps(self, self._longest, self._new_capture())

    def _new_capture(self) -> Capture:
        """Return what makes new graphs of orders, on a GPU; elsewhere the orders are called."""
        if self._device.type != "cuda":
            return lambda name, operation, state: operation
        self._graphs.append(Graphs(self._device, self._dropout_source.generator))
        return self._graphs[-1].capture

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Enqueue one update at `learning_rate`; waits for the device only where a shape is new and is captured."""
        self._updates += 1
        self.module.train()
        shape = padded_shape(batch, self._training.batch_size, self._longest)
        if shape not in self._inputs:
            self._inputs[shape] = Inputs(shape, self._device)
        inputs = self._inputs[shape]
        inputs.fill(batch, learning_rate)

        def update() -> None:
            self._update(inputs)

        run_update = self._capture_update(shape, update, self._changed)
        self._dropout_source.restart(self._seed, self._updates)
        run_update()
        self._count(batch.tokens)

    def _update(self, inputs: Inputs) -> None:
        """Do one update. What is done, and where in memory, depends on the shape of the inputs alone."""
        with self._mixed():
            features = self.module(inputs.source, inputs.target_in).flatten(0, 1)
            target, output = inputs.target_out.flatten().long(), self.module.output
            smoothing = self._training.label_smoothing
            objective, nats = padded_loss(features, output.weight, output.bias, target, smoothing)
        self._descend(objective, nats, inputs.tokens, inputs.rate)
        # None of a captured update's gradients may outlive it: they lie in memory that all graphs share.
        self._optimiser.zero_grad(set_to_none=True)

    def begin_decoding(self, source: Ids) -> GraphDecoding:
        """Encode `source` [B,S] and return its `Decoding`, before the first word."""
        with self.evaluation():
            return GraphDecoding(self, self.module.prefill(self.to_device(source)), self._steps)

    def compilation(self) -> Compilation:
        """Return how many shapes were captured so far, and the seconds that took."""
        count, seconds = sum(graphs.count for graphs in self._graphs), sum(graphs.seconds for graphs in self._graphs)
        return Compilation(backend="torch", jit_compile=False, count=count, seconds=seconds)


def build(
    recipe: TransformerRecipe, source_vocabulary_size: int, target_vocabulary_size: int, *, device: str, **settings: Any
) -> TorchModel:
    """Build any `TransformerRecipe` with captured updates; the settings are those of `impls.build`.

    Raises: ValueError where the device is no GPU.
    """
    if not device.startswith("cuda"):
        raise ValueError(f"cuda_graphs=True needs a CUDA device, not device={device!r}")
    return build_transformer(
        recipe, source_vocabulary_size, target_vocabulary_size, device=device, kind=GraphModel, **settings
    )
