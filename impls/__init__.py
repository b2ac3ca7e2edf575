"""Interchangeable implementations of small translation models, behind one `Seq2SeqModel` protocol."""

from __future__ import annotations

from impls import registry
from impls.contract import Recipe, Seq2SeqModel, Training


def build(
    recipe: Recipe,
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training | None = None,
    framework: str = "torch",
    backend: str | None = None,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "float32",
    cuda_graphs: bool = False,
) -> Seq2SeqModel:
    """Build the model that `recipe` describes, with the initial weights of `seed`.

    `training` None means `Training()`. `backend` is what Keras runs on, fixed in a process by its first Keras model
    ("tensorflow" unless KERAS_BACKEND says otherwise), and None for other frameworks. `device` is "cpu" or "cuda";
    `precision` is "float32", or "bfloat16" for mixed precision with float32 weights. `cuda_graphs` has a Transformer's
    updates and decoding captured and replayed, with torch on a GPU.

    Raises: ValueError where the framework, the device, the precision or CUDA graphs cannot be had, or the recipe
    does not fit the vocabularies.
    """
    if cuda_graphs:
        builder = registry.graph_builder(recipe.family, framework)
    else:
        builder = registry.builder(recipe.family, framework, backend)
    model: Seq2SeqModel = builder(
        recipe,
        source_vocabulary_size,
        target_vocabulary_size,
        training=training or Training(),
        seed=seed,
        device=device,
        precision=precision,
    )
    return model
