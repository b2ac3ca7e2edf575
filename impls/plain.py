"""Variant `plain`: the Transformer as tutorials write it, the control of `learned_positions`.

    attention = softmax(query @ key.T / sqrt(K)) @ value, each projection an nn.Linear of its own

Separate products for query, key and value; boolean masks; a separate module for each dropout; features of all positions
including padding; translation runs the decoder again over the whole prefix. It is neither slowed on purpose nor
optimised. The same module is the baseline `plain` of speed ratios.

Source: bentrevett's pytorch-seq2seq tutorial, part 6; Vaswani et al. 2017, section 3.
Departures: biases start at 0, not uniform, as in `learned_positions`.
What to expect: without dropout the losses and logits of `learned_positions` from the same weights and batches; in
training, results differ only by the dropped units and by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from impls.contract import PAD, TransformerRecipe
from impls.field_checks import check_length
from impls.pytorch.kv_cache import RowTensors
from impls.recipes import PLAIN, TRAININGS

RECIPE = PLAIN
TRAINING = TRAININGS["plain"]


class Embedding(nn.Module):
    """Token embeddings, scaled if the recipe says so, plus positions. Shapes: [B,T] to [B,T,D]."""

    def __init__(self, recipe: TransformerRecipe, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, recipe.width)
        self.positions = nn.Embedding(recipe.max_length, recipe.width)
        self.positions.weight.requires_grad_(recipe.positions == "learned")
        self.dropout = nn.Dropout(recipe.dropout)
        self.scale = recipe.embedding_factor

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embedded tokens. Raises: ValueError for more positions than the recipe has."""
        check_length(ids.shape[1], self.positions.num_embeddings)
        indices = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        return self.dropout(self.embedding(ids) * self.scale + self.positions(indices))


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention in several heads. Shapes: x [B,T,D], memory [B,S,D], visible [B,1,T or 1,S]."""

    def __init__(self, recipe: TransformerRecipe) -> None:
        super().__init__()
        self.heads, self.key_width = recipe.heads, recipe.key_width
        self.query = nn.Linear(recipe.width, recipe.width)
        self.key = nn.Linear(recipe.width, recipe.width)
        self.value = nn.Linear(recipe.width, recipe.width)
        self.output = nn.Linear(recipe.width, recipe.width)
        self.dropout = nn.Dropout(recipe.attention_rate)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, visible: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention of x on the visible positions of memory, and its weights, [B,H,T,S]."""
        query, key, value = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.key_width)
        weights = torch.softmax(scores.masked_fill(~visible, -1e10), dim=-1)
        context = self.dropout(weights) @ value
        return self.output(context.transpose(1, 2).flatten(2)), weights

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Split the heads. Shapes: [B,T,D] to [B,H,T,K]."""
        return x.unflatten(-1, (self.heads, self.key_width)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear maps at each position with a ReLU between."""

    def __init__(self, recipe: TransformerRecipe) -> None:
        super().__init__()
        self.inner = nn.Linear(recipe.width, recipe.ffn_width)
        self.outer = nn.Linear(recipe.ffn_width, recipe.width)
        self.dropout = nn.Dropout(recipe.activation_rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the feed-forward of each position."""
        return self.outer(self.dropout(torch.relu(self.inner(x))))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its residual sum and norm."""

    def __init__(self, recipe: TransformerRecipe) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(recipe)
        self.self_norm = nn.LayerNorm(recipe.width, eps=recipe.epsilon)
        self.feed_forward = FeedForward(recipe)
        self.feed_forward_norm = nn.LayerNorm(recipe.width, eps=recipe.epsilon)
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Return x after the layer."""
        attended, _ = self.self_attention(x, x, visible)
        x = self.self_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DecoderLayer(nn.Module):
    """Self-attention, attention on the source, and feed-forward, each with its residual sum and norm."""

    def __init__(self, recipe: TransformerRecipe) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(recipe)
        self.self_norm = nn.LayerNorm(recipe.width, eps=recipe.epsilon)
        self.cross_attention = MultiHeadAttention(recipe)
        self.cross_norm = nn.LayerNorm(recipe.width, eps=recipe.epsilon)
        self.feed_forward = FeedForward(recipe)
        self.feed_forward_norm = nn.LayerNorm(recipe.width, eps=recipe.epsilon)
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, visible: torch.Tensor, memory_visible: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x after the layer, and its attention weights on the source, [B,H,T,S]."""
        attended, _ = self.self_attention(x, x, visible)
        x = self.self_norm(x + self.dropout(attended))
        attended, weights = self.cross_attention(x, memory, memory_visible)
        x = self.cross_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x))), weights


class PlainTransformer(nn.Module):
    """Encoder, decoder and output projection."""

    def __init__(self, recipe: TransformerRecipe, source_vocabulary_size: int, target_vocabulary_size: int) -> None:
        super().__init__()
        self.source = Embedding(recipe, source_vocabulary_size)
        self.target = Embedding(recipe, target_vocabulary_size)
        self.encoder = nn.ModuleList(EncoderLayer(recipe) for _ in range(recipe.layers))
        self.decoder = nn.ModuleList(DecoderLayer(recipe) for _ in range(recipe.layers))
        self.output = nn.Linear(recipe.width, target_vocabulary_size)

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoded source [B,S,D] and its visible positions, [B,1,1,S]."""
        visible = (source != PAD)[:, None, None, :]
        x = self.source(source)
        for layer in self.encoder:
            x = layer(x, visible)
        return x, visible

    def decode(
        self, target_in: torch.Tensor, memory: torch.Tensor, memory_visible: torch.Tensor
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Return the features of all positions, [B,T,D], and each layer's attention on the source, [B,H,T,S]."""
        length = target_in.shape[1]
        causal = torch.tril(torch.ones((length, length), dtype=torch.bool, device=target_in.device))
        visible = (target_in != PAD)[:, None, None, :] & causal
        x, attention = self.target(target_in), []
        for layer in self.decoder:
            x, weights = layer(x, memory, visible, memory_visible)
            attention.append(weights)
        return x, attention

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the features that `output` turns into logits. Shapes: [B,S], [B,T] to [B,T,D]."""
        features, _ = self.decode(target_in, *self.encode(source))
        return features

    def cross_attention(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the attention weights of target on source positions. Shapes: [B,layers,H,T,S]."""
        _, attention = self.decode(target_in, *self.encode(source))
        return torch.stack(list(attention), dim=1)

    def prefill(self, source: torch.Tensor) -> RowTensors:
        """Encode the source [B,S] and return the state before the first target token, which has no cache.

        Shapes: memory [R,S,D], visible [R,1,1,S], and the tokens so far, [R,t].
        """
        memory, visible = self.encode(source)
        return RowTensors(memory=memory, visible=visible, tokens=source[:, :0])

    def step(self, state: RowTensors, last: torch.Tensor) -> torch.Tensor:
        """Add the newest tokens [R] and return the features of the next tokens' logits, [R,D]."""
        state["tokens"] = torch.cat([state["tokens"], last[:, None]], dim=1)
        features, _ = self.decode(state["tokens"], state["memory"], state["visible"])
        return features[:, -1]
