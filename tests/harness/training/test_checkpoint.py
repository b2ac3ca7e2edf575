"""Exact resume: a run that is killed at any moment and resumed gives the same bits as one that was not."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_runs import UPDATES, Forker, fresh, generations, moments, outcome, tiny
from small_runs import spec

from harness.experiments.specs import DataSpec, FileSpec, RunSpec
from harness.processes import machine as evidence
from harness.processes.progress import Event
from harness.processes.signals import SignalGuard
from harness.reporting import provenance
from harness.storage import checkpoint_files, files, run_store, tensors
from harness.storage.records import RunRecord
from harness.training import checkpoint, run_progress, train
from impls import registry

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(2.5), "c": np.array(True)}
CHECKPOINT_SECONDS = (0.0, 0.001, 0.02, 0.1)
LONGEST_SECONDS = {"torch": 60.0, "keras": 180.0}

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
    outcomes: dict[str, dict[str, Any]] = {}

    def of(run: RunSpec) -> dict[str, Any]:
        if run.id not in outcomes:
            results = tmp_path_factory.mktemp("straight")
            assert fresh(run, results, cache, checkpoint_seconds=0, kill_after=None)
            outcomes[run.id] = outcome(results, run)
        return outcomes[run.id]

    return of


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


class Signaller:
    """Receives a signal for a run when the run reports one of these numbers of updates."""

    def __init__(self, *updates: int) -> None:
        self.guard, self.updates, self.remarks = SignalGuard(), set(updates), list[str]()

    def __call__(self, event: Event) -> None:
        self.remarks += [event.remark] * bool(event.remark)
        if event.stage == "training" and event.updates in self.updates and not event.remark:
            self.guard.receive(15)


def interrupted(run: RunSpec, results: Path, update: int, **settings: Any) -> RunRecord:
    signaller = Signaller(update)
    record = train.run(run, results, progress=signaller, guard=signaller.guard, **settings)
    assert record.reason == f"interrupted by SIGTERM after {update} of {record.spec.training.epochs * 7} updates"
    return record


def test_run_interrupted_after_any_update_loses_none(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
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


def test_validation_interrupted_is_repeated_without_training(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, watch = spec(), SignalGuard()
    train.run(run, tmp_path / "straight")

    def tell(event: Event) -> None:
        if event.stage == "validating" and event.updates == 14:
            watch.receive(2)

    record = train.run(run, tmp_path, progress=tell, guard=watch)
    assert (len(record.curve), record.reason) == (1, "interrupted by SIGINT after 14 of 21 updates")
    updates: list[int] = []
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
    resumed = train.run(run, tmp_path, progress=lambda event: updates.append(event.updates))
    assert min(number for number in updates if number) == 14
    assert resumed.environment["resumed_after_updates"] == [14]
    assert outcome(tmp_path, run) == outcome(tmp_path / "straight", run)


def test_checkpoints_are_saved_by_time_and_at_epoch_ends(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    save = checkpoint_files.save

    def note(*arguments: Any) -> None:
        saved.append(arguments[3]["updates"])
        save(*arguments)

    monkeypatch.setattr(checkpoint_files, "save", note)
    train.run(spec(), tmp_path / "never", checkpoint_seconds=0)
    assert saved == [7, 14, 21]
    saved.clear()
    train.run(spec(), tmp_path / "always", checkpoint_seconds=1e-9)
    assert saved == [1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12, 13, 14, 14, 15, 16, 17, 18, 19, 20, 21, 21]
    assert outcome(tmp_path / "always", spec()) == outcome(tmp_path / "never", spec())


def test_throughput_excludes_checkpoints(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    save = checkpoint_files.save

    def slow(*arguments: Any) -> None:
        time.sleep(0.2)
        save(*arguments)

    monkeypatch.setattr(checkpoint_files, "save", slow)
    record = train.run(spec(), tmp_path, checkpoint_seconds=1e-9)
    assert record.speed["total_seconds"] > 24 * 0.2
    assert record.speed["epoch_seconds"] < 0.5
    assert sum(epoch.training_seconds for epoch in record.curve) < 1.0


# Damaged checkpoints --------------------------------------------------------------------------------------------------


def load(results: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the notes of the loaded checkpoint, and the complaints about others."""
    complaints: list[str] = []
    notes = checkpoint_files.load(results, "run", lambda arrays, notes: notes, complaints.append)
    return notes, complaints


def write_two(results: Path) -> dict[str, bytes]:
    for number in (1, 2):
        checkpoint_files.save(results, "run", ARRAYS, {"updates": number, "best": math.inf, "seconds": 1.5 * number})
    return contents(results)


def contents(results: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((results / "run").iterdir())}


def put(results: Path, replacement: dict[str, bytes]) -> None:
    for path in (results / "run").iterdir():
        path.unlink()
    for name, content in replacement.items():
        (results / "run" / name).write_bytes(content)


def test_checkpoint_files_keep_two_generations(tmp_path: Path) -> None:
    assert load(tmp_path) == (None, [])
    assert not checkpoint_files.exists(tmp_path, "run")
    for number in range(1, 5):
        checkpoint_files.save(tmp_path, "run", {**ARRAYS, "b": np.array(number)}, {"updates": number, "best": math.inf})
        assert load(tmp_path) == ({"updates": number, "best": None}, [])
    assert sorted(contents(tmp_path)) == [f"checkpoint-{n}.{kind}" for n in (3, 4) for kind in ("json", "safetensors")]
    arrays_read = checkpoint_files.load(tmp_path, "run", lambda arrays, notes: arrays, print)
    assert arrays_read is not None
    assert arrays_read["b"] == 4
    for name, array in ARRAYS.items():
        assert arrays_read[name].dtype == np.asarray(array if name != "b" else 4).dtype
    assert checkpoint_files.exists(tmp_path, "run")
    checkpoint_files.remove(tmp_path, "run")
    assert contents(tmp_path) == {}


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """Return a content with a bit flipped, or cut short."""
    if random.random() < 0.25:
        return content[: int(random.integers(len(content)))]
    changed, place = bytearray(content), int(random.integers(len(content)))
    changed[place] ^= 1 << int(random.integers(8))
    return bytes(changed)


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_checkpoint_with_any_of_500_damages_falls_back_to_the_older(kind: str, tmp_path: Path) -> None:
    random, intact = np.random.default_rng(500), write_two(tmp_path)
    name = f"checkpoint-2.{kind}"
    for number in range(500):
        bad = damaged(intact[name], random)
        put(tmp_path, {**intact, name: bad})
        notes, complaints = load(tmp_path)
        assert notes == {"updates": 1, "best": None, "seconds": 1.5}, (number, bad)
        assert len(complaints) == 1
        assert complaints[0].startswith("checkpoint-2.")
        assert sorted(contents(tmp_path)) == ["checkpoint-1.json", "checkpoint-1.safetensors"]
        put(tmp_path, {**intact, name: bad, name.replace("2", "1"): damaged(intact[name.replace("2", "1")], random)})
        notes, complaints = load(tmp_path)
        assert (notes, len(complaints)) == (None, 2)


@pytest.mark.parametrize("name", ["checkpoint-2.json", "checkpoint-2.safetensors"])
def test_checkpoint_with_a_missing_file_falls_back_to_the_older(name: str, tmp_path: Path) -> None:
    intact = write_two(tmp_path)
    put(tmp_path, {file_name: content for file_name, content in intact.items() if file_name != name})
    notes, complaints = load(tmp_path)
    assert notes is not None
    assert notes["updates"] == 1
    assert len(complaints) == 1
    assert complaints[0].startswith(f"{name}: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"updates"', ' "updates"'),
        lambda text: text.replace("3.0", "3.00"),
        lambda text: text.replace("3.0", "4.0"),
        lambda text: text.replace('"updates": 2', '"updates": 2, "updates": 2'),
        lambda text: text.replace('"schema": 1', '"schema": 2'),
        lambda text: text + "\n",
        lambda text: "[" * 100_000,
        lambda text: "[]",
        lambda text: "null",
        lambda text: json.dumps({name: value for name, value in json.loads(text).items() if name != "seal"}),
    ],
)
def test_manifest_with_any_changed_byte_is_refused(change: Callable[[str], str], tmp_path: Path) -> None:
    intact = write_two(tmp_path)
    text = intact["checkpoint-2.json"].decode()
    assert change(text) != text
    put(tmp_path, {**intact, "checkpoint-2.json": change(text).encode()})
    notes, complaints = load(tmp_path)
    assert notes is not None
    assert (notes["updates"], len(complaints)) == (1, 1)


def test_checkpoint_with_swapped_generations_is_refused(tmp_path: Path) -> None:
    intact = write_two(tmp_path)
    put(tmp_path, {"checkpoint-3.json": intact["checkpoint-1.json"], **intact})
    notes, complaints = load(tmp_path)
    assert notes is not None
    assert (notes["updates"], len(complaints)) == (2, 1)


def test_checkpoint_save_killed_at_any_system_call_leaves_one_complete(tmp_path: Path) -> None:
    """A process is killed at each system call that changes a folder or flushes a file."""

    def killed_at(number: int, results: Path) -> bool:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        calls = 0

        def counting(call: Any) -> Any:
            def counted(*arguments: Any, **more: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == number:
                    os._exit(9)
                return call(*arguments, **more)

            return counted

        for name in ("open", "fsync", "replace", "rename", "unlink", "chmod"):
            setattr(os, name, counting(getattr(os, name)))
        checkpoint_files.save(results, "run", ARRAYS, {"updates": 3})
        os._exit(0)

    write_two(tmp_path / "0")
    number = 0
    while True:
        number += 1
        results = tmp_path / str(number)
        write_two(results)
        if not killed_at(number, results):
            break
        notes, _ = load(results)
        assert notes is not None
        assert notes["updates"] in (2, 3)
        checkpoint_files.save(results, "run", ARRAYS, {"updates": 4})
        assert load(results) == ({"updates": 4}, [])
        assert len(contents(results)) == 4
    assert number > 10


def test_resume_with_a_damaged_checkpoint_uses_the_older_and_reports_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
    run = tiny("learned_positions")
    train.run(run, tmp_path / "straight")
    interrupted(run, tmp_path, 10, checkpoint_seconds=1e-9)
    assert [notes["updates"] for notes in generations(tmp_path, run)] == [10, 10]
    newest = max((tmp_path / run.id).glob("checkpoint-*.safetensors"), key=lambda path: int(path.stem[11:]))
    newest.write_bytes(damaged(newest.read_bytes(), np.random.default_rng(0)))
    signaller = Signaller()
    resumed = train.run(run, tmp_path, progress=signaller)
    assert any(remark.startswith(f"a checkpoint cannot be used: {newest.name}: ") for remark in signaller.remarks)
    assert f"goes on after update 10 of {UPDATES}" in signaller.remarks
    (fallback,) = resumed.environment["checkpoint_fallbacks"]
    assert fallback.startswith(f"{newest.name}: ")
    assert outcome(tmp_path, run) == outcome(tmp_path / "straight", run)


def test_record_of_a_resumed_run_lists_earlier_environments(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
    run, cores = spec(), evidence.cores()
    machine = evidence.machine()
    for update, other_cores, versions in (
        (2, cores + 6, {"sacrebleu": "1.0"}),
        (9, cores + 6, {"sacrebleu": "1.0"}),
        (16, cores, {}),
    ):
        with monkeypatch.context() as patch:
            other_machine = {**machine, "cores": other_cores}
            other_versions = {**evidence.versions(), **versions}
            patch.setattr(evidence, "machine", lambda device, value=other_machine: value)
            patch.setattr(evidence, "versions", lambda value=other_versions: value)
            patch.setenv("OMP_PROC_BIND", "true")
            assert interrupted(run, tmp_path, update).environment["machine"]["cores"] == other_cores
    resumed = train.run(run, tmp_path)
    assert resumed.environment["machine"]["cores"] == cores
    odd = {"variables": {"OMP_PROC_BIND": "true"}}
    assert resumed.environment["earlier_processes"] == [
        {"until_update": 9, "machine": {"cores": cores + 6}, "versions": {"sacrebleu": "1.0"}, **odd},
        {"until_update": 16, **odd},
    ]
    assert run_store.load_record(tmp_path, run.id) == resumed
    row = dict(provenance.environment([resumed]))["earlier_processes"]
    assert row.startswith(f"until_update 9 machine cores {cores + 6} ")
    assert row.endswith("until_update 16 variables OMP_PROC_BIND true")
    undisturbed = replace(resumed, environment={**resumed.environment, "earlier_processes": []})
    assert "earlier_processes" not in dict(provenance.environment([undisturbed]))


OTHER_ARITHMETIC = {
    "MKL_CBWR=COMPATIBLE": lambda patch: patch.setenv("MKL_CBWR", "COMPATIBLE"),
    "MKL_ENABLE_INSTRUCTIONS=SSE4_2": lambda patch: patch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"),
    "ATEN_CPU_CAPABILITY=default": lambda patch: patch.setenv("ATEN_CPU_CAPABILITY", "default"),
    "ONEDNN_MAX_CPU_ISA=SSE41": lambda patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41"),
    "cpu_capability=AVX": lambda patch: patch.setattr(evidence, "torch_arithmetic", lambda: {"cpu_capability": "AVX"}),
    "numpy=1.0": lambda patch: patch.setattr(evidence, "versions", lambda: {"numpy": "1.0"}),
    "processor=another": lambda patch: patch.setattr(evidence, "machine", lambda _: {"processor": "another"}),
}


@pytest.mark.parametrize("difference", OTHER_ARITHMETIC)
def test_resume_with_other_arithmetic_is_refused_unless_forced(
    difference: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
    name, _, value = difference.partition("=")
    run = spec()
    monkeypatch.setattr(evidence, "torch_arithmetic", lambda: {"cpu_capability": "AVX512"})
    with monkeypatch.context() as patch:
        OTHER_ARITHMETIC[difference](patch)
        interrupted(run, tmp_path, 10)
    before = sorted(path.name for path in (tmp_path / run.id).iterdir())
    with pytest.raises(checkpoint.ResumeRefused, match=rf"{name} {value} \(now .*--resume-anyway") as caught:
        train.run(run, tmp_path)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (tmp_path / run.id).iterdir()) == before
    resumed = train.run(run, tmp_path, resume_anyway=True)
    assert resumed.environment["resumed_after_updates"] == [10]
    (earlier,) = resumed.environment["earlier_processes"]
    assert (earlier["until_update"], earlier["resumed_anyway"]) == (10, True)


def test_resume_in_the_same_environment_is_not_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    run = tiny("learned_positions")
    interrupted(run, tmp_path, 10)
    resumed = train.run(run, tmp_path)
    assert resumed.environment["resumed_after_updates"] == [10]
    assert resumed.environment["earlier_processes"] == []
    assert resumed.environment["variables"]["MKL_CBWR"] == "COMPATIBLE"
    assert resumed.environment["torch"]["cpu_capability"]


def test_resume_from_a_checkpoint_without_environment_works(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
    run, save = spec(), checkpoint_files.save

    def older(results: Path, run_id: str, state: Any, notes: Any) -> None:
        new = ("environment", "earlier")
        save(results, run_id, state, {name: value for name, value in notes.items() if name not in new})

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "save", older)
        interrupted(run, tmp_path, 10)
    resumed = train.run(run, tmp_path)
    assert resumed.environment["resumed_after_updates"] == [10]
    assert resumed.environment["earlier_processes"] == []


def test_checkpoint_size_limit_follows_the_model(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)

    class Large:
        def training_state(self) -> Any:
            return {"weights/a": np.broadcast_to(np.float32(0), 2**31)}

    assert checkpoint._most_bytes(Large()) > 3 * 8 * 2**30  # type: ignore[arg-type]
    with (tmp_path / "large").open("wb") as file:
        file.truncate(files.FILE_BYTES + 1)
    with pytest.raises(ValueError, match="expected at most"):
        tensors.read(tmp_path / "large")
    with pytest.raises(ValueError, match="not safetensors"):
        tensors.read(tmp_path / "large", most=2 * files.FILE_BYTES)
    run = spec()
    interrupted(run, tmp_path, 10)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_most_bytes", lambda model: 99)
        signaller = Signaller(10)
        train.run(run, tmp_path, progress=signaller, guard=signaller.guard)
    assert any("expected at most 99" in remark for remark in signaller.remarks)


def test_resume_with_all_checkpoints_damaged_starts_again_and_reports_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
    run = spec()
    train.run(run, tmp_path / "straight")
    interrupted(run, tmp_path, 16)
    for path in (tmp_path / run.id).glob("checkpoint-*"):
        path.write_bytes(b"half")
    signaller = Signaller()
    resumed = train.run(run, tmp_path, progress=signaller)
    assert "starts anew, because none of its checkpoints can be used" in signaller.remarks
    assert resumed.environment["resumed_after_updates"] == []
    assert len(resumed.environment["checkpoint_fallbacks"]) == 3
    assert resumed.environment["checkpoint_fallbacks"][-1] == "started anew"
    assert outcome(tmp_path, run) == outcome(tmp_path / "straight", run)


def test_resume_from_a_checkpoint_without_totals_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
    run, save = tiny("learned_positions"), checkpoint_files.save

    def older(results: Path, run_id: str, state: Any, notes: Any) -> None:
        arrays = {name: array for name, array in state.items() if not name.startswith("state/totals/")}
        save(results, run_id, arrays, notes)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "save", older)
        interrupted(run, tmp_path, 3)
    signaller = Signaller()
    assert train.run(run, tmp_path, progress=signaller).status == "completed"
    assert any("totals/objective_nats" in remark for remark in signaller.remarks)


def test_resume_with_changed_data_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)
    paths = [tmp_path / f"{split}.tsv" for split in ("train", "validation", "test")]
    files = FileSpec(train_source=str(paths[0]), validation_source=str(paths[1]), test_source=str(paths[2]))
    run = spec(data=DataSpec(corpus="files", files=files, tokenizer="whitespace", minimum_frequency=1))

    def write(last: str) -> None:
        lines = [f"ein Satz {number % 9}\ta sentence {number % 9}\n" for number in range(7 * 32 - 1)]
        for path in paths:
            path.write_text("".join(lines) + f"noch ein Satz\t{last} sentence\n", encoding="utf-8")

    write("another")
    interrupted(run, tmp_path / "results", 10)
    write("a")
    signaller = Signaller()
    resumed = train.run(run, tmp_path / "results", progress=signaller)
    assert any("a checkpoint was written with other data" in remark for remark in signaller.remarks)
    assert resumed.environment["resumed_after_updates"] == []
    train.run(run, tmp_path / "straight")
    assert outcome(tmp_path / "results", run) == outcome(tmp_path / "straight", run)


def test_run_removes_partial_files_of_a_killed_process(cache: Path, tmp_path: Path) -> None:
    run = spec()
    (tmp_path / run.id).mkdir()
    (tmp_path / run.id / ".checkpoint-1.json.abc.bakeoff.partial").write_bytes(b"half")
    train.run(run, tmp_path)
    outcome(tmp_path, run)


def test_finished_run_removes_its_checkpoints(cache: Path, tmp_path: Path) -> None:
    record = train.run(spec(), tmp_path)
    checkpoint_files.save(tmp_path, record.id, ARRAYS, {})
    assert train.run(spec(), tmp_path) == record
    assert not checkpoint_files.exists(tmp_path, record.id)
    assert run_store.load_record(tmp_path, record.id) == record
