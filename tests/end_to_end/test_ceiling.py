"""Every variant comes close to the best possible BLEU, 100, on the embedded captions in minutes, in both frameworks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.execution import local
from harness.experiments import suites
from harness.experiments.overrides import override
from harness.experiments.specs import DataSpec, RunSpec
from harness.experiments.suites import SUITES, VARIANTS
from harness.training import train

TRANSFORMER = ("recipe.layers=2", "recipe.heads=4", "training.peak_rate=1e-3")
GRU = ("recipe.dropout=0.2", "training.peak_rate=3e-3")


def captions(variant: str) -> RunSpec:
    small = replace(SUITES["standard"], width=128)
    spec = suites.spec(small, variant, budget="controlled", seed=0, data=DataSpec(corpus="captions"))
    settings = GRU if variant == "bahdanau_gru" else TRANSFORMER
    return override(spec, (*settings, "training.epochs=8", "training.batch_size=64"))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_reaches_95_within_five_minutes(variant: str, tmp_path: Path) -> None:
    record = train.run(captions(variant), tmp_path)
    assert record.status == "completed"
    assert record.scores["bleu_tutorial"] is not None
    assert record.scores["bleu_tutorial"] >= 95
    assert record.speed["total_seconds"] < 300


@pytest.mark.slow
@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if suites.has(variant, "keras")])
def test_every_variant_reaches_95_in_keras(variant: str, tmp_path: Path) -> None:
    """A new process imports TensorFlow, because this one may have imported torch."""
    spec = replace(captions(variant), framework="keras")
    (record,) = local.execute([spec], tmp_path, jobs=1, stream=sys.stderr).records
    assert (record.status, record.environment["backend"]) == ("completed", "tensorflow")
    sys.stdout.write(f"{variant}: BLEU {record.scores['bleu_tutorial']}, {record.speed['total_seconds']:.0f} s\n")
    assert record.scores["bleu_tutorial"] is not None
    assert record.scores["bleu_tutorial"] >= 95
