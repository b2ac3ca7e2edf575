"""The torch Transformer that all recipes share: embedding, layers, masks, incremental decoding.

Source: Vaswani et al. 2017, section 3. Parts that are specific to a variant are in the variant's file. Shapes use the
repository's letters: B sentences, S source positions, T target positions, V vocabulary size, D width, H heads, K head
width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, relu, silu

from impls.contract import PAD, TransformerRecipe
from impls.conv_ffn import ConvFeedForward
from impls.field_checks import check_length
from impls.learned_positions import LearnedPositions
from impls.paper import TiedOutput
from impls.pytorch.attention import CrossAttention, PackedPositions, SelfAttention, linear_biases
from impls.pytorch.dropout import Dropout, Dropouts
from impls.pytorch.kv_cache import GrowingLayerCache, LayerCache, Rows, SourceMemory
from impls.pytorch.packed_linear import PackedLinear
from impls.pytorch.torch_packing import Group, Packing
from impls.sinusoidal_handmade import HandmadeLayerNorm, Sinusoids

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    "silu": silu,
    "tanh": torch.tanh,
}
MASKED_SCORE = -1e9
"""Added to the score of a masked key: its weight is exactly 0, and a row without a visible key stays finite."""


class NoPositions(nn.Module):
    """The identity, for recipes whose positions act inside attention or not at all."""

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return x."""
        return x


class Embedder(nn.Module):
    """Token embedding, scaled if the recipe says so, plus positions, then dropout.

    Shapes: tokens [B,T] and positions [T], to [B,T,D]; or packed, tokens [N] and positions [N], to [N,D].
    """

    def __init__(self, recipe: TransformerRecipe, embedding: nn.Embedding, dropout: Dropout) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions: nn.Module = NoPositions()
        if recipe.positions == "learned":
            self.positions = LearnedPositions(recipe.max_length, recipe.width)
        elif recipe.positions == "sinusoidal":
            self.positions = Sinusoids(recipe.max_length, recipe.width)
        self.scale = recipe.embedding_factor
        self.dropout = dropout

    def forward(self, words: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Embed tokens at these positions."""
        return self.dropout(self.positions(self.embedding(words) * self.scale, positions))


class DecoderCache:
    """State of incremental decoding: A encoded sources, and R rows that translate them.

    Attributes:
        sources: The bias that masks padding, [A,1,1,S], then the keys, [A,H,K,S], and values, [A,H,S,K], of each
            layer's attention on the source. Keys are transposed, so that products with them need no copy.
        layers: Each layer's cache of self-attention.
    """

    def __init__(self, sources: SourceMemory, layers: Sequence[LayerCache]) -> None:
        self.sources = sources
        self.layers = layers

    def memory(self, layer: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return one layer's keys and values of the sources, [A,H,S,K] each, and the bias of padding, [A,1,1,S]."""
        bias, *keys_and_values = self.sources.tensors
        return (keys_and_values[2 * layer].transpose(-1, -2), keys_and_values[2 * layer + 1]), bias

    def reorder(self, rows: Rows) -> None:
        """Keep, drop, repeat or reorder rows. Shapes: [R]."""
        self.sources.reorder(rows)
        chosen = torch.from_numpy(rows).to(self.sources.tensors[0].device)
        for layer in self.layers:
            layer.reorder(chosen)


class FeedForward(nn.Module):
    """The same two linear maps at each position. Shapes: [B,T,D] to [B,T,D].

    Gated: outer(activation(gate x) * inner x), Shazeer 2020 (GLU Variants Improve Transformer).
    """

    def __init__(self, recipe: TransformerRecipe, dropout: nn.Module) -> None:
        super().__init__()
        self.inner = PackedLinear(recipe.width, recipe.ffn_width)
        if recipe.ffn == "gated":
            self.gate = PackedLinear(recipe.width, recipe.ffn_width)
        self.outer = PackedLinear(recipe.ffn_width, recipe.width)
        self.gated = recipe.ffn == "gated"
        self.activation = ACTIVATIONS[recipe.activation]
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the feed-forward of each position."""
        hidden = self.activation(self.gate(x)) * self.inner(x) if self.gated else self.activation(self.inner(x))
        return self.outer(self.dropout(hidden))


def feed_forward(recipe: TransformerRecipe, dropout: nn.Module) -> nn.Module:
    """Return the feed-forward that the recipe names."""
    if recipe.ffn == "conv1d":
        return ConvFeedForward(recipe.width, recipe.ffn_width, ACTIVATIONS[recipe.activation], dropout)
    return FeedForward(recipe, dropout)


def norm(recipe: TransformerRecipe) -> nn.Module:
    """Return the norm that the recipe names."""
    if recipe.norm == "layernorm":
        return nn.LayerNorm(recipe.width, eps=recipe.epsilon)
    if recipe.norm == "handmade":
        return HandmadeLayerNorm(recipe.width, recipe.epsilon)
    if recipe.norm == "rms":
        return nn.RMSNorm(recipe.width, eps=recipe.epsilon)
    return nn.Identity()


class Residual(nn.Module):
    """A sublayer with its residual sum: post-norm as in the paper, or pre-norm (Xiong et al. 2020)."""

    def __init__(self, recipe: TransformerRecipe, sublayer: nn.Module, dropout: Dropout) -> None:
        super().__init__()
        self.sublayer = sublayer
        self.norm = norm(recipe)
        self.pre = recipe.norm_order == "pre"
        self.dropout = dropout

    def before(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sublayer's input."""
        return self.norm(x) if self.pre else x

    def forward(self, x: torch.Tensor, *others: object) -> torch.Tensor:
        """Return x after the sublayer, which also gets `others`. Shapes: [B,T,D]."""
        x = self.dropout(self.sublayer(self.before(x), *others), onto=x)
        return x if self.pre else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, recipe: TransformerRecipe, dropout: Dropouts) -> None:
        super().__init__()
        self.self_attention = Residual(recipe, SelfAttention(recipe, dropout.attention), dropout.units)
        self.feed_forward = Residual(recipe, feed_forward(recipe, dropout.activation), dropout.units)


class DecoderLayer(EncoderLayer):
    """Self-attention, attention on the source, and feed-forward."""

    def __init__(self, recipe: TransformerRecipe, dropout: Dropouts) -> None:
        super().__init__(recipe, dropout)
        self.cross_attention = Residual(recipe, CrossAttention(recipe, dropout.attention), dropout.units)


class Stack(nn.Module):
    """The layers of one side, and the final norm of pre-norm recipes."""

    def __init__(self, recipe: TransformerRecipe, layer: type[EncoderLayer], dropout: Dropouts) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(recipe, dropout) for _ in range(recipe.layers))
        self.norm = norm(recipe) if recipe.norm_order == "pre" else nn.Identity()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the layers."""
        return iter(self.layers)


class Transformer(nn.Module):
    """Any `TransformerRecipe`. `dropout` holds the dropout modules that all layers share."""

    def __init__(
        self, recipe: TransformerRecipe, source_vocabulary_size: int, target_vocabulary_size: int, *, dropout: Dropouts
    ) -> None:
        super().__init__()
        target_embedding = nn.Embedding(target_vocabulary_size, recipe.width)
        source_embedding = (
            target_embedding if recipe.tying == "all" else nn.Embedding(source_vocabulary_size, recipe.width)
        )
        self.target = Embedder(recipe, target_embedding, dropout.units)
        self.source = Embedder(recipe, source_embedding, dropout.units)
        self.encoder = Stack(recipe, EncoderLayer, dropout)
        self.decoder = Stack(recipe, DecoderLayer, dropout)
        self.output = (
            PackedLinear(recipe.width, target_vocabulary_size)
            if recipe.tying == "none"
            else TiedOutput(target_embedding)
        )
        self.heads = recipe.heads
        self.alibi_heads = recipe.heads if recipe.positions == "alibi" else 0
        self.max_length = recipe.max_length

    def _self_bias(self, queries: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Return the bias of self-attention's scores at these positions. Shapes: [.,.,T,S]."""
        bias = torch.where(visible, 0.0, MASKED_SCORE)
        return bias + linear_biases(self.alibi_heads, queries, keys) if self.alibi_heads else bias

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoded source [B,S,D], and the bias [B,1,1,S] that masks its padding."""
        check_length(source.shape[1], self.max_length)
        visible = (source != PAD)[:, None, None, :]
        positions = torch.arange(source.shape[1], device=source.device)
        bias = self._self_bias(positions, positions, visible)
        x = self.source(source, positions)
        for layer in self.encoder:
            x = layer.feed_forward(layer.self_attention(x, bias))
        return self.encoder.norm(x), torch.where(visible, 0.0, MASKED_SCORE)

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the features that `output` turns into logits. Shapes: [B,S], [B,T] to [B,T,D]."""
        return self._decode(source, target_in)

    def packed(self, batch: Packing) -> torch.Tensor:
        """Return the features of the packed rows of the target. Shapes: to [N,D]."""
        attending = self._packed_positions(batch.source_groups, batch.source.positions)
        x = self.source(batch.source.tokens, batch.source.positions)
        for layer in self.encoder:
            x = layer.feed_forward(layer.self_attention(x, attending))
        memory = self.encoder.norm(x)
        attending = self._packed_positions(batch.target_groups, batch.target.positions)
        cross_biases = [torch.where(group.visible, 0.0, MASKED_SCORE) for group in batch.cross_groups]
        cross = PackedPositions(batch.cross_groups, cross_biases, batch.target.positions)
        x = self.target(batch.target.tokens, batch.target.positions)
        for layer in self.decoder:
            x = layer.feed_forward(layer.cross_attention(layer.self_attention(x, attending), memory, cross))
        return self.decoder.norm(x)

    def _packed_positions(self, groups: Sequence[Group], positions: torch.Tensor) -> PackedPositions:
        """Return the arguments of self-attention on packed rows."""
        biases = []
        for group in groups:
            padded = torch.arange(group.shape[3], device=positions.device)
            biases.append(self._self_bias(padded, padded, group.visible))
        return PackedPositions(groups, biases, positions)

    def cross_attention(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the attention weights of target on source positions. Shapes: [B,layers,H,T,S]."""
        attention_maps: list[torch.Tensor] = []
        self._decode(source, target_in, attention_maps)
        return torch.stack(attention_maps, dim=1)

    def _decode(
        self, source: torch.Tensor, target_in: torch.Tensor, attention_maps: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Run the decoder; append each layer's attention weights on the source to `attention_maps` if it is a list."""
        check_length(target_in.shape[1], self.max_length)
        memory, memory_bias = self.encode(source)
        positions = torch.arange(target_in.shape[1], device=source.device)
        # Padding is on the right, so the causal mask already hides it from all real positions.
        bias = self._self_bias(positions, positions, positions[:, None] >= positions[None, :])
        x = self.target(target_in, positions)
        for layer in self.decoder:
            x = layer.self_attention(x, bias)
            key, value = layer.cross_attention.sublayer.project_memory(memory)
            if attention_maps is not None:
                attention_maps.append(
                    layer.cross_attention.sublayer.attention_weights(layer.cross_attention.before(x), key, memory_bias)
                )
            x = layer.feed_forward(layer.cross_attention(x, (key, value), memory_bias))
        return self.decoder.norm(x)

    def prefill(self, source: torch.Tensor) -> DecoderCache:
        """Encode the source [B,S] and return the state before the first target token."""
        memory, bias = self.encode(source)
        pairs = [layer.cross_attention.sublayer.project_memory(memory) for layer in self.decoder]
        keys_and_values = [
            tensor for key, value in pairs for tensor in (key.transpose(-1, -2).contiguous(), value.contiguous())
        ]
        return DecoderCache(SourceMemory(bias, *keys_and_values), [GrowingLayerCache() for _ in pairs])

    def step(self, state: DecoderCache, last: torch.Tensor) -> torch.Tensor:
        """Feed the newest tokens [R] and return the features of the next tokens' logits, [R,D]."""
        first = state.layers[0].length
        if isinstance(first, int):  # do not wait for a tensor on a device
            check_length(first + 1, self.max_length)
        keys = torch.arange(state.layers[0].capacity, device=last.device)
        x = self.target(last[:, None], keys[:1] + first)
        bias = self._self_bias(keys[:1] + first, keys, keys <= first)
        for index, layer in enumerate(self.decoder):
            x = layer.self_attention(x, bias, state.layers[index])
            # Rows of one source attend to it together, as if they were positions of one sentence.
            together = x.view(len(state.sources), -1, x.shape[-1])
            together = layer.feed_forward(layer.cross_attention(together, *state.memory(index)))
            x = together.view_as(x)
        return self.decoder.norm(x)[:, 0]
