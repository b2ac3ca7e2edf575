"""Variant `learned_positions`: each position has a learned vector, which is added to the scaled word embedding.

    x[t] = sqrt(D) * embedding[token[t]] + positions[t]

Source: bentrevett's pytorch-seq2seq tutorial, part 6, after Gehring et al. 2017 (Convolutional Sequence to Sequence
Learning, section 3.1). Vaswani et al. 2017 found learned vectors and sinusoids nearly equal (table 3, row E).
Departures: biases start at 0, not uniform.
What to expect on Multi30k, German to English, 10 epochs: six versions of the tutorial print test perplexities from 5.27
to 5.38 and BLEU from 35.1 to 36.5, both computed in the tutorial's way. All set the same seed, so their range is not a
spread over seeds. In four of them, the sublayers of a layer share one LayerNorm.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import embedding

from impls.recipes import LEARNED_POSITIONS, TRAININGS

RECIPE = LEARNED_POSITIONS
TRAINING = TRAININGS["learned_positions"]


class LearnedPositions(nn.Module):
    """Adds a learned vector per position.

    Shapes: weight [max_length,D]; positions [T] or [N]; x and result [B,T,D] or, packed, [N,D].
    """

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max_length, width))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return x plus the vector of each position."""
        return x + embedding(positions, self.weight)
