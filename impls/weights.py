"""Canonical weight names and shapes of a recipe, and the one seeded initialiser that every framework starts from.

Kernels are [in, out]; a convolution of width 1 is stored as [in, out] too. Tied tensors have one name, so they count
once. Layers count from 0; the columns of query, key and value, and the rows of output, are head-major. The gates of a
GRU stand in the order reset, update, candidate.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from impls.contract import Arrays, GruRecipe, Numbers, Recipe, TorchReferenceRecipe, TransformerRecipe

Shapes = dict[str, tuple[int, ...]]


def shapes(recipe: Recipe, source_words: int, target_words: int) -> Shapes:
    """Return the shape of each canonical tensor, in a fixed order.

    Raises: ValueError where tying="all" meets vocabularies of unequal size.
    """
    if isinstance(recipe, GruRecipe):
        return _gru_shapes(recipe, source_words, target_words)
    if isinstance(recipe, TorchReferenceRecipe):
        recipe = recipe.as_transformer()
    return _transformer_shapes(recipe, source_words, target_words)


def count(recipe: Recipe, source_words: int, target_words: int) -> int:
    """Return the number of trained parameters."""
    return sum(math.prod(shape) for shape in shapes(recipe, source_words, target_words).values())


def check(given: Arrays, expected: Shapes) -> None:
    """Hold arrays against expected shapes. Raises: ValueError naming what is missing, unexpected or misshaped."""
    faults = [f"missing {name}" for name in expected if name not in given]
    faults += [f"unexpected {name}" for name in given if name not in expected]
    faults += [
        f"{name} has shape {given[name].shape}, allowed is {shape}"
        for name, shape in expected.items()
        if name in given and given[name].shape != shape
    ]
    if faults:
        raise ValueError("; ".join(faults))


def initial(recipe: Recipe, source_words: int, target_words: int, seed: int) -> Arrays:
    """Draw all initial weights.

    Each tensor comes from a generator seeded by (seed, its name), so two recipes start equal in every tensor that they
    share. Transformer matrices are Xavier-uniform (Glorot and Bengio 2010, equation 16), GRU matrices normal with
    deviation 0.01, embeddings as the recipe says; biases and shifts are 0, norm scales 1.
    """
    return {name: draw(recipe, name, shape, seed) for name, shape in shapes(recipe, source_words, target_words).items()}


def draw(recipe: Recipe, name: str, shape: tuple[int, ...], seed: int) -> Numbers:
    """Draw one initial tensor, as `initial` does."""
    if name.endswith((".bias", ".shift")):
        return np.zeros(shape, np.float32)
    if name.endswith(".scale"):
        return np.ones(shape, np.float32)
    generator = np.random.default_rng([seed, *hashlib.sha256(name.encode()).digest()])
    if isinstance(recipe, GruRecipe):
        return (0.01 * generator.standard_normal(shape)).astype(np.float32)
    embedded = name.endswith((".embedding", ".positions"))
    if embedded and isinstance(recipe, TransformerRecipe) and recipe.embedding_init != "xavier":
        deviation = recipe.width**-0.5 if recipe.embedding_init == "width" else 1.0
        return (deviation * generator.standard_normal(shape)).astype(np.float32)
    bound = math.sqrt(6 / sum(shape))
    return generator.uniform(-bound, bound, shape).astype(np.float32)


def _dense(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.kernel": (inputs, outputs), f"{name}.bias": (outputs,)}


def _transformer_shapes(recipe: TransformerRecipe, source_words: int, target_words: int) -> Shapes:
    if recipe.tying == "all" and source_words != target_words:
        raise ValueError(
            f"tying='all' with {source_words} source and {target_words} target words: allowed is one joint vocabulary"
        )
    width, found = recipe.width, Shapes()
    if recipe.tying != "all":
        found["source.embedding"] = (source_words, width)
    found["target.embedding"] = (target_words, width)
    if recipe.positions == "learned":
        found["source.positions"] = found["target.positions"] = (recipe.max_length, width)
    for side, attentions in (("encoder", ("self",)), ("decoder", ("self", "cross"))):
        for layer in range(recipe.layers):
            for attention in attentions:
                found |= _attention_shapes(recipe, f"{side}.{layer}.{attention}")
            found |= _feed_forward_shapes(recipe, f"{side}.{layer}.feed_forward")
    if recipe.norm_order == "pre":
        found |= _norm_shapes(recipe, "encoder.norm") | _norm_shapes(recipe, "decoder.norm")
    if recipe.tying == "none":
        found["output.kernel"] = (width, target_words)
    found["output.bias"] = (target_words,)
    return found


def _norm_shapes(recipe: TransformerRecipe, name: str) -> Shapes:
    parts = {"layernorm": ("scale", "shift"), "handmade": ("scale", "shift"), "rms": ("scale",), "none": ()}[
        recipe.norm
    ]
    return {f"{name}.{part}": (recipe.width,) for part in parts}


def _attention_shapes(recipe: TransformerRecipe, name: str) -> Shapes:
    inner, found = recipe.heads * recipe.key_width, Shapes()
    for projection in ("query", "key", "value"):
        found |= _dense(f"{name}.{projection}", recipe.width, inner)
    return found | _dense(f"{name}.output", inner, recipe.width) | _norm_shapes(recipe, f"{name}.norm")


def _feed_forward_shapes(recipe: TransformerRecipe, name: str) -> Shapes:
    found = _dense(f"{name}.inner", recipe.width, recipe.ffn_width)
    if recipe.ffn == "gated":
        found |= _dense(f"{name}.gate", recipe.width, recipe.ffn_width)
    return found | _dense(f"{name}.outer", recipe.ffn_width, recipe.width) | _norm_shapes(recipe, f"{name}.norm")


def _gru_shapes(recipe: GruRecipe, source_words: int, target_words: int) -> Shapes:
    embedded, width = recipe.embedding_width, recipe.width
    found: Shapes = {"source.embedding": (source_words, embedded), "target.embedding": (target_words, embedded)}
    for direction in ("forward", "backward"):
        found |= _dense(f"encoder.{direction}.input", embedded, 3 * width)
        found |= _dense(f"encoder.{direction}.hidden", width, 3 * width)
    found |= _dense("bridge", 2 * width, width)
    found |= _dense("attention.energy", 3 * width, width) | {"attention.score.kernel": (width, 1)}
    found |= _dense("decoder.input", embedded + 2 * width, 3 * width) | _dense("decoder.hidden", width, 3 * width)
    return found | _dense("output", 3 * width + embedded, target_words)
