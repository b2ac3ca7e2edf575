"""Tokens and operations counted by formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

from impls import flops, registry, weights
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


def test_tokens_of_padded_batches_exclude_padding() -> None:
    found = flops.count_tokens([batch((3, 2), (1, 4))])
    assert found == flops.Tokens(
        sentence=2, source=4, target=6, source_pairs=9 + 1, causal_pairs=3 + 10, cross_pairs=6 + 4
    )
    assert flops.count_tokens([batch((3, 2)), batch((1, 4))]) == found


def test_operations_of_a_small_recipe_equal_a_count_by_hand() -> None:
    recipe = TransformerRecipe(width=4, layers=1, heads=2, ffn_width=6)
    counted = flops.Tokens(sentence=1, source=3, target=2, source_pairs=9, causal_pairs=3, cross_pairs=6)
    encoder = 3 * (3 * 4 * 4 + 4 * 4 + 4 * 6 + 6 * 4)
    decoder = 2 * (3 * 4 * 4 + 4 * 4 + 4 * 4 + 4 * 4 + 4 * 6 + 6 * 4 + 4 * 11)
    memory = 3 * (2 * 4 * 4)
    assert flops.kernel_operations(recipe, (7, 11), counted) == 2 * (encoder + decoder + memory)
    assert flops.attention_operations(recipe, counted) == (9 + 3 + 6) * 2 * (4 + 4)
    forward = flops.forward_operations(recipe, (7, 11), counted)
    assert flops.training_operations(recipe, (7, 11), counted) == 3 * forward


def test_operations_count_every_kernel_once_per_token() -> None:
    recipe = registry.recipe("learned_positions")
    words = 7853, 5893
    attention, inner = 4 * 256 * 256, 2 * 256 * 512
    encoder, decoder = 3 * (attention + inner), 3 * (2 * attention + inner)
    of_source = encoder + 3 * attention // 2  # keys and values of the cross attention
    of_target = decoder - 3 * attention // 2 + 256 * 5893
    assert flops.forward_operations(recipe, words, flops.Tokens(source=1)) == 2 * of_source
    assert flops.forward_operations(recipe, words, flops.Tokens(target=1)) == 2 * of_target
    tied = flops.forward_operations(registry.recipe("paper"), words, flops.Tokens(target=1))
    assert tied == 2 * of_target


def test_product_equals_a_count_by_hand() -> None:
    (inner,) = [
        one
        for one in flops.products(TransformerRecipe(width=8, layers=2, heads=2, ffn_width=12), (7, 11))
        if one.name == "encoder.0.feed_forward.inner.kernel"
    ]
    assert (inner.rows, inner.inputs, inner.outputs, inner.count) == ("source", 8, 12, 2)
    assert inner.operations(flops.Tokens(source=5, target=100)) == 2 * (2 * 5 * 8 * 12)


@pytest.mark.parametrize("name", registry.names())
def test_products_contain_every_kernel_once(name: str) -> None:
    recipe = registry.recipe(name)
    words = (53, 53) if getattr(recipe, "tying", "none") == "all" else (53, 47)
    shapes = weights.shapes(recipe, *words)
    kernels = [math.prod(shape) for one, shape in shapes.items() if one.endswith(".kernel")]
    kernels += [math.prod(shapes["target.embedding"])] * ("output.kernel" not in shapes)
    score = math.prod(shapes.get("attention.score.kernel", (0,)))
    found = sum(one.inputs * one.outputs * one.count for one in flops.products(recipe, words))
    assert found == sum(kernels) - score
