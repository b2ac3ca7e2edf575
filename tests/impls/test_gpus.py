"""GPUs are detected, and concurrent runs are assigned to them."""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path
from typing import Any, cast

import pytest
from small_runs import spec

from harness.cli import sweep
from harness.cli.main import parser
from harness.execution import launcher, local
from harness.execution.local import RunProcess
from harness.processes import machine
from harness.processes.environment_variables import worker_environment
from harness.storage import run_store

NVIDIA_SMI = """#!/bin/sh
# Two different GPUs, by UUID or by number.
case "$*" in
*query-gpu=uuid*) printf 'GPU-one\\nGPU-two\\n';;
*--id=GPU-two*|*--id=1*) echo 'The second GPU';;
*) echo 'The first GPU';;
esac
"""

GPUS = ["GPU-one", "GPU-two"]

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, ["GPU-one", "GPU-two"]),
        ("1", ["1"]),
        (" 2, 0 ", ["2", "0"]),
        ("GPU-two,-1,GPU-one", ["GPU-two"]),
        ("-1", []),
        ("", []),
    ],
)
def test_gpus_respect_cuda_visible_devices(
    visible: str | None, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpus() == gpus


def test_gpus_without_driver_are_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus() == []


@pytest.mark.usefixtures("two_gpus")
def test_record_names_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = "The first GPU", "The second GPU"
    assert [machine.machine(device)["gpu"] for device in ("cuda", "cuda:0", "cuda:1")] == [first, first, second]
    assert machine.machine("cuda:one")["gpu"] == first  # the framework says what is wrong with that word
    assert "gpu" not in machine.machine("cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-two,GPU-one")
    assert [machine.machine(device)["gpu"] for device in ("cuda", "cuda:1")] == [second, first]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.machine("cuda")["gpu"] is None


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "visible", "jobs", "gpus"),
    [
        ("cuda", None, 2, ["GPU-one", "GPU-two"]),
        ("cuda", "1", 1, ["1"]),
        ("cuda", "-1", 1, []),
        ("cuda:1", None, 1, []),
        ("cpu", None, 5, []),
    ],
)
def test_jobs_default_to_number_of_gpus(
    device: str, visible: str | None, jobs: int, gpus: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(machine, "cores", lambda: 5)
    monkeypatch.setattr(machine, "device_usable", lambda *_: True)
    executed: dict[str, Any] = {}
    monkeypatch.setattr(local, "execute", lambda *_, **settings: executed.update(settings) or launcher.Outcome())
    options = parser().parse_args(["bench", "--results", str(tmp_path)], argparse.Namespace(typed=""))
    sweep.execute([spec(device=device)], [], options)
    assert (executed["jobs"], executed["gpus"]) == (jobs, gpus)


def test_run_sees_only_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs start at once; each logs the GPUs that are visible to it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = ("cuda", "cuda", "cpu")
    specs = [spec("counting_model:build_logging_gpus", device=device, seed=seed) for seed, device in enumerate(devices)]
    outcome = local.execute(specs, tmp_path, jobs=3, stream=io.StringIO(), gpus=GPUS)
    assert [record.status for record in outcome.records] == ["completed"] * 3
    logs = [run_store.log_path(tmp_path, run.id).read_text() for run in specs]
    visible = [re.findall(r"^visible GPUs: (.*)$", log, re.MULTILINE) for log in logs]
    assert visible == [["GPU-one"], ["GPU-two"], ["all"]]


def launcher_with(gpus: list[str], results: Path) -> local.LocalLauncher:
    return local.LocalLauncher(specs=[], results=results, stream=io.StringIO(), gpus=gpus)


@pytest.mark.parametrize(("device", "gpus"), [("cuda", GPUS[:1]), ("cuda:1", GPUS), ("cpu", GPUS)])
def test_least_busy_gpu_without_a_choice_is_none(device: str, gpus: list[str], tmp_path: Path) -> None:
    assert launcher_with(gpus, tmp_path).least_busy_gpu(spec(device=device)) is None


def test_least_busy_gpu_has_the_fewest_runs_in_progress(tmp_path: Path) -> None:
    local_launcher, worker = launcher_with(GPUS, tmp_path), cast(Any, None)
    run = spec(device="cuda")

    def process(gpu: str) -> RunProcess:
        return RunProcess(spec=run, worker=worker, started=0.0, last_event=0.0, gpu=gpu)

    for busy, expected in (([], "GPU-one"), (["GPU-one"], "GPU-two"), (["GPU-two"], "GPU-one"), (GPUS, "GPU-one")):
        local_launcher.running = {gpu: process(gpu) for gpu in busy}
        assert local_launcher.least_busy_gpu(run) == expected
    local_launcher.running["more"] = process("GPU-one")
    assert local_launcher.least_busy_gpu(run) == "GPU-two"


def test_keras_does_not_preallocate_gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    keras = {"framework": "keras", "device": "cuda"}
    assert worker_environment(spec(backend="tensorflow", **keras))["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert worker_environment(spec(backend="jax", **keras))["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    assert worker_environment(spec(backend="jax", **keras))["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
