"""Computed positions of a Transformer in Keras 3: sinusoids, rotations and biases.

Shapes use the repository's letters: B sentences, S source positions, T target positions, D width, H heads, K head
width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from impls.keras3.backends import Tensor, ops


def angles(length: int, width: int) -> np.ndarray[Any, Any]:
    """Return the angles p / 10000^(2i/width) of positions p from 0. Shapes: [length, width / 2], float64."""
    return np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)


def sinusoids(length: int, width: int) -> Tensor:
    """Return the sine and the cosine of each position's angles, interleaved. Shapes: [length,D].

    Source: Vaswani et al. 2017, section 3.5.
    """
    angle = angles(length, width)
    return ops.convert_to_tensor(np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, width), "float32")


def rotate(x: Tensor, positions: Tensor, length: int) -> Tensor:
    """Rotate each interleaved pair of features by the angle of its position. Shapes: [B,H,T,K], [T] to [B,H,T,K].

    Source: Su et al. 2021 (RoFormer), equation 34, base 10,000.
    """
    angle = angles(length, x.shape[-1])
    sine, cosine = (
        ops.cast(ops.take(ops.convert_to_tensor(table, "float32"), positions, axis=0), x.dtype)
        for table in (np.sin(angle), np.cos(angle))
    )
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = ops.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return ops.reshape(turned, ops.shape(x))


def linear_biases(heads: int, queries: Tensor, keys: Tensor) -> Tensor:
    """Return ALiBi's bias of the scores: minus distance times slope of the head. Shapes: [T], [S] to [1,H,T,S].

    Source: Press, Smith and Lewis 2022 (ALiBi), section 3: slopes 2^(-8h/H) for h = 1 ... H.
    """
    slope = ops.convert_to_tensor([2 ** (-8 * head / heads) for head in range(1, heads + 1)], "float32")
    distance = ops.cast(ops.abs(queries[:, None] - keys[None, :]), "float32")
    return -slope[None, :, None, None] * distance
