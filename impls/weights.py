"""Canonical weight names and shapes of a recipe, and the seeded initialiser that all frameworks share.

Kernels, including those of convolutions of width 1, are [in, out]. Tied tensors have one name and count once. Layers
count from 0. The columns of query, key and value, and the rows of output, are head-major. The gates of a GRU are in the
order reset, update, candidate.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from impls.contract import Arrays, GruRecipe, Numbers, Recipe, TransformerRecipe
from impls.formulas import sinusoids

Shapes = dict[str, tuple[int, ...]]

BLOCK = 2**20
"""How many numbers are drawn at once in double precision."""
NAMED = 5
"""How many wrong tensors an error names."""


def shapes(recipe: Recipe, source_vocabulary_size: int, target_vocabulary_size: int) -> Shapes:
    """Return the shape of each canonical tensor, in a fixed order.

    Raises: ValueError if tying="all" and the vocabularies differ in size.
    """
    if isinstance(recipe, GruRecipe):
        return _gru_shapes(recipe, source_vocabulary_size, target_vocabulary_size)
    return _transformer_shapes(recipe.as_transformer(), source_vocabulary_size, target_vocabulary_size)


def count(recipe: Recipe, source_vocabulary_size: int, target_vocabulary_size: int) -> int:
    """Return the number of trained parameters."""
    return sum(math.prod(shape) for shape in shapes(recipe, source_vocabulary_size, target_vocabulary_size).values())


def check(arrays: Arrays, expected: Shapes) -> None:
    """Compare arrays with expected shapes.

    Raises:
        ValueError: A tensor is missing, unexpected or misshaped; the message names the first few.
    """
    faults = [f"missing {name}" for name in expected if name not in arrays]
    faults += [f"unexpected {name}" for name in arrays if name not in expected]
    faults += [
        f"{name} has shape {arrays[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if name in arrays and arrays[name].shape != shape
    ]
    if faults:
        more = f"; and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
        raise ValueError("; ".join(faults[:NAMED]) + more)


def initial(recipe: Recipe, source_vocabulary_size: int, target_vocabulary_size: int, *, seed: int) -> Arrays:
    """Draw all initial weights.

    Each tensor comes from a generator seeded by (seed, its name), so two recipes have equal initial values in every
    tensor that they share. Transformer matrices are Xavier-uniform (Glorot and Bengio 2010, equation 16), GRU matrices
    normal with deviation 0.01, embeddings as in the recipe; biases and shifts are 0, norm scales 1.
    """
    return {
        name: draw(recipe, name, shape, seed)
        for name, shape in shapes(recipe, source_vocabulary_size, target_vocabulary_size).items()
    }


def draw(recipe: Recipe, name: str, shape: tuple[int, ...], seed: int) -> Numbers:
    """Draw one initial tensor, as `initial` does."""
    if name.endswith((".bias", ".shift")):
        return np.zeros(shape, np.float32)
    if name.endswith(".scale"):
        return np.ones(shape, np.float32)
    generator = np.random.default_rng([seed, *hashlib.sha256(name.encode()).digest()])
    is_table = _embeds(name) and isinstance(recipe, TransformerRecipe) and recipe.embedding_init != "xavier"
    sizes = shape or (1, 1)  # a single number
    fans = math.prod(sizes[:-2]) * sum(sizes[-2:])  # a kernel of a convolution has its width in front
    bound, deviation = math.sqrt(6 / fans), _deviation(recipe, sizes)
    tensor = np.empty(shape, np.float32)
    for part in np.split(tensor.reshape(-1), range(BLOCK, tensor.size, BLOCK)):
        if is_table or isinstance(recipe, GruRecipe):
            part[:] = deviation * generator.standard_normal(part.size)
        else:
            part[:] = generator.uniform(-bound, bound, part.size)
    return tensor


def embedding_rms(recipe: Recipe | None, weights: Arrays) -> dict[str, float]:
    """Return the root mean square of token embeddings and of position vectors, as the first layer adds them.

    `source_embedding_rms` and `target_embedding_rms` include the factor sqrt(width) if `embedding_scale` is
    "sqrt_width". `position_rms` covers the learned vectors of both sides; that of sinusoids is sqrt(1/2), because the
    squares of each sine and cosine pair sum to 1. It is 0 if no position vectors are added (rotary, alibi, none, GRU).
    The result is empty without a recipe.
    """
    if recipe is None:
        return {}
    squares = {
        name: float(np.square(table, dtype=np.float64).mean()) for name, table in weights.items() if _embeds(name)
    }
    target = squares["target.embedding"]
    source = squares.get("source.embedding", target)
    learned = [square for name, square in squares.items() if name.endswith(".positions")]
    position, scale = sum(learned) / max(1, len(learned)), 1.0
    if not isinstance(recipe, GruRecipe):
        transformer = recipe.as_transformer()
        scale = float(transformer.width) if transformer.embedding_scale == "sqrt_width" else 1.0
        position = 0.5 if transformer.positions == "sinusoidal" else position
    means = {"source_embedding_rms": scale * source, "target_embedding_rms": scale * target, "position_rms": position}
    return {name: math.sqrt(mean) for name, mean in means.items()}


def position_vectors(recipe: TransformerRecipe, weights: Arrays, side: str) -> Numbers:
    """Return what is added to the embedding at each position of a side, "source" or "target": [max_length,D]."""
    if recipe.positions == "learned":
        return weights[f"{side}.positions"]
    if recipe.positions == "sinusoidal":
        return sinusoids(recipe.max_length, recipe.width).astype(np.float32)
    return np.zeros((recipe.max_length, recipe.width), np.float32)


def _deviation(recipe: Recipe, shape: tuple[int, ...]) -> float:
    """Return the standard deviation of the initial values of an embedding or position table, or of a GRU matrix."""
    if isinstance(recipe, GruRecipe):
        return 0.01
    if isinstance(recipe, TransformerRecipe) and recipe.embedding_init != "xavier":
        return recipe.width**-0.5 if recipe.embedding_init == "width" else 1.0
    return math.sqrt(2 / sum(shape))


def _embeds(name: str) -> bool:
    return name.endswith((".embedding", ".positions"))


def _dense(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.kernel": (inputs, outputs), f"{name}.bias": (outputs,)}


def _transformer_shapes(recipe: TransformerRecipe, source_vocabulary_size: int, target_vocabulary_size: int) -> Shapes:
    if recipe.tying == "all" and source_vocabulary_size != target_vocabulary_size:
        raise ValueError(
            f"tying='all' needs one joint vocabulary, but the sizes are {source_vocabulary_size} (source) and "
            f"{target_vocabulary_size} (target)"
        )
    width, shapes_by_name = recipe.width, Shapes()
    if recipe.tying != "all":
        shapes_by_name["source.embedding"] = (source_vocabulary_size, width)
    shapes_by_name["target.embedding"] = (target_vocabulary_size, width)
    if recipe.positions == "learned":
        shapes_by_name["source.positions"] = shapes_by_name["target.positions"] = (recipe.max_length, width)
    for side, attentions in (("encoder", ("self",)), ("decoder", ("self", "cross"))):
        for layer in range(recipe.layers):
            for attention in attentions:
                shapes_by_name |= _attention_shapes(recipe, f"{side}.{layer}.{attention}")
            shapes_by_name |= _feed_forward_shapes(recipe, f"{side}.{layer}.feed_forward")
    if recipe.norm_order == "pre":
        shapes_by_name |= _norm_shapes(recipe, "encoder.norm") | _norm_shapes(recipe, "decoder.norm")
    if recipe.tying == "none":
        shapes_by_name["output.kernel"] = (width, target_vocabulary_size)
    shapes_by_name["output.bias"] = (target_vocabulary_size,)
    return shapes_by_name


def _norm_shapes(recipe: TransformerRecipe, name: str) -> Shapes:
    parts = {"layernorm": ("scale", "shift"), "handmade": ("scale", "shift"), "rms": ("scale",), "none": ()}[
        recipe.norm
    ]
    return {f"{name}.{part}": (recipe.width,) for part in parts}


def _attention_shapes(recipe: TransformerRecipe, name: str) -> Shapes:
    inner, shapes_by_name = recipe.heads * recipe.key_width, Shapes()
    for projection in ("query", "key", "value"):
        shapes_by_name |= _dense(f"{name}.{projection}", recipe.width, inner)
    return shapes_by_name | _dense(f"{name}.output", inner, recipe.width) | _norm_shapes(recipe, f"{name}.norm")


def _feed_forward_shapes(recipe: TransformerRecipe, name: str) -> Shapes:
    shapes_by_name = _dense(f"{name}.inner", recipe.width, recipe.ffn_width)
    if recipe.ffn == "gated":
        shapes_by_name |= _dense(f"{name}.gate", recipe.width, recipe.ffn_width)
    return (
        shapes_by_name | _dense(f"{name}.outer", recipe.ffn_width, recipe.width) | _norm_shapes(recipe, f"{name}.norm")
    )


def _gru_shapes(recipe: GruRecipe, source_vocabulary_size: int, target_vocabulary_size: int) -> Shapes:
    embedded, width = recipe.embedding_width, recipe.width
    shapes_by_name: Shapes = {
        "source.embedding": (source_vocabulary_size, embedded),
        "target.embedding": (target_vocabulary_size, embedded),
    }
    for direction in ("forward", "backward"):
        shapes_by_name |= _dense(f"encoder.{direction}.input", embedded, 3 * width)
        shapes_by_name |= _dense(f"encoder.{direction}.hidden", width, 3 * width)
    shapes_by_name |= _dense("bridge", 2 * width, width)
    shapes_by_name |= _dense("attention.energy", 3 * width, width) | {"attention.score.kernel": (width, 1)}
    shapes_by_name |= _dense("decoder.input", embedded + 2 * width, 3 * width) | _dense(
        "decoder.hidden", width, 3 * width
    )
    return shapes_by_name | _dense("output", 3 * width + embedded, target_vocabulary_size)
