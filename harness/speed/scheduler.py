"""Lets subjects take turns: warms each up, then times all of them round by round, and keeps the samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.speed import timing
from harness.speed.companion import JsonProcess, Lost, Refused
from harness.speed.plan import Measure, ModelJob


@dataclass(frozen=True)
class TimedTask:
    """What a subject does in each round; `of` is the number of a recipe where the measure is of several."""

    subject: str
    measure: Measure
    of: int = 0


@dataclass
class TaskSamples:
    """What a turn has given so far: what it said when it was warmed up, and a sample of each round."""

    facts: dict[str, Any]
    values: list[float] = field(default_factory=list)


class RoundRobin:
    """The processes of all subjects, of which one works at a time.

    `say` is given a line worth showing; `check` may raise while anything is waited for.
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
        self.companions: dict[str, JsonProcess] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.lost: dict[str, str] = {}
        self.declined: dict[str, str] = {}
        self.refused: dict[TimedTask, str] = {}
        self.series: dict[TimedTask, TaskSamples] = {}

    def start(self, job: ModelJob) -> bool:
        """Start the process of a subject; return whether it is ready. A baseline may decline, which loses nothing."""
        log = self._folder / f"{len(self.companions) + len(self.lost) + len(self.declined)}.log"
        began = time.perf_counter()
        try:
            companion = JsonProcess(job, log, self.check, self._timeout)
            self.companions[job.name] = companion
            facts = companion.start()
        except Refused as error:
            self.companions.pop(job.name).end()
            if not job.baseline:
                self._lose(job.name, error)
                return False
            self.declined[job.name] = str(error)
            self.say(f"{job.name} is left out: {error}")
            return False
        except Lost as error:
            self._lose(job.name, error)
            return False
        self.facts[job.name] = {**facts, "start_seconds": time.perf_counter() - began}
        return True

    def ask(self, subject: str, do: str, **told: Any) -> dict[str, Any] | None:
        """Let a subject do something; return its answer, or None where it is lost by then, which is said."""
        companion = self.companions.get(subject)
        if companion is None or subject in self.lost:
            return None
        try:
            return companion.ask(do, **told)
        except (Lost, Refused) as error:
            self._lose(subject, error)
            return None

    def _warm(self, title: str, turn: TimedTask) -> None:
        """Warm a turn up; one that its subject refuses is left out, and the subject goes on."""
        self.say(f"{title}: {turn.subject} warms up ({turn.measure.replace('_', ' ')})")
        companion = self.companions.get(turn.subject)
        if companion is None or turn.subject in self.lost:
            return
        try:
            self.series[turn] = TaskSamples(companion.ask("warm", measure=turn.measure, of=turn.of))
        except Refused as error:
            self.refused[turn] = str(error)
            self.say(f"{title}: {turn.subject} is left out of this: {error}")
        except Lost as error:
            self._lose(turn.subject, error)

    def _lose(self, subject: str, error: Exception) -> None:
        self.lost[subject] = str(error)
        self.say(f"{subject}: failed and is left out from here on: {error}")
        if subject in self.companions:
            self.companions[subject].end()

    def run(self, title: str, turns: Sequence[TimedTask], rounds: int) -> None:
        """Warm every turn up, then time all of them in turns."""
        for turn in turns:
            self._warm(title, turn)
        warm = [turn for turn in turns if turn in self.series]
        shown: list[str] = []
        for number, turn in timing.interleaved(warm, rounds):
            answer = self.ask(turn.subject, "time", measure=turn.measure, of=turn.of)
            if answer is not None:
                self.series[turn].values.append(answer["seconds"])
                shown.append(f"{turn.subject} {turn.measure.replace('_', ' ')} {answer['seconds']:.3g} s")
            if turn == self._last(warm, number):
                self.say(f"{title}: round {number + 1} of {rounds}: {', '.join(shown)}")
                shown = []

    @staticmethod
    def _last(turns: Sequence[TimedTask], number: int) -> TimedTask:
        return turns[number % len(turns) - 1]

    def samples(self, subject: str, measure: Measure, of: int = 0) -> list[float]:
        """Return the seconds of a turn so far, none where it never was."""
        found = self.series.get(TimedTask(subject, measure, of))
        return [] if found is None else found.values

    def idle_share(self, subject: str) -> float | None:
        """Return the share of its waiting in which a subject's process worked; None where it has not waited."""
        companion = self.companions.get(subject)
        if companion is None or not companion.idle_seconds > 0:
            return None
        return companion.idle_cpu_seconds / companion.idle_seconds

    def end(self, *subjects: str) -> None:
        """End the processes of these subjects, of all where none is named."""
        for name in subjects or tuple(self.companions):
            if name in self.companions:
                self.companions[name].end()
