"""The rules about times and speeds: a value at a bound passes, and one just beyond it is reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_factory import record

from harness.audit.run_folder import AuditContext, StoredRun
from harness.audit.speed_rules import speeds, times
from harness.storage.records import RunRecord

EPOCH, UPDATES, TOKENS = 227, 2_270, 4_000_000
"""The updates of an epoch, and the updates and target tokens of the run."""

STEADY_SECONDS = 10 * 300.0 - 2.0
"""The seconds of training without the first update."""

LARGEST_BATCH = 128 * 100
"""The target tokens of a batch of which every sentence has the largest length."""


def made_up(environment: dict[str, Any], **speed: float) -> RunRecord:
    """Return a run of 10 epochs of 300 seconds, each with 4 seconds of validation, whose speeds fit."""
    run = record("learned_positions")
    fitting = {
        "first_update_seconds": 2.0,
        "epoch_seconds": STEADY_SECONDS * EPOCH / (UPDATES - 1),
        "training_tokens_per_second": TOKENS * (UPDATES - 1) / UPDATES / STEADY_SECONDS,
        "validation_seconds": 4.0,
        "decoding_sentences_per_second": 80.0,
        "total_seconds": 3_200.0,
    }
    return replace(run, environment={**run.environment, **environment}, speed={**run.speed, **fitting, **speed})


def faults(rule: Callable[[StoredRun], Iterator[str]], run: RunRecord, name: str) -> list[str]:
    """Return the faults of a value."""
    stored = StoredRun(Path("results"), run.id, AuditContext(), parsed=run)
    return [line for line in rule(stored) if line.startswith(f"{name}=")]


RESUMED, COMPILED = {"resumed_after_epochs": [1, 5]}, {"compilations": 8, "compilation_seconds": 500.0}
ALL, LESS = STEADY_SECONDS, STEADY_SECONDS - 500
PROCESSES: dict[str, tuple[dict[str, Any], dict[str, float], tuple[float, float], tuple[float, float]]] = {
    "one process": ({}, {}, (ALL / 2_269, ALL / 2_269), ((TOKENS - LARGEST_BATCH) / ALL, TOKENS / ALL)),
    "one that compiles": (
        {},
        COMPILED,
        (LESS / 2_269, ALL / 2_261),
        ((TOKENS - 9 * LARGEST_BATCH) / ALL, TOKENS / LESS),
    ),
    "resumed twice": (RESUMED, {}, (0.0, ALL / 2_267), ((TOKENS - 3 * LARGEST_BATCH) / ALL, math.inf)),
    "resumed twice, the last process compiles": (RESUMED, COMPILED, (0.0, math.inf), (0.0, math.inf)),
}
"""The environment, the speeds, and the bounds of the seconds of an update and of the tokens per second."""


@pytest.mark.parametrize("name", PROCESSES)
def test_speeds_rates_of_updates_up_to_their_bounds_pass(name: str) -> None:
    environment, speed, seconds_of_an_update, tokens_per_second = PROCESSES[name]
    seconds = [EPOCH * bound for bound in seconds_of_an_update]
    for rate, (least, most) in (("epoch_seconds", seconds), ("training_tokens_per_second", tokens_per_second)):
        inside = [bound for bound in (least, most) if bound < math.inf] or [1e9]
        outside = [*([least * 0.9999] if least else []), *([most * 1.0001] if most < math.inf else [])]
        for values, fails in ((inside, False), (outside, True)):
            for value in values:
                assert bool(faults(speeds, made_up(environment, **{**speed, rate: value}), rate)) is fails, value


@pytest.mark.parametrize(
    ("rule", "name", "inside", "outside"),
    [
        (times, "total_seconds", 10 * (300.0 + 4.0), 3_039.9),
        (speeds, "total_seconds", 3_040 + 1_000 / 80, 3_052.4),
        (speeds, "first_update_seconds", 300.0, 300.1),
        (speeds, "peak_memory_bytes", 4 * 9_038_341, 4 * 9_038_341 - 1),
        (speeds, "compilations", 0, 1),
        (speeds, "compilation_seconds", 0.0, 0.1),
    ],
)
def test_speed_of_a_run_up_to_its_bound_passes(
    rule: Callable[[StoredRun], Iterator[str]], name: str, inside: float, outside: float
) -> None:
    assert not faults(rule, made_up({}, **{name: inside}), name)
    assert faults(rule, made_up({}, **{name: outside}), name)


def test_speeds_of_a_run_with_weights_of_another_do_not_limit_its_translation_and_memory() -> None:
    values = {"decoding_sentences_per_second": 0.01, "peak_memory_bytes": 1e8}
    for other, fails in (({}, True), ({"trained_as": "another"}, False)):
        run = made_up({**other, "machine": {"memory_bytes": 9e7}}, **values)
        assert bool(faults(speeds, run, "total_seconds")) is bool(faults(speeds, run, "peak_memory_bytes")) is fails


def test_times_negative_seconds_of_validation_are_reported() -> None:
    run = made_up({})
    lines = (replace(run.curve[0], validation_seconds=-0.1), *run.curve[1:])
    assert faults(times, replace(run, curve=lines), "epoch 1: training_seconds")
    assert not faults(times, run, "epoch 1: training_seconds")


@pytest.mark.parametrize(("updates", "fails"), [([227, 1_200], False), ([227], True)])
def test_speeds_resumptions_are_as_many_in_epochs_as_in_updates(updates: list[int], fails: bool) -> None:
    run = made_up({**RESUMED, "resumed_after_updates": updates})
    assert bool(faults(speeds, run, "resumed_after_epochs")) is fails


def test_speeds_captures_of_cuda_graphs_are_compilations() -> None:
    run = made_up({}, compilations=20.0, compilation_seconds=1.5)
    graphs = replace(run, spec=replace(run.spec, device="cuda", cuda_graphs="on"))
    for name in ("compilations", "compilation_seconds"):
        assert faults(speeds, run, name)
        assert not faults(speeds, graphs, name)


@pytest.mark.parametrize(("compilations", "fails"), [(0, True), (UPDATES, False)])
def test_speeds_rates_are_missing_only_if_every_update_compiled(compilations: int, fails: bool) -> None:
    run = made_up({}, compilations=compilations)
    rates = ("epoch_seconds", "training_tokens_per_second")
    without = replace(run, speed={name: value for name, value in run.speed.items() if name not in rates})
    for name in (*rates, "training_tokens_per_second times epoch_seconds"):
        assert bool(faults(speeds, without, name)) is fails
