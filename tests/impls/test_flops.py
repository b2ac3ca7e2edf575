"""Tokens and operations counted by formula."""

from __future__ import annotations

import math

import pytest
from small_models import batch_of_lengths

from impls import flops, registry, weights
from impls.contract import GruRecipe, TorchReferenceRecipe, TransformerRecipe


def test_tokens_of_padded_batches_exclude_padding() -> None:
    tokens = flops.count_tokens([batch_of_lengths((3, 2), (1, 4))])
    assert tokens == flops.Tokens(
        sentence=2, source=4, target=6, source_pairs=9 + 1, causal_pairs=3 + 10, cross_pairs=6 + 4
    )
    assert flops.count_tokens([batch_of_lengths((3, 2)), batch_of_lengths((1, 4))]) == tokens


def test_operations_of_a_small_recipe_equal_a_count_by_hand() -> None:
    recipe = TransformerRecipe(width=4, layers=1, heads=2, ffn_width=6)
    tokens = flops.Tokens(sentence=1, source=3, target=2, source_pairs=9, causal_pairs=3, cross_pairs=6)
    encoder = 3 * (3 * 4 * 4 + 4 * 4 + 4 * 6 + 6 * 4)
    decoder = 2 * (3 * 4 * 4 + 4 * 4 + 4 * 4 + 4 * 4 + 4 * 6 + 6 * 4 + 4 * 11)
    memory = 3 * (2 * 4 * 4)
    assert flops.kernel_operations(recipe, (7, 11), tokens) == 2 * (encoder + decoder + memory)
    assert flops.attention_operations(recipe, tokens) == (9 + 3 + 6) * 2 * (4 + 4)
    forward = flops.forward_operations(recipe, (7, 11), tokens)
    assert flops.training_operations(recipe, (7, 11), tokens) == 3 * forward


def test_operations_of_attention_are_those_of_every_layer_and_head_width() -> None:
    tokens = flops.Tokens(source_pairs=9, causal_pairs=3, cross_pairs=6)
    wide = TransformerRecipe(width=4, layers=3, heads=2, head_width=5, ffn_width=6)
    assert flops.attention_operations(wide, tokens) == 3 * (9 + 3 + 6) * 2 * (10 + 10)
    reference = TorchReferenceRecipe(width=4, layers=3, heads=2, ffn_width=6)
    assert flops.attention_operations(reference, tokens) == 3 * (9 + 3 + 6) * 2 * (4 + 4)


def test_operations_of_a_small_gru_equal_a_count_by_hand() -> None:
    recipe = GruRecipe(embedding_width=3, width=4)
    tokens = flops.Tokens(sentence=1, source=3, target=2, cross_pairs=6)
    encoder, bridge = 3 * 2 * (3 * 12 + 4 * 12), 8 * 4
    energy = 2 * (4 * 4) + 3 * (8 * 4)
    decoder, output = 2 * ((3 + 8) * 12 + 4 * 12), 2 * ((4 + 8 + 3) * 11)
    assert flops.kernel_operations(recipe, (7, 11), tokens) == 2 * (encoder + bridge + energy + decoder + output)
    assert flops.attention_operations(recipe, tokens) == 6 * 2 * (4 + 8)


def test_product_equals_a_count_by_hand() -> None:
    products = flops.products(TransformerRecipe(width=8, layers=2, heads=2, ffn_width=12), (7, 11))
    (inner,) = [product for product in products if product.name == "encoder.0.feed_forward.inner.kernel"]
    assert (inner.rows, inner.inputs, inner.outputs, inner.count) == ("source", 8, 12, 2)
    assert inner.operations(flops.Tokens(source=5, target=100)) == 2 * (2 * 5 * 8 * 12)


@pytest.mark.parametrize("name", registry.names())
def test_products_contain_every_kernel_once(name: str) -> None:
    recipe = registry.recipe(name)
    words = (53, 53) if getattr(recipe, "tying", "none") == "all" else (53, 47)
    shapes = weights.shapes(recipe, *words)
    kernels = [math.prod(shape) for tensor, shape in shapes.items() if tensor.endswith(".kernel")]
    kernels += [math.prod(shapes["target.embedding"])] * ("output.kernel" not in shapes)
    score = math.prod(shapes.get("attention.score.kernel", (0,)))
    counted = sum(product.inputs * product.outputs * product.count for product in flops.products(recipe, words))
    assert counted == sum(kernels) - score
