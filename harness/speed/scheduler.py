"""Runs the timed models in turns: warms each model up, then times all of them round by round, and keeps the samples.

The models take turns in every round, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.experiments.serialization import to_json
from harness.processes.environment_variables import baseline_environment, worker_environment
from harness.processes.json_process import JsonProcess, ProcessFailed, RequestRefused
from harness.speed.plan import Measure, ModelJob


@dataclass(frozen=True)
class TimedTask:
    """What one model does in every round; `index` is the number of the recipe if a measure exists for several."""

    model: str
    measure: Measure
    index: int = 0

    @property
    def label(self) -> str:
        return self.measure.replace("_", " ")


@dataclass
class TaskSamples:
    """The facts that the warm-up of a task returned, and the seconds of each round so far."""

    facts: dict[str, Any]
    values: list[float] = field(default_factory=list)


class RoundRobin:
    """The processes of all models, of which one works at a time.

    Args:
        folder: Where the processes write their logs.
        say: Shows a line.
        check: Called while waiting for an answer; may raise an exception, such as for a signal.
        timeout_seconds: The longest time for one answer; None for no limit.

    Attributes:
        processes: By name of the model, also those that have ended.
        facts: What each process reported when it started.
        lost: Why a model failed, by its name.
        declined: Why a baseline cannot be built, by its name.
        refused: Why a model does not do a task.
        series: The samples of each task.
    """

    def __init__(
        self,
        folder: Path,
        *,
        say: Callable[[str], None],
        check: Callable[[], None],
        timeout_seconds: float | None,
    ) -> None:
        self._folder, self.say, self.check, self._timeout = folder, say, check, timeout_seconds
        self.processes: dict[str, JsonProcess] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.lost: dict[str, str] = {}
        self.declined: dict[str, str] = {}
        self.refused: dict[TimedTask, str] = {}
        self.series: dict[TimedTask, TaskSamples] = {}

    def start(self, job: ModelJob) -> None:
        """Start the process of a model. A baseline may decline a recipe."""
        log = self._folder / f"{len(self.processes) + len(self.lost) + len(self.declined)}.log"
        began = time.perf_counter()
        try:
            self.processes[job.name] = JsonProcess(
                "harness.speed.worker",
                environment=worker_environment(job.spec) | baseline_environment(job.baseline),
                log=log,
                check=self.check,
                timeout_seconds=self._timeout,
            )
            facts = self.processes[job.name].request("start", job=to_json(job))
        except (RequestRefused, ProcessFailed) as error:
            if isinstance(error, RequestRefused) and job.baseline:
                self.processes.pop(job.name).close()
                self.declined[job.name] = str(error)
                self.say(f"{job.name} is left out: {error}")
            else:
                self._lose(job.name, error)
        else:
            self.facts[job.name] = {**facts, "start_seconds": time.perf_counter() - began}

    def request(self, model: str, command: str, **arguments: Any) -> dict[str, Any] | None:
        """Return the answer of a model's process, or None if the process has failed, which is shown once."""
        process = self.processes.get(model)
        if process is None or model in self.lost:
            return None
        try:
            return dict(process.request(command, **arguments))
        except (ProcessFailed, RequestRefused) as error:
            self._lose(model, error)
            return None

    def _warm_up(self, title: str, task: TimedTask) -> None:
        """Warm a task up. A refused task is left out, and the model continues with its other tasks."""
        self.say(f"{title}: {task.model} warms up ({task.label})")
        process = self.processes.get(task.model)
        if process is None or task.model in self.lost:
            return
        try:
            self.series[task] = TaskSamples(process.request("warm_up", measure=task.measure, index=task.index))
        except RequestRefused as error:
            self.refused[task] = str(error)
            self.say(f"{title}: {task.model} is left out of this: {error}")
        except ProcessFailed as error:
            self._lose(task.model, error)

    def _lose(self, model: str, error: Exception) -> None:
        self.lost[model] = str(error)
        self.say(f"{model}: failed and is left out from here on: {error}")
        self.close(model)

    def run(self, title: str, tasks: Sequence[TimedTask], rounds: int) -> None:
        """Warm every task up, then time all of them in turns."""
        for task in tasks:
            self._warm_up(title, task)
        turn = deque(task for task in tasks if task in self.series)
        if not turn:
            return
        for number in range(1, rounds + 1):
            lines = []
            for task in turn:
                answer = self.request(task.model, "time", measure=task.measure, index=task.index)
                if answer is not None:
                    self.series[task].values.append(answer["seconds"])
                    lines.append(f"{task.model} {task.label} {answer['seconds']:.3g} s")
            self.say(f"{title}: round {number} of {rounds}: {', '.join(lines)}")
            turn.rotate(-1)  # each round starts with the next task

    def samples(self, model: str, measure: Measure, index: int = 0) -> list[float]:
        """Return the seconds of a task so far; empty if it was never timed."""
        series = self.series.get(TimedTask(model, measure, index))
        return [] if series is None else series.values

    def idle_share(self, model: str) -> float | None:
        """Return CPU seconds over seconds while a process waited for its turn; None if it has not waited."""
        process = self.processes.get(model)
        if process is None or not process.idle_seconds > 0:
            return None
        return process.idle_cpu_seconds / process.idle_seconds

    def close(self, *models: str) -> None:
        """End the processes of these models, or all processes."""
        for name in models or tuple(self.processes):
            if name in self.processes:
                self.processes[name].close()
