"""Divergence: a value that is not finite, of any origin, ends the run with a record that gives the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import Fault
from interrupted_runs import interrupted
from killed_runs import generations, tiny
from small_runs import TINY_OPTIONS

from harness.cli.main import main
from harness.experiments.specs import RunSpec
from harness.processes.workers import ProcessSettings
from harness.storage import files, run_store
from harness.training import train
from impls import registry
from impls.contract import SOS, Arrays, Batch, Totals

EPOCH_UPDATES = 7
VARIANT = "learned_positions"


pytestmark = pytest.mark.usefixtures("cache", "every_update")


def spoilt(arrays: Arrays, value: float, kind: str = "") -> Arrays:
    """Return arrays with one value of the embedding of `<sos>` replaced, which every sentence uses."""
    changed = {name: array.copy() for name, array in arrays.items()}
    changed[f"{kind}target.embedding"][SOS, 0] = value
    return changed


def blown_up(arrays: Arrays) -> Arrays:
    """Return weights whose losses are finite but too large for a perplexity."""
    bias = arrays["output.bias"]
    return arrays | {"output.bias": np.where(np.arange(len(bias)) % 2, np.float32(1e4), np.float32(-1e4))}


@dataclass(frozen=True)
class Plant:
    """A change of a model before update number `update`, or when the totals of epoch `epoch` are taken."""

    change: Callable[[Any], None]
    reason: str
    update: int = 0
    epoch: int = 0


def weights(change: Callable[[Arrays], Arrays]) -> Callable[[Any], None]:
    return lambda model: model.set_weights(change(model.weights()))


def state(kind: str, value: float) -> Callable[[Any], None]:
    return lambda model: model.set_training_state(spoilt(model.training_state(), value, kind))


UPDATE = "the loss or the gradients of an update are not finite"
BEYOND = "loss is not finite, or beyond 700 nats"
PLANTS = {
    "a weight is NaN at first": Plant(weights(lambda arrays: spoilt(arrays, np.nan)), f"epoch 1: {UPDATE}", update=1),
    "a weight is infinite at first": Plant(
        weights(lambda arrays: spoilt(arrays, np.inf)), f"epoch 1: {UPDATE}", update=1
    ),
    "a weight is NaN later": Plant(weights(lambda arrays: spoilt(arrays, np.nan)), f"epoch 2: {UPDATE}", update=9),
    "a moment is NaN": Plant(state("first_moment/", np.nan), f"epoch 1: {UPDATE}", update=3),
    "a moment is infinite": Plant(state("first_moment/", -np.inf), f"epoch 2: {UPDATE}", update=10),
    "the loss is beyond all perplexity": Plant(weights(blown_up), f"epoch 1: the training {BEYOND}", update=1),
    "validation alone is NaN": Plant(
        weights(lambda arrays: spoilt(arrays, np.nan)), f"epoch 2: the validation {BEYOND}", epoch=2
    ),
    "validation alone is beyond all perplexity": Plant(weights(blown_up), f"epoch 1: the validation {BEYOND}", epoch=1),
}
RATE = "the rate is far too high"
NAMES = (*PLANTS, RATE)


class Planted(Fault):
    """A correct model in which a value that is not finite is planted."""

    def __init__(self, inner: Any, plant: Plant) -> None:
        self.inner, self.plant, self.steps, self.epochs = inner, plant, 0, 0

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.steps += 1
        if self.steps == self.plant.update:
            self.plant.change(self.inner)
        self.inner.train_step(batch, learning_rate)

    def take_totals(self) -> Totals:
        totals = self.inner.take_totals()
        self.epochs += 1
        if self.epochs == self.plant.epoch:
            self.plant.change(self.inner)
        return totals


def run_of(variant: str, name: str) -> RunSpec:
    """Return the run of a case."""
    run = tiny(variant)
    if name == RATE:
        return replace(run, training=replace(run.training, peak_rate=1e30, clip_norm=None))
    # A higher rate would undo the change within a few updates, or amplify it.
    return replace(run, training=replace(run.training, peak_rate=1e-4))


def put(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs train models with a plant."""
    build = train.build_model
    monkeypatch.setattr(train, "build_model", lambda *arguments: Planted(build(*arguments), plant))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "variant",
    [pytest.param(variant, marks=[] if variant == VARIANT else [pytest.mark.faults]) for variant in registry.names()],
)
def test_run_with_a_non_finite_value_ends_in_a_record_with_the_reason(
    variant: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in PLANTS:
        put(PLANTS[name], monkeypatch)
    run = run_of(variant, name)
    record = train.run(run, tmp_path, ProcessSettings(checkpoint_seconds=1e-9))
    assert record.status == "diverged"
    expected = PLANTS[name].reason if name in PLANTS else r"epoch [12]: .*"
    assert re.fullmatch(expected, record.reason), record.reason
    last = int(record.reason[6])
    assert [line.updates for line in record.curve] == [EPOCH_UPDATES * epoch for epoch in range(1, last + 1)]
    assert record.scores == {}
    path = tmp_path / run.id / run_store.RECORD
    files.read_json(path)
    assert not re.search("NaN|Infinity", path.read_text())
    assert [file.name for file in path.parent.iterdir()] == [run_store.RECORD]
    assert train.run(run, tmp_path) == record


def test_non_finite_value_survives_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, name = run_of(VARIANT, "a moment is NaN"), "a moment is NaN"
    with monkeypatch.context() as patch:
        put(PLANTS[name], patch)
        expected_record = train.run(run, tmp_path / "whole")
        interrupted(run, tmp_path, 5)
    assert generations(tmp_path, run)[0]["updates"] == 5
    resumed = train.run(run, tmp_path)
    assert (resumed.status, resumed.reason) == ("diverged", expected_record.reason)
    assert resumed.environment["resumed_after_updates"] == [5]
    for epoch, expected_epoch in zip(resumed.curve, expected_record.curve, strict=True):
        assert replace(epoch, training_seconds=0.0, validation_seconds=0.0) == replace(
            expected_epoch, training_seconds=0.0, validation_seconds=0.0
        )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_kept_weights_unused_by_any_loss_are_checked_too(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def far(arrays: Arrays) -> Arrays:
        changed = {name: array.copy() for name, array in arrays.items()}
        changed["target.positions"][-1, 0] = value  # no sentence is that long
        return changed

    put(Plant(weights(far), "", update=2), monkeypatch)
    record = train.run(tiny(VARIANT), tmp_path)
    assert record.status == "diverged"
    assert record.reason == "epoch 2: the weights kept are not finite: target.positions"


def test_test_loss_without_perplexity_is_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = train.measure

    def hopeless(*arguments: Any, **more: Any) -> Any:
        results = measure(*arguments, **more)
        return replace(results, scores={**results.scores, "test_loss": 701.0})

    monkeypatch.setattr(train, "measure", hopeless)
    record = train.run(tiny(VARIANT), tmp_path)
    assert (record.status, record.scores) == ("diverged", {})
    assert record.reason == "epoch 2: the test loss is not finite, or beyond 700 nats"
    assert [path.name for path in (tmp_path / record.id).iterdir()] == [run_store.RECORD]


@pytest.mark.faults
def test_diverged_run_sets_the_exit_code_and_is_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    command = ["run", VARIANT, "--suite", "quick", "--budget", "controlled", "--epochs", "1", *TINY_OPTIONS]
    command += ["--set=training.schedule=constant", "--set=training.warmup_updates=0"]
    command += ["--set=training.peak_rate=1e30", "--set=training.clip_norm=None", "--results", str(results)]
    assert main(command) == 1
    assert ": diverged: epoch 1: " in capsys.readouterr().out
    (record,) = run_store.records(results)
    assert main(["report", "--results", str(results), "--reports", str(tmp_path / "reports")]) == 0
    pages = "".join(path.read_text() for path in (tmp_path / "reports").rglob("index.md"))
    assert "diverged" in pages
    assert record.reason in pages
    json.loads((results / record.id / run_store.RECORD).read_text())
