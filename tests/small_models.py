"""Small recipes that cover every word of every choice, and how tests build them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import impls
from harness.conformance.models_under_test import ModelUnderTest, dropping
from impls.contract import (
    GruRecipe,
    PlainRecipe,
    Recipe,
    Seq2SeqModel,
    TorchReferenceRecipe,
    Training,
    TransformerRecipe,
)

SOURCE_WORDS, TARGET_WORDS, MAX_LENGTH = 37, 41, 40
BASE = TransformerRecipe(width=32, layers=2, heads=2, ffn_width=48, max_length=MAX_LENGTH)
REFERENCE = TorchReferenceRecipe(width=32, layers=2, heads=2, ffn_width=48, max_length=MAX_LENGTH)
PLAIN = PlainRecipe(width=32, layers=2, heads=2, ffn_width=48, max_length=MAX_LENGTH)
GRU = GruRecipe(embedding_width=48, width=64)
THREE_RATES = "three rates of dropout"

COMBINATIONS: tuple[dict[str, Any], ...] = (
    {"head_width": 6, "heads": 3},
    {"head_width": 6, "heads": 3, "positions": "rotary"},
    {"head_width": 5, "heads": 3, "positions": "alibi"},
    {"norm_epsilon": 0.1},
    {"norm_order": "pre", "norm": "rms", "ffn": "gated", "activation": "silu", "positions": "rotary"},
    {"norm_order": "pre", "norm": "none", "positions": "alibi"},
    {"norm_order": "pre", "norm": "handmade", "ffn": "conv1d", "activation": "gelu", "positions": "sinusoidal"},
    {"positions": "sinusoidal", "norm": "handmade", "embedding_scale": "none", "embedding_init": "normal"},
    {"tying": "all", "norm_order": "pre", "embedding_scale": "none", "positions": "none"},
)


def choices(recipe_type: type[Any]) -> list[tuple[str, str]]:
    """Return each (field, word) of the closed choices of a recipe or a training."""
    hints = get_type_hints(recipe_type).items()
    return [(name, word) for name, hint in hints if get_origin(hint) is Literal for word in get_args(hint)]


def transformer_recipes() -> dict[str, TransformerRecipe]:
    """Return one recipe for each word that differs from the base, and some combinations, by a name for the report."""
    found = {f"{name}={word}": replace(BASE, **{name: word}) for name, word in choices(TransformerRecipe)}
    found |= {",".join(f"{k}={v}" for k, v in fields.items()): replace(BASE, **fields) for fields in COMBINATIONS}
    return {"base": BASE, **{name: recipe for name, recipe in found.items() if recipe != BASE}}


def all_recipes() -> dict[str, Recipe]:
    """Return small recipes of every family."""
    rates = replace(BASE, attention_dropout=0.15, activation_dropout=0.45)
    return {**transformer_recipes(), THREE_RATES: rates, "torch_reference": REFERENCE, "plain": PLAIN, "gru": GRU}


def target_words(recipe: Recipe) -> int:
    """Return the size of the target vocabulary: the source's, where one embedding serves both."""
    return SOURCE_WORDS if getattr(recipe, "tying", "none") == "all" else TARGET_WORDS


def build(recipe: Recipe, *, training: Training | None = None, seed: int = 0, dropout: float = 0.0) -> Seq2SeqModel:
    """Build a small torch model."""
    return impls.build(dropping(recipe, dropout), SOURCE_WORDS, target_words(recipe), training=training, seed=seed)


def subject(recipe: Recipe) -> ModelUnderTest:
    """Return what the laws are tried on."""

    def fresh(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
        return build(recipe, training=training, seed=seed, dropout=dropout)

    return ModelUnderTest(fresh, SOURCE_WORDS, target_words(recipe), MAX_LENGTH)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: with tensors this small, two only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
