"""Baseline `marian`: Hugging Face transformers' MarianMTModel of a recipe's size, built offline from a configuration.

It holds the recipe's weights: its table of position vectors, which is not trained, can hold learned positions or
sinusoids (its own have all sines before all cosines); its output bias, `final_logits_bias`, is not trained either. So
it translates like the recipe's model, and trains everything but these vectors.

Departures in beam search: `generate` ranks finished hypotheses by log P(Y) / |Y| ** LENGTH_PENALTY and gives their
slots to others, so it may find other translations. Greedy search has one right answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from impls.baselines.baseline_weights import (
    TUTORIAL,
    Rules,
    admit,
    check_request,
    in_batches,
    position_vectors,
    renamed,
)
from impls.baselines.protocol import LENGTH_PENALTY
from impls.baselines.training_loop import PlainLoop, put
from impls.contract import EOS, PAD, SOS, Arrays, Batch, Ids, Recipe, Training, TransformerRecipe

IGNORED = -100
"""The label that the library's loss ignores."""
EPSILON = 1e-5
"""The epsilon of the library's norms, which its configuration cannot change."""

NAMES: Rules = (
    (r"^source\.embedding$", "model.encoder.embed_tokens.weight"),
    (r"^target\.embedding$", "model.decoder.embed_tokens.weight"),
    (r"^source\.positions$", "model.encoder.embed_positions.weight"),
    (r"^target\.positions$", "model.decoder.embed_positions.weight"),
    (r"^output\.kernel$", "lm_head.weight"),
    (r"^output\.bias$", "final_logits_bias"),
    (r"^(encoder|decoder)\.", r"model.\1.layers."),
    (r"\.self\.norm\.", ".self_attn_layer_norm."),
    (r"\.cross\.norm\.", ".encoder_attn_layer_norm."),
    (r"\.feed_forward\.norm\.", ".final_layer_norm."),
    (r"\.feed_forward\.inner\.", ".fc1."),
    (r"\.feed_forward\.outer\.", ".fc2."),
    (r"\.self\.", ".self_attn."),
    (r"\.cross\.", ".encoder_attn."),
    (r"_attn\.query\.", "_attn.q_proj."),
    (r"_attn\.key\.", "_attn.k_proj."),
    (r"_attn\.value\.", "_attn.v_proj."),
    (r"_attn\.output\.", "_attn.out_proj."),
    (r"\.(kernel|scale)$", ".weight"),
    (r"\.shift$", ".bias"),
)


class Marian(PlainLoop):
    """The library's model in the plain training loop, and its `generate`."""

    def __init__(self, recipe: TransformerRecipe, module: MarianMTModel, training: Training, device: str) -> None:
        super().__init__("marian", module, training, device)
        self.recipe = recipe
        self.model = module

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the library's own loss, the mean nats per target token."""
        labels = np.where(batch.target_out == PAD, IGNORED, batch.target_out)
        loss: torch.Tensor = self.model(
            input_ids=self.to_device(batch.source),
            attention_mask=self.to_device(batch.source != PAD),
            labels=self.to_device(labels),
        ).loss
        return loss

    def translate(
        self, sources: Sequence[Ids], *, beam: int, batch_size: int, max_tokens: int, suppressed: Sequence[int]
    ) -> list[list[int]]:
        """Return the translations of the library's `generate`, in batches and with a KV cache.

        Raises: ValueError if there are more positions than the recipe has.
        """
        check_request(self.name, self.recipe, sources, max_tokens)
        self.model.eval()
        settings = GenerationConfig(
            do_sample=False,
            num_beams=beam,
            max_new_tokens=max_tokens + 1,
            length_penalty=LENGTH_PENALTY if beam > 1 else 1.0,
            suppress_tokens=list(suppressed),
            use_cache=True,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=SOS,
        )
        translations: dict[int, list[int]] = {}
        with torch.inference_mode():
            for indices, source in in_batches(sources, batch_size):
                visible = self.to_device(source != PAD)
                ids = self.model.generate(self.to_device(source), attention_mask=visible, generation_config=settings)
                words = [_words(row, max_tokens) for row in ids.tolist()]
                translations.update(zip(indices, words, strict=True))
        return [translations[index] for index in range(len(sources))]


def _words(ids: list[int], max_tokens: int) -> list[int]:
    """Return the tokens between `<sos>` and `<eos>`, at most `max_tokens`."""
    words = ids[1:]
    return (words[: words.index(EOS)] if EOS in words else words)[:max_tokens]


def build(
    recipe: Recipe,
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    weights: Arrays,
    device: str = "cpu",
) -> Marian:
    """Build the baseline with the settings of `impls.registry.build_baseline`."""
    recipe = admit("marian", recipe, source_vocabulary_size, target_vocabulary_size, weights, TUTORIAL)
    if recipe.epsilon != EPSILON:
        raise ValueError(f"baseline 'marian' with norm_epsilon={recipe.epsilon}: the library has only {EPSILON}")
    with torch.random.fork_rng(devices=[]):
        module = MarianMTModel(_configuration(recipe, source_vocabulary_size, target_vocabulary_size))
    tables = {f"{side}.positions": position_vectors(recipe, weights, side) for side in ("source", "target")}
    arrays = renamed(weights | tables, NAMES)
    arrays["final_logits_bias"] = arrays["final_logits_bias"][None]
    put(module, arrays)
    return Marian(recipe, module, training, device)


def _configuration(recipe: TransformerRecipe, source_vocabulary_size: int, target_vocabulary_size: int) -> MarianConfig:
    return MarianConfig(
        vocab_size=source_vocabulary_size,
        decoder_vocab_size=target_vocabulary_size,
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
        max_position_embeddings=recipe.max_length,
        d_model=recipe.width,
        encoder_layers=recipe.layers,
        decoder_layers=recipe.layers,
        encoder_attention_heads=recipe.heads,
        decoder_attention_heads=recipe.heads,
        encoder_ffn_dim=recipe.ffn_width,
        decoder_ffn_dim=recipe.ffn_width,
        activation_function="relu",
        scale_embedding=recipe.embedding_scale == "sqrt_width",
        dropout=recipe.dropout,
        attention_dropout=recipe.attention_rate,
        activation_dropout=recipe.activation_rate,
        pad_token_id=PAD,
        bos_token_id=SOS,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=SOS,
    )
