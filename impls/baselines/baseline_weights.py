"""Converts canonical weights, recipes and sentences for a baseline. NumPy only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from impls.contract import EOS, PAD, Arrays, GruRecipe, Ids, Recipe, TransformerRecipe
from impls.weights import check, position_vectors, shapes

Rules = tuple[tuple[str, str], ...]
"""Patterns and replacements that turn canonical names into a library's, applied in this order."""

TUTORIAL: dict[str, tuple[str, ...]] = {
    "positions": ("learned", "sinusoidal"),
    "norm": ("layernorm",),
    "norm_order": ("post",),
    "ffn": ("linear",),
    "activation": ("relu",),
    "tying": ("none",),
}
"""The choices that the tutorials share."""


def admit(
    library: str,
    recipe: Recipe,
    sizes: tuple[int, ...],
    weights: Arrays,
    allowed: Mapping[str, tuple[str, ...]],
) -> TransformerRecipe:
    """Return the recipe as a Transformer's, where its fields have the `allowed` values and the weights fit it.

    `sizes` are those of the source and the target vocabulary.

    Raises:
        ValueError: The library does not implement a field's value, or the weights do not fit the recipe. The message
            begins with `library`, such as "baseline 'marian'".
    """
    recipe = as_transformer(library, recipe)
    if recipe.heads * recipe.key_width != recipe.width:
        raise ValueError(f"{library} with head_width={recipe.key_width}: it needs head_width = width / heads")
    for field, values in allowed.items():
        if getattr(recipe, field) not in values:
            words = ", ".join(map(repr, values))
            raise ValueError(f"{library} with {field}={getattr(recipe, field)!r}: it implements only {words}")
    check(weights, shapes(recipe, *sizes))
    return recipe


def as_transformer(library: str, recipe: Recipe) -> TransformerRecipe:
    """Return the recipe as a Transformer's. Raises: ValueError, which begins with `library`, if it is none."""
    if isinstance(recipe, GruRecipe):
        raise ValueError(f"{library} implements Transformers, not the {recipe.family!r} recipe")
    return recipe.as_transformer()


def renamed(recipe: TransformerRecipe, weights: Arrays, rules: Rules) -> Arrays:
    """Return weights and position vectors under a library's names, kernels transposed to [out,in] as libraries do."""
    tables = {f"{side}.positions": position_vectors(recipe, weights, side) for side in ("source", "target")}
    converted: Arrays = {}
    for name, array in (weights | tables).items():
        turned = array.T if name.endswith(".kernel") else array
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        converted[name] = np.ascontiguousarray(turned, dtype=np.float32)
    return converted


def unavailable(device: str, error: Exception) -> str:
    """Return an error message for a device that cannot be used."""
    return f"device {device!r} is not available: {str(error).splitlines()[0]}"


def check_request(baseline: str, recipe: TransformerRecipe, sources: Sequence[Ids], max_tokens: int) -> None:
    """Raise ValueError if sources or translations need more positions than the recipe has."""
    longest = max((len(source) for source in sources), default=0)
    for field, positions in (("sources", longest), ("max_tokens", max_tokens + 1)):
        if positions > recipe.max_length:
            raise ValueError(
                f"baseline {baseline!r}: {field} with {positions} positions exceed max_length={recipe.max_length}"
            )


def before_end(words: list[int]) -> list[int]:
    """Return the tokens before the first `<eos>`, or all."""
    return words[: words.index(EOS)] if EOS in words else words


def in_batches(sources: Sequence[Ids], batch_size: int) -> Iterator[tuple[list[int], Ids]]:
    """Yield batches of sentences of similar length, longest first: their indices and their padded ids."""
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        padded = np.full((len(indices), len(sources[indices[0]])), PAD, dtype=np.int32)
        for row, index in zip(padded, indices, strict=True):
            row[: len(sources[index])] = sources[index]
        yield indices, padded
