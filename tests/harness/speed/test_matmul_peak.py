"""The matrix products that are timed are those of the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.speed import matmul_peak
from impls import flops
from impls.contract import PAD, SOS, Batch, TransformerRecipe


def batch(*lengths: tuple[int, int]) -> Batch:
    """Return padded sentences with these numbers of source tokens and target words."""
    source = np.full((len(lengths), max(source for source, _ in lengths) + 2), PAD, np.int32)
    target = np.full((len(lengths), max(target for _, target in lengths) + 1), PAD, np.int32)
    for row, (source_length, target_length) in enumerate(lengths):
        source[row, :source_length], target[row, :target_length] = 5, 5
    target_in = target.copy()
    target_in[:, 0] = SOS
    target[:, -1] = PAD
    return Batch(source, target_in, target)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_products_timed_are_those_counted(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product multiplies real rows, forward and for both gradients, and writes to the given output."""
    import torch

    operations = 0

    def counted(function: Any) -> Any:
        def multiply(first: Any, second: Any, *, out: Any) -> Any:
            nonlocal operations
            operations += 2 * first.shape[0] * first.shape[1] * second.shape[1]
            assert tuple(out.shape) == (first.shape[0], second.shape[1])
            return function(first, second, out=out)

        return multiply

    monkeypatch.setattr(torch, "mm", counted(torch.mm))
    monkeypatch.setattr(np, "matmul", counted(np.matmul))
    monkeypatch.setattr(matmul_peak, "library", lambda: library)
    recipe, batches = (
        TransformerRecipe(width=8, layers=2, heads=2, ffn_width=12),
        [batch((3, 2)), batch((1, 4), (2, 2))],
    )
    products = matmul_peak.Products(recipe, (7, 11), batches, "cpu", "float32")
    products.multiply()
    assert (
        operations == products.operations == 3 * flops.kernel_operations(recipe, (7, 11), flops.count_tokens(batches))
    )
