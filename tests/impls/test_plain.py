"""The variant `plain` is the control of `learned_positions`: same initial weights and batches, no optimised operation.

`test_parity` compares its logits and gradients, law 14 its updates.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from small_models import BASE, PLAIN, TARGET_VOCABULARY_SIZE, build, subject
from small_runs import spec

from harness.experiments.suites import SUITES
from impls import registry
from impls.contract import PAD
from impls.recipes import LEARNED_POSITIONS, TUTORIAL
from impls.weights import count

pytestmark = pytest.mark.usefixtures("single_thread")


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

    for recipe in (BASE, PLAIN):  # modules that are imported later would keep the forbidden functions
        build(recipe).train_step(subject(recipe).batch(), 1e-3)
    optimised = ("impls.pytorch.cpu_kernels", "impls.pytorch.torch_packing")
    for module in [module for name, module in sys.modules.items() if name.startswith("impls.")]:
        for name, value in list(vars(module).items()):
            if callable(value) and getattr(value, "__module__", "") in optimised:
                monkeypatch.setattr(module, name, forbidden)
    with pytest.raises(AssertionError, match="an optimised operation"):
        build(BASE, dropout=0.1).train_step(subject(BASE).batch(), 1e-3)
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", forbidden)
    model, batch = build(PLAIN, dropout=0.1), subject(PLAIN).batch()
    assert (batch.target_out == PAD).any()
    model.train_step(batch, 1e-3)
    assert logit_rows == [batch.target_out.size]
    assert model._optimiser.defaults["fused"] is None  # type: ignore[attr-defined]


def test_plain_has_settings_of_learned_positions_and_is_in_no_suite() -> None:
    recipe = registry.recipe("plain")
    assert registry.training("plain") == registry.training("learned_positions") == TUTORIAL
    assert recipe.as_transformer() == LEARNED_POSITIONS  # type: ignore[union-attr]
    assert count(recipe, 7_853, 5_893) == 9_038_341
    assert not [suite.name for suite in SUITES.values() if "plain" in (*suite.variants, *suite.in_keras)]
    assert spec("plain", recipe).id != spec("plain", registry.recipe("torch_reference")).id
