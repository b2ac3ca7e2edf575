"""Forecasts: corrected by the runs, shortened by checkpoints, longer for more work."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_runs import TINY, spec

from harness.cli import sweep
from harness.data.dataset import prepare
from harness.execution import eta
from harness.execution.eta import Estimate, Forecast
from harness.experiments.specs import DecodingSpec, RunSpec
from harness.processes import machine
from harness.processes.progress import Event
from harness.storage import checkpoint_files
from impls import registry
from impls.recipes import TUTORIAL

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what `time.monotonic` returns, as `seconds`."""
    clock = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.seconds)
    return clock


def test_forecast_is_corrected_by_the_runs(clock: SimpleNamespace) -> None:
    estimates = {"a": Estimate(10.0), "b": Estimate(10.0), "c": Estimate(20.0)}
    forecast = Forecast(estimates, jobs=1)
    assert forecast.seconds() == 40
    forecast.start("a")
    clock.seconds = 20.0
    forecast.end("a")
    assert forecast.seconds() == 60, "b and c take twice their estimates, as a did"
    forecast.start("b")
    clock.seconds = 22.0
    forecast.note(Event(run="b", stage="training", remaining_seconds=8.0))
    assert forecast.seconds() == pytest.approx(8 + 20 * 30 / 20)
    forecast.end("b", completed=False)
    assert forecast.seconds() == 40, "a run that fails early does not shorten the forecast"
    assert Forecast(estimates, jobs=2).seconds() == 20


def test_forecast_without_estimates_is_unknown(clock: SimpleNamespace) -> None:
    forecast = Forecast({}, jobs=1)
    forecast.start("a")
    forecast.note(Event(run="a", stage="training", remaining_seconds=8.0))
    assert forecast.seconds() is None


def test_forecast_of_a_run_that_takes_longer_than_its_estimate_is_unknown(clock: SimpleNamespace) -> None:
    forecast = Forecast({"a": Estimate(10.0)}, jobs=1)
    forecast.start("a")
    clock.seconds = 12.0
    assert forecast.seconds() is None
    forecast.note(Event(run="a", stage="translating", remaining_seconds=3.0))
    assert forecast.seconds() == 3
    forecast.note(Event(run="a", stage="translating", remaining_seconds=0.0))
    assert forecast.seconds() is None


def test_forecast_counts_the_rest_of_a_resumed_run(clock: SimpleNamespace) -> None:
    estimates = {"a": Estimate(40.0, 10.0), "b": Estimate(40.0, 10.0)}
    forecast = Forecast(estimates, jobs=1, progress={"a": 0.75})
    assert forecast.seconds() == 20 + 50
    forecast.start("a")
    clock.seconds = 40.0
    forecast.end("a")
    assert forecast.seconds() == 100, "b takes twice its estimate, as a did"
    forecast.start("b")
    forecast.note(Event(run="b", stage="preparing", updates=0, all_updates=8, remark="a checkpoint cannot be used"))
    forecast.note(Event(run="b", stage="preparing", updates=4, all_updates=8, remark="goes on"))
    assert forecast.seconds() == 60


def test_forecast_runs_reads_progress_from_the_newest_intact_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eta, "core_rate", lambda: 1e9)
    run = spec()
    assert sweep.forecast_runs([run], tmp_path, 1).progress == {run.id: 0.0}
    checkpoint_files.save(tmp_path, run.id, {}, {"updates": 3})
    checkpoint_files.save(tmp_path, run.id, {}, {"updates": 7})
    assert sweep.forecast_runs([run], tmp_path, 1).progress == {run.id: 7 / 21}
    (tmp_path / run.id / "checkpoint-2.json").write_bytes(b"half")
    assert sweep.forecast_runs([run], tmp_path, 1).progress == {run.id: 3 / 21}


def test_forecast_of_no_runs_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eta, "core_rate", lambda: pytest.fail("it takes seconds"))
    assert sweep.forecast_runs([], tmp_path, 1).seconds() is None


def test_forecast_is_unknown_if_the_measurement_of_this_machine_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eta, "_MEASURE_RATE", "import os; os.abort()")
    monkeypatch.setattr(eta, "core_rate", eta.core_rate.__wrapped__)
    assert sweep.forecast_runs([spec()], tmp_path, 1).seconds() is None


def test_estimate_grows_with_the_work() -> None:
    dataset = prepare(spec().data)

    def seconds(run: RunSpec, progress: float = 0.0) -> float:
        return eta.estimate(run, dataset, 1e9).seconds(progress)

    base = spec("learned_positions", TINY)
    assert seconds(spec("learned_positions", registry.recipe("learned_positions"))) > seconds(base)
    assert seconds(spec("paper", registry.recipe("paper"), training=TUTORIAL)) > seconds(spec("paper", TINY))
    assert seconds(spec("learned_positions", TINY, updates=2)) < seconds(base)
    assert seconds(spec()) > 0
    assert seconds(spec("learned_positions", TINY, decoding=DecodingSpec(max_tokens=5, beam=5))) > seconds(base)
    compiled = spec("learned_positions", TINY, framework="keras", backend="tensorflow")
    assert seconds(compiled) > seconds(base) + eta.COMPILING_SECONDS["tensorflow"]
    assert eta.START_SECONDS < seconds(base, 1.0) < seconds(base, 0.5) < seconds(base)


def test_rate_of_a_core_is_measured_with_numpy_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch = eta._MEASURE_RATE.replace("import torch", "raise ImportError")
    assert without_torch != eta._MEASURE_RATE
    monkeypatch.setattr(eta, "_MEASURE_RATE", without_torch)
    assert eta.core_rate.__wrapped__() > 1e8


def test_rate_of_a_core_hardly_depends_on_other_processes() -> None:
    measure = eta.core_rate.__wrapped__
    alone = measure()
    assert alone > 1e8
    burn = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(burn) for _ in range(4 * machine.cores())]
    try:
        assert alone / 3 < measure() < 3 * alone
    finally:
        for process in others:
            process.kill()
            process.wait()
