"""Floating-point operations (multiplications and additions) of a recipe, counted by formula without padding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from impls import weights
from impls.contract import PAD, Batch, GruRecipe, Recipe

Lengths = npt.NDArray[np.int64]
Rows = Literal["source", "target", "sentence"]
"""What the rows of a product are: the tokens of a side, or sentences."""

PASSES = 3
"""The cost of an update in forward passes: one forward, and one each for the gradients of a product's two factors."""

FUSED = {"self": ("query", "key", "value"), "cross": ("key", "value")}
"""Projections of one input, computed as one product with concatenated kernels."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """A matrix product with a kernel, [rows, inputs] times [inputs, outputs]; the recipe has `count` equal ones."""

    name: str
    rows: Rows
    inputs: int
    outputs: int
    count: int = 1

    def operations(self, tokens: Tokens) -> int:
        """Return the operations of all `count` products in one forward pass."""
        return 2 * tokens.rows(self.rows) * self.inputs * self.outputs * self.count


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Counts over batches, without padding: sentences, tokens of each side, and pairs of attending positions.

    The source counts `<sos>` and `<eos>`, the target `<sos>`. A causal pair is a target position and one not after it.
    """

    sentence: int = 0
    source: int = 0
    target: int = 0
    source_pairs: int = 0
    causal_pairs: int = 0
    cross_pairs: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def rows(self, rows: Rows) -> int:
        """Return the number of rows of a product."""
        return {"source": self.source, "target": self.target, "sentence": self.sentence}[rows]


def of_lengths(source: Lengths, target: Lengths) -> Tokens:
    """Return the counts of sentences with these source and target lengths. Shapes: [B] each."""
    return Tokens(
        sentence=len(source),
        source=int(source.sum()),
        target=int(target.sum()),
        source_pairs=int((source**2).sum()),
        causal_pairs=int((target * (target + 1) // 2).sum()),
        cross_pairs=int((source * target).sum()),
    )


def count_tokens(batches: Iterable[Batch]) -> Tokens:
    """Return the counts of batches."""
    total = Tokens()
    for batch in batches:
        total += of_lengths(*((ids != PAD).sum(axis=1, dtype=np.int64) for ids in (batch.source, batch.target_out)))
    return total


def products(recipe: Recipe, vocabulary_sizes: tuple[int, int]) -> tuple[Product, ...]:
    """Return the products of a forward pass that have a kernel as a factor, equal ones together.

    The projections of one input are one product. The energies of additive attention are two products: the decoder's
    state is projected once per target token, the encoder's outputs once per source token. A GRU's steps are counted as
    one product, although they run one after the other, which shows as a lower MFU.
    """
    shapes = weights.shapes(recipe, *vocabulary_sizes)
    all_products: list[Product] = []
    for name, shape in shapes.items():
        if name.endswith(".kernel") and name != "attention.score.kernel":
            all_products += _products_of(name, *shape)
    if "output.kernel" not in shapes:
        outputs, inputs = shapes["target.embedding"]
        all_products.append(Product(name="target.embedding", rows="target", inputs=inputs, outputs=outputs))
    equal: dict[tuple[Rows, int, int], list[Product]] = {}
    for product in all_products:
        equal.setdefault((product.rows, product.inputs, product.outputs), []).append(product)
    return tuple(replace(group[0], count=len(group)) for group in equal.values())


def _products_of(name: str, inputs: int, outputs: int) -> list[Product]:
    """Return the products of a kernel: none if it is part of a fused one, two if its rows belong to two inputs."""
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


def kernel_operations(recipe: Recipe, vocabulary_sizes: tuple[int, int], counted: Tokens) -> int:
    """Return the operations of all products with kernels in a forward pass."""
    return sum(product.operations(counted) for product in products(recipe, vocabulary_sizes))


def attention_operations(recipe: Recipe, counted: Tokens) -> int:
    """Return the operations of attention's own products in a forward pass: scores and weighted sums.

    Each pair of visible positions takes 2 · heads · K operations for its score and as many for its weighted sum; in
    additive attention 2 · H for the score of an energy and 4 · H for the weighted sum of the encoder's outputs.
    """
    if isinstance(recipe, GruRecipe):
        return 6 * recipe.width * counted.cross_pairs
    inner = recipe.heads * recipe.as_transformer().key_width
    pairs = counted.source_pairs + counted.causal_pairs + counted.cross_pairs
    return 4 * inner * recipe.layers * pairs


def forward_operations(recipe: Recipe, vocabulary_sizes: tuple[int, int], counted: Tokens) -> int:
    """Return the operations of a forward pass: kernels and attention."""
    return kernel_operations(recipe, vocabulary_sizes, counted) + attention_operations(recipe, counted)


def training_operations(recipe: Recipe, vocabulary_sizes: tuple[int, int], counted: Tokens) -> int:
    """Return the operations of the updates over these tokens: forward and backward."""
    return PASSES * forward_operations(recipe, vocabulary_sizes, counted)
