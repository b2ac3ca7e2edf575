"""The measured matmul peak: the rate at which this machine computes a recipe's matrix products and nothing else.

MFU (model FLOPs utilisation) is the rate of a model's updates over this peak.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
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

    Args:
        recipe: The recipe whose kernels are multiplied.
        words: The sizes of the source and the target vocabulary.
        batches: The batches whose real tokens are counted.
        device: The device of torch.
        precision: The number format of torch.
        matmul_precision: The precision in which torch multiplies float32 matrices.
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
        self._matmul_precision = matmul_precision
        self.products = products(recipe, words)
        counts = [count_tokens([batch]) for batch in batches]
        self.operations = PASSES * sum(product.operations(count) for count in counts for product in self.products)
        self._work: list[Multiply] = []
        multiplications = _with_torch if library() == "torch" else _with_numpy
        for product in self.products:
            rows = [count.rows(product.rows) for count in counts]
            self._work += multiplications(product, rows, device, precision)
        if device.startswith("cuda") and library() == "torch":
            with self._precision():
                self._work = [_captured(self._work, device)]

    def multiply(self) -> None:
        """Compute every product once."""
        with self._precision():
            for multiply in self._work:
                multiply()

    def _precision(self) -> AbstractContextManager[None]:
        if library() != "torch":
            return nullcontext()
        return registry.matmul_precision(self._matmul_precision)


def library() -> str:
    """Return the library that multiplies: "torch", or "numpy" if torch is not installed."""
    return "torch" if importlib.util.find_spec("torch") is not None else "numpy"


def library_description(device: str, precision: str) -> str:
    """Return the library that multiplies, with its version, number format and device."""
    name = library()
    settings = f"{precision}, {device}" if name == "torch" else "float32, cpu"
    return f"{name} {importlib.metadata.version(name)}, {settings}"


def synchronize(device: str) -> None:
    """Wait until the device has finished."""
    if device.startswith("cuda") and library() == "torch":
        import torch

        torch.cuda.synchronize(device)


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


def _with_torch(product: Product, rows: Sequence[int], device: str, precision: Precision) -> list[Multiply]:
    import torch

    most = max(rows)
    x, dy, w = (
        torch.from_numpy(_numbers(*shape)).to(device, getattr(torch, precision))
        for shape in ((most, product.inputs), (most, product.outputs), (product.outputs, product.inputs))
    )
    y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w)

    def multiply(count: int) -> None:
        with torch.inference_mode():
            for _ in range(product.count):
                torch.mm(x[:count], w.t(), out=y[:count])
                torch.mm(dy[:count], w, out=dx[:count])
                torch.mm(dy[:count].t(), x[:count], out=dw)

    return [lambda count=count: multiply(count) for count in rows]  # type: ignore[misc]


def _captured(work: Sequence[Multiply], device: str) -> Multiply:
    """Return a function that replays all products as one CUDA graph: launching each takes longer than running it."""
    from torch import cuda

    def everything() -> None:
        for multiply in work:
            multiply()

    with cuda.device(device):
        stream = cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            everything()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            everything()
    replay: Multiply = graph.replay
    return replay


def _with_numpy(product: Product, rows: Sequence[int], device: str, precision: Precision) -> list[Multiply]:
    most = max(rows)
    x, dy, w = (
        _numbers(most, product.inputs),
        _numbers(most, product.outputs),
        _numbers(product.outputs, product.inputs),
    )
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)

    def multiply(count: int) -> None:
        for _ in range(product.count):
            np.matmul(x[:count], w.T, out=y[:count])
            np.matmul(dy[:count], w, out=dx[:count])
            np.matmul(dy[:count].T, x[:count], out=dw)

    return [lambda count=count: multiply(count) for count in rows]  # type: ignore[misc]
