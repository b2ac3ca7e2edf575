"""Specs of runs that are over in a moment: a few captions cut at spaces, and few tokens to translate."""

from __future__ import annotations

from typing import Any

from harness.experiments.specs import DataSpec, DecodingSpec, RunSpec
from impls.contract import Recipe, Training, TransformerRecipe

DATA = DataSpec(corpus="captions", training_pairs=200, tokenizer="whitespace")
TRAINING = Training(batch_size=32, epochs=3, peak_rate=1e-2)
TINY = TransformerRecipe(width=16, layers=1, heads=2, ffn_width=16)
UPDATES_PER_EPOCH = 7


def spec(variant: str = "counting_model:build", recipe: Recipe | None = None, **changes: Any) -> RunSpec:
    settings: dict[str, Any] = {
        "training": TRAINING,
        "data": DATA,
        "decoding": DecodingSpec(max_tokens=5),
        "threads": 1,
    }
    return RunSpec(variant=variant, recipe=recipe, **{**settings, **changes})
