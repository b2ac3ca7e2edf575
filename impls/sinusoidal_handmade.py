"""Variant `sinusoidal_handmade`: fixed sinusoids for positions, and LayerNorm written out by hand.

    sinusoids[p, 2i] = sin(p / 10000^(2i/D))        sinusoids[p, 2i+1] = cos(p / 10000^(2i/D))
    norm(x) = scale * (x - mean(x)) / sqrt(variance(x) + epsilon) + shift          mean and variance over the width

Source: tommyEzreal/handmade_transformer; Vaswani et al. 2017, section 3.5; Ba, Kiros and Hinton 2016, equation 3. The
variance is the biased one, and epsilon, 1e-9, is inside the root. The embeddings start normal with standard deviation
1, as in nn.Embedding, and are not multiplied by sqrt(D), so tokens and positions start at a similar size.
Departures:

- The source's training script draws every matrix, embeddings included, Xavier-uniform. Here only the projections are.
- Query, key and value have biases, and all biases start at 0; the source's have none or torch's default.
- The warm-up is the same share of the training as in the source (4,000 of 7,200 updates there, 1,267 of 2,280 on
  Multi30k), with the source's peak rate. The gradient norm is clipped to 1, as in the source's script.

What to expect: with equal weights and epsilon the same values as the built-in norm, but slower.
"""

from __future__ import annotations

import torch
from torch import nn

from impls.recipes import SINUSOIDAL_HANDMADE, TRAININGS

RECIPE = SINUSOIDAL_HANDMADE
TRAINING = TRAININGS["sinusoidal_handmade"]


class Sinusoids(nn.Module):
    """Adds a fixed vector of sines and cosines per position.

    Shapes: table [max_length,D]; positions [T] or [N]; x and result [B,T,D] or, packed, [N,D].
    """

    table: torch.Tensor

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        position = torch.arange(max_length, dtype=torch.float64)[:, None]
        angle = position / 10_000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()
        # A buffer moves with the model to its device; it is no weight, so it is not stored with them.
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return x plus the vector of each position."""
        return x + self.table.index_select(0, positions)


class HandmadeLayerNorm(nn.Module):
    """Brings each position to mean 0 and variance 1 over the width, then scales and shifts. Shapes: [..., D]."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised x."""
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        return self.scale * centred / (variance + self.epsilon).sqrt() + self.shift
