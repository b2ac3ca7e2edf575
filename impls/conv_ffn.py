"""Variant `conv_ffn`: the feed-forward is two convolutions of width 1 with GELU between, four times the model's width.

    feed_forward(x) = conv_outer(gelu(conv_inner(x)))         gelu(x) = x * Phi(x), Phi the normal distribution function

A convolution of width 1 is the same linear map at each position, so with equal weights it equals the linear
feed-forward; only the speed differs.

Source: paul-hyun's Transformer notebook (transformer-evolution); Hendrycks and Gimpel 2016 for GELU, in its exact form.
Departures: the notebook trains a sentiment classifier on top of encoder and decoder, so it has these parts but no
training for translation; the training here is the tutorials'. Positions count from 0, as in every variant, and padding
has no position of its own. The notebook's SentencePiece vocabulary is used with `--budget source` only.
What to expect: 1.5 million parameters more than `learned_positions`, because of the wider feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from impls.recipes import CONV_FFN, TRAININGS

RECIPE = CONV_FFN
TRAINING = TRAININGS["conv_ffn"]


class ConvFeedForward(nn.Module):
    """Two convolutions of width 1 over the positions. Shapes: [B,T,D] or, packed, [N,D]; F channels between."""

    def __init__(
        self,
        width: int,
        ffn_width: int,
        activation: Callable[[torch.Tensor], torch.Tensor],
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        self.inner = nn.Conv1d(width, ffn_width, kernel_size=1)
        self.outer = nn.Conv1d(ffn_width, width, kernel_size=1)
        self.activation = activation
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the feed-forward of each position."""
        hidden = self.dropout(self.activation(self.inner(x.transpose(-1, -2))))
        return self.outer(hidden).transpose(-1, -2)
