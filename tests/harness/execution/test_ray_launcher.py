"""Runs as Ray tasks: with a double of Ray, and those marked `faults` with a cluster of two nodes on this machine."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_doubles import install_ray
from command_line import Refused
from interrupted_bench import interrupted_and_gone_on
from places import ROOT
from remote_runs import BENCH, SETTINGS, ReactingStream, assert_same, local_records, reproducible
from small_runs import TINY, spec

from harness.execution import ray_launcher
from harness.storage import checkpoint_files, run_store

pytestmark = pytest.mark.usefixtures("processes")


def test_tasks_leave_the_records_of_local_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = install_ray(tmp_path / "ray", monkeypatch)
    specs = [spec(), spec(seed=1), spec("counting_model:build_breaking", threads=3)]
    results, stream = tmp_path / "results", io.StringIO()
    outcome = ray_launcher.execute(specs, results, address="auto", stream=stream, settings=SETTINGS)
    assert [(task["name"], task["num_cpus"], task["num_gpus"]) for task in ray.options] == [
        (run.id, run.threads, 0) for run in specs
    ]
    records = {record.id: record for record in outcome.records}
    failure = records.pop(specs[2].id)
    assert failure.status == "failed"
    assert failure.reason.startswith("RuntimeError: the planted fault")
    assert "Traceback" in run_store.log_path(results, failure.id).read_text()
    assert_same(records, results, local_records(specs[:2], tmp_path / "local"))
    output = stream.getvalue()
    assert output.count(f"{failure.id}: failed: ") == 1
    assert output.startswith("Ray: 1 node, 2 cores, 0 GPUs. No node has 3 cores: these runs wait until one joins.")
    for run in specs[:2]:
        assert f"{run.id}: started on " in output
        assert f"{run.id}: epoch 3/3" in output
    assert not ray.is_connected
    assert not list(results.glob("*/run.lock"))


def test_lost_worker_and_damaged_files_are_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = install_ray(tmp_path / "ray", monkeypatch)
    runs = [spec(seed=seed) for seed in range(3)]

    def get(task: Any) -> Any:
        if isinstance(task, list):
            return task
        if task.stdout.parent.name == "1":
            raise sys.modules["ray"].exceptions.RayError("the worker died.\nmore")
        if task.stdout.parent.name == "3":
            error = sys.modules["ray"].exceptions.RayError(
                "\x1b[36mray::task\x1b[39m\nTraceback\nOSError: no space left"
            )
            error.cause = OSError("no space left")
            raise error
        return {run_store.RECORD: b"{}"}

    monkeypatch.setattr(sys.modules["ray"], "get", get)
    monkeypatch.setattr(ray_launcher, "_execute_task", print)
    outcome = ray_launcher.execute(runs, tmp_path / "results", address="auto", stream=io.StringIO(), settings=SETTINGS)
    reasons = {record.spec.seed: record.reason for record in outcome.records}
    assert reasons[0] == "Ray lost it: RayError: the worker died"
    assert reasons[1].startswith("its record cannot be stored: record.json: damaged")
    assert reasons[2] == "Ray lost it: OSError: no space left"
    assert len(ray.options) == 3


@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
def test_signal_cancels_tasks_which_send_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_ray(tmp_path / "ray", monkeypatch)
    run, results = spec("counting_model:build_slow"), tmp_path / "results"
    stream = ReactingStream(lambda text: f"{run.id}: epoch 1/3" in text, lambda: signal.raise_signal(signal.SIGTERM))
    outcome = ray_launcher.execute([run], results, address="auto", stream=stream, settings=SETTINGS)
    assert outcome.signal == signal.SIGTERM
    assert [record.status for record in outcome.records] == ["interrupted"]
    assert checkpoint_files.exists(results, run.id)
    assert stream.getvalue().count("Stopping 1 run: ") == 1, "not once more for each node"


def test_code_includes_the_modules_of_external_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alone.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    variants = ["alone:BUILD", "package.inner:BUILD", "paper"]
    paths = ray_launcher._code([dataclasses.replace(spec(), variant=variant) for variant in variants])
    expected = {ROOT / "harness", ROOT / "impls", tmp_path / "alone.py", tmp_path / "package"}
    assert {Path(path) for path in paths} == expected


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "127.0.0.1:word", "127.0.0.1:70000"])
@pytest.mark.parametrize("source", ["option", "variable"])
def test_missing_cluster_is_one_line(
    address: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    if source == "variable":
        monkeypatch.setenv("RAY_ADDRESS", address)
    option = address if source == "option" else "auto"
    with pytest.raises(ValueError, match=f"--launcher ray --address {address}: .*: expected the HOST:PORT"):
        ray_launcher.execute([spec()], tmp_path, address=option, stream=io.StringIO(), settings=SETTINGS)
    assert not list(tmp_path.iterdir())


def test_device_of_a_cluster_has_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    install_ray(tmp_path / "ray", monkeypatch)
    words = ["--launcher", "ray", "--device", "cuda:1", "--results", str(tmp_path / "results")]
    refused([*BENCH, *words], "device 'cuda:1' with --launcher ray: use cpu or cuda")


NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster on this machine: two nodes with a core each, without the corpora and modules of the tests."""
    pytest.importorskip("ray", reason="needs ray: pip install '.[ray]'")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", "/nonexistent/cache")
        patch.delenv("PYTHONPATH")
        health_checks = {"health_check_period_ms": 500, "health_check_failure_threshold": 6}
        head = {**NODE, "include_dashboard": False, "_system_config": health_checks}
        ray_cluster = Cluster(initialize_head=True, head_node_args=head)
        ray_cluster.add_node(**NODE)
    try:
        yield ray_cluster
    finally:
        ray_cluster.shutdown()


@pytest.mark.faults
@pytest.mark.parametrize("shared", [None, "shared"])
def test_runs_of_a_killed_node_are_repeated(cluster: Any, tmp_path: Path, shared: str | None) -> None:
    slow = [spec("counting_model:build_slow", seed=seed) for seed in range(3)]
    quick = [spec(), spec("learned_positions", TINY), spec("counting_model:build_breaking")]
    (node,) = cluster.worker_nodes

    def both_nodes_train(text: str) -> bool:
        return sum(f"{run.id}: epoch 2/3" in text for run in slow) == 2

    stream = ReactingStream(both_nodes_train, lambda: cluster.remove_node(node, allow_graceful=False))
    results, folder = tmp_path / "ray", None if shared is None else tmp_path / shared
    try:
        outcome = ray_launcher.execute(
            [*slow, *quick],
            results,
            address=cluster.address,
            stream=stream,
            settings=SETTINGS,
            checkpoint_folder=folder,
        )
    finally:
        cluster.add_node(**NODE)
    assert stream.has_reacted, stream.getvalue()
    assert "try 2: Ray lost the one before" in stream.getvalue()
    assert outcome.signal is None
    records = {record.id: record for record in outcome.records}
    resumed = [run for run in slow if records[run.id].environment["resumed_after_epochs"]]
    assert len(resumed) == (0 if folder is None else 1)
    assert folder is None or not list(folder.glob("*/*"))
    expected = local_records([*slow, *quick], tmp_path / "local")
    assert [record.status for record in expected.values()].count("completed") == 5
    broken = quick[2].id
    assert records.pop(broken).reason.split(";")[0] == expected.pop(broken).reason.split(";")[0]
    assert_same(records, results, expected)


@pytest.mark.faults
def test_nodes_execute_the_code_that_is_sent(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import harness, os\ndef build(*arguments, **settings):\n"
    text += "    raise RuntimeError(f'{harness.__file__} {__file__} {os.environ[\"OMP_NUM_THREADS\"]}')\n"
    (tmp_path / "from_outside.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    run, stream = spec("from_outside:build"), io.StringIO()
    outcome = ray_launcher.execute([run], tmp_path / "ray", address=cluster.address, stream=stream, settings=SETTINGS)
    reason = outcome.records[0].reason
    assert reason.count("py_modules_files") >= 2, reason
    assert str(ROOT / "harness") not in reason.split(";")[0]
    assert " 1" in reason.split(";")[0]
    assert "failed" in stream.getvalue()
    assert "RuntimeError" in run_store.log_path(tmp_path / "ray", run.id).read_text()


@pytest.mark.faults
def test_ctrl_c_interrupts_tasks_and_the_same_command_resumes(cluster: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    interrupted_and_gone_on(results, "--launcher", "ray", "--address", cluster.address)
    for record in run_store.records(results):
        expected = local_records([record.spec], tmp_path / "local")[record.id]
        plain = dataclasses.replace(record, command="", note=""), dataclasses.replace(expected, command="", note="")
        assert reproducible(plain[0]) == reproducible(plain[1])
