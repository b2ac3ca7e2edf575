"""Baseline `nn_transformer`: torch.nn.Transformer between embeddings and a projection, in the plain training loop.

What its users write: the library's class with `batch_first`, its masks, and greedy decoding of a whole batch that
runs every prefix through the decoder again, since the class keeps no keys and values. By itself it ends encoder and
decoder with a norm that the paper and the tutorials do not have, so both are given without. Nested tensors, a
prototype that warns when used, are off.

What to expect: without dropout the losses of `plain` from the same weights, and the same translations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from impls.baselines.baseline_weights import TUTORIAL, Rules, admit, before_end, renamed
from impls.baselines.training_loop import PlainLoop, put
from impls.contract import EOS, PAD, SOS, Arrays, Ids, Recipe, Training, TransformerRecipe

NAMES: Rules = (
    (r"^(source|target)\.(embedding|positions)$", r"\1_\2.weight"),
    (r"^(encoder|decoder)\.", r"transformer.\1.layers."),
    (r"\.self\.norm\.", ".norm1."),
    (r"\.cross\.norm\.", ".norm2."),
    (r"(encoder\..*)\.feed_forward\.norm\.", r"\1.norm2."),
    (r"(decoder\..*)\.feed_forward\.norm\.", r"\1.norm3."),
    (r"\.feed_forward\.inner\.", ".linear1."),
    (r"\.feed_forward\.outer\.", ".linear2."),
    (r"\.self\.", ".self_attn."),
    (r"\.cross\.", ".multihead_attn."),
    (r"_attn\.output\.", "_attn.out_proj."),
    (r"\.(kernel|scale)$", ".weight"),
    (r"\.shift$", ".bias"),
)


class LibraryTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, positions and an output projection."""

    def __init__(self, recipe: TransformerRecipe, source_vocabulary_size: int, target_vocabulary_size: int) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(source_vocabulary_size, recipe.width)
        self.target_embedding = nn.Embedding(target_vocabulary_size, recipe.width)
        self.source_positions = nn.Embedding(recipe.max_length, recipe.width)
        self.target_positions = nn.Embedding(recipe.max_length, recipe.width)
        for positions in (self.source_positions, self.target_positions):
            positions.weight.requires_grad_(recipe.positions == "learned")
        layer: dict[str, Any] = {"layer_norm_eps": recipe.epsilon, "batch_first": True}
        settings = (recipe.width, recipe.heads, recipe.ffn_width, recipe.dropout)
        self.transformer = nn.Transformer(
            recipe.width,
            recipe.heads,
            custom_encoder=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(*settings, **layer), recipe.layers, enable_nested_tensor=False
            ),
            custom_decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(*settings, **layer), recipe.layers),
            batch_first=True,
        )
        # torch's layers take one rate for all three places.
        for part in self.transformer.modules():
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = recipe.attention_rate
            elif isinstance(part, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                part.dropout.p = recipe.activation_rate
        self.output = nn.Linear(recipe.width, target_vocabulary_size)
        self.dropout = nn.Dropout(recipe.dropout)
        self.scale = recipe.embedding_factor

    def embed(self, words: nn.Embedding, positions: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        """Return token embeddings plus positions. Shapes: [B,T] to [B,T,D]."""
        indices = torch.arange(ids.shape[1], device=ids.device)
        return self.dropout(words(ids) * self.scale + positions(indices))

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoded source [B,S,D] and its masked positions, [B,S]."""
        hidden = source == PAD
        x = self.embed(self.source_embedding, self.source_positions, source)
        return self.transformer.encoder(x, src_key_padding_mask=hidden), hidden

    def decode(self, target_in: torch.Tensor, memory: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the features that `output` turns into logits, [B,T,D]."""
        x = self.embed(self.target_embedding, self.target_positions, target_in)
        causal = self.causal(target_in)
        return self.transformer.decoder(x, memory, tgt_mask=causal, memory_key_padding_mask=hidden, tgt_is_causal=True)

    def causal(self, target_in: torch.Tensor) -> torch.Tensor:
        """Return the causal mask, true where hidden, [T,T]."""
        return nn.Transformer.generate_square_subsequent_mask(
            target_in.shape[1], device=target_in.device, dtype=torch.bool
        )

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the logits of all positions. Shapes: [B,S], [B,T] to [B,T,V]."""
        hidden = source == PAD
        features = self.transformer(
            self.embed(self.source_embedding, self.source_positions, source),
            self.embed(self.target_embedding, self.target_positions, target_in),
            tgt_mask=self.causal(target_in),
            src_key_padding_mask=hidden,
            tgt_key_padding_mask=target_in == PAD,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return self.output(features)


class NnTransformer(PlainLoop):
    """The library's class in the plain training loop."""

    name = "nn_transformer"

    def translate(
        self, sources: Sequence[Ids], *, beam: int, batch_size: int, max_tokens: int, suppressed: Sequence[int]
    ) -> list[list[int]]:
        """Return the greedy translations, in batches.

        Raises: ValueError for any beam but 1, or more positions than the recipe has.
        """
        if beam != 1:
            raise ValueError(f"baseline 'nn_transformer' with beam={beam}: the library has no beam search, use beam=1")

        def greedy(source: Ids) -> list[list[int]]:
            return self._greedy(self.to_device(source), max_tokens, suppressed)

        return self.translate_batches(sources, greedy, batch_size=batch_size, max_tokens=max_tokens)

    def _greedy(self, source: torch.Tensor, max_tokens: int, suppressed: Sequence[int]) -> list[list[int]]:
        memory, hidden = self.module.encode(source)
        words = torch.full((len(source), 1), SOS, device=self.device)
        ended = torch.zeros(len(source), dtype=torch.bool, device=self.device)
        for _ in range(max_tokens):
            logits = self.module.output(self.module.decode(words, memory, hidden)[:, -1])
            logits[:, list(suppressed)] = -torch.inf
            newest = logits.argmax(dim=-1)
            words = torch.cat([words, newest[:, None]], dim=1)
            ended |= newest == EOS
            if ended.all():
                break
        return [before_end(row) for row in words[:, 1:].tolist()]


def build(
    recipe: Recipe,
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    weights: Arrays,
    device: str = "cpu",
) -> NnTransformer:
    """Build the baseline with the settings of `impls.registry.build_baseline`."""
    recipe = admit(
        "baseline 'nn_transformer'", recipe, (source_vocabulary_size, target_vocabulary_size), weights, TUTORIAL
    )
    with torch.random.fork_rng(devices=[]):
        module = LibraryTransformer(recipe, source_vocabulary_size, target_vocabulary_size)
    put(module, _packed(renamed(recipe, weights, NAMES)))
    return NnTransformer(recipe, module, training, device)


def _packed(arrays: Arrays) -> Arrays:
    """Return the arrays with queries, keys and values concatenated, as in torch's attention."""
    packed: Arrays = {}
    for name, array in arrays.items():
        attention, _, part = name.partition("_attn.query.")
        if part:
            rows = [arrays[f"{attention}_attn.{third}.{part}"] for third in ("query", "key", "value")]
            packed[f"{attention}_attn.in_proj_{part}"] = np.concatenate(rows)
        elif "_attn.key." not in name and "_attn.value." not in name:
            packed[name] = array
    return packed
