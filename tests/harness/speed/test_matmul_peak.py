"""The matrix products that are timed are those of the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.speed import matmul_peak
from impls import flops
from impls.contract import PAD, SOS, Batch, TransformerRecipe


def batch(*lengths: tuple[int, int]) -> Batch:
    """Return sentences of so many source tokens and target words, padded."""
    source = np.full((len(lengths), max(one for one, _ in lengths) + 2), PAD, np.int32)
    target = np.full((len(lengths), max(one for _, one in lengths) + 1), PAD, np.int32)
    for row, (first, second) in enumerate(lengths):
        source[row, :first], target[row, :second] = 5, 5
    target_in = target.copy()
    target_in[:, 0] = SOS
    target[:, -1] = PAD
    return Batch(source, target_in, target)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_products_timed_are_those_counted(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product multiplies real rows, forward and for both gradients, and writes to the given output."""
    import torch

    done = 0

    def counting(real: Any) -> Any:
        def multiply(first: Any, second: Any, *, out: Any) -> Any:
            nonlocal done
            done += 2 * first.shape[0] * first.shape[1] * second.shape[1]
            assert tuple(out.shape) == (first.shape[0], second.shape[1])
            return real(first, second, out=out)

        return multiply

    monkeypatch.setattr(torch, "mm", counting(torch.mm))
    monkeypatch.setattr(np, "matmul", counting(np.matmul))
    monkeypatch.setattr(matmul_peak, "library", lambda: library)
    recipe, batches = (
        TransformerRecipe(width=8, layers=2, heads=2, ffn_width=12),
        [batch((3, 2)), batch((1, 4), (2, 2))],
    )
    found = matmul_peak.Products(recipe, (7, 11), batches, "cpu", "float32")
    found.multiply()
    assert done == found.operations == 3 * flops.kernel_operations(recipe, (7, 11), flops.count_tokens(batches))
