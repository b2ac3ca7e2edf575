"""The setting `cuda_graphs`: where it is rejected, and how it shows in a run's id and JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small_models import SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE

import impls
from harness.experiments.overrides import override
from harness.experiments.serialization import to_json
from harness.experiments.specs import RunSpec, spec_from_json
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


def test_cuda_graphs_unknown_value_suggests_nearest() -> None:
    with pytest.raises(ValueError, match="cuda_graphs='onn': expected 'off' or 'on'; did you mean 'on'"):
        override(run(device="cuda"), ["cuda_graphs=onn"])


@pytest.mark.parametrize(("variant", "reason"), [("learned_positions", "needs a CUDA device"), ("torch_reference", "")])
def test_cuda_graphs_unsupported_model_is_not_built(variant: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"cuda_graphs=True .*{reason}"):
        impls.build(registry.recipe(variant), SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, cuda_graphs=True)


def test_cuda_graphs_change_run_id_only_if_on() -> None:
    plain = run(device="cuda")
    graphs = replace(plain, cuda_graphs="on")
    assert graphs.id != plain.id
    assert to_json(graphs)["cuda_graphs"] == "on"
    assert spec_from_json(to_json(graphs)) == graphs
    older = {name: value for name, value in to_json(plain).items() if name != "cuda_graphs"}
    assert spec_from_json(older) == plain


def test_cuda_graphs_settings_in_any_order() -> None:
    for settings in (["cuda_graphs=on", "device=cuda"], ["device=cuda", " cuda_graphs = on"]):
        assert override(run(), settings) == run(device="cuda", cuda_graphs="on")
