"""The facts about an environment, and which differences change arithmetic."""

from __future__ import annotations

import os

import psutil
import pytest
from small_runs import spec

from harness.processes import machine
from harness.processes.environment_variables import worker_environment

HERE = {
    "machine": {"processor": "A", "cores": 2},
    "versions": {"numpy": "2.0", "torch": "2.10", "sacrebleu": "2.6"},
    "variables": {"OMP_NUM_THREADS": "1"},
    "torch": {"cpu_capability": "AVX2"},
}


@pytest.mark.parametrize(
    "name",
    ["TF_VAR_db", "TF_TOKEN_app_terraform_io", "NVIDIA_API_KEY", "TORCH_HUB_TOKEN", "KERAS_HUB_PASSWORD", "HOME"],
)
def test_variables_of_other_programs_are_not_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "secret")
    assert name not in machine.variables()


@pytest.mark.parametrize(
    "name",
    [
        *("MKL_CBWR", "KMP_BLOCKTIME", "ATEN_CPU_CAPABILITY", "TORCH_SHOW", "GLIBC_TUNABLES"),
        *("TF_ENABLE_ONEDNN_OPTS", "TF_CUDNN_USE_AUTOTUNE", "NVIDIA_TF32_OVERRIDE", "KERAS_BACKEND"),
    ],
)
def test_variables_that_change_results_are_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "value")
    monkeypatch.setenv("PASSWORD", "secret")
    assert machine.environment(spec())["variables"][name] == "value"
    assert "PASSWORD" not in machine.variables()


@pytest.mark.parametrize(
    ("part", "name", "value", "line"),
    [
        ("machine", "processor", "B", "processor A (now B)"),
        ("versions", "torch", "2.11", "torch 2.10 (now 2.11)"),
        ("variables", "MKL_CBWR", "AVX2", "MKL_CBWR None (now AVX2)"),
        ("torch", "cpu_capability", "AVX512", "cpu_capability AVX2 (now AVX512)"),
    ],
)
def test_arithmetic_differences_names_what_changes_weights(part: str, name: str, value: str, line: str) -> None:
    assert machine.arithmetic_differences(HERE, {**HERE, part: {**HERE[part], name: value}}, "torch") == [line]


@pytest.mark.parametrize(
    ("part", "name"), [("machine", "cores"), ("versions", "sacrebleu"), ("variables", "OMP_PROC_BIND")]
)
def test_arithmetic_differences_ignores_what_does_not(part: str, name: str) -> None:
    assert machine.arithmetic_differences(HERE, {**HERE, part: {**HERE[part], name: "other"}}, "torch") == []


def test_arithmetic_differences_skips_facts_that_an_older_version_lacks() -> None:
    older = {name: value for name, value in HERE.items() if name != "torch"}
    assert machine.arithmetic_differences(older, HERE, "torch") == []


def test_memory_and_load_are_those_of_the_system() -> None:
    assert machine.memory_bytes() == psutil.virtual_memory().total
    assert machine.load_average() >= 0
    assert 1 <= machine.cores() <= (os.cpu_count() or 1)


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


@pytest.mark.parametrize(
    ("earlier", "now", "lines"),
    [
        (None, "glibc.malloc.hugetlb=1", []),
        ("glibc.malloc.hugetlb=1", "glibc.malloc.hugetlb=0", []),
        (None, "glibc.cpu.hwcaps=-AVX2_Usable", ["GLIBC_TUNABLES None (now glibc.cpu.hwcaps=-AVX2_Usable)"]),
    ],
)
def test_arithmetic_differences_ignores_tunables_of_the_allocator(
    earlier: str | None, now: str, lines: list[str]
) -> None:
    environments = [{**HERE, "variables": {"GLIBC_TUNABLES": value} if value else {}} for value in (earlier, now)]
    assert machine.arithmetic_differences(*environments, "torch") == lines


def test_gpu_usable_asks_each_framework_once(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []
    monkeypatch.setattr(machine, "_succeeds", lambda code: not questions.append(code))
    machine.gpu_usable.cache_clear()
    try:
        assert [machine.gpu_usable(name) for name in ("torch", "jax", "torch", "numpy")] == [True, True, True, False]
    finally:
        machine.gpu_usable.cache_clear()
    assert questions == [machine.GPU_QUESTIONS[name] for name in ("torch", "jax")]
