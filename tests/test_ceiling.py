"""The embedded captions have a known ceiling, BLEU 100: every torch variant comes near it in minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import suites, training
from harness.specs import DataSpec, override
from harness.suites import SUITES, VARIANTS

TRANSFORMER = ("recipe.layers=2", "recipe.heads=4", "training.peak_rate=1e-3")
GRU = ("recipe.dropout=0.2", "training.peak_rate=3e-3")


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_reaches_95_within_five_minutes(variant: str, tmp_path: Path) -> None:
    small = replace(SUITES["standard"], width=128)
    spec = suites.spec(small, variant, budget="controlled", seed=0, data=DataSpec(corpus="captions"))
    for setting in (
        *(GRU if variant == "bahdanau_gru" else TRANSFORMER),
        "training.epochs=8",
        "training.batch_size=64",
    ):
        spec = override(spec, setting)
    record = training.run(spec, tmp_path)
    assert record.status == "completed"
    assert record.scores["bleu_tutorial"] is not None
    assert record.scores["bleu_tutorial"] >= 95
    assert record.speed["total_seconds"] < 300
