"""Baselines `ctranslate2`, `ctranslate2_bfloat16` and `ctranslate2_int8`: our weights, converted and decoded there.

The conversion uses the library's public specification of a Transformer. In float32 greedy search must give the same
tokens as `harness.evaluation.search.translate`; the other two round the weights, so some translations differ.

Departures in beam search: finished hypotheses are ranked by log P(Y) / |Y| ** LENGTH_PENALTY, counting `<eos>`, where
ours divides by ((5 + |Y|) / 6) ** LENGTH_PENALTY; an open hypothesis takes the slot of a finished one, where ours
leaves it; search ends with `beam` finished ones, where ours ends when no open one can win; probabilities are normalised
over the tokens that may be chosen, where ours are over the vocabulary. `CTranslate2.candidates` leaves the ranking to
its caller, so that the first of these departures does not apply.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import Activation, TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec

from impls.baselines.baseline_weights import admit, as_transformer, check_request, unavailable
from impls.baselines.protocol import LENGTH_PENALTY, Candidate, Search
from impls.contract import EOS, SOS, SPECIAL_TOKENS, UNK, Arrays, Ids, Recipe, Training, TransformerRecipe
from impls.weights import position_vectors

ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "silu": Activation.SWISH,
    "tanh": Activation.Tanh,
}
CONVERTIBLE: dict[str, tuple[str, ...]] = {
    "positions": ("learned", "sinusoidal", "rotary", "none"),
    "norm": ("layernorm", "handmade", "rms"),
}
"""The values that the library supports; fields that are not listed support all values."""


class CTranslate2:
    """A converted model in the library's translator."""

    def __init__(
        self,
        name: str,
        recipe: TransformerRecipe,
        vocabularies: tuple[Sequence[str], Sequence[str]],
        translator: ctranslate2.Translator,
    ) -> None:
        self.name, self.recipe, self.translator = name, recipe, translator
        self.source_vocabulary, self.target_vocabulary = vocabularies
        self.target_ids = {word: index for index, word in enumerate(self.target_vocabulary)}

    def translate(
        self, sources: Sequence[Ids], *, beam: int, batch_size: int, max_tokens: int, suppressed: Sequence[int]
    ) -> list[list[int]]:
        """Return the translations of the library's translator, which sorts and batches the sentences itself.

        Raises: ValueError if there are more positions than the recipe has.
        """
        search = Search(beam, max_tokens, LENGTH_PENALTY, tuple(suppressed))
        results = self._results(sources, search, batch_size)
        return [self._words(result.hypotheses[0], max_tokens) for result in results]

    def candidates(self, sources: Sequence[Ids], *, search: Search, batch_size: int) -> list[list[Candidate]]:
        """Return all `search.beam` hypotheses of each sentence, for a ranking of one's own.

        Raises: ValueError if there are more positions than the recipe has.
        """
        results = self._results(sources, search, batch_size, num_hypotheses=search.beam, return_scores=True)
        return [
            [
                Candidate(
                    tuple(self._words(words, search.max_tokens)),
                    score * len(words) ** search.length_penalty,
                    words[-1:] == [SPECIAL_TOKENS[EOS]],
                )
                for words, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _results(self, sources: Sequence[Ids], search: Search, batch_size: int, **options: Any) -> list[Any]:
        check_request(self.name, self.recipe, sources, search.max_tokens)
        results: list[Any] = self.translator.translate_batch(
            [[self.source_vocabulary[word] for word in source] for source in sources],
            max_batch_size=batch_size,
            beam_size=search.beam,
            length_penalty=search.length_penalty,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=search.max_tokens + 1,
            suppress_sequences=[[self.target_vocabulary[word]] for word in search.suppressed],
            return_end_token=True,
            **options,
        )
        return results

    def _words(self, hypothesis: list[str], max_tokens: int) -> list[int]:
        words = [self.target_ids[word] for word in hypothesis]
        return (words[:-1] if words and words[-1] == EOS else words)[:max_tokens]

    def synchronize(self) -> None:
        """Do nothing: `translate` returns when it is done."""


def build(
    recipe: Recipe,
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    weights: Arrays,
    device: str = "cpu",
    compute_type: str = "float32",
) -> CTranslate2:
    """Build the baseline, which is not trained; see `impls.registry.build_baseline`.

    OMP_NUM_THREADS sets the number of threads; otherwise it is the library's default.
    """
    name = "ctranslate2" if compute_type == "float32" else f"ctranslate2_{compute_type}"
    recipe = admit(f"baseline {name!r}", recipe, (source_vocabulary_size, target_vocabulary_size), weights, CONVERTIBLE)
    vocabularies = _vocabulary(source_vocabulary_size), _vocabulary(target_vocabulary_size)
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as folder:
        convert(recipe, weights, *vocabularies).save(folder)
        return CTranslate2(name, recipe, vocabularies, _translator(folder, device, compute_type))


build_bfloat16 = partial(build, compute_type="bfloat16")
build_int8 = partial(build, compute_type="int8")


def export(
    recipe: Recipe, weights: Arrays, vocabularies: tuple[Sequence[str], Sequence[str]], folder: str, *, search: Search
) -> None:
    """Write a folder that `ctranslate2.Translator` loads; see `impls.registry.exporter`.

    The library takes the settings of the search with each call, not from the folder.
    """
    sizes = len(vocabularies[0]), len(vocabularies[1])
    recipe = admit("CTranslate2", recipe, sizes, weights, CONVERTIBLE)
    convert(recipe, weights, *map(list, vocabularies)).save(folder)


def load_exported(
    recipe: Recipe,
    vocabularies: tuple[Sequence[str], Sequence[str]],
    folder: str,
    *,
    device: str,
    compute_type: str,
) -> CTranslate2:
    """Load a folder that `export` wrote; see `impls.registry.load_exported`."""
    recipe = as_transformer("CTranslate2", recipe)
    return CTranslate2("ctranslate2", recipe, vocabularies, _translator(folder, device, compute_type))


def _translator(folder: str, device: str, compute_type: str) -> ctranslate2.Translator:
    threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
    try:
        return ctranslate2.Translator(folder, device, compute_type=compute_type, inter_threads=1, intra_threads=threads)
    except (RuntimeError, ValueError) as error:
        raise ValueError(unavailable(device, error)) from error


def _vocabulary(words: int) -> list[str]:
    return [*SPECIAL_TOKENS, *map(str, range(len(SPECIAL_TOKENS), words))]


def convert(
    recipe: TransformerRecipe, weights: Arrays, source_vocabulary: list[str], target_vocabulary: list[str]
) -> TransformerSpec:
    """Return the library's specification of a recipe with its weights, validated."""
    settings = {
        "pre_norm": recipe.norm_order == "pre",
        "activation": ACTIVATIONS[recipe.activation],
        "ffn_glu": recipe.ffn == "gated",
        "rms_norm": recipe.norm == "rms",
        "rotary_dim": 0 if recipe.positions == "rotary" else None,  # 0: all features of a head
    }
    encoder = TransformerEncoderSpec(recipe.layers, recipe.heads, **settings)
    decoder = TransformerDecoderSpec(recipe.layers, recipe.heads, **settings)
    source_side = "target" if recipe.tying == "all" else "source"
    _fill_side(encoder, encoder.embeddings[0], recipe, weights, ("encoder", "source", source_side))
    _fill_side(decoder, decoder.embeddings, recipe, weights, ("decoder", "target", "target"))
    kernel = weights["output.kernel"].T if recipe.tying == "none" else weights["target.embedding"]
    _set(decoder.projection, weight=kernel, bias=weights["output.bias"])
    spec = TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(source_vocabulary)
    spec.register_target_vocabulary(target_vocabulary)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (
        SPECIAL_TOKENS[index] for index in (UNK, SOS, EOS)
    )
    spec.config.decoder_start_token = SPECIAL_TOKENS[SOS]
    spec.config.layer_norm_epsilon = recipe.epsilon
    spec.validate()
    spec.optimize()
    return spec


def _fill_side(
    side: Any, embeddings: Any, recipe: TransformerRecipe, weights: Arrays, names: tuple[str, str, str]
) -> None:
    """Fill an encoder's or decoder's specification; `names` are those of its layers, positions and embedding."""
    layers, positions, words = names
    side.scale_embeddings = recipe.embedding_factor
    _set(embeddings, weight=weights[f"{words}.embedding"])
    if hasattr(side, "position_encodings"):  # a rotary decoder has none; those of a rotary encoder are 0
        _set(side.position_encodings, encodings=position_vectors(recipe, weights, positions))
    for index, layer in enumerate(side.layer):
        _fill_attention(layer.self_attention, weights, f"{layers}.{index}.self", fused=("query", "key", "value"))
        if layers == "decoder":
            _fill_attention(layer.attention, weights, f"{layers}.{index}.cross", "query", fused=("key", "value"))
        name = f"{layers}.{index}.feed_forward"
        _fill_norm(layer.ffn.layer_norm, weights, f"{name}.norm")
        first = "gate" if recipe.ffn == "gated" else "inner"
        _fill_linear(layer.ffn.linear_0, weights, f"{name}.{first}")
        if recipe.ffn == "gated":
            _fill_linear(layer.ffn.linear_0_noact, weights, f"{name}.inner")
        _fill_linear(layer.ffn.linear_1, weights, f"{name}.outer")
    if recipe.norm_order == "pre":
        _fill_norm(side.layer_norm, weights, f"{layers}.norm")


def _fill_attention(attention: Any, weights: Arrays, name: str, *alone: str, fused: tuple[str, ...]) -> None:
    """Fill an attention's specification: the projections `alone`, those `fused` into one, and the output."""
    for linear, parts in zip(
        attention.linear, (*((part_name,) for part_name in alone), fused, ("output",)), strict=True
    ):
        _fill_linear(linear, weights, *(f"{name}.{part}" for part in parts))
    _fill_norm(attention.layer_norm, weights, f"{name}.norm")


def _fill_linear(linear: Any, weights: Arrays, *names: str) -> None:
    _set(
        linear,
        weight=np.concatenate([weights[f"{name}.kernel"].T for name in names]),
        bias=np.concatenate([weights[f"{name}.bias"] for name in names]),
    )


def _fill_norm(norm: Any, weights: Arrays, name: str) -> None:
    _set(norm, gamma=weights[f"{name}.scale"])
    if f"{name}.shift" in weights:
        _set(norm, beta=weights[f"{name}.shift"])


def _set(spec: Any, **arrays: np.ndarray[Any, Any]) -> None:
    for name, array in arrays.items():
        setattr(spec, name, np.ascontiguousarray(array, dtype=np.float32))
