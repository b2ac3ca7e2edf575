"""Errors planted into the Keras implementation, each as small as the mistake it stands for, for a while.

What is compiled keeps the functions it was made of, so a plant begins and ends with nothing compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Let what is built meanwhile have the error of this name; "" is none."""
    if not name:
        yield
        return
    from impls.keras3.compiled import program

    program.cache_clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            PLANTS[name](patch)
            yield
    finally:
        program.cache_clear()


def _mask_shifted(patch: pytest.MonkeyPatch) -> None:
    """Let each target position see the one behind it."""
    from keras import ops

    from impls.keras3.keras_transformer import TransformerNetwork

    right = TransformerNetwork._self_bias

    def wrong(self: Any, queries: Any, keys: Any, visible: Any) -> Any:
        if visible.shape[2] != 1:  # the encoder's mask and that of a cached step have one row
            visible = ops.greater_equal(queries[:, None] + 1, keys[None, :])[None, None]
        return right(self, queries, keys, visible)

    patch.setattr(TransformerNetwork, "_self_bias", wrong)


def _epsilon_of_keras(patch: pytest.MonkeyPatch) -> None:
    """Leave the norms the epsilon that Keras gives them."""
    from keras import layers

    from impls.keras3 import keras_transformer

    def wrong(recipe: Any, name: str) -> Any:
        assert recipe.norm == "layernorm"
        return layers.LayerNormalization(epsilon=1e-3, name=name)

    patch.setattr(keras_transformer, "norm", wrong)


def _gelu_by_tanh(patch: pytest.MonkeyPatch) -> None:
    from keras import ops

    from impls.keras3 import keras_transformer

    patch.setattr(keras_transformer, "activation", lambda word, x: ops.gelu(x, approximate=True))


def _gates_swapped(patch: pytest.MonkeyPatch) -> None:
    """Take the gates of a GRU in Keras's order for ours."""
    from impls.keras3.compiled import Slot

    patch.setattr(Slot, "_swapped", lambda self, array: array)


def _adam_of_keras(patch: pytest.MonkeyPatch) -> None:
    """Add epsilon before the root is corrected, as Keras's Adam does (Kingma and Ba 2015, the end of section 2)."""
    from keras import ops

    from impls.keras3 import compiled

    def wrong(number: Any, slope: Any, weight: Any, first: Any, second: Any) -> Any:
        first = first + number.left1 * (slope - first)
        second = second + number.left2 * (ops.square(slope) - second)
        step = number.step * number.correction
        return weight - step * first / (ops.sqrt(second) + number.epsilon), first, second

    patch.setattr(compiled, "_adam", wrong)


def _rows_shifted(patch: pytest.MonkeyPatch) -> None:
    """Take packed rows to stand one position further to the right than they do."""
    from impls.keras3 import keras_transformer

    right = keras_transformer.pack_positions

    def wrong(packing: Any, length: Any) -> Any:
        return right(packing, length) + (packing is not None)

    patch.setattr(keras_transformer, "pack_positions", wrong)


PLANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "causal mask shifted by one": _mask_shifted,
    "norm epsilon 1e-3": _epsilon_of_keras,
    "gelu by tanh": _gelu_by_tanh,
    "GRU gates swapped": _gates_swapped,
    "epsilon of Keras's Adam": _adam_of_keras,
    "packed rows shifted by one": _rows_shifted,
}
