"""Logs of runs for TensorBoard and MLflow, from the events and the records of the runs.

FOLDER/tensorboard/RUN/     TensorBoard's event files of a run
FOLDER/mlflow/mlflow.db     MLflow's runs; their records are in FOLDER/mlflow/artifacts

The names of values are update/NAME, epoch/NAME and test/NAME. A step is the number of finished updates.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harness.experiments.run_names import flat_settings
from harness.experiments.specs import RunSpec
from harness.processes.progress import Event
from harness.storage import run_store
from harness.storage.records import EpochRecord, RunRecord

CLOSE_SECONDS = 60.0
"""The longest time that the end of a command waits for values to be written."""
HEADLINES = ("epoch/validation_loss", "test/perplexity", "test/bleu_sacre")
"""The metrics in TensorBoard's table of hyperparameters."""
STATUSES = {"completed": "FINISHED", "interrupted": "KILLED"}
"""MLflow's names of the statuses of records; all others are FAILED."""
RUN_TAG = "bakeoff.run"
Begin = Callable[[RunSpec, int], "RunLog"]
"""Begins the log of a run, or continues that of an earlier process: the number of updates in the checkpoint from which
the run resumes follows, 0 if it begins anew."""


class RunLog(ABC):
    """The log of one run.

    A value is left out unless its step is larger than the last one of its name, because a run that resumes from a
    checkpoint repeats its earlier epochs and some updates.

    Args:
        last: The last steps in the log, by name.
        others: The last step of all other names.
    """

    def __init__(self, last: Mapping[str, int], others: int = -1) -> None:
        self._last, self._others = dict(last), others

    def log(self, values: Mapping[str, float | None], step: int) -> None:
        """Write the values that are not None and not written yet."""
        new = {
            name: float(value)
            for name, value in values.items()
            if value is not None and step > self._last.get(name, self._others)
        }
        if new:
            self._write(new, step)
            self._last.update(dict.fromkeys(new, step))

    def log_event(self, event: Event) -> None:
        """Write the values of an event."""
        if event.finished_epoch is not None:
            self.log_epoch(event.finished_epoch)
        elif event.stage == "training":
            names = ("training_loss", "learning_rate", "tokens_per_second")
            self.log({f"update/{name}": getattr(event, name) for name in names}, event.updates)

    def log_epoch(self, epoch: EpochRecord) -> None:
        """Write the metrics of an epoch."""
        values = dataclasses.asdict(epoch)
        del values["epoch"]
        step = values.pop("updates")
        self.log({f"epoch/{name}": value for name, value in values.items()}, step)

    def end(self, record: RunRecord, file: Path) -> None:
        """Write the epochs that no event has reported, the scores on the test set, and how the run ended."""
        for epoch in record.curve:
            self.log_epoch(epoch)
        scores = {f"test/{name.removeprefix('test_')}": value for name, value in record.scores.items()}
        self.log(scores, record.curve[-1].updates if record.curve else 0)
        self._end(record, file)

    @abstractmethod
    def _write(self, values: dict[str, float], step: int) -> None:
        """Write values."""

    @abstractmethod
    def _end(self, record: RunRecord, file: Path) -> None:
        """Write how a run ended, whose record is in a file."""


class _TensorBoardLog(RunLog):
    def __init__(self, parent: Path, spec: RunSpec, updates: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # `SummaryWriter` has a thread, whose errors are lost
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import hparams

        folder = parent / spec.id
        is_new = not folder.is_dir()
        super().__init__({}, -1 if is_new else updates - 1)
        folder.mkdir(exist_ok=True)
        self._event = event_pb2.Event
        self._writer = EventsWriter(str(folder / "events"), f".{time.time_ns()}")  # its own name has whole seconds
        if not is_new:  # earlier values from this step on are hidden, and come again
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.write_event(self._event(wall_time=time.time(), step=updates, session_log=start))
        columns, values, self._success = hparams(settings(spec), dict.fromkeys(HEADLINES, 0.0))
        self._add([columns, values], 0)

    def _add(self, summaries: Iterable[Any], step: int) -> None:
        for summary in summaries:
            self._writer.write_event(self._event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()

    def _write(self, values: dict[str, float], step: int) -> None:
        from tensorboardX.summary import scalar

        self._add([scalar(name, value) for name, value in values.items()], step)

    def _end(self, record: RunRecord, file: Path) -> None:
        if record.status == "completed":
            self._add([self._success], 0)
        self._writer.close()


def _tensorboard(folder: Path) -> Begin:
    """Return what begins logs in a folder of event files, which tensorboardX writes."""
    import tensorboardX  # noqa: F401  # now, not while a run trains

    folder.mkdir(parents=True, exist_ok=True)
    return partial(_TensorBoardLog, folder)


class _MlflowLog(RunLog):
    def __init__(self, client: Any, run: str) -> None:
        names = client.get_run(run).data.metrics
        super().__init__({name: max(value.step for value in client.get_metric_history(run, name)) for name in names})
        self._client, self._run = client, run

    def _write(self, values: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, value, now, step) for name, value in values.items()])

    def _end(self, record: RunRecord, file: Path) -> None:
        self._client.set_tag(self._run, "bakeoff.status", record.status)
        if file.is_file():
            self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run, STATUSES.get(record.status, "FAILED"))


class Mlflow:
    """Writes a store of MLflow, a SQLite database."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.ERROR)  # it would report the creation of its tables
        folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(f"sqlite:///{(folder / 'mlflow.db').absolute().as_posix()}")
        experiment = self._client.get_experiment_by_name("bakeoff")
        artifacts = (folder / "artifacts").absolute().as_uri()
        self._experiment = (
            experiment.experiment_id if experiment else self._client.create_experiment("bakeoff", artifacts)
        )

    def find(self, run_id: str) -> str | None:
        """Return MLflow's id of the latest log of a run; None if there is none."""
        found = self._client.search_runs([self._experiment], f"tags.`{RUN_TAG}` = '{run_id}'", max_results=1)
        return found[0].info.run_id if found else None

    def begin(self, spec: RunSpec, updates: int) -> RunLog:
        """Begin or continue the log of a run."""
        from mlflow.entities import Param

        run = self.find(spec.id) if updates else None
        if run is not None:
            self._client.update_run(run, "RUNNING")
        else:
            tags = {RUN_TAG: spec.id, "bakeoff.variant": spec.variant}
            tags["bakeoff.data"] = f"{spec.data.corpus} {spec.data.direction}"
            run = self._client.create_run(self._experiment, tags=tags, run_name=spec.id).info.run_id
            self._client.log_batch(run, params=[Param(name, str(value)) for name, value in settings(spec).items()])
        return _MlflowLog(self._client, run)


TRACKERS: dict[str, Callable[[Path], Begin]] = {
    "tensorboard": _tensorboard,
    "mlflow": lambda folder: Mlflow(folder).begin,
}
"""What begins the logs of runs in a folder."""


class RunLogs:
    """Writes logs of runs from their events, in a thread of its own; `results` is the folder of their records.

    Errors never stop the runs; `warn` is called with the first one.
    """

    def __init__(self, begin: Begin, specs: Iterable[RunSpec], results: Path, warn: Callable[[str], None]) -> None:
        self._begin, self._results, self._warn = begin, results, warn
        self._specs = {spec.id: spec for spec in specs}
        self._logs: dict[str, RunLog | None] = {}
        self._has_failed = False
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Take an event. The one with the stage "ended" comes after the record of the run is stored."""
        self._events.put(event)

    def close(self) -> None:
        """Write what is left, also the ends of runs that no event has reported."""
        self._events.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._warn(f"the last values are not written: it takes longer than {CLOSE_SECONDS:.0f} s")

    def _work(self) -> None:
        for event in iter(self._events.get, None):
            self._try(self._log, event)
        for run in list(self._logs):
            self._try(self._end, run)

    def _log(self, event: Event) -> None:
        if event.stage == "ended":
            self._end(event.run)
        elif event.stage != "elsewhere" and (event.stage != "preparing" or event.updates):
            if event.run not in self._logs:
                self._logs[event.run] = None  # a log that cannot be begun is not tried again
                resumed_after = event.updates if event.stage == "preparing" else 0
                self._logs[event.run] = self._begin(self._specs[event.run], resumed_after)
            if (log := self._logs[event.run]) is not None:
                log.log_event(event)

    def _end(self, run: str) -> None:
        log, record = self._logs.pop(run, None), run_store.usable_record(self._results, run)
        if log is not None and record is not None:
            log.end(record, run_store.run_folder(self._results, run) / run_store.RECORD)

    def _try(self, write: Callable[[Any], None], what: Any) -> None:
        try:
            write(what)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                self._warn(f"{type(error).__name__}: {error}; the runs go on, and their logs are incomplete")


def settings(spec: RunSpec) -> dict[str, Any]:
    """Return the settings of a run by dotted name; those that are None are "none"."""
    values = flat_settings(spec) | {"seed": spec.seed}
    return {name: "none" if value is None else value for name, value in values.items()}


def export(record: RunRecord, results: Path, folder: Path) -> None:
    """Write a finished run to MLflow's store in a folder.

    Raises:
        ValueError: The store has the run already, or cannot be used.
    """
    try:
        tracker = Mlflow(folder)
        if tracker.find(record.id):
            raise ValueError(f"{folder}: its mlflow.db has the run {record.id} already")
        tracker.begin(record.spec, 0).end(record, run_store.run_folder(results, record.id) / run_store.RECORD)
    except (OSError, ValueError):
        raise
    except Exception as error:  # those of MLflow and SQLAlchemy
        raise ValueError(f"{folder}: {type(error).__name__}: {error}") from error
