"""GPUs are detected, and concurrent runs are assigned to them."""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path
from typing import Any

import pytest
from small_runs import spec

from harness.cli import sweep
from harness.cli.main import parser
from harness.execution import launcher, local
from harness.execution.retry_policy import RunProcess
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
    executed: dict[str, Any] = {}
    monkeypatch.setattr(local, "execute", lambda *_, **settings: executed.update(settings) or launcher.Outcome())
    options = parser().parse_args(["bench", "--results", str(tmp_path)], argparse.Namespace(typed=""))
    sweep.execute([spec(device=device)], [], options)
    assert (executed["jobs"], executed["gpus"]) == (jobs, gpus)


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        ("cuda", ["GPU-one", "GPU-two"], ["GPU-one", "GPU-two"] * 2),
        ("cuda", ["GPU-one"], ["all"] * 4),
        ("cuda:1", ["GPU-one", "GPU-two"], ["all"] * 4),
        ("cpu", ["GPU-one", "GPU-two"], ["all"] * 4),
    ],
)
def test_run_gets_least_busy_gpu(
    device: str, gpus: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four runs start at once; each logs the GPUs that are visible to it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    specs = [spec("counting_model:build_logging_gpus", device=device, seed=seed) for seed in range(4)]
    outcome = local.execute(specs, tmp_path, jobs=4, stream=io.StringIO(), gpus=gpus)
    assert [record.status for record in outcome.records] == ["completed"] * 4
    logs = [run_store.log_path(tmp_path, run.id).read_text() for run in specs]
    assert [re.findall(r"^visible GPUs: (.*)$", log, re.MULTILINE) for log in logs] == [[gpu] for gpu in expected]


def test_gpu_is_freed_after_run(tmp_path: Path) -> None:
    gpus = ["GPU-one", "GPU-two"]
    local_launcher = local.LocalLauncher(specs=[], results=tmp_path, stream=io.StringIO(), gpus=gpus)
    worker: Any = None
    run = spec(device="cuda")

    def process(gpu: str) -> RunProcess:
        return RunProcess(spec=run, worker=worker, started=0.0, last_event=0.0, gpu=gpu)

    for busy, expected in (([], "GPU-one"), (["GPU-one"], "GPU-two"), (["GPU-two"], "GPU-one"), (gpus, "GPU-one")):
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
