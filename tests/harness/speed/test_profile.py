"""How an update's time is divided among groups of operators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from planted_processes import job
from small_models import batch_of_lengths

from harness.data.vocabulary import Split
from harness.speed import assemble, profile
from impls.contract import EOS, SOS


def event(name: str, microseconds: float, parent: Any = None, number: int = -1) -> SimpleNamespace:
    return SimpleNamespace(name=name, cpu_parent=parent, sequence_nr=number, self_cpu_time_total=microseconds)


def test_grouped_assigns_operators_by_name_parent_or_forward_twin() -> None:
    update = event("speed::update", 1000)
    attention = event("speed::SelfAttention", 500, update)
    dropout = event("speed::Dropout", 7, attention)
    backward = event(f"{profile.BACKWARD}MulBackward0", 0, update, number=12)
    step = event("Optimizer.step#Adam.step", 0, update)
    seconds, calls = profile.grouped(
        [
            update,
            attention,
            dropout,
            event("aten::addmm", 1, attention),
            event("aten::bmm", 2, attention),
            event("aten::copy_", 4, attention),
            event("aten::mul", 8, dropout, number=12),
            backward,
            event("aten::mul", 16, backward, number=12),
            event("aten::_log_softmax", 32, update),
            event("aten::native_layer_norm", 64, update),
            event("aten::_fused_adam_", 128, step),
            event("aten::copy_", 256, step),
            event("aten::_foreach_norm", 512, update),
            event("aten::add", 1024, update),
            event("aten::embedding_dense_backward", 2048, update),
        ]
    )
    assert {group: round(1e6 * total) for group, total in seconds.items() if total} == {
        "matrix products": 1,
        "attention": 2 + 4,
        "dropout": 7 + 8 + 16,
        "softmax and loss": 32,
        "norm and activation": 64,
        "optimiser": 128 + 256,
        "clipping": 512,
        "copies and other": 1024,
        "embedding": 2048,
    }
    assert calls["dropout"] == 2


@pytest.mark.parametrize("profiled", [False, True])
def test_breakdown_is_of_one_update_and_counts_data_once(profiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two updates, in an epoch of five: the seconds of a warm-up, three turns, loading, and an epoch's loading."""
    seconds = iter([99.0, 4.0, 7.0, 6.0, 8.0, 5.0, 9.0, 1.0, 10.0])
    monkeypatch.setattr(profile.timing, "seconds", lambda work, synchronize: next(seconds))
    monkeypatch.setattr(profile, "_profiled", lambda *_: (8.0, {"attention": 6.0}, {"attention": 4}))
    module = SimpleNamespace(modules=list) if profiled else None
    model: Any = SimpleNamespace(synchronize=list, bare_updates=list, full_updates=str, job=job("ours"))
    model.model = SimpleNamespace(module=module)
    ids = [np.array([SOS, EOS], np.int32)] * 10
    dataset: Any = SimpleNamespace(train=Split(ids, ids))
    expected = {"updates": 2, "bare_seconds": 5 / 2, "data_seconds": 10 / 5, "harness_seconds": (3 - 1) / 2}
    if profiled:
        expected |= {"profiled_seconds": 8 / 2, "groups": {"attention": [6 / 2, 4]}}
    assert profile.breakdown(model, [batch_of_lengths((3, 2))] * 2, dataset) == expected


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_breakdown_shares_add_up_to_one(framework: str) -> None:
    profiled = {"updates": 2, "bare_seconds": 0.6, "data_seconds": 0.3, "harness_seconds": 0.1}
    if framework == "torch":
        profiled |= {"profiled_seconds": 0.9, "groups": {"attention": [0.2, 5], "interpreter": [0.7, 0]}}
    breakdown = assemble.breakdown(profiled)
    shares = {part.group: part.share for part in breakdown.shares}
    inside = {"attention": 0.6 * 2 / 9, "interpreter": 0.6 * 7 / 9} if framework == "torch" else {"compute": 0.6}
    assert shares == pytest.approx({**inside, "data": 0.3, "harness": 0.1})
    assert breakdown.overhead_ratio == (pytest.approx(1.5) if framework == "torch" else None)
