"""Logs of runs: in memory, and as TensorBoard and MLflow read them, which are optional."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import record_factory
from log_readers import (
    ListTracker,
    Points,
    artifact,
    epoch_and_test_points,
    expected_points,
    mlflow_runs,
    tensorboard_points,
    tensorboard_settings,
)

from harness.cli.log_options import LIBRARIES
from harness.processes.progress import Event
from harness.reporting import trackers
from harness.reporting.trackers import RunLogs
from harness.storage import run_store
from harness.storage.records import RunRecord

RUN = record_factory.record("learned_positions", 3)
EPOCH = RUN.curve[0].updates


@pytest.fixture
def offline_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Refuse connections, and yield the list of those that were tried."""
    tried: list[Any] = []

    def refuse(self: socket.socket, address: Any) -> None:
        tried.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield tried
    assert not tried


def update(number: int) -> Event:
    return Event(
        run=RUN.id,
        stage="training",
        updates=number,
        training_loss=1 / number,
        learning_rate=number * 1e-5,
        tokens_per_second=None if number == 1 else 1000.0 + number,
    )


def epoch_end(number: int) -> Event:
    epoch = RUN.curve[number - 1]
    return Event(run=RUN.id, stage="training", updates=epoch.updates, remark="an epoch", finished_epoch=epoch)


def written(tracker: Any, results: Path, events: Sequence[Event], record: RunRecord | None = None) -> list[str]:
    """Write events and the end of a run with this record, and return the warnings."""
    warnings: list[str] = []
    logs = RunLogs(tracker, [RUN.spec], results, warnings.append)
    for event in events:
        logs(event)
    if record is not None:
        run_store.save_record(results, record)
        logs(Event(run=RUN.id, stage="ended"))
    logs.close()
    return warnings


def test_log_has_updates_epochs_and_scores_once(tmp_path: Path) -> None:
    tracker = ListTracker()
    lines = [Event(run=RUN.id, stage="preparing"), update(1), update(9), update(4), update(9), update(12), epoch_end(1)]
    validating = Event(run=RUN.id, stage="validating", updates=EPOCH, tokens_per_second=1.0)
    elsewhere = Event(run="another", stage="elsewhere")
    assert not written(tracker, tmp_path, [elsewhere, *lines, validating, epoch_end(2)], RUN)
    points = tracker.points[RUN.id]
    assert points["update/training_loss"] == [(1, 1.0), (9, 1 / 9), (12, 1 / 12)]
    assert points["update/learning_rate"] == [(1, 1e-5), (9, 9e-5), (12, pytest.approx(12e-5))]
    assert points["update/tokens_per_second"] == [(9, 1009.0), (12, 1012.0)]
    assert epoch_and_test_points(points) == expected_points(RUN)
    assert points["test/bleu_sacre"] == [(RUN.curve[-1].updates, RUN.scores["bleu_sacre"])]
    assert tracker.begun == [(RUN.id, 0)]
    assert tracker.ended == [(RUN, (tmp_path / RUN.id / "record.json").read_bytes())]


def test_run_whose_end_is_not_reported_ends_with_its_record(tmp_path: Path) -> None:
    failed = replace(RUN, status="failed", reason="RuntimeError", scores={})
    run_store.save_record(tmp_path, failed)
    tracker = ListTracker()
    assert not written(tracker, tmp_path, [update(1)])
    assert [record for record, _ in tracker.ended] == [failed]
    assert not written(ListTracker(), tmp_path / "empty", [update(1)])


@pytest.mark.parametrize("fault", ["update/learning_rate", "begin"])
def test_error_is_reported_once_and_stops_nothing_else(fault: str, tmp_path: Path) -> None:
    tracker = ListTracker(fault)
    (line,) = written(tracker, tmp_path, [update(1), update(9), epoch_end(1)], RUN)
    assert line == "RuntimeError: the planted fault; the runs go on, and their logs are incomplete"
    assert len(tracker.begun) == 1
    assert tracker.points.get(RUN.id) == (None if fault == "begin" else expected_points(RUN))


def test_tracker_that_hangs_does_not_hold_up_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.1)
    (line,) = written(lambda *_: release.wait(60), tmp_path, [update(number) for number in range(1, 99)])
    release.set()
    assert "the last values are not written" in line


READERS: dict[str, Callable[[Path], Points]] = {
    "tensorboard": lambda folder: tensorboard_points(folder / RUN.id),
    "mlflow": lambda folder: mlflow_runs(folder)[-1][1],
}


def real(name: str, folder: Path) -> Any:
    """Return a new tracker, as each command has one; skip without its library."""
    pytest.importorskip(LIBRARIES[name], reason=f"needs the extra {name}")
    return trackers.TRACKERS[name](folder)


def close_to(points: Points) -> Any:
    """Return points for comparison: TensorBoard rounds values to float32."""
    return {name: [(step, pytest.approx(value, rel=1e-6)) for step, value in values] for name, values in points.items()}


def resumed(number: int) -> list[Event]:
    """Return the events with which a run resumes from a checkpoint after a number of updates."""
    event = Event(run=RUN.id, stage="preparing", updates=number, remark="goes on")
    epochs = [replace(event, finished_epoch=epoch) for epoch in RUN.curve if epoch.updates <= number]
    return [Event(run=RUN.id, stage="preparing"), event, *epochs]


MIDDLE = RUN.curve[1].updates
EVENTS = {
    "from the start": [update(1), update(9), epoch_end(1), epoch_end(2)],
    "from the middle": [*resumed(MIDDLE + 1), update(MIDDLE + 2), epoch_end(3)],
    "measured again": [Event(run=RUN.id, stage="preparing"), Event(run=RUN.id, stage="translating")],
}
LOSSES = {"from the start": [(1, 1.0), (9, 1 / 9)], "from the middle": [(MIDDLE + 2, 1 / (MIDDLE + 2))]}


@pytest.mark.usefixtures("offline_sockets")
@pytest.mark.parametrize("events", EVENTS)
@pytest.mark.parametrize("name", READERS)
def test_real_log_equals_the_record(name: str, events: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    assert not written(real(name, folder), tmp_path, EVENTS[events], RUN)
    points = READERS[name](folder)
    assert epoch_and_test_points(points) == close_to(expected_points(RUN))
    updates = {f"update/{part}": points.get(f"update/{part}", []) for part in ("training_loss", "learning_rate")}
    losses = LOSSES.get(events, [])
    rates = [(step, step * 1e-5) for step, _ in losses]
    assert updates == close_to({"update/training_loss": losses, "update/learning_rate": rates})
    if name == "tensorboard" and losses:
        assert tensorboard_settings(folder / RUN.id) == trackers.settings(RUN.spec)


@pytest.mark.parametrize("checkpoint", [EPOCH - 1, EPOCH, EPOCH + 4])
@pytest.mark.parametrize("is_reported", [True, False])
@pytest.mark.parametrize("name", READERS)
def test_real_log_of_a_resumed_run_has_every_step_once_in_order(
    name: str, checkpoint: int, is_reported: bool, tmp_path: Path
) -> None:
    """The first process is killed after its checkpoint, with or without having reported the end of the epoch."""
    folder, lost, last = tmp_path / name, EPOCH + 7, RUN.curve[-1].updates
    end = [epoch_end(1)] * (is_reported or checkpoint != EPOCH)
    assert not written(real(name, folder), tmp_path, [update(1), *end, update(EPOCH + 3), update(lost)])
    again = [*resumed(checkpoint), *[epoch_end(1)] * (checkpoint < EPOCH), update(EPOCH + 5), update(lost)]
    later = [epoch_end(number) for number in range(2, len(RUN.curve) + 1)]
    assert not written(real(name, folder), tmp_path, [*again, update(last - 1), *later], RUN)
    points = READERS[name](folder)
    assert epoch_and_test_points(points) == close_to(expected_points(RUN))
    for metric in ("update/learning_rate", "update/training_loss"):
        found = [step for step, _ in points[metric]]
        assert found == sorted(set(found))
        assert {1, lost, last - 1} <= set(found) <= {1, EPOCH + 3, EPOCH + 5, lost, last - 1}


@pytest.mark.parametrize("name", READERS)
def test_real_log_of_a_run_that_is_trained_anew_is_that_of_the_new_run(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    worse = replace(
        RUN, scores={"bleu_sacre": 1.0}, curve=tuple(replace(line, validation_loss=9.0) for line in RUN.curve)
    )
    assert not written(real(name, folder), tmp_path, [update(1), update(9)], worse)
    assert not written(real(name, folder), tmp_path, [replace(update(1), training_loss=3.0)], RUN)
    points = READERS[name](folder)
    assert epoch_and_test_points(points) == close_to(expected_points(RUN))
    assert points["update/training_loss"] == [(1, 3.0)]


@pytest.mark.parametrize(
    ("status", "shown"),
    [("completed", "FINISHED"), ("interrupted", "KILLED"), ("failed", "FAILED"), ("diverged", "FAILED")],
)
def test_mlflow_shows_settings_status_and_record(status: Any, shown: str, tmp_path: Path) -> None:
    record = replace(RUN, status=status)
    assert not written(real("mlflow", tmp_path / "log"), tmp_path, [update(1)], record)
    ((run, _),) = mlflow_runs(tmp_path / "log")
    assert run.data.params == {name: str(value) for name, value in trackers.settings(RUN.spec).items()}
    assert run.info.status == shown
    tags = {"run": RUN.id, "variant": "learned_positions", "data": "multi30k de-en", "status": status}
    assert {name: value for name, value in run.data.tags.items() if name.startswith("bakeoff.")} == {
        f"bakeoff.{name}": value for name, value in tags.items()
    }
    assert artifact(run) == (tmp_path / RUN.id / "record.json").read_bytes()


@pytest.mark.usefixtures("offline_sockets")
def test_export_writes_finished_runs_to_one_store_each_once(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    other = record_factory.record("paper", 1)
    for record in (RUN, other):
        run_store.save_record(tmp_path, record)
        trackers.export(record, tmp_path, tmp_path / "store")
    with pytest.raises(ValueError, match=f"its mlflow.db has the run {RUN.id} already"):
        trackers.export(RUN, tmp_path, tmp_path / "store")
    runs = mlflow_runs(tmp_path / "store")
    assert [run.info.run_name for run, _ in runs] == [RUN.id, other.id]
    assert [points for _, points in runs] == [expected_points(RUN), expected_points(other)]
    assert [run.info.status for run, _ in runs] == ["FINISHED"] * 2
    assert artifact(runs[0][0]) == (tmp_path / RUN.id / "record.json").read_bytes()


def test_store_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    (tmp_path / "mlflow.db").write_text("no database " * 99, encoding="utf-8")
    with pytest.raises(ValueError, match=str(tmp_path)):
        trackers.export(RUN, tmp_path, tmp_path)
