"""Hugging Face's Marian as a variant, with a small configuration and random weights. Nothing is downloaded.

Check that it behaves as the benchmark expects, then train and compare it with a built-in variant:

    python -m pip install transformers
    python -m harness laws --fast --variant examples.hugging_face_marian:build
    python -m harness bench --variant examples.hugging_face_marian:build --variant learned_positions
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, MarianConfig, MarianMTModel

import impls
from impls.contract import EOS, PAD, SOS, Seq2SeqModel, Training

TRAINING = Training(peak_rate=1e-3, epochs=10)  # with --budget source, as `run` trains

Memory = tuple[Tensor, Tensor]  # the encoded source, [B,S,D], and where it is not padding, [B,S]
Layer = tuple[Tensor, Tensor]  # cached keys and values of a decoder layer, [B,H,t,D/H] each


class Marian(nn.Module):
    def __init__(self, source_vocabulary_size: int, target_vocabulary_size: int, width: int, dropout: float) -> None:
        super().__init__()
        self.max_length = 128
        config = MarianConfig(
            vocab_size=source_vocabulary_size,
            decoder_vocab_size=target_vocabulary_size,
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
            d_model=width,
            dropout=dropout,
            max_position_embeddings=self.max_length,
            scale_embedding=True,
            pad_token_id=PAD,
            bos_token_id=SOS,
            eos_token_id=EOS,
            decoder_start_token_id=SOS,
            attn_implementation="eager",  # the others do not return attention weights
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width,
        )
        self.marian = MarianMTModel(config)
        for side in (self.marian.model.encoder, self.marian.model.decoder):
            # Constants must be buffers: the harness trains and tests every parameter, and these sinusoids are fixed.
            sinusoids = side.embed_positions.weight.detach()
            del side.embed_positions.weight
            side.embed_positions.register_buffer("weight", sinusoids, persistent=False)

    def encode(self, source: Tensor) -> Memory:
        visible = source != PAD
        return self.marian.model.encoder(source, attention_mask=visible.long()).last_hidden_state, visible

    def decode(self, memory: Memory, target_in: Tensor) -> tuple[Tensor, Tensor]:
        logits, attention, _ = self.read(memory, target_in, None)
        return logits, attention

    def step(self, memory: Memory, state: tuple[Layer, ...] | None, last: Tensor) -> tuple[Tensor, tuple[Layer, ...]]:
        cache = EncoderDecoderCache(DynamicCache(state), DynamicCache())
        logits, _, cache = self.read(memory, last[:, None], cache)
        layers = cache.self_attention_cache.layers
        return logits[:, 0], tuple((layer.keys, layer.values) for layer in layers)

    def read(self, memory: Memory, tokens: Tensor, cache: Any) -> tuple[Tensor, Tensor, Any]:
        """Return logits [B,T,V], attention weights [B,layers,heads,T,S] and the keys and values of all tokens."""
        encoded, visible = memory
        result = self.marian.model.decoder(
            tokens,
            encoder_hidden_states=encoded,
            encoder_attention_mask=visible.long(),
            past_key_values=cache,
            use_cache=cache is not None,
            output_attentions=True,
        )
        logits = self.marian.lm_head(result.last_hidden_state) + self.marian.final_logits_bias
        attention = torch.stack(result.cross_attentions, dim=1)
        return logits, attention, result.past_key_values


def build(
    source_vocabulary_size: int, target_vocabulary_size: int, *, dropout: float | None = None, **settings: Any
) -> Seq2SeqModel:
    """Build the model. `settings` are training, seed, device and precision; the laws also set `dropout`."""
    rate = 0.1 if dropout is None else dropout
    sizes = source_vocabulary_size, target_vocabulary_size
    return impls.wrap(lambda: Marian(*sizes, width=128, dropout=rate), *sizes, **settings)
