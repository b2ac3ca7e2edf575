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
import transformers
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from impls.baselines.baseline_weights import TUTORIAL, Rules, admit, before_end, renamed
from impls.baselines.protocol import LENGTH_PENALTY, Search
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

EXPRESSIBLE: dict[str, tuple[str, ...]] = {
    "positions": ("learned", "sinusoidal", "none"),
    "norm": ("layernorm", "handmade"),
    "norm_order": ("post",),
    "ffn": ("linear", "conv1d"),
}
"""The values that the architecture can hold; fields that are not listed support all values. Baselines, which are
trained too, are limited to those of the tutorials."""
TIED = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.shared.weight")
"""The matrices that are the target embedding with tied weights: the first with tying="output", all with "all"."""


class Marian(PlainLoop):
    """The library's model in the plain training loop, and its `generate`."""

    name = "marian"

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the library's own loss, the mean nats per target token."""
        labels = np.where(batch.target_out == PAD, IGNORED, batch.target_out)
        return self.module(
            input_ids=self.to_device(batch.source),
            attention_mask=self.to_device(batch.source != PAD),
            labels=self.to_device(labels),
        ).loss

    def translate(
        self, sources: Sequence[Ids], *, beam: int, batch_size: int, max_tokens: int, suppressed: Sequence[int]
    ) -> list[list[int]]:
        """Return the translations of the library's `generate`, in batches and with a KV cache.

        Raises: ValueError if there are more positions than the recipe has.
        """
        settings = _generation(Search(beam, max_tokens + 1, LENGTH_PENALTY, tuple(suppressed)))

        def generate(source: Ids) -> list[list[int]]:
            visible = self.to_device(source != PAD)
            ids = self.module.generate(self.to_device(source), attention_mask=visible, generation_config=settings)
            return [before_end(row[1:])[:max_tokens] for row in ids.tolist()]

        return self.translate_batches(sources, generate, batch_size=batch_size, max_tokens=max_tokens)


def _generation(search: Search) -> GenerationConfig:
    return GenerationConfig(
        do_sample=False,
        num_beams=search.beam,
        max_new_tokens=search.max_tokens,
        length_penalty=search.length_penalty if search.beam > 1 else 1.0,
        suppress_tokens=list(search.suppressed),
        use_cache=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=SOS,
    )


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
    recipe = admit("baseline 'marian'", recipe, (source_vocabulary_size, target_vocabulary_size), weights, TUTORIAL)
    return Marian(recipe, _module("baseline 'marian'", recipe, weights), training, device)


def export(
    recipe: Recipe, weights: Arrays, vocabularies: tuple[Sequence[str], Sequence[str]], folder: str, *, search: Search
) -> None:
    """Write a folder that `MarianMTModel.from_pretrained` loads; see `impls.registry.exporter`.

    The library's own classes leave position vectors out of the files and compute sinusoids instead. Here they are
    part of the weights, and loaded with them.
    """
    sizes = len(vocabularies[0]), len(vocabularies[1])
    recipe = admit("Marian", recipe, sizes, weights, EXPRESSIBLE)
    module = _module("Marian", recipe, weights)
    transformers.utils.logging.disable_progress_bar()
    module._keys_to_ignore_on_save = None
    module.generation_config = _generation(search)
    module.save_pretrained(folder)


def _module(library: str, recipe: TransformerRecipe, weights: Arrays) -> MarianMTModel:
    """Return the library's model with the weights of a recipe.

    Raises:
        ValueError: The recipe has another epsilon than the library. The message begins with `library`.
    """
    if recipe.epsilon != EPSILON:
        raise ValueError(f"{library} with norm_epsilon={recipe.epsilon}: the library has only {EPSILON}")
    source = "target" if recipe.tying == "all" else "source"
    sizes = len(weights[f"{source}.embedding"]), len(weights["target.embedding"])
    with torch.random.fork_rng(devices=[]):
        module = MarianMTModel(_configuration(recipe, *sizes))
    arrays = renamed(recipe, weights, NAMES)
    arrays["final_logits_bias"] = arrays["final_logits_bias"][None]
    shared = {"none": (), "output": TIED[:1], "all": TIED}[recipe.tying]
    put(module, arrays | dict.fromkeys(shared, weights["target.embedding"]))
    return module


def _configuration(recipe: TransformerRecipe, source_vocabulary_size: int, target_vocabulary_size: int) -> MarianConfig:
    return MarianConfig(
        vocab_size=source_vocabulary_size,
        decoder_vocab_size=target_vocabulary_size,
        share_encoder_decoder_embeddings=recipe.tying == "all",
        tie_word_embeddings=recipe.tying != "none",
        max_position_embeddings=recipe.max_length,
        d_model=recipe.width,
        encoder_layers=recipe.layers,
        decoder_layers=recipe.layers,
        encoder_attention_heads=recipe.heads,
        decoder_attention_heads=recipe.heads,
        encoder_ffn_dim=recipe.ffn_width,
        decoder_ffn_dim=recipe.ffn_width,
        activation_function=recipe.activation,
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
