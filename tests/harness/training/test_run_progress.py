"""Events carry the learning rate, and the training loss where it is asked for, without changing the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import interrupted
from small_runs import TINY, UPDATES_PER_EPOCH, spec

from harness.data.batches import training_batches
from harness.data.dataset import prepare
from harness.experiments.specs import RunSpec
from harness.processes.progress import Event, from_line, to_line
from harness.processes.workers import ProcessSettings
from harness.storage.records import RunRecord
from harness.training import train
from harness.training.schedules import learning_rate

pytestmark = pytest.mark.usefixtures("cache", "every_update", "single_thread")
RUNS = {"counting": spec("counting_model:build_observable"), "torch": spec("learned_positions", TINY)}


def executed(run: RunSpec, results: Path, **settings: Any) -> tuple[RunRecord, list[Event]]:
    """Return the record of a run and the events of its updates."""
    events: list[Event] = []
    record = train.run(run, results, ProcessSettings(**settings), progress=events.append)
    assert [from_line(to_line(event)) for event in events] == events
    assert [event.finished_epoch for event in events if event.finished_epoch] == list(record.curve)
    return record, [event for event in events if event.stage == "training" and not event.finished_epoch]


@pytest.mark.parametrize("run", RUNS.values(), ids=list(RUNS))
def test_events_have_the_loss_of_their_updates(run: RunSpec, tmp_path: Path) -> None:
    plain, updates = executed(run, tmp_path / "plain")
    assert {event.training_loss for event in updates} == {None}
    record, updates = executed(run, tmp_path / "observed", report_loss=True)
    rates = [learning_rate(run.training, number) for number in range(1, len(updates) + 1)]
    assert [event.learning_rate for event in updates] == rates
    assert len(updates) == 3 * UPDATES_PER_EPOCH
    dataset = prepare(run.data)
    for epoch, line in enumerate(record.curve):
        batches = training_batches(dataset.train, run.training, seed=run.seed, epoch=epoch)
        own = updates[epoch * UPDATES_PER_EPOCH : line.updates]
        nats = sum(event.training_loss * batch.tokens for event, batch in zip(own, batches, strict=True))  # type: ignore[operator]
        assert nats / line.tokens == pytest.approx(line.training_loss, rel=1e-9)
        assert (line.training_loss, line.validation_loss) == (
            plain.curve[epoch].training_loss,
            plain.curve[epoch].validation_loss,
        )
    assert len({event.training_loss for event in updates}) == len(updates)
    assert (record.id, record.fingerprints, record.scores) == (plain.id, plain.fingerprints, plain.scores)


def test_model_whose_loss_cannot_be_read_reports_none(tmp_path: Path) -> None:
    _, updates = executed(spec(), tmp_path, report_loss=True)
    assert updates
    assert {event.training_loss for event in updates} == {None}


def test_resumed_run_reports_its_earlier_epochs_first(tmp_path: Path) -> None:
    interrupted(spec(), tmp_path, 2 * UPDATES_PER_EPOCH + 1)
    events: list[Event] = []
    record = train.run(spec(), tmp_path, progress=events.append)
    epochs = [event for event in events if event.finished_epoch]
    assert [event.finished_epoch for event in epochs] == list(record.curve)
    assert [(event.stage, event.updates) for event in epochs] == [
        ("preparing", 15),
        ("preparing", 15),
        ("training", 21),
    ]
