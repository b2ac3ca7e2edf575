"""Multi-head attention in torch, on padded batches and on packed rows, with rotary positions and ALiBi.

Source: Vaswani et al. 2017, section 3.2. Shapes use the repository's letters: B sentences, S source positions, T target
positions, D width, H heads, K head width; N packed rows of the target and M of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from impls.contract import TransformerRecipe
from impls.pytorch.cpu_kernels import attend, attend_packed
from impls.pytorch.dropout import Dropout
from impls.pytorch.kv_cache import LayerCache
from impls.pytorch.packed_linear import PackedLinear
from impls.pytorch.torch_packing import Group


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotate each interleaved pair of features by the angle of its position, as one complex product.

    Shapes: x [...,K]; positions broadcast to the other dimensions of x.
    Source: Su et al. 2021 (RoFormer), equation 34, base 10,000.
    """
    width = x.shape[-1]
    pairs = torch.arange(0, width, 2, device=x.device, dtype=torch.float32)
    angle = positions[..., None].float() / 10_000 ** (pairs / width)
    exact = x.to(torch.promote_types(x.dtype, torch.float32))  # bfloat16 has no complex numbers
    numbers = torch.view_as_complex(exact.unflatten(-1, (-1, 2)))
    return torch.view_as_real(numbers * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


def linear_biases(heads: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return ALiBi's bias of the scores: minus distance times slope of the head. Shapes: [T], [S] to [1,H,T,S].

    Source: Press, Smith and Lewis 2022 (ALiBi), section 3: slopes 2^(-8h/H) for h = 1 ... H.
    """
    slope = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1, device=keys.device))
    distance = (queries[:, None] - keys[None, :]).abs()
    return -slope[None, :, None, None] * distance


class PackedPositions(NamedTuple):
    """Which packed rows attend to which.

    Attributes:
        groups: The groups of sentences.
        biases: The bias of each group's padded scores, broadcast to [B,H,T,S].
        positions: The querying rows' positions in their sentences, [N].
    """

    groups: Sequence[Group]
    biases: Sequence[torch.Tensor]
    positions: torch.Tensor


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, recipe: TransformerRecipe, dropout: Dropout) -> None:
        super().__init__()
        self.output = PackedLinear(recipe.heads * recipe.key_width, recipe.width)
        self.dropout = dropout
        self.key_width = recipe.key_width

    def split(self, x: torch.Tensor, parts: int) -> list[torch.Tensor]:
        """Split a fused projection into parts and heads. Shapes: [B,T,parts*H*K] to [B,H,T,K] each."""
        return [heads.transpose(1, 2) for heads in x.unflatten(-1, (parts, -1, self.key_width)).unbind(2)]

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the projected weighted sum of the values. Shapes: [B,T,D]."""
        keep_mask = self.dropout.keep_mask((*query.shape[:3], key.shape[2]))
        return self.output(attend(query, key, value, bias, keep_mask).transpose(1, 2).flatten(2))

    def attend_packed(
        self, projected: torch.Tensor, memory: torch.Tensor | None, others: PackedPositions
    ) -> torch.Tensor:
        """Return the same for packed rows; see `cpu_kernels.attend_packed`. Shapes: to [N,D]."""
        keep_masks = [self.dropout.keep_mask(group.shape) for group in others.groups]
        return self.output(attend_packed(projected, memory, others.groups, others.biases, keep_masks))


class SelfAttention(Attention):
    """Attention of a sequence on itself."""

    def __init__(self, recipe: TransformerRecipe, dropout: Dropout) -> None:
        super().__init__(recipe, dropout)
        self.query_key_value = PackedLinear(recipe.width, 3 * recipe.heads * recipe.key_width)
        self.rotary = recipe.positions == "rotary"

    def forward(
        self, x: torch.Tensor, others: torch.Tensor | PackedPositions, cache: LayerCache | None = None
    ) -> torch.Tensor:
        """Return the attention of x on x, or of the newest token on the cached ones and itself.

        Shapes: [B,T,D], with the bias of the scores as `others`; or packed [N,D].
        """
        projected = self.query_key_value(x)
        if isinstance(others, PackedPositions):
            projected = self._rotated(projected, others.positions) if self.rotary else projected
            return self.attend_packed(projected, None, others)
        if self.rotary:
            positions = torch.arange(x.shape[1], device=x.device) + (cache.length if cache is not None else 0)
            projected = self._rotated(projected, positions)
        query, key, value = self.split(projected, 3)
        if cache is not None:
            key, value = cache.append(key, value)
        return self.attend(query, key, value, others)

    def _rotated(self, projected: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return projections with rotated queries and keys. Shapes: [...,T,3*H*K], [T]."""
        heads = projected.unflatten(-1, (3, -1, self.key_width))
        queries_and_keys, values = heads.split([2, 1], dim=-3)
        return torch.cat([rotate(queries_and_keys, positions[:, None, None]), values], dim=-3).flatten(-3)


class CrossAttention(Attention):
    """Attention of the target on the encoded source."""

    def __init__(self, recipe: TransformerRecipe, dropout: Dropout) -> None:
        super().__init__(recipe, dropout)
        self.query = PackedLinear(recipe.width, recipe.heads * recipe.key_width)
        self.key_value = PackedLinear(recipe.width, 2 * recipe.heads * recipe.key_width)

    def project_memory(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return keys and values of the encoded source [B,S,D], each [B,H,S,K]."""
        return self.split(self.key_value(memory), 2)

    def attention_weights(self, x: torch.Tensor, key: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the attention weights of x on the source. Shapes: [B,H,T,S]."""
        (query,) = self.split(self.query(x), 1)
        return torch.softmax((query * self.key_width**-0.5) @ key.transpose(-1, -2) + bias, dim=-1)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        others: torch.Tensor | PackedPositions,
    ) -> torch.Tensor:
        """Return the attention of x on the source.

        Shapes: [B,T,D], with the source's keys and values as `memory` and the bias of the scores as `others`; or packed
        [N,D], with the encoded source [M,D] as `memory`.
        """
        query = self.query(x)
        if isinstance(others, PackedPositions):
            return self.attend_packed(query, self.key_value(memory), others)
        (query,), (key, value) = self.split(query, 1), memory
        return self.attend(query, key, value, others)
