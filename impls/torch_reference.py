"""Variant `torch_reference`: torch.nn's own Transformer layers.

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer)      decoder = nn.TransformerDecoder(...)

Source: torch.nn.Transformer, with the settings of `learned_positions`: post-norm, ReLU, learned positions, scaled
embeddings.
Departures: no final norm (nn.Transformer adds one that the paper does not have) and no nested tensors. torch's decoder
has no KV cache, so the incremental step is computed here from the layers' weights. torch's layers compute on padded
batches; on a CPU, a batch is split into groups of sentences of similar length, each padded to its own longest sentence.
The update is that of the whole batch.
What to expect: with equal weights the logits of `learned_positions` within 1e-5; speed and the dropped units differ.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import linear

from impls.contract import PAD, TorchReferenceRecipe
from impls.field_checks import check_length
from impls.pytorch.kv_cache import RowTensors
from impls.pytorch.packed_linear import PackedLinear
from impls.recipes import TORCH_REFERENCE, TRAININGS

RECIPE = TORCH_REFERENCE
TRAINING = TRAININGS["torch_reference"]


class TorchReference(nn.Module):
    """The library's encoder and decoder between embeddings and an output projection."""

    def __init__(self, recipe: TorchReferenceRecipe, source_vocabulary_size: int, target_vocabulary_size: int) -> None:
        super().__init__()
        settings = (recipe.width, recipe.heads, recipe.ffn_width, recipe.dropout)
        encoder_layer = nn.TransformerEncoderLayer(*settings, batch_first=True)
        decoder_layer = nn.TransformerDecoderLayer(*settings, batch_first=True)
        self.source_embedding = nn.Embedding(source_vocabulary_size, recipe.width)
        self.target_embedding = nn.Embedding(target_vocabulary_size, recipe.width)
        self.source_positions = nn.Embedding(recipe.max_length, recipe.width)
        self.target_positions = nn.Embedding(recipe.max_length, recipe.width)
        self.encoder = nn.TransformerEncoder(encoder_layer, recipe.layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder_layer, recipe.layers)
        self.output = PackedLinear(recipe.width, target_vocabulary_size)
        self.dropout = nn.Dropout(recipe.dropout)
        self.width, self.heads, self.max_length = recipe.width, recipe.heads, recipe.max_length

    def _embed(
        self, embedding: nn.Embedding, positions: nn.Embedding, ids: torch.Tensor, first: int = 0
    ) -> torch.Tensor:
        end = first + ids.shape[1]
        check_length(end, self.max_length)
        return self.dropout(embedding(ids) * math.sqrt(self.width) + positions.weight[first:end])

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoded source [B,S,D] and its masked positions, [B,S]."""
        hidden = source == PAD
        # torch's attention returns NaN if everything is masked; a real sentence begins with a visible <sos>.
        hidden[:, 0] = False
        x = self._embed(self.source_embedding, self.source_positions, source)
        return self.encoder(x, src_key_padding_mask=hidden), hidden

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the features that `output` turns into logits. Shapes: [B,S], [B,T] to [B,T,D]."""
        memory, hidden = self.encode(source)
        x = self._embed(self.target_embedding, self.target_positions, target_in)
        causal = nn.Transformer.generate_square_subsequent_mask(
            target_in.shape[1],
            device=x.device,
            dtype=torch.bool,
        )
        return self.decoder(x, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=hidden)

    def cross_attention(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the attention weights of target on source positions, step by step. Shapes: [B,layers,H,T,S]."""
        state = self.prefill(source)
        columns = []
        for t in range(target_in.shape[1]):
            attention_maps: list[torch.Tensor] = []
            self.step(state, target_in[:, t], attention_maps)
            columns.append(torch.stack(attention_maps, dim=1))
        return torch.cat(columns, dim=3)

    def prefill(self, source: torch.Tensor) -> RowTensors:
        """Encode the source [B,S] and return the state before the first target token."""
        memory, hidden = self.encode(source)
        state = RowTensors(hidden=hidden)
        for index, layer in enumerate(self.decoder.layers):
            attention = layer.multihead_attn
            kernel, bias = attention.in_proj_weight[self.width :], attention.in_proj_bias[self.width :]
            key, value = linear(memory, kernel, bias).chunk(2, dim=-1)
            state |= {f"cross.{index}.key": self._split(key), f"cross.{index}.value": self._split(value)}
        return state

    def step(
        self, state: RowTensors, last: torch.Tensor, attention_maps: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Feed the newest tokens [B] and return the features of the next tokens' logits, [B,D].

        If `attention_maps` is a list, each layer's attention weights on the source, [B,H,1,S], are appended to it.
        """
        first = state["self.0.key"].shape[2] if "self.0.key" in state else 0
        x = self._embed(self.target_embedding, self.target_positions, last[:, None], first)
        hidden = torch.where(state["hidden"], -torch.inf, 0.0)[:, None, None]
        for index, layer in enumerate(self.decoder.layers):
            self_attention, cross = layer.self_attn, layer.multihead_attn
            query, *newest = map(
                self._split, linear(x, self_attention.in_proj_weight, self_attention.in_proj_bias).chunk(3, dim=-1)
            )
            for name, new in zip((f"self.{index}.key", f"self.{index}.value"), newest, strict=True):
                state[name] = torch.cat([state[name], new], dim=2) if first else new
            mixed, _ = self._attend(query, state[f"self.{index}.key"], state[f"self.{index}.value"], 0.0)
            x = layer.norm1(x + self_attention.out_proj(mixed))
            query = self._split(linear(x, cross.in_proj_weight[: self.width], cross.in_proj_bias[: self.width]))
            mixed, weights = self._attend(query, state[f"cross.{index}.key"], state[f"cross.{index}.value"], hidden)
            if attention_maps is not None:
                attention_maps.append(weights)
            x = layer.norm2(x + cross.out_proj(mixed))
            x = layer.norm3(x + layer.linear2(layer.activation(layer.linear1(x))))
        return x[:, 0]

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """Split the heads. Shapes: [B,T,D] to [B,H,T,K]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias, dim=-1)
        return (weights @ value).transpose(1, 2).flatten(2), weights
