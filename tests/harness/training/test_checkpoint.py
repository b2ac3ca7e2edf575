"""Exact resume: a run that is killed at any moment and resumed gives the same bits as one that was not."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import interrupted
from killed_runs import Forker, fresh, generations, moments, outcome, tiny
from small_runs import spec

from harness.experiments.specs import RunSpec
from harness.processes.progress import Event
from harness.processes.signals import SignalGuard
from harness.processes.workers import ProcessSettings
from harness.storage import checkpoint_files
from harness.training import train
from impls import registry

CHECKPOINT_SECONDS = (0.0, 0.001, 0.02, 0.1)

# Random kills: variants x 4 cases x 6 kills, 2 x 11 for Keras, and 10 of new processes.
FORKED = [(variant, "torch", number, 6) for variant in registry.names() for number in range(4)]
FORKED += [("learned_positions", "keras", number, 11) for number in range(2)]
SAMPLE = {("bahdanau_gru", 0)}
FRESH_KILLS = 10


@pytest.fixture(scope="module")
def fork(cache: Path) -> Iterator[Callable[[RunSpec], Forker]]:
    """Return a function that gives the process that forks the runs of a framework."""
    forkers: dict[str, Forker] = {}

    def of(run: RunSpec) -> Forker:
        if run.framework not in forkers:
            forkers[run.framework] = Forker(run, cache)
        return forkers[run.framework]

    yield of
    for forker in forkers.values():
        forker.end()


@pytest.fixture(scope="module")
def straight(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunSpec], dict[str, Any]]:
    """Return a function that gives the outcome of a run in a new process, without checkpoints."""

    def of(run: RunSpec) -> dict[str, Any]:
        results = tmp_path_factory.mktemp("straight")
        assert fresh(run, results, cache, checkpoint_seconds=0, kill_after=None)
        return outcome(results, run)

    return functools.cache(of)


def case(variant: str, framework: str) -> RunSpec:
    if framework == "torch":
        return tiny(variant)
    return tiny(variant, framework=framework, backend="tensorflow")


# Killed ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "framework", "number", "kills"),
    [
        pytest.param(
            variant,
            framework,
            number,
            kills,
            marks=[] if framework == "torch" and (variant, number) in SAMPLE else [pytest.mark.faults],
        )
        for variant, framework, number, kills in FORKED
    ],
)
def test_run_killed_at_random_moments_ends_with_the_same_bits(
    variant: str,
    framework: str,
    number: int,
    kills: int,
    fork: Callable[[RunSpec], Forker],
    straight: Callable[[RunSpec], dict[str, Any]],
    tmp_path: Path,
) -> None:
    run, random = case(variant, framework), moments(number)
    expected, forker = straight(run), fork(run)
    seconds_of_run = forker.run(run, tmp_path / "whole", checkpoint_seconds=0.001, kill_after=None)
    assert seconds_of_run is not None
    assert outcome(tmp_path / "whole", run) == expected, "checkpoints, or forking, changed something"
    killed = chain = 0
    while killed < kills:
        chain += 1
        results = tmp_path / str(chain)
        ended = None
        # At most four kills in a row, so that most affect a resumed run and some the end of one.
        while ended is None and killed < kills and killed < 4 * chain:
            seconds = float(random.choice(CHECKPOINT_SECONDS))
            moment = float(random.uniform(0, seconds_of_run))
            ended = forker.run(run, results, checkpoint_seconds=seconds, kill_after=moment)
            killed += ended is None
        if ended is None:
            assert forker.run(run, results, checkpoint_seconds=0.02, kill_after=None) is not None
        assert outcome(results, run) == expected


@pytest.mark.faults
def test_new_processes_killed_at_random_moments_end_with_the_same_bits(
    straight: Callable[[RunSpec], dict[str, Any]], tmp_path: Path
) -> None:
    """The data are prepared again too."""
    run, random, killed = tiny("conv_ffn"), moments(0), 0
    while killed < FRESH_KILLS:
        results, store_of_data = tmp_path / f"results-{killed}", tmp_path / f"cache-{killed}"
        ended, longest = False, 8.0
        while not ended:
            moment = float(random.uniform(0, longest)) if killed < FRESH_KILLS else None
            ended = fresh(run, results, store_of_data, checkpoint_seconds=0.01, kill_after=moment)
            killed += not ended
        assert outcome(results, run) == straight(run)


# Interrupted after chosen updates -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cache", "every_update")
def test_run_interrupted_after_any_update_loses_none(tmp_path: Path) -> None:
    run = spec()
    record = train.run(run, tmp_path / "straight")
    for update in (1, 6, 7, 8, 20, 21):
        assert interrupted(run, tmp_path, update).status == "interrupted"
        assert generations(tmp_path, run)[0]["updates"] == update
    resumed = train.run(run, tmp_path)
    assert resumed.environment["resumed_after_updates"] == [1, 6, 7, 8, 20, 21]
    assert resumed.environment["resumed_after_epochs"] == [0, 0, 0, 1, 2, 2]
    assert resumed.speed["first_update_seconds"] > 0
    assert outcome(tmp_path, run) == outcome(tmp_path / "straight", run)
    assert [epoch.tokens for epoch in resumed.curve] == [epoch.tokens for epoch in record.curve]


@pytest.mark.usefixtures("cache", "every_update")
def test_validation_interrupted_is_repeated_without_training(tmp_path: Path) -> None:
    run, watch = spec(), SignalGuard()
    train.run(run, tmp_path / "straight")

    def tell(event: Event) -> None:
        if event.stage == "validating" and event.updates == 14:
            watch.receive(2)

    record = train.run(run, tmp_path, progress=tell, guard=watch)
    assert (len(record.curve), record.reason) == (1, "interrupted by SIGINT after 14 of 21 updates")
    updates: list[int] = []
    resumed = train.run(run, tmp_path, progress=lambda event: updates.append(event.updates))
    assert min(number for number in updates if number) == 14
    assert resumed.environment["resumed_after_updates"] == [14]
    assert outcome(tmp_path, run) == outcome(tmp_path / "straight", run)


@pytest.mark.usefixtures("cache")
def test_checkpoints_are_saved_by_time_and_at_epoch_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    save = checkpoint_files.save

    def note(*arguments: Any) -> None:
        saved.append(arguments[3]["updates"])
        save(*arguments)

    monkeypatch.setattr(checkpoint_files, "save", note)
    train.run(spec(), tmp_path / "never", ProcessSettings(checkpoint_seconds=0))
    assert saved == [7, 14, 21]
    saved.clear()
    train.run(spec(), tmp_path / "always", ProcessSettings(checkpoint_seconds=1e-9))
    assert saved == [1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12, 13, 14, 14, 15, 16, 17, 18, 19, 20, 21, 21]
    assert outcome(tmp_path / "always", spec()) == outcome(tmp_path / "never", spec())


@pytest.mark.usefixtures("cache")
def test_throughput_excludes_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = checkpoint_files.save

    def slow(*arguments: Any) -> None:
        time.sleep(0.2)
        save(*arguments)

    monkeypatch.setattr(checkpoint_files, "save", slow)
    record = train.run(spec(), tmp_path, ProcessSettings(checkpoint_seconds=1e-9))
    assert record.speed["total_seconds"] > 24 * 0.2
    assert record.speed["epoch_seconds"] < 0.5
    assert sum(epoch.training_seconds for epoch in record.curve) < 1.0
