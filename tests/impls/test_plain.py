"""The variant `plain` is the control of `learned_positions`: same initial weights, batches and losses."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import BASE, PLAIN, SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, subject
from small_runs import spec

import impls
from harness.experiments.serialization import to_json
from harness.experiments.specs import spec_from_json
from harness.experiments.suites import SUITES
from harness.training import train
from impls import registry
from impls.contract import PAD, Recipe, Seq2SeqModel, Training
from impls.recipes import LEARNED_POSITIONS, TUTORIAL
from impls.weights import count

pytestmark = pytest.mark.usefixtures("single_thread")

STEADY = Training(epsilon=1e-4, label_smoothing=0.1)
"""With Adam's usual epsilon, gradients that are only rounding make full steps."""


def built(recipe: Recipe, training: Training = STEADY, dropout: float = 0.0) -> Seq2SeqModel:
    return impls.build(
        replace(recipe, dropout=dropout), SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, training=training, seed=3
    )


def losses(model: Seq2SeqModel, updates: int = 100) -> list[tuple[float, float, float]]:
    result = []
    for update in range(updates):
        model.train_step(subject(BASE).batch(update % 10), 1e-3)
        totals = model.take_totals()
        result.append((totals.objective_nats, totals.nats, totals.largest_gradient_norm))
    return result


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_plain_losses_equal_learned_positions(smoothing: float) -> None:
    training = replace(STEADY, label_smoothing=smoothing)
    actual, expected = (losses(built(recipe, training)) for recipe in (PLAIN, BASE))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert expected[-1][1] < 0.8 * expected[0][1]


def test_plain_uses_no_optimised_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes logits at padding too."""
    import torch

    def forbidden(*arguments: Any, **settings: Any) -> Any:
        raise AssertionError("the plain variant uses an optimised operation")

    logit_rows: list[int] = []
    right = torch.nn.functional.linear

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        if len(weight) == TARGET_VOCABULARY_SIZE:
            logit_rows.append(x.flatten(0, -2).shape[0])
        return right(x, weight, bias)

    optimised = ("impls.pytorch.cpu_kernels", "impls.pytorch.torch_packing")
    for module in [module for name, module in sys.modules.items() if name.startswith("impls.")]:
        for name, value in list(vars(module).items()):
            if callable(value) and getattr(value, "__module__", "") in optimised:
                monkeypatch.setattr(module, name, forbidden)
    with pytest.raises(AssertionError, match="an optimised operation"):
        built(BASE).train_step(subject(BASE).batch(), 1e-3)
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", forbidden)
    model, batch = built(PLAIN, dropout=0.1), subject(PLAIN).batch()
    assert (batch.target_out == PAD).any()
    model.train_step(batch, 1e-3)
    assert logit_rows == [batch.target_out.size]
    assert model._optimiser.defaults["fused"] is None  # type: ignore[attr-defined]


def test_plain_run_differs_from_learned_positions_in_architecture_only(tmp_path: Path, cache: Path) -> None:
    sizes = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16}
    specs = [spec(name, replace(registry.recipe(name), **sizes), updates=9) for name in ("plain", "learned_positions")]
    records = [train.run(run, tmp_path) for run in specs]
    assert [record.status for record in records] == ["completed"] * 2
    plain, optimised = (record.fingerprints for record in records)
    for evidence in ("weights", "stream", "source_vocabulary", "tokenised"):
        assert plain[evidence] == optimised[evidence]
    assert plain["trained_weights"] != optimised["trained_weights"]


def test_plain_has_settings_of_learned_positions_and_is_in_no_suite() -> None:
    recipe = registry.recipe("plain")
    assert registry.training("plain") == registry.training("learned_positions") == TUTORIAL
    assert recipe.as_transformer() == LEARNED_POSITIONS  # type: ignore[union-attr]
    assert count(recipe, 7_853, 5_893) == 9_038_341
    assert not [suite.name for suite in SUITES.values() if "plain" in (*suite.variants, *suite.in_keras)]
    run = spec("plain", recipe)
    assert spec_from_json(to_json(run)) == run
    assert run.id != spec("plain", registry.recipe("torch_reference")).id
