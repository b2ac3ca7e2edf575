"""Every variant comes close to the best possible BLEU, 100, on the embedded captions in minutes, in both frameworks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.execution import local
from harness.experiments import suites
from harness.experiments.overrides import override
from harness.experiments.specs import DataSpec, RunSpec
from harness.experiments.suites import SUITES, VARIANTS

TRANSFORMER = ("recipe.layers=2", "recipe.heads=4", "training.peak_rate=1e-3")
GRU = ("recipe.dropout=0.2", "training.peak_rate=3e-3")


def captions(variant: str) -> RunSpec:
    small = replace(SUITES["standard"], width=128)
    spec = suites.spec(small, variant, budget="controlled", seed=0, data=DataSpec(corpus="captions"))
    settings = GRU if variant == "bahdanau_gru" else TRANSFORMER
    return override(spec, (*settings, "training.epochs=8", "training.batch_size=64"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "framework"),
    [(name, framework) for framework in ("torch", "keras") for name in VARIANTS if suites.has(name, framework)],
)
def test_every_variant_reaches_95(variant: str, framework: Any, tmp_path: Path) -> None:
    """A new process imports the framework, because this one may have imported another; torch has five minutes."""
    spec = replace(captions(variant), framework=framework)
    (record,) = local.execute([spec], tmp_path, jobs=1, stream=sys.stderr).records
    backend = {"torch": "torch", "keras": "tensorflow"}[framework]
    assert (record.status, record.environment["backend"]) == ("completed", backend)
    sys.stdout.write(f"{spec.id}: BLEU {record.scores['bleu_tutorial']}, {record.speed['total_seconds']:.0f} s\n")
    assert record.scores["bleu_tutorial"] >= 95
    assert framework == "keras" or record.speed["total_seconds"] < 300
