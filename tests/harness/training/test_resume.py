"""Resume from damaged, foreign or older checkpoints, and in other environments."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from interrupted_runs import Signaller, interrupted
from killed_runs import UPDATES, generations, outcome, tiny
from small_corpora import small
from small_runs import spec

from harness.experiments.specs import DataSpec
from harness.processes import machine as evidence
from harness.processes.workers import ProcessSettings
from harness.reporting import provenance
from harness.storage import checkpoint_files, files, run_store, tensors
from harness.training import checkpoint, train

pytestmark = pytest.mark.usefixtures("cache", "every_update")

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}


def test_resume_with_a_damaged_checkpoint_uses_the_older_and_reports_it(tmp_path: Path) -> None:
    run = tiny("learned_positions")
    train.run(run, tmp_path / "straight")
    interrupted(run, tmp_path, 10, checkpoint_seconds=1e-9)
    assert [notes["updates"] for notes in generations(tmp_path, run)] == [10, 10]
    newest = max((tmp_path / run.id).glob("checkpoint-*.safetensors"), key=lambda path: int(path.stem[11:]))
    newest.write_bytes(newest.read_bytes()[:-1])
    signaller = Signaller()
    resumed = train.run(run, tmp_path, progress=signaller)
    assert any(remark.startswith(f"a checkpoint cannot be used: {newest.name}: ") for remark in signaller.remarks)
    assert f"continues after update 10 of {UPDATES}" in signaller.remarks
    (fallback,) = resumed.environment["checkpoint_fallbacks"]
    assert fallback.startswith(f"{newest.name}: ")
    assert outcome(tmp_path, run) == outcome(tmp_path / "straight", run)


def test_record_of_a_resumed_run_lists_earlier_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            patch.setattr(evidence, "versions", lambda *_, value=other_versions: value)
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


def test_resumed_run_has_the_seconds_of_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that runs on by a second when it is read; the second process reads it less often than the first."""
    clock = itertools.count()
    monkeypatch.setattr(train, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    first = interrupted(spec(), tmp_path, 20).speed["total_seconds"]
    assert train.run(spec(), tmp_path).speed["total_seconds"] > first


OTHER_ARITHMETIC = {
    "MKL_CBWR=COMPATIBLE": lambda patch: patch.setenv("MKL_CBWR", "COMPATIBLE"),
    "MKL_ENABLE_INSTRUCTIONS=SSE4_2": lambda patch: patch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"),
    "ATEN_CPU_CAPABILITY=default": lambda patch: patch.setenv("ATEN_CPU_CAPABILITY", "default"),
    "ONEDNN_MAX_CPU_ISA=SSE41": lambda patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41"),
    "cpu_capability=AVX": lambda patch: patch.setattr(evidence, "torch_arithmetic", lambda: {"cpu_capability": "AVX"}),
    "numpy=1.0": lambda patch: patch.setattr(
        evidence, "versions", lambda packages=(): dict.fromkeys(packages, "2.0") | {"numpy": "1.0"}
    ),
    "processor=another": lambda patch: patch.setattr(evidence, "machine", lambda _: {"processor": "another"}),
}


@pytest.mark.parametrize("difference", OTHER_ARITHMETIC)
def test_resume_with_other_arithmetic_is_refused_unless_forced(
    difference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, value = difference.partition("=")
    run = spec()
    monkeypatch.setattr(evidence, "torch_arithmetic", lambda: {"cpu_capability": "AVX512"})
    with monkeypatch.context() as patch:
        OTHER_ARITHMETIC[difference](patch)
        interrupted(run, tmp_path, 10)
    before = sorted(path.name for path in (tmp_path / run.id).iterdir())
    with pytest.raises(ValueError, match=rf"{name} {value} \(now .*--resume-anyway") as caught:
        train.run(run, tmp_path)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (tmp_path / run.id).iterdir()) == before
    resumed = train.run(run, tmp_path, ProcessSettings(resume_anyway=True))
    assert resumed.environment["resumed_after_updates"] == [10]
    (earlier,) = resumed.environment["earlier_processes"]
    assert (earlier["until_update"], earlier["resumed_anyway"]) == (10, True)


def test_resume_in_the_same_environment_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    run = tiny("learned_positions")
    interrupted(run, tmp_path, 10)
    resumed = train.run(run, tmp_path)
    assert resumed.environment["resumed_after_updates"] == [10]
    assert resumed.environment["earlier_processes"] == []
    assert resumed.environment["variables"]["MKL_CBWR"] == "COMPATIBLE"
    assert resumed.environment["torch"]["cpu_capability"]


def test_resume_from_a_checkpoint_without_environment_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_checkpoint_size_limit_follows_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_resume_with_all_checkpoints_damaged_starts_again_and_reports_it(tmp_path: Path) -> None:
    run = spec()
    train.run(run, tmp_path / "straight")
    interrupted(run, tmp_path, 16)
    for path in (tmp_path / run.id).glob("checkpoint-*"):
        path.write_bytes(b"half")
    signaller = Signaller()
    resumed = train.run(run, tmp_path, progress=signaller)
    assert "starts from the beginning, because none of its checkpoints can be used" in signaller.remarks
    assert resumed.environment["resumed_after_updates"] == []
    assert len(resumed.environment["checkpoint_fallbacks"]) == 3
    assert resumed.environment["checkpoint_fallbacks"][-1] == "started anew"
    assert outcome(tmp_path, run) == outcome(tmp_path / "straight", run)


def test_resume_from_a_checkpoint_without_totals_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_resume_with_changed_data_is_refused(tmp_path: Path) -> None:
    def written(last: str) -> DataSpec:
        lines = [f"ein Satz {number % 9}\ta sentence {number % 9}\n" for number in range(7 * 32 - 1)]
        text = "".join(lines) + f"noch ein Satz\t{last} sentence\n"
        return small(tmp_path, train=text, validation=text, test=text, minimum_frequency=1)

    run = spec(data=written("another"))
    interrupted(run, tmp_path / "results", 10)
    assert written("a") == run.data
    signaller = Signaller()
    resumed = train.run(run, tmp_path / "results", progress=signaller)
    assert any("a checkpoint was written with another text" in remark for remark in signaller.remarks)
    assert resumed.environment["resumed_after_updates"] == []
    train.run(run, tmp_path / "straight")
    assert outcome(tmp_path / "results", run) == outcome(tmp_path / "straight", run)


def test_finished_run_removes_its_checkpoints(tmp_path: Path) -> None:
    record = train.run(spec(), tmp_path)
    checkpoint_files.save(tmp_path, record.id, ARRAYS, {})
    assert train.run(spec(), tmp_path) == record
    assert not checkpoint_files.exists(tmp_path, record.id)
    assert run_store.load_record(tmp_path, record.id) == record
