"""Runs as Slurm jobs: with a double of submitit, and those marked `faults` with submitit's processes."""

from __future__ import annotations

import io
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster_doubles import install_submitit
from command_line import Refused
from interrupted_bench import interrupted_and_gone_on
from remote_runs import BENCH, SETTINGS, ReactingStream, assert_same, local_records
from small_runs import DATA, TINY, spec

from harness.data.dataset import prepare
from harness.execution import slurm_launcher
from harness.experiments.specs import RunSpec
from harness.storage import checkpoint_files, run_store

pytestmark = pytest.mark.usefixtures("processes")

LOCAL = {"cluster": "local", "partition": "any", "time": "30", "reservation": "class"}


def test_jobs_leave_the_records_of_local_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = install_submitit(monkeypatch)
    prepare(DATA)
    specs = [spec(), spec(seed=1), spec("counting_model:build_breaking", threads=2)]
    results, stream = tmp_path / "slurm", io.StringIO()
    outcome = slurm_launcher.execute(specs, results, parameters=LOCAL, stream=stream, settings=SETTINGS)
    shared = {"name": "bakeoff", "timeout_min": 24 * 60, "gpus_per_node": None, "slurm_partition": "any"}
    shared |= {"slurm_max_num_timeout": slurm_launcher.MOST_TIMEOUTS, "slurm_time": 30}
    shared["slurm_additional_parameters"] = {"reservation": "class"}
    assert executor.batches == [({**shared, "cpus_per_task": 1}, 2), ({**shared, "cpus_per_task": 2}, 1)]
    records = {record.id: record for record in outcome.records}
    failure = records.pop(specs[2].id)
    assert (failure.status, failure.command) == ("failed", "the command")
    assert failure.reason.startswith("RuntimeError: the planted fault")
    assert_same(records, results, local_records(specs[:2], tmp_path / "local"))
    assert "Local: 2 jobs, " in stream.getvalue()
    assert stream.getvalue().count(f"{failure.id}: failed: ") == 1
    for run in specs[:2]:
        assert f"{run.id}: epoch 3/3" in stream.getvalue()
    assert not list(results.rglob("*.pkl"))
    assert not list(results.glob("*/run.lock"))


def test_job_that_leaves_no_record_fails_with_its_state_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_submitit(monkeypatch)
    monkeypatch.setattr(slurm_launcher, "SHARED_SECONDS", 0.1)
    monkeypatch.setattr(slurm_launcher, "SlurmTask", lambda *_: os.abort)
    run = spec()
    (record,) = slurm_launcher.execute(
        [run], tmp_path, parameters=LOCAL, stream=io.StringIO(), settings=SETTINGS
    ).records
    assert record.status == "failed"
    assert "ended in the state FAILED: no record; its log ends: " in record.reason


@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
def test_signal_cancels_jobs_which_leave_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_submitit(monkeypatch)
    run = spec("counting_model:build_slow")
    stream = ReactingStream(lambda text: f"{run.id}: epoch 1/3" in text, lambda: signal.raise_signal(signal.SIGTERM))
    outcome = slurm_launcher.execute([run], tmp_path, parameters=LOCAL, stream=stream, settings=SETTINGS)
    assert outcome.signal == signal.SIGTERM
    assert [record.status for record in outcome.records] == ["interrupted"]
    assert checkpoint_files.exists(tmp_path, run.id)


def test_refused_parameters_are_one_line_and_leave_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = install_submitit(monkeypatch)
    executor.refuses = "no such\n partition"
    with pytest.raises(ValueError, match="^--launcher slurm: no such partition$"):
        slurm_launcher.execute([spec()], tmp_path, parameters=LOCAL, stream=io.StringIO(), settings=SETTINGS)
    assert executor.batches == []
    assert run_store.records(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--launcher slurm: sbatch is not installed here"),
        (["--slurm", "cluster=moon"], "--slurm cluster=moon: expected slurm, or local"),
        (
            ["--slurm", "cluster=local", "--slurm", "time=4:00:00"],
            "--slurm time=4:00:00: expected minutes, such as 240",
        ),
    ],
)
def test_unavailable_cluster_is_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    install_submitit(monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    refused([*BENCH, "--launcher", "slurm", *words, "--results", str(tmp_path)], message)


def test_submission_folder_is_new_and_no_link(tmp_path: Path) -> None:
    first, second = (slurm_launcher._folder(tmp_path) for _ in range(2))
    assert first != second
    assert first.parent == second.parent == tmp_path / slurm_launcher.FOLDER
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / slurm_launcher.FOLDER).symlink_to(tmp_path)
    with pytest.raises(ValueError, match="is a link: expected a folder to write in"):
        slurm_launcher._folder(tmp_path / "results")


@pytest.mark.faults
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds submitit's process in Linux's /proc")
def test_preempted_job_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitit = pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")
    slow = spec("counting_model:build_slow")
    specs: list[RunSpec] = [slow, spec(), spec("learned_positions", TINY), spec("counting_model:build_breaking")]
    jobs: dict[str, Any] = {}
    submit = submitit.AutoExecutor.submit

    def note_and_submit(self: Any, task: slurm_launcher.SlurmTask) -> Any:
        return jobs.setdefault(task.spec.variant, submit(self, task))

    def preempt() -> None:
        controller = jobs[slow.variant].job_id
        (task,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
        os.kill(int(task), signal.SIGUSR2)  # as Slurm does

    monkeypatch.setattr(submitit.AutoExecutor, "submit", note_and_submit)
    stream = ReactingStream(lambda text: f"{slow.id}: epoch 1/3" in text, preempt)
    results = tmp_path / "slurm"
    parameters = {"cluster": "local", "partition": "any"}
    outcome = slurm_launcher.execute(specs, results, parameters=parameters, stream=stream, settings=SETTINGS)
    assert stream.has_reacted
    assert f"{slow.id}: continues after update" in stream.getvalue()
    records = {record.id: record for record in outcome.records}
    expected = local_records(specs, tmp_path / "local")
    broken = specs[3].id
    assert records.pop(broken).reason.split(";")[0] == expected.pop(broken).reason.split(";")[0]
    assert [record.status for record in expected.values()] == ["completed"] * 3
    assert_same(records, results, expected)
    assert not list(results.rglob("*.pkl"))


@pytest.mark.faults
def test_ctrl_c_cancels_jobs_and_the_same_command_resumes(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")
    interrupted_and_gone_on(tmp_path / "results", "--launcher", "slurm", "--slurm", "cluster=local")
