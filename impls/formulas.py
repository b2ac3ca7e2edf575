"""Reference formulas in NumPy: sinusoidal positions, activations and their derivatives, and attention masks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from impls.contract import Activation

Reals = npt.NDArray[np.float64]
Visible = npt.NDArray[np.bool_]


def sinusoids(positions: int, width: int) -> Reals:
    """Return the table of sinusoidal positions, [P,D], from position 0.

    Column 2i is sin(p / 10000^(2i/D)), column 2i + 1 the cosine of the same angle.

    Source: Vaswani et al. 2017, section 3.5.
    """
    frequencies = 10_000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(positions)[:, None] * frequencies
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(positions, width)


def activation(name: Activation, x: npt.ArrayLike) -> Reals:
    """Return relu, gelu (exact, x * Phi(x)), silu (x * sigmoid(x)) or tanh of `x`, elementwise.

    Source: Hendrycks and Gimpel 2016 (gelu, silu).
    """
    values = np.asarray(x, dtype=np.float64)
    if name == "relu":
        return np.maximum(values, 0.0)
    if name == "gelu":
        return values * _normal_cumulative(values)
    if name == "silu":
        return values * _sigmoid(values)
    return np.tanh(values)


def activation_derivative(name: Activation, x: npt.ArrayLike) -> Reals:
    """Return the first derivative of `activation(name, x)`, elementwise; relu's at 0 is 0."""
    values = np.asarray(x, dtype=np.float64)
    if name == "relu":
        return (values > 0).astype(np.float64)
    if name == "gelu":
        density = np.exp(-(values**2) / 2) / math.sqrt(2 * math.pi)
        return _normal_cumulative(values) + values * density
    if name == "silu":
        sigmoid = _sigmoid(values)
        return sigmoid * (1 + values * (1 - sigmoid))
    return 1 - np.tanh(values) ** 2


def _normal_cumulative(values: Reals) -> Reals:
    erf: Any = np.vectorize(math.erf, otypes=[np.float64])
    return (1 + erf(values / math.sqrt(2))) / 2


def _sigmoid(values: Reals) -> Reals:
    return (1 + np.tanh(values / 2)) / 2


class Masks(NamedTuple):
    """The attention masks of a padded batch; true means visible.

    Shapes: encoder [B,S], the same for every query; decoder [B,T,T]; cross [B,T,S]: query, then key.
    """

    encoder: Visible
    decoder: Visible
    cross: Visible


def masks(source_lengths: npt.ArrayLike, target_lengths: npt.ArrayLike) -> Masks:
    """Return the attention masks of a batch whose sentences have these lengths, padded on the right to the longest.

    Padding is masked on the key side only: the rows of padding queries see the same positions as any other row.
    """
    source, target = np.asarray(source_lengths), np.asarray(target_lengths)
    encoder = np.arange(source.max()) < source[:, None]
    target_visible = np.arange(target.max()) < target[:, None]
    causal = np.tri(int(target.max()), dtype=bool)
    decoder = causal & target_visible[:, None, :]
    cross = np.broadcast_to(encoder[:, None, :], (len(source), int(target.max()), int(source.max()))).copy()
    return Masks(encoder, decoder, cross)
