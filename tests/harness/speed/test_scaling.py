"""The growth of a cost along one axis."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest
from planted_processes import Planted, job, scheduler_of

from harness.speed import plan, scaling, speed_document
from harness.speed.scheduler import RoundRobin


def test_measure_axis_of_a_quadratic_cost_has_exponent_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = scheduler_of(tmp_path, **{f"n{size}": Planted({"training": [2.0 * size**2] * 3}) for size in (2, 4, 8)})
    monkeypatch.setattr(RoundRobin, "start", lambda self, one: True)
    synthetic = plan.Synthetic(length=7)
    jobs = tuple((size, job(f"n{size}", synthetic=synthetic)) for size in (2, 4, 8))
    line = scaling.ScalingAxis("length", "training", jobs, {"batch_size": 2.0}, "learned_positions/torch")
    grown = scaling.measure_axis(line, found)
    assert grown.exponent == pytest.approx(2)
    assert [one.size for one in grown.points] == [2, 4, 8]
    assert grown.points[1].seconds.values == (16.0,) * 3, "seconds of one of the two updates of a round"
    assert grown.points[0].tokens == 2 * 7 * 2
    assert all(process.closed for process in found.processes.values())  # type: ignore[attr-defined]


def test_axes_vary_one_setting_each() -> None:
    lines = {line.axis: line for line in scaling.axes(job("base"), "toy", "weights.safetensors")}
    assert set(lines) == set(typing.get_args(speed_document.Axis))
    for axis, line in lines.items():
        assert axis not in line.fixed
        assert len({one.name for _, one in line.jobs}) == len(line.jobs)
    assert [one.spec.training.batch_size for _, one in lines["batch_size"].jobs] == [4, 16]
    assert [one.synthetic.length for _, one in lines["length"].jobs if one.synthetic] == [4, 12]
    assert [one.spec.recipe.width for _, one in lines["width"].jobs] == [16, 64]  # type: ignore[union-attr]
    assert [one.spec.decoding.batch_size for _, one in lines["decoding_batch_size"].jobs] == [1, 4]
    assert scaling.axes(job("base"), "toy", "")[-1].reason
