"""Interchangeable implementations of small translation models, behind one `Seq2SeqModel` protocol."""

from __future__ import annotations

from impls import registry
from impls.contract import Recipe, Seq2SeqModel, Training


def build(
    recipe: Recipe,
    source_words: int,
    target_words: int,
    *,
    training: Training | None = None,
    framework: str = "torch",
    seed: int = 0,
    device: str = "cpu",
    precision: str = "float32",
) -> Seq2SeqModel:
    """Build the model that `recipe` describes, with the initial weights of `seed`.

    `training` None means `Training()`; `device` is the framework's own word ("cpu", "cuda"); `precision` is "float32",
    or "bfloat16" for mixed precision with float32 weights.

    Raises: ValueError where the framework, the device or the precision cannot be had, or the recipe does not fit the
    vocabularies.
    """
    builder = registry.builder(recipe.family, framework)
    model: Seq2SeqModel = builder(
        recipe,
        source_words,
        target_words,
        training=training or Training(),
        seed=seed,
        device=device,
        precision=precision,
    )
    return model
