"""Training and decoding of a Transformer with CUDA graphs, captured once per shape and then replayed. Experimental.

At this size training is launch-bound: an update is hundreds of small kernels, and launching them takes longer than
running them. Replaying a graph launches all of them at once, but on fixed shapes and memory: a batch is padded to one
of few shapes and copied to the graph's input; weights, moments and sums never move. Padding changes losses and
gradients only by rounding; dropout draws random numbers for padding too.

Source: PyTorch's notes on CUDA semantics, section "CUDA Graphs".
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import cuda

from impls.contract import PAD, Batch, Compilation, Ids, TransformerRecipe
from impls.pytorch import torch_adapter
from impls.pytorch.cpu_kernels import padded_loss
from impls.pytorch.cuda_graph_decoding import Capture, CapturedSteps, GraphDecoding, Operation, rounded
from impls.pytorch.torch_adapter import TorchModel

LENGTH_STEP = 4
"""Lengths are padded to a multiple of this.

Ten epochs of Multi30k in batches of 128 then have 20 shapes with 14 % padding. Exact lengths have 89 shapes with 5 %,
multiples of 2 have 36 with 8 %, multiples of 8 have 11 with 24 %.
"""

MAX_GRAPHS = 64
"""The maximum number of captured shapes; updates of further, rarer shapes run without a graph."""

SCALARS = 2
"""The number of 4-byte scalars before the ids of an update: learning rate and number of target tokens."""


@dataclass(frozen=True)
class BatchShape:
    """The padded shape of a batch: B rows, S source and T target positions."""

    rows: int
    source: int
    target: int

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The shapes of `Batch.source`, `target_in` and `target_out`."""
        return (self.rows, self.source), (self.rows, self.target), (self.rows, self.target)


def padded_shape(batch: Batch, rows: int, longest: int) -> BatchShape:
    """Return the padded shape of `batch`: at least `rows` rows, and no padding beyond `longest` positions."""

    def padded(length: int) -> int:
        return max(length, min(rounded(length, LENGTH_STEP), longest))

    return BatchShape(max(rows, len(batch.source)), padded(batch.source.shape[1]), padded(batch.target_in.shape[1]))


class Inputs:
    """The inputs of updates of one shape, in fixed memory of the device.

    `rate` is the learning rate, `tokens` the number of target tokens; `source`, `target_in` and `target_out` are ids.
    """

    def __init__(self, shape: BatchShape, device: torch.device) -> None:
        self._parts = shape.parts
        self._sizes = [rows * length for rows, length in self._parts]
        self._block = torch.full((SCALARS + sum(self._sizes),), PAD, dtype=torch.int32, device=device)
        self.rate, self.tokens = self._block[:SCALARS].view(torch.float32).unbind()
        self.source, self.target_in, self.target_out = self._ids(self._block)

    def _ids(self, block: torch.Tensor) -> list[torch.Tensor]:
        sections = block[SCALARS:].split(self._sizes)
        return [section.view(part) for section, part in zip(sections, self._parts, strict=True)]

    def fill(self, batch: Batch, learning_rate: float) -> None:
        """Replace all inputs in one asynchronous copy."""
        # On a GPU, pinned memory, which torch does not reuse before the copy is complete.
        block = torch.empty(len(self._block), dtype=torch.int32, pin_memory=self._block.is_cuda).fill_(PAD)
        block[:SCALARS].view(torch.float32).numpy()[:] = learning_rate, max(batch.tokens, 1)
        for target, ids in zip(self._ids(block), (batch.source, batch.target_in, batch.target_out), strict=True):
            target.numpy()[: ids.shape[0], : ids.shape[1]] = ids
        self._block.copy_(block, non_blocking=True)


class Graphs:
    """Captures operations as CUDA graphs, one per name and at most `MAX_GRAPHS`.

    `generator` draws the random numbers. All graphs share a memory pool: no two run at once, and none reads what
    another has left there.
    """

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        self._device, self._generator = device, generator
        self._stream, self._pool = cuda.Stream(device), cuda.graph_pool_handle()
        self._graphs: dict[Hashable, cuda.CUDAGraph] = {}
        self.seconds = 0.0

    @property
    def count(self) -> int:
        """The number of captured graphs."""
        return len(self._graphs)

    def capture(self, name: Hashable, operation: Operation, state: Sequence[torch.Tensor]) -> Operation:
        """Return the replay of the operation's graph, captured at the first call, or `operation` beyond `MAX_GRAPHS`.

        `state` is every tensor that `operation` changes and reads again; capturing restores it. Capturing draws random
        numbers and waits for the device.
        """
        if name not in self._graphs and len(self._graphs) < MAX_GRAPHS:
            cuda.synchronize(self._device)  # earlier work must not count as compilation time
            began = time.perf_counter()
            with cuda.device(self._device):
                self._warm_up(operation, state)
                graph = cuda.CUDAGraph()
                graph.register_generator_state(self._generator)
                with cuda.graph(graph, pool=self._pool, stream=self._stream):
                    operation()
                self._graphs[name] = graph
            self.seconds += time.perf_counter() - began
        return self._graphs[name].replay if name in self._graphs else operation

    def _warm_up(self, operation: Operation, state: Sequence[torch.Tensor]) -> None:
        """Run `operation` once, so that libraries initialise outside the capture, and restore the state."""
        current = cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with cuda.stream(self._stream):
            before = [tensor.clone() for tensor in state]
            operation()
            for tensor, saved in zip(state, before, strict=True):
                tensor.copy_(saved)
        current.wait_stream(self._stream)


class GraphModel(TorchModel):
    """A Transformer that trains and decodes at padded shapes: replayed on a GPU, called directly elsewhere."""

    def __init__(self, recipe: TransformerRecipe, *others: Any, **settings: Any) -> None:
        super().__init__(recipe, *others, **settings)
        self._max_length = recipe.max_length
        self._inputs: dict[BatchShape, Inputs] = {}
        for group in self._optimiser.param_groups:
            group["capturable"] = True
        moments = [tensor for state in self._optimiser.state.values() for tensor in state.values()]
        state = [*self._parameters, *moments, self._sums, self._largest, self._finite]
        self._state = [tensor.detach() for tensor in state]
        self._graphs: list[Graphs] = []
        # Updates and decoding steps have separate graphs, so that neither exhausts the other's `MAX_GRAPHS`.
        self._capture_update = self._new_capture()
        self._steps = CapturedSteps(self, self._max_length, self._new_capture())

    def _new_capture(self) -> Capture:
        """Return a function that captures operations on a GPU, and returns them unchanged elsewhere."""
        if self._device.type != "cuda":
            return lambda name, operation, state: operation
        self._graphs.append(Graphs(self._device, self._dropout_source.generator))
        return self._graphs[-1].capture

    def _train(self, batch: Batch, learning_rate: float) -> None:
        shape = padded_shape(batch, self._training.batch_size, self._max_length)
        if shape not in self._inputs:
            self._inputs[shape] = Inputs(shape, self._device)
        inputs = self._inputs[shape]
        inputs.fill(batch, learning_rate)

        def update() -> None:
            self._update(inputs)

        run_update = self._capture_update(shape, update, self._state)
        self._dropout_source.restart(self._seed, self._updates)
        run_update()
        self._count(batch.tokens)

    def _update(self, inputs: Inputs) -> None:
        """Run one update. Its operations and memory depend on the shape of the inputs only."""
        with self._mixed():
            features = self.module(inputs.source, inputs.target_in).flatten(0, 1)
            target, output = inputs.target_out.flatten().long(), self.module.output
            smoothing = self._training.label_smoothing
            objective, nats = padded_loss(features, output.weight, output.bias, target, smoothing)
        self._descend(objective, nats, inputs.tokens, inputs.rate)
        # Gradients must not outlive the captured update: they are in memory that all graphs share.
        self._optimiser.zero_grad(set_to_none=True)

    def begin_decoding(self, source: Ids) -> GraphDecoding:
        """Encode `source` [B,S] and return its `Decoding`, before the first token."""
        with self.evaluation():
            return GraphDecoding(self, self.module.prefill(self.to_device(source)), self._steps)

    def compilation(self) -> Compilation:
        """Return the number of captured shapes and the seconds it took."""
        count, seconds = sum(graphs.count for graphs in self._graphs), sum(graphs.seconds for graphs in self._graphs)
        return Compilation(backend="torch", jit_compile=False, count=count, seconds=seconds)


def build(
    recipe: TransformerRecipe, source_vocabulary_size: int, target_vocabulary_size: int, *, device: str, **settings: Any
) -> TorchModel:
    """Build any `TransformerRecipe` with captured updates and the settings of `impls.build`.

    Raises: ValueError if the device is not a GPU.
    """
    if not device.startswith("cuda"):
        raise ValueError(f"cuda_graphs=True needs a CUDA device, not device={device!r}")
    return torch_adapter.build(
        recipe, source_vocabulary_size, target_vocabulary_size, device=device, kind=GraphModel, **settings
    )
