"""Dropout in torch, with random numbers that depend on seed and update only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from impls.pytorch.cpu_kernels import add_masked


class DropoutSource:
    """The random numbers of dropout. They depend on (seed, update) only, so an exact resume needs no other state."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generator = torch.Generator(device)
        self.bits: np.random.BitGenerator = np.random.SFC64(0)

    def restart(self, seed: int, update: int) -> None:
        """Seed the random numbers of one update."""
        words = np.random.SeedSequence([seed, update])
        if self.device.type == "cpu":
            self.bits = np.random.SFC64(words)
        else:
            self.generator.manual_seed(int(words.generate_state(1, np.uint64)[0] >> 1))

    def keep_mask(self, shape: tuple[int, ...], rate: float) -> torch.Tensor:
        """Return a float32 mask of ones with probability 1 - rate, rounded to 2^-16, and zeros."""
        mask = torch.empty(shape, device=self.device)
        if self.device.type != "cpu":
            return torch.ge(mask.uniform_(generator=self.generator), rate).float()
        # On a CPU, drawing bits costs more than using them, and torch's generator is several times slower.
        count = mask.numel()
        drawn = np.asarray(self.bits.random_raw((count + 3) // 4)).view(np.int16)[:count]
        least = min(round(rate * 2**16), 2**16 - 1) - 2**15  # 2**15 is no int16
        return torch.ge(torch.from_numpy(drawn).view(shape), least, out=mask)


class Dropout(nn.Module):
    """Sets units to 0 with probability `rate` in training and scales the others up (Srivastava et al. 2014)."""

    def __init__(self, rate: float, dropout_source: DropoutSource) -> None:
        super().__init__()
        self.rate = rate
        self.dropout_source = dropout_source

    def keep_mask(self, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Return a mask of 0 or 1 / (1 - rate) of this shape; None in evaluation or if the rate is 0."""
        if not self.training or self.rate == 0:
            return None
        return self.dropout_source.keep_mask(shape, self.rate).mul_(1 / (1 - self.rate))

    def forward(self, x: torch.Tensor, onto: torch.Tensor | None = None) -> torch.Tensor:
        """Return x with units dropped in training, or x itself in evaluation; plus `onto` if given."""
        keep_mask = self.keep_mask(x.shape)
        if keep_mask is None:
            return x if onto is None else onto + x
        return x * keep_mask.to(x.dtype) if onto is None else add_masked(onto, x, keep_mask)


class Dropouts(NamedTuple):
    """The dropout modules of a Transformer.

    Attributes:
        units: After the embedding and before each residual sum.
        attention: For attention weights.
        activation: For hidden units of the feed-forward.
    """

    units: Dropout
    attention: Dropout
    activation: Dropout
