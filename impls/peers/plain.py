"""Peer `plain`: the Transformer as tutorials teach it, the baseline of every ratio of speed.

Separate products for query, key and value; boolean masks; a dropout module wherever units are dropped; logits of all
positions, padding included; translation one sentence at a time, the whole decoder run again for each word. Nothing is
slowed on purpose, and nothing is done that such code does not do.

Source: Vaswani et al. 2017, section 3, with the choices that the tutorials share: post-norm, ReLU, an output
projection of its own.
What to expect: without dropout the losses of `impls.build` from the same weights, and the same translations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from impls.contract import PAD, Arrays, Ids, Recipe, Training, TransformerRecipe
from impls.peers.canonical import TUTORIAL, Rules, admit, check_request, position_vectors, renamed
from impls.peers.loop import PlainLoop, put
from impls.peers.one_by_one import search

NAMES: Rules = (
    (r"^(source|target)\.embedding$", r"\1.words.weight"),
    (r"^(source|target)\.positions$", r"\1.positions.weight"),
    (r"\.(self|cross|feed_forward)\.norm\.", r".\1_norm."),
    (r"\.(self|cross)\.", r".\1_attention."),
    (r"\.(kernel|scale)$", ".weight"),
    (r"\.shift$", ".bias"),
)


class Embedding(nn.Module):
    """Words, scaled if the recipe says so, plus positions. Shapes: [B,T] to [B,T,D]."""

    def __init__(self, recipe: TransformerRecipe, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, recipe.width)
        self.positions = nn.Embedding(recipe.max_length, recipe.width)
        self.positions.weight.requires_grad_(recipe.positions == "learned")
        self.dropout = nn.Dropout(recipe.dropout)
        self.scale = math.sqrt(recipe.width) if recipe.embedding_scale == "sqrt_width" else 1.0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embedded words."""
        places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        return self.dropout(self.words(ids) * self.scale + self.positions(places))


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

    def forward(self, x: torch.Tensor, memory: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Return the attention of x on the visible positions of memory."""
        query, key, value = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.key_width)
        weights = torch.softmax(scores.masked_fill(~visible, -1e10), dim=-1)
        mixed = self.dropout(weights) @ value
        return self.output(mixed.transpose(1, 2).flatten(2))

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
        x = self.self_norm(x + self.dropout(self.self_attention(x, x, visible)))
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
    ) -> torch.Tensor:
        """Return x after the layer."""
        x = self.self_norm(x + self.dropout(self.self_attention(x, x, visible)))
        x = self.cross_norm(x + self.dropout(self.cross_attention(x, memory, memory_visible)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class PlainTransformer(nn.Module):
    """Encoder, decoder and output projection."""

    def __init__(self, recipe: TransformerRecipe, source_words: int, target_words: int) -> None:
        super().__init__()
        self.source = Embedding(recipe, source_words)
        self.target = Embedding(recipe, target_words)
        self.encoder = nn.ModuleList(EncoderLayer(recipe) for _ in range(recipe.layers))
        self.decoder = nn.ModuleList(DecoderLayer(recipe) for _ in range(recipe.layers))
        self.output = nn.Linear(recipe.width, target_words)

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoded source [B,S,D] and which of its positions are visible, [B,1,1,S]."""
        visible = (source != PAD)[:, None, None, :]
        x = self.source(source)
        for layer in self.encoder:
            x = layer(x, visible)
        return x, visible

    def decode(self, target_in: torch.Tensor, memory: torch.Tensor, memory_visible: torch.Tensor) -> torch.Tensor:
        """Return the logits of all positions, [B,T,V]."""
        length = target_in.shape[1]
        causal = torch.tril(torch.ones((length, length), dtype=torch.bool, device=target_in.device))
        visible = (target_in != PAD)[:, None, None, :] & causal
        x = self.target(target_in)
        for layer in self.decoder:
            x = layer(x, memory, visible, memory_visible)
        return self.output(x)

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the logits of all positions. Shapes: [B,S], [B,T] to [B,T,V]."""
        return self.decode(target_in, *self.encode(source))


class Plain(PlainLoop):
    """The plain Transformer in the plain loop."""

    def __init__(self, recipe: TransformerRecipe, module: PlainTransformer, training: Training, device: str) -> None:
        super().__init__("plain", module, training, device)
        self.recipe = recipe
        self.model = module

    def translate(self, sources: Sequence[Ids], *, beam: int, batch_size: int, max_tokens: int) -> list[list[int]]:
        """Return the translations, each found for itself: no matter what `batch_size` is, a batch is one sentence.

        Raises: ValueError where there are more positions than the recipe has.
        """
        check_request(self.name, self.recipe, sources, max_tokens)
        self.model.eval()
        with torch.no_grad():
            return [self._translate(source, beam, max_tokens) for source in sources]

    def _translate(self, source: Ids, beam: int, max_tokens: int) -> list[int]:
        memory, visible = self.model.encode(self.place(source[None]))

        def following(prefixes: list[list[int]]) -> torch.Tensor:
            rows = len(prefixes)
            target_in = torch.tensor(prefixes, device=self.device)
            logits = self.model.decode(target_in, memory.expand(rows, -1, -1), visible.expand(rows, -1, -1, -1))
            return logits[:, -1]

        return search(following, beam=beam, max_tokens=max_tokens)


def build(
    recipe: Recipe,
    source_words: int,
    target_words: int,
    *,
    training: Training,
    weights: Arrays,
    device: str = "cpu",
) -> Plain:
    """Build the peer; the settings are those of `impls.peers.registry.build`."""
    recipe = admit("plain", recipe, source_words, target_words, weights, TUTORIAL)
    with torch.random.fork_rng(devices=[]):
        module = PlainTransformer(recipe, source_words, target_words)
    tables = {f"{side}.positions": position_vectors(recipe, weights, side) for side in ("source", "target")}
    put(module, renamed(weights | tables, NAMES))
    return Plain(recipe, module, training, device)
