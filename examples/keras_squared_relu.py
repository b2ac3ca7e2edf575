"""A Transformer with squared ReLU (So et al. 2021, Primer): an example of a Keras layer of your own.

Check that it behaves as the benchmark expects, then train and compare it with the same Transformer with ReLU:

    python -m harness laws --fast --variant examples.keras_squared_relu:build
    python -m harness bench --variant examples.keras_squared_relu:build --variant learned_positions --framework keras
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from impls.contract import Seq2SeqModel, TransformerRecipe
from impls.keras3 import keras_adapter
from impls.keras3.backends import Tensor, layers, ops
from impls.keras3.keras_transformer import TransformerNetwork
from impls.recipes import LEARNED_POSITIONS

RECIPE = replace(LEARNED_POSITIONS, width=128, ffn_width=256, layers=2)  # the size of the suite `quick`


class SquaredRelu(layers.Layer):
    """A feed-forward layer. The names of its layers are those of its weights, with "-" instead of "."."""

    def __init__(self, recipe: TransformerRecipe, name: str) -> None:
        super().__init__(name=name)
        self.inner = layers.Dense(recipe.ffn_width, name=f"{name}-inner")
        self.outer = layers.Dense(recipe.width, name=f"{name}-outer")
        self.dropout = layers.Dropout(recipe.dropout, seed=0)

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Shapes: [B,T,D] to [B,T,D]."""
        hidden = ops.square(ops.relu(self.inner(x)))
        return self.outer(self.dropout(hidden, training=training))


class SquaredReluNetwork(TransformerNetwork):
    feed_forward = SquaredRelu


def build(
    source_vocabulary_size: int, target_vocabulary_size: int, *, dropout: float | None = None, **settings: Any
) -> Seq2SeqModel:
    """Build the model. `settings` are training, seed, device and precision; the laws also set `dropout`."""
    recipe = RECIPE if dropout is None else replace(RECIPE, dropout=dropout)
    sizes = source_vocabulary_size, target_vocabulary_size
    return keras_adapter.build(recipe, *sizes, network=SquaredReluNetwork, **settings)
