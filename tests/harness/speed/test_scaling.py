"""The growth of a cost along an axis."""

from __future__ import annotations

import typing
from dataclasses import replace
from pathlib import Path

import pytest
from planted_processes import Planted, job, scheduler_of

from harness.speed import scaling, speed_document
from harness.speed.scheduler import RoundRobin
from impls.recipes import LEARNED_POSITIONS


def test_measure_axis_of_a_quadratic_cost_has_exponent_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = {f"n{size}": Planted({"training": [2.0 * size**2] * 3}) for size in (2, 4, 8)}
    scheduler, _ = scheduler_of(tmp_path, **processes)
    monkeypatch.setattr(RoundRobin, "start", lambda self, job: None)
    jobs = tuple((size, job(f"n{size}", synthetic_length=7)) for size in (2, 4, 8))
    axis = scaling.ScalingAxis("length", "training", jobs, {"batch_size": 2.0}, "learned_positions/torch")
    measured = scaling.measure_axis(axis, scheduler)
    assert measured.exponent == pytest.approx(2)
    assert [point.size for point in measured.points] == [2, 4, 8]
    assert measured.points[1].seconds.values == (16.0,) * 3, "seconds of one of the two updates of a round"
    assert measured.points[0].tokens == 2 * 7 * 2
    assert all(process.closed for process in scheduler.processes.values())


def test_measure_axis_names_the_sizes_that_were_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoundRobin, "start", lambda self, job: None)
    processes = {
        "n2": Planted({"training": [1.0] * 3}),
        "n4": Planted({}, refuses="training"),
        "n8": Planted({}, dies_after=0),
    }
    scheduler, _ = scheduler_of(tmp_path, **processes)
    jobs = tuple((int(name[1:]), job(name, synthetic_length=7)) for name in processes)
    measured = scaling.measure_axis(scaling.ScalingAxis("length", "training", jobs, {}, "base"), scheduler)
    assert "n4: it has no beam" in measured.reason
    assert "n8: its process ended" in measured.reason
    scheduler, _ = scheduler_of(tmp_path, n2=Planted({"training": [1.0] * 3}))
    alone = scaling.measure_axis(scaling.ScalingAxis("length", "training", jobs[:1], {}, "base"), scheduler)
    assert alone.reason == "1 size can be measured on this machine; a fit needs two"


def test_axes_keep_all_settings_but_their_own() -> None:
    usual = {"batch_size": 64, "length": 16, "threads": 1, "width": 8}
    lines = {line.axis: line for line in scaling.axes(job("base"), "toy", "weights.safetensors")}
    assert set(lines) == set(typing.get_args(speed_document.Axis))
    assert [job.spec.decoding.batch_size for _, job in lines.pop("decoding_batch_size").jobs] == [1, 4]
    assert scaling.axes(job("base"), "toy", "")[-1].reason, "there are no weights to translate with"
    for axis, line in lines.items():
        assert len({job.name for _, job in line.jobs}) == len(line.jobs) > 0
        assert line.fixed == {name: value for name, value in usual.items() if name != axis}
        for size, planned in line.jobs:
            spec = planned.spec
            width = getattr(spec.recipe, "width", None)
            settings = (spec.training.batch_size, planned.synthetic_length, spec.threads, width)
            assert dict(zip(usual, settings, strict=True)) == {**usual, axis: size}


def test_axes_leave_out_widths_that_the_heads_do_not_divide() -> None:
    base = job("base")
    recipe = replace(LEARNED_POSITIONS, width=192, heads=6)
    lines = {line.axis: line for line in scaling.axes(replace(base, spec=replace(base.spec, recipe=recipe)), "toy", "")}
    assert not lines["width"].jobs
    assert lines["width"].reason.startswith("width 16: TransformerRecipe.heads=6: expected a divisor of width=16")
    assert "; width 64: " in lines["width"].reason
    assert lines["length"].jobs
