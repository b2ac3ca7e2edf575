"""Linear layers with packed weights equal plain ones, also after the weight has changed."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from impls.pytorch import packed_linear
from impls.pytorch.packed_linear import PackedLinear

pytestmark = pytest.mark.skipif(not packed_linear.AVAILABLE, reason="this build of torch has no oneDNN")


@pytest.fixture
def layer() -> Any:
    torch.manual_seed(0)
    return PackedLinear(16, 33)


@pytest.mark.parametrize("shape", [(16,), (1, 16), (3, 7, 16), (0, 16), (200, 16)])
def test_packed_linear_equals_a_plain_one(layer: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    expected = linear(x, layer.weight, layer.bias).detach()
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-5)
        x = x.new_empty(*shape, 2).copy_(x[..., None].expand(*shape, 2))[..., 1]  # not contiguous
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-5)


def test_packed_linear_after_a_change_uses_the_new_weight(layer: Any) -> None:
    x = torch.ones(8, 16)
    with torch.no_grad():
        layer(x)
        layer.weight.detach()[0].fill_(1)
        torch.testing.assert_close(layer(x)[:, 0], 16 + layer.bias[:1].expand(8))
        layer.weight = torch.nn.Parameter(torch.zeros(33, 16))
        torch.testing.assert_close(layer(x), layer.bias.expand(8, 33))


def test_packing_is_for_exact_products_of_many_rows_without_gradients_alone(layer: Any) -> None:
    x = torch.ones(2, 3, 16)
    with torch.no_grad():
        assert packed_linear.is_packable(x, layer.weight)
        assert not packed_linear.is_packable(x[:1], layer.weight)
        assert not packed_linear.is_packable(x.double(), layer.weight.double())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not packed_linear.is_packable(x, layer.weight)
        torch.set_float32_matmul_precision("medium")
        try:
            assert not packed_linear.is_packable(x, layer.weight)
        finally:
            torch.set_float32_matmul_precision("highest")
    assert not packed_linear.is_packable(x, layer.weight)


def test_packed_linear_copied_or_pickled_gives_the_same(layer: Any) -> None:
    x = torch.ones(2, 16)
    with torch.no_grad():
        expected = layer(x)
        assert torch.equal(copy.deepcopy(layer)(x), expected)
        assert torch.equal(pickle.loads(pickle.dumps(layer))(x), expected)
