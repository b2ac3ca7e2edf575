"""Models take turns; a model that fails is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from planted_processes import Planted, job, scheduler_of

from harness.processes.json_process import RequestRefused
from harness.speed import scheduler
from harness.speed.scheduler import TimedTask


def test_run_begins_each_round_with_the_next_model(tmp_path: Path) -> None:
    robin, lines = scheduler_of(tmp_path, **{name: Planted({"training": [1.0] * 4}) for name in "abc"})
    robin.run("training", [TimedTask(name, "training") for name in "abc"], 4)
    rounds = [line.split(": ")[2] for line in lines if "round" in line]
    assert ["".join(word[0] for word in line.split(", ")) for line in rounds] == ["abc", "bca", "cab", "abc"]


def test_run_with_a_dying_process_continues_with_the_others(tmp_path: Path) -> None:
    robin, lines = scheduler_of(
        tmp_path, first=Planted({"training": [1.0]}, dies_after=1), second=Planted({"training": [2.0, 3.0, 4.0]})
    )
    robin.run("training", [TimedTask("first", "training"), TimedTask("second", "training")], 3)
    assert robin.samples("first", "training") == [1.0]
    assert robin.samples("second", "training") == [2.0, 3.0, 4.0]
    assert robin.lost == {"first": "its process ended with code -9: it wrote nothing"}
    assert robin.processes["first"].closed
    assert sum("code -9" in line for line in lines) == 1


def test_run_with_a_refused_task_keeps_the_other_tasks(tmp_path: Path) -> None:
    robin, _ = scheduler_of(tmp_path, peer=Planted({"greedy": [1.0]}, refuses="beam"))
    for measure in ("beam", "greedy"):
        robin.run("decoding", [TimedTask("peer", measure)], 1)
    assert robin.refused == {TimedTask("peer", "beam"): "it has no beam"}
    assert (robin.samples("peer", "greedy"), robin.lost) == ([1.0], {})


def test_idle_share_is_cpu_seconds_over_seconds(tmp_path: Path) -> None:
    robin, _ = scheduler_of(tmp_path, model=Planted({}))
    assert robin.idle_share("model") == 0.05
    assert robin.idle_share("another") is None


@pytest.mark.parametrize(("baseline", "declined"), [("plain", True), ("", False)])
def test_start_refused_declines_a_baseline_and_loses_a_variant(
    baseline: str, declined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Mock(**{"return_value.request.side_effect": RequestRefused("recipe.norm='rms' is not available")})
    monkeypatch.setattr(scheduler, "JsonProcess", process)
    robin, _ = scheduler_of(tmp_path)
    robin.start(replace(job("model"), baseline=baseline))
    reasons = {"model": "recipe.norm='rms' is not available"}
    assert (robin.declined, robin.lost) == ((reasons, {}) if declined else ({}, reasons))
