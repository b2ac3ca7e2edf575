"""The measured matmul peak: the rate at which this machine computes a recipe's matrix products and nothing else.

MFU (model FLOPs utilisation) is the rate of a model's updates over this peak.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from harness.experiments.specs import MatmulPrecision, Precision
from impls import registry
from impls.contract import Batch, Recipe
from impls.flops import PASSES, Product, count_tokens, products

Multiply = Callable[[], object]


class Products:
    """The product of every kernel of a recipe over some batches: y = x w, and the gradients dy wᵀ and xᵀ dy.

    A product has one row for each real token of the batch. Results are written to preallocated memory, products of the
    same size share it, and kernels are stored as [outputs, inputs], as in a linear layer: no model can be faster.
    Device and precisions are those of torch; `words` are the sizes of the source and the target vocabulary.

    Attributes:
        operations: The multiplications and additions of all products.
    """

    def __init__(
        self,
        recipe: Recipe,
        words: tuple[int, int],
        batches: Sequence[Batch],
        device: str,
        precision: Precision,
        matmul_precision: MatmulPrecision = "highest",
    ) -> None:
        self._matmul_precision, self._device = matmul_precision, device
        self.products = products(recipe, words)
        counts = [count_tokens([batch]) for batch in batches]
        self.operations = PASSES * sum(product.operations(count) for count in counts for product in self.products)
        self._work: list[Multiply] = []
        for product in self.products:
            rows = [count.rows(product.rows) for count in counts]
            self._work += _multiplications(product, rows, device, precision)
        if device.startswith("cuda") and library() == "torch":
            with self._precision():
                self._work = [_captured(self._work, device)]

    def multiply(self) -> None:
        with self._precision():
            _run(self._work)

    def _precision(self) -> AbstractContextManager[None]:
        if library() != "torch":
            return nullcontext()
        return registry.training_products(self._matmul_precision, self._device)


def library() -> str:
    """Return the library that multiplies: "torch", or "numpy" if torch is not installed."""
    return "torch" if importlib.util.find_spec("torch") is not None else "numpy"


def library_description(device: str, precision: str) -> str:
    name = library()
    settings = f"{precision}, {device}" if name == "torch" else "float32, cpu"
    return f"{name} {importlib.metadata.version(name)}, {settings}"


def synchronize(device: str) -> None:
    if device.startswith("cuda") and library() == "torch":
        import torch

        torch.cuda.synchronize(device)


def _multiplications(product: Product, rows: Sequence[int], device: str, precision: Precision) -> list[Multiply]:
    """Return a function for each number of rows that computes y = x w, dx = dy wᵀ and dw = xᵀ dy."""
    shapes = (max(rows), product.inputs), (max(rows), product.outputs), (product.outputs, product.inputs)
    arrays: Any = (np.random.default_rng(shape).standard_normal(shape, dtype=np.float32) for shape in shapes)
    matmul: Any = np.matmul
    empty_like: Any = np.empty_like
    no_gradients: Any = contextlib.nullcontext
    if library() == "torch":
        import torch

        arrays = (torch.from_numpy(array).to(device, getattr(torch, precision)) for array in arrays)
        matmul, empty_like, no_gradients = torch.mm, torch.empty_like, torch.inference_mode
    x, dy, w = arrays
    y, dx, dw = empty_like(dy), empty_like(x), empty_like(w)

    def multiply(count: int) -> None:
        with no_gradients():
            for _ in range(product.count):
                matmul(x[:count], w.T, out=y[:count])
                matmul(dy[:count], w, out=dx[:count])
                matmul(dy[:count].T, x[:count], out=dw)

    return [partial(multiply, count) for count in rows]


def _captured(work: Sequence[Multiply], device: str) -> Multiply:
    """Return a function that replays all products as one CUDA graph: launching each takes longer than running it."""
    from torch import cuda

    with cuda.device(device):
        stream = cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            _run(work)
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            _run(work)
    replay: Multiply = graph.replay
    return replay


def _run(work: Sequence[Multiply]) -> None:
    for multiply in work:
        multiply()
