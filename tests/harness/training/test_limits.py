"""Results that could not be stored are refused before training."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import TINY, spec

from harness.storage import run_store
from harness.training import train


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("SENTENCES_COUNT", 499, "500 test sentences: expected at most 499"),
        ("WEIGHTS_BYTES", 1_000, "bytes of weights: expected at most 1,000"),
    ],
)
def test_run_with_results_beyond_a_limit_is_refused_before_training(
    limit: str, value: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, limit, value)
    monkeypatch.setattr("harness.training.loop.TrainingLoop.train", lambda self: pytest.fail("it is trained"))
    with pytest.raises(ValueError, match=message):
        train.run(spec("learned_positions", TINY), tmp_path)
    assert not list(tmp_path.glob("*/record.json"))
