"""Variant `paper`: the output projection is the target embedding; trained with label smoothing and warm-up.

    logits = x @ embedding.T + bias
    rate(update) = peak * min(update / warm-up, sqrt(warm-up / update))

Source: Vaswani et al. 2017, sections 3.4 (tying, after Press and Wolf 2017), 5.3 (schedule, Adam 0.9, 0.98, 1e-9) and
5.4 (label smoothing 0.1), as in jadore801120's attention-is-all-you-need-pytorch; translated with a beam of 5.
Departures, as in all recipes of this repository: every projection has a bias, no LayerNorm follows the embeddings, and
tied logits are not multiplied by D^-1/2. The size is that of the other variants; `paper_base` has the source's 6 layers
of width 512.
What to expect: fewer parameters, because there is no output kernel. Label smoothing keeps the training loss above 0, so
compare perplexities, which are computed without it.
"""

from __future__ import annotations

import torch
from torch import nn

from impls.pytorch.packed_linear import PackedWeight
from impls.recipes import PAPER, TRAININGS

RECIPE = PAPER
TRAINING = TRAININGS["paper"]


class TiedOutput(nn.Module):
    """Scores each token by the product with its embedding. Shapes: [..., D] to [..., V]."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))
        self._packed_weight = PackedWeight()

    @property
    def weight(self) -> torch.Tensor:
        """The embedding's weight. Shapes: [V,D]."""
        return self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self._packed_weight.linear(x, self.weight, self.bias)
