"""Short names of runs."""

from __future__ import annotations

from dataclasses import replace

from small_runs import TINY, spec

from harness.experiments.run_names import run_names


def test_run_names_two_frameworks_name_framework_and_backend_without_none() -> None:
    torch = spec("learned_positions", TINY)
    keras = replace(torch, framework="keras", backend="jax")
    assert run_names([torch, keras]) == [
        "framework=torch s0",
        "framework=keras backend=jax s0",
    ]


def test_run_names_leave_out_settings_that_follow_from_the_budget() -> None:
    controlled = spec("learned_positions", TINY)
    source = replace(controlled, budget="source", training=replace(controlled.training, peak_rate=0.5, batch_size=7))
    assert run_names([controlled, source]) == ["budget=controlled s0", "budget=source s0"]
    other = replace(source, training=replace(source.training, peak_rate=0.25))
    assert run_names([controlled, source, other])[1:] == ["peak_rate=0.5 s0", "peak_rate=0.25 s0"]
