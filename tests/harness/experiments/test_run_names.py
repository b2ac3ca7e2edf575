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
