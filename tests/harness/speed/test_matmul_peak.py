"""The matrix products that are timed are those of the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_models import batch_of_lengths

from harness.speed import matmul_peak
from impls import flops
from impls.contract import TransformerRecipe


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
    recipe = TransformerRecipe(width=8, layers=2, heads=2, ffn_width=12)
    batches = [batch_of_lengths((3, 2)), batch_of_lengths((1, 4), (2, 2))]
    products = matmul_peak.Products(recipe, (7, 11), batches, "cpu", "float32")
    products.multiply()
    counted = flops.kernel_operations(recipe, (7, 11), flops.count_tokens(batches))
    assert operations == products.operations == 3 * counted
