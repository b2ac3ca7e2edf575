"""The machine's rate of matrix products: those of a recipe's kernels at the timed batches' sizes, and nothing else."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from harness.experiments.specs import Precision
from impls.contract import Batch, Recipe
from impls.flops import PASSES, Product, count_tokens, products

Multiply = Callable[[], object]


class Products:
    """Every kernel's product of a recipe over some batches: y = x w, and the gradients dy wᵀ and xᵀ dy.

    There are as many rows as the batch has real tokens. Results go to memory that is there already, alike products
    share theirs, and kernels lie as a framework's linear layer keeps them, [outputs, inputs]: nothing that a model
    does could be faster.
    """

    def __init__(
        self, recipe: Recipe, words: tuple[int, int], batches: Sequence[Batch], device: str, precision: Precision
    ) -> None:
        self.products = products(recipe, words)
        counted = [count_tokens([batch]) for batch in batches]
        self.operations = PASSES * sum(one.operations(each) for each in counted for one in self.products)
        self._work: list[Multiply] = []
        sizes = {one.name: [each.rows(one.rows) for each in counted] for one in self.products}
        make = _with_torch if library() == "torch" else _with_numpy
        for one in self.products:
            self._work += make(one, sizes[one.name], device, precision)
        if device.startswith("cuda") and library() == "torch":
            self._work = [_captured(self._work, device)]

    def multiply(self) -> None:
        """Compute all of them once."""
        for one in self._work:
            one()


def library() -> str:
    """Return what multiplies here: "torch", or "numpy" where that is not installed."""
    return "torch" if importlib.util.find_spec("torch") is not None else "numpy"


def described(device: str, precision: Precision) -> str:
    """Return what multiplies here, with its version, number format and device."""
    name = library()
    of = f"{precision}, {device}" if name == "torch" else "float32, cpu"
    return f"{name} {importlib.metadata.version(name)}, {of}"


def synchronize(device: str) -> None:
    """Return when the device has finished."""
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

    def one(count: int) -> None:
        with torch.inference_mode():
            for _ in range(product.count):
                torch.mm(x[:count], w.t(), out=y[:count])
                torch.mm(dy[:count], w, out=dx[:count])
                torch.mm(dy[:count].t(), x[:count], out=dw)

    return [lambda count=count: one(count) for count in rows]  # type: ignore[misc]


def _captured(work: Sequence[Multiply], device: str) -> Multiply:
    """Return what does all of it in one order to the GPU, which else waits longer for its orders than they take."""
    from torch import cuda

    def everything() -> None:
        for one in work:
            one()

    with cuda.device(device):
        stream = cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            everything()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            everything()
    found: Multiply = graph.replay
    return found


def _with_numpy(product: Product, rows: Sequence[int], device: str, precision: Precision) -> list[Multiply]:
    most = max(rows)
    x, dy, w = (
        _numbers(most, product.inputs),
        _numbers(most, product.outputs),
        _numbers(product.outputs, product.inputs),
    )
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)

    def one(count: int) -> None:
        for _ in range(product.count):
            np.matmul(x[:count], w.T, out=y[:count])
            np.matmul(dy[:count], w, out=dx[:count])
            np.matmul(dy[:count].T, x[:count], out=dw)

    return [lambda count=count: one(count) for count in rows]  # type: ignore[misc]
