"""How many multiplications and additions a recipe takes, counted by formula over tokens that are not padding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from impls import weights
from impls.contract import PAD, Batch, GruRecipe, Recipe, TransformerRecipe

Lengths = npt.NDArray[np.int64]
Rows = Literal["source", "target", "sentence"]
"""What a product has a row for: a token of a side, or a sentence."""

PASSES = 3
"""An update in units of a pass forward: the gradients of a product's two factors are a product each."""

FUSED = {"self": ("query", "key", "value"), "cross": ("key", "value")}
"""Projections of one input, which are one product with their kernels side by side."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """A kernel's product, [rows, inputs] times [inputs, outputs]; `count` of them are alike."""

    name: str
    rows: Rows
    inputs: int
    outputs: int
    count: int = 1

    def operations(self, counted: Tokens) -> int:
        """Return the multiplications and additions of one pass forward, of all that are alike."""
        return 2 * counted.of(self.rows) * self.inputs * self.outputs * self.count


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What is not padding in some batches: sentences, tokens of each side, and the pairs that attention looks at.

    A token is a position of a sentence, `<sos>` and `<eos>` of the source and `<sos>` of the target's input included.
    A causal pair is a target position and one not after it.
    """

    sentence: int = 0
    source: int = 0
    target: int = 0
    source_pairs: int = 0
    causal_pairs: int = 0
    cross_pairs: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def of(self, rows: Rows) -> int:
        """Return how many there are of what a product has rows for."""
        return {"source": self.source, "target": self.target, "sentence": self.sentence}[rows]


def of_lengths(source: Lengths, target: Lengths) -> Tokens:
    """Count what sentences of these lengths, in positions of source and of target, come to. Shapes: [B] each."""
    return Tokens(
        sentence=len(source),
        source=int(source.sum()),
        target=int(target.sum()),
        source_pairs=int((source**2).sum()),
        causal_pairs=int((target * (target + 1) // 2).sum()),
        cross_pairs=int((source * target).sum()),
    )


def tokens(batches: Iterable[Batch]) -> Tokens:
    """Count what is not padding in batches."""
    total = Tokens()
    for batch in batches:
        total += of_lengths(*((ids != PAD).sum(axis=1, dtype=np.int64) for ids in (batch.source, batch.target_out)))
    return total


def products(recipe: Recipe, words: tuple[int, int]) -> tuple[Product, ...]:
    """Return the products of a pass forward that have a kernel as a factor, alike ones together.

    The projections of one input are one product. The energies of additive attention are two: the decoder's state is
    projected once a target word, the encoder's outputs once a source word. A GRU's steps are counted as if they were
    one product: that they follow each other is the recipe's doing, and shows as a smaller share of the limit.
    """
    shapes, found = weights.shapes(recipe, *words), []
    for name, shape in shapes.items():
        if name.endswith(".kernel") and name != "attention.score.kernel":
            found += _products_of(name, *shape)
    if "output.kernel" not in shapes:
        outputs, inputs = shapes["target.embedding"]
        found.append(Product(name="target.embedding", rows="target", inputs=inputs, outputs=outputs))
    alike: dict[tuple[Rows, int, int], list[Product]] = {}
    for one in found:
        alike.setdefault((one.rows, one.inputs, one.outputs), []).append(one)
    return tuple(replace(same[0], count=len(same)) for same in alike.values())


def _products_of(name: str, inputs: int, outputs: int) -> list[Product]:
    """Return the product of a kernel: none where it is part of another's, two where its rows belong to two inputs."""
    parts = name.split(".")
    if name == "attention.energy.kernel":
        return [
            Product(name=f"{name} (state)", rows="target", inputs=inputs - 2 * outputs, outputs=outputs),
            Product(name=f"{name} (source)", rows="source", inputs=2 * outputs, outputs=outputs),
        ]
    rows: Rows = "source" if parts[0] == "encoder" else "sentence" if parts[0] == "bridge" else "target"
    fused = FUSED.get(parts[-3], ()) if len(parts) == 5 else ()
    if parts[-2] in fused[1:]:
        return []
    if parts[-2] in fused:
        outputs *= len(fused)
        rows = rows if parts[-3] == "self" else "source"
    return [Product(name=name, rows=rows, inputs=inputs, outputs=outputs)]


def kernel_operations(recipe: Recipe, words: tuple[int, int], counted: Tokens) -> int:
    """Return the multiplications and additions of all kernels' products in a pass forward."""
    return sum(one.operations(counted) for one in products(recipe, words))


def attention_operations(recipe: Recipe, counted: Tokens) -> int:
    """Return those of attention's own products in a pass forward: scores, and sums by weight.

    Each pair of visible positions takes 2 for each of the heads · K numbers of its score and as many of its sum; in
    additive attention 2 · H for the score of an energy and 4 · H for the sum of the encoder's outputs.
    """
    if isinstance(recipe, GruRecipe):
        return 6 * recipe.width * counted.cross_pairs
    inner = recipe.heads * recipe.key_width if isinstance(recipe, TransformerRecipe) else recipe.width
    pairs = counted.source_pairs + counted.causal_pairs + counted.cross_pairs
    return 4 * inner * recipe.layers * pairs


def forward_operations(recipe: Recipe, words: tuple[int, int], counted: Tokens) -> int:
    """Return the multiplications and additions of one pass forward, kernels and attention."""
    return kernel_operations(recipe, words, counted) + attention_operations(recipe, counted)


def training_operations(recipe: Recipe, words: tuple[int, int], counted: Tokens) -> int:
    """Return those of the updates over these tokens: a pass forward, and two such passes for the gradients."""
    return PASSES * forward_operations(recipe, words, counted)
