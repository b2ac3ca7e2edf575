"""The setting `cuda_graphs`: where it is rejected, and how it shows in a run's id and JSON."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE

import impls
from harness.experiments.specs import RunSpec
from impls import registry


def run(variant: str = "learned_positions", **changes: Any) -> RunSpec:
    return RunSpec(variant=variant, recipe=registry.recipe(variant), **changes)


@pytest.mark.parametrize(
    ("variant", "changes", "unsupported"),
    [
        ("learned_positions", {}, "device='cpu'"),
        ("learned_positions", {"framework": "keras", "device": "cuda"}, "framework='keras'"),
        ("bahdanau_gru", {"device": "cuda"}, "variant='bahdanau_gru'"),
        ("torch_reference", {"device": "cuda:1"}, "variant='torch_reference'"),
        ("plain", {"device": "cuda"}, "variant='plain'"),
        ("bahdanau_gru", {"device": "mps"}, "device='mps' and variant='bahdanau_gru'"),
    ],
)
def test_cuda_graphs_unsupported_run_raises(variant: str, changes: dict[str, Any], unsupported: str) -> None:
    with pytest.raises(ValueError, match=f"cuda_graphs='on' with {unsupported}: CUDA graphs need framework='torch'"):
        run(variant, cuda_graphs="on", **changes)


def test_cuda_graphs_external_builder_raises() -> None:
    with pytest.raises(ValueError, match="with variant='mine:NAME': CUDA graphs need"):
        RunSpec(variant="mine:NAME", recipe=None, device="cuda", cuda_graphs="on")


@pytest.mark.parametrize(("variant", "reason"), [("learned_positions", "needs a CUDA device"), ("torch_reference", "")])
def test_cuda_graphs_unsupported_model_is_not_built(variant: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"cuda_graphs=True .*{reason}"):
        impls.build(registry.recipe(variant), SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, cuda_graphs=True)
