"""The facts about an environment, and which differences change arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from small_runs import spec

from harness.processes import machine
from harness.processes.environment_variables import worker_environment

HERE: dict[str, dict[str, Any]] = {
    "machine": {"processor": "A", "cores": 2},
    "versions": {"numpy": "2.0", "torch": "2.10", "sacrebleu": "2.6"},
    "variables": {"OMP_NUM_THREADS": "1"},
    "torch": {"cpu_capability": "AVX2"},
}


CHANGE_RESULTS = ("MKL_CBWR", "KMP_BLOCKTIME", "ATEN_CPU_CAPABILITY", "TORCH_SHOW", "GLIBC_TUNABLES", "KERAS_BACKEND")
CHANGE_RESULTS += ("TF_ENABLE_ONEDNN_OPTS", "TF_CUDNN_USE_AUTOTUNE", "NVIDIA_TF32_OVERRIDE", "CT2_USE_MKL")
OTHERS = ("TF_CPP_MIN_LOG_LEVEL", "TF_VAR_db", "TF_TOKEN_app_terraform_io", "NVIDIA_API_KEY", "TORCH_HUB_TOKEN")
OTHERS += ("KERAS_HUB_PASSWORD", "HOME")


@pytest.mark.parametrize("name", [*CHANGE_RESULTS, *OTHERS])
def test_variables_are_those_that_change_results_and_no_secrets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "value")
    assert machine.variables().get(name) == ("value" if name in CHANGE_RESULTS else None)


@pytest.mark.parametrize(
    ("part", "name", "values", "lines"),
    [
        ("machine", "processor", ("A", "B"), ["processor A (now B)"]),
        ("versions", "torch", ("2.10", "2.11"), ["torch 2.10 (now 2.11)"]),
        ("variables", "MKL_CBWR", (None, "AVX2"), ["MKL_CBWR None (now AVX2)"]),
        ("torch", "cpu_capability", ("AVX2", "AVX512"), ["cpu_capability AVX2 (now AVX512)"]),
        ("machine", "cores", (2, 4), []),
        ("versions", "sacrebleu", ("2.6", "2.5"), []),
        ("variables", "OMP_PROC_BIND", (None, "true"), []),
        ("variables", "GLIBC_TUNABLES", (None, "glibc.malloc.hugetlb=1"), []),
        ("variables", "GLIBC_TUNABLES", ("glibc.malloc.hugetlb=1", "glibc.malloc.hugetlb=0"), []),
        ("variables", "GLIBC_TUNABLES", (None, "glibc.cpu.x=y"), ["GLIBC_TUNABLES None (now glibc.cpu.x=y)"]),
    ],
)
def test_arithmetic_differences_names_only_what_changes_weights(
    part: str, name: str, values: tuple[Any, Any], lines: list[str]
) -> None:
    earlier, now = ({**HERE, part: {**HERE[part], **({name: value} if value else {})}} for value in values)
    assert machine.arithmetic_differences(earlier, now, "torch") == lines


def test_arithmetic_differences_skips_facts_that_an_older_version_lacks() -> None:
    older = {name: value for name, value in HERE.items() if name != "torch"}
    assert machine.arithmetic_differences(older, HERE, "torch") == []


def test_worker_environment_limits_spinning_unless_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert worker_environment(spec())["GOMP_SPINCOUNT"] == "10000"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert worker_environment(spec())["GOMP_SPINCOUNT"] == "7"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "GOMP_SPINCOUNT" not in worker_environment(spec())


@pytest.mark.parametrize(
    ("tunables", "expected"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.cpu.x86_ibt=on", "glibc.cpu.x86_ibt=on:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        ("glibc.malloc.hugetlb=1", "glibc.malloc.hugetlb=1"),
    ],
)
def test_worker_environment_adds_huge_pages_unless_chosen(
    tunables: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    assert worker_environment(spec())["GLIBC_TUNABLES"] == expected


@pytest.mark.parametrize(("device", "usable"), [("cpu", True), ("meta", True), ("tpu", False), ("mps:9", False)])
def test_devices_other_than_nvidia_gpus_are_those_of_torch(device: str, usable: bool) -> None:
    assert machine.device_usable(device, "torch") is usable
    assert machine.device_usable(device, "tensorflow") is (device == "cpu")


def test_processor_on_macos_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("sysctl", "-n", "machdep.cpu.brand_string")
    monkeypatch.setattr(machine.sys, "platform", "darwin")
    monkeypatch.setattr(machine, "_output", lambda *words: "Apple M4" if words == command else None)
    assert machine.machine()["processor"] == "Apple M4"


def test_gpu_usable_asks_each_framework_once(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []
    monkeypatch.setattr(machine, "_succeeds", lambda code: not questions.append(code))
    machine.gpu_usable.cache_clear()
    try:
        assert [machine.gpu_usable(name) for name in ("torch", "jax", "torch", "numpy")] == [True, True, True, False]
    finally:
        machine.gpu_usable.cache_clear()
    assert questions == [machine.GPU_QUESTIONS[name] for name in ("torch", "jax")]
