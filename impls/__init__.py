"""Interchangeable implementations of small translation models, behind one `Seq2SeqModel` protocol.

`build` creates a model from a recipe, `wrap` from a torch module of your own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from impls import registry
from impls.contract import SPECIAL_TOKENS, Recipe, Seq2SeqModel, Training


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
    matmul_precision: str = "highest",
    cuda_graphs: bool = False,
) -> Seq2SeqModel:
    """Build the model that `recipe` describes, with the initial weights of `seed`.

    Args:
        recipe: The architecture.
        source_vocabulary_size: Number of source tokens, special ones included.
        target_vocabulary_size: Number of target tokens, special ones included.
        training: Optimiser and loss settings; `Training()` by default.
        framework: "torch" or "keras".
        backend: The Keras backend, "tensorflow", "jax" or "torch"; by default KERAS_BACKEND, or else "tensorflow".
            The first Keras model of a process fixes it. None for other frameworks.
        seed: Seed of the initial weights, of dropout and of teacher forcing.
        device: "cpu" or "cuda".
        precision: "float32", or "bfloat16" for mixed precision with float32 weights.
        matmul_precision: "highest", or "high" or "medium" to multiply float32 matrices in TF32 or bfloat16 where the
            device can, as `torch.set_float32_matmul_precision` does (torch only). It holds for this model alone.
        cuda_graphs: Capture the updates and decoding steps of a Transformer as CUDA graphs (torch on a GPU only).

    Raises:
        ValueError: A setting is not accepted or available here, or the recipe does not fit the vocabularies.
    """
    _check(source_vocabulary_size, target_vocabulary_size, seed)
    builder = registry.builder(recipe.family, framework, backend, cuda_graphs=cuda_graphs)
    model: Seq2SeqModel = builder(
        recipe,
        source_vocabulary_size,
        target_vocabulary_size,
        training=training or Training(),
        seed=seed,
        device=device,
        precision=precision,
    )
    registry.set_matmul_precision(model, matmul_precision)
    return model


def wrap(
    module: Any | Callable[[], Any],
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training | None = None,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "float32",
    matmul_precision: str = "highest",
) -> Seq2SeqModel:
    """Turn a torch module into a `Seq2SeqModel`; `examples/lstm_attention.py` is a complete example.

    The module has these methods. Ids are int64 tensors, padded on the right with `impls.contract.PAD`:

    - `encode(source)` returns the memory: a tensor, or nested tuples, lists or dicts of tensors whose first dimension
      is the sentence. `source` [B,S] holds `<sos>`, the tokens and `<eos>`.
    - `decode(memory, target_in)` returns the logits of the next token at each position, [B,T,V], and the weights of
      source attention, [B,T,S] or [B,layers,heads,T,S], 0 at padding and with the sum 1; without attention, the logits
      alone. `target_in` [B,T] begins with `<sos>`. Logits may depend on earlier positions only.
    - `step(memory, state, last)` is optional and makes decoding faster. It returns the logits [B,V] after the tokens
      `last` [B], and a new state, structured like the memory. `state` is None before the first token. Without it,
      `decode` runs again on the whole prefix for each token.

    Mask padding with a large finite number such as -1e9, because a sentence may consist of padding alone. Set
    `max_length` on the module if it has a limit of positions.

    Args:
        module: A function without arguments that returns the module. It is called with torch's generator seeded by
            `seed`. A module itself is accepted too, if you have seeded its weights.
        source_vocabulary_size: Number of source tokens, special ones included.
        target_vocabulary_size: Number of target tokens V, special ones included.
        training: Optimiser and loss settings; `Training()` by default.
        seed: Seed of the initial weights and of dropout.
        device: "cpu" or "cuda".
        precision: "float32", or "bfloat16" for mixed precision with float32 weights.
        matmul_precision: "highest", "high" or "medium"; as in `build`.

    Raises:
        ValueError: The module lacks a method or returns a wrong shape, or a setting is not accepted or available here.
    """
    from impls.pytorch import wrapped_module

    sizes = (source_vocabulary_size, target_vocabulary_size)
    _check(*sizes, seed)
    model = wrapped_module.build(
        module, *sizes, training=training or Training(), seed=seed, device=device, precision=precision
    )
    model.set_matmul_precision(matmul_precision)
    return model


def _check(source_vocabulary_size: int, target_vocabulary_size: int, seed: int) -> None:
    """Raise ValueError for a vocabulary of special tokens alone, or a negative seed."""
    for side, size in (("source", source_vocabulary_size), ("target", target_vocabulary_size)):
        if size <= len(SPECIAL_TOKENS):
            raise ValueError(
                f"{side}_vocabulary_size={size!r}: expected more than the {len(SPECIAL_TOKENS)} special tokens: no "
                "word occurs data.minimum_frequency times in the training text"
            )
    if seed < 0:
        raise ValueError(f"seed={seed!r}: expected a whole number of at least 0")
