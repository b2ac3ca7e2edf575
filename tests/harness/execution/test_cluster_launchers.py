"""Runs on many machines: what is sent and what is accepted, and the records of Ray and submitit, which are `local`'s.

Those marked `faults` start a Ray cluster of two nodes on this machine, or submitit's processes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from interrupted_bench import interrupted_and_gone_on
from places import ROOT
from small_runs import DATA, TINY, UPDATES_PER_EPOCH, spec

from harness.cli.main import main
from harness.data import cache, portable_corpus, preprocess
from harness.data.dataset import prepare
from harness.execution import launcher, ray_launcher, slurm_launcher, transfer
from harness.execution import local as executor
from harness.execution.transfer import Contents
from harness.experiments.serialization import to_json
from harness.experiments.specs import DataSpec, FileSpec, RunSpec
from harness.processes import machine
from harness.processes.progress import Event
from harness.processes.signals import SignalGuard
from harness.storage import run_store
from harness.storage.records import RunRecord

SETTINGS: dict[str, Any] = {"command": "the command", "note": "a note", "terms": executor.RunLimits()}


pytestmark = pytest.mark.usefixtures("processes")


def local(specs: Sequence[RunSpec], results: Path) -> dict[str, RunRecord]:
    """Run specs on this machine and return their records by id."""
    found = executor.execute(specs, results, jobs=2, stream=io.StringIO(), **SETTINGS)
    return {record.id: record for record in found.records}


def said(record: RunRecord) -> dict[str, Any]:
    """Return all of a record that does not depend on where and when a run was run, nor on how fast."""
    found = to_json(record)
    for name in ("environment", "speed", "started"):
        del found[name]
    for epoch in found["curve"]:
        del epoch["training_seconds"], epoch["validation_seconds"]
    return found


def assert_same(found: dict[str, RunRecord], results: Path, expected: dict[str, RunRecord]) -> None:
    """The records are the same, and the files that came back are those that the records have the digests of."""
    assert {run: said(record) for run, record in found.items()} == {run: said(one) for run, one in expected.items()}
    for run, record in found.items():
        assert run_store.load_record(results, run) == record
        if record.status == "completed":
            assert len(run_store.load_hypotheses(results, run, record.fingerprints["hypotheses"])) == 500
            weights = (results / run / "weights.safetensors").read_bytes()
            assert hashlib.sha256(weights).hexdigest() == record.fingerprints["trained_weights"]
            assert record.environment["versions"] == machine.versions()
            assert record.environment["commit"] == expected[run].environment["commit"]


# What is sent and what is accepted ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSpec, Contents, list[str]]:
    """A run that was fulfilled in this process, as a node does, with what came of it and what it said."""
    one, lines = spec(), list[str]()
    sent = transfer.order(one, tmp_path_factory.mktemp("none"), SETTINGS)
    return one, transfer.fulfil(sent, portable_corpus.pack(one.data, prepare(one.data).key), lines.append), lines


def test_what_comes_back_is_what_local_leaves(delivered: tuple[RunSpec, Contents, list[str]], tmp_path: Path) -> None:
    one, contents, lines = delivered
    found = transfer.accept(tmp_path / "gathered", one, contents)
    expected = local([one], tmp_path / "local")
    assert_same({one.id: found}, tmp_path / "gathered", expected)
    assert (found.command, found.note) == ("the command", "a note")
    kept, there = ({path.name for path in (tmp_path / name / one.id).iterdir()} for name in ("gathered", "local"))
    assert kept == there
    assert any("epoch 3/3" in line for line in lines)
    assert not any("\n" in line for line in lines)


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def edit(content: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(content), **changes}).encode()


TAMPERED: dict[str, tuple[Callable[[Contents], Contents], str]] = {
    **{
        f"{name} {how}": (lambda found, name=name, change=change: {**found, name: change(found[name])}, name)
        for name in (*transfer.HASHED.values(), run_store.RECORD, transfer.MANIFEST)
        for how, change in (("truncated", lambda content: content[:-7]), ("flipped", flip), ("empty", lambda _: b""))
        if (name, how) != (transfer.MANIFEST, "flipped")
    },
    **{
        f"{name} missing": (lambda found, name=name: {k: v for k, v in found.items() if k != name}, name)
        for name in (*transfer.HASHED.values(), run_store.RECORD, transfer.MANIFEST)
    },
    "manifest of others": (
        lambda found: {**found, transfer.MANIFEST: edit(found[transfer.MANIFEST], sha256="0" * 64)},
        "other weights",
    ),
    "edited record": (
        lambda found: {**found, run_store.RECORD: edit(found[run_store.RECORD], note="another")},
        "its seal is not that of its content",
    ),
    "unsealed record": (
        lambda found: {
            **found,
            run_store.RECORD: json.dumps(
                {k: v for k, v in json.loads(found[run_store.RECORD]).items() if k != run_store.SEAL}
            ).encode(),
        },
        "record.json: damaged",
    ),
    "deep record": (lambda found: {**found, run_store.RECORD: b"[" * 100_000}, "record.json: damaged"),
    "outside": (lambda found: {**found, "../evil.txt": b"x"}, "'../evil.txt': expected"),
    "absolute": (lambda found: {**found, "/tmp/checkpoint.json": b"x"}, "'/tmp/checkpoint.json': expected"),
    "foreign": (lambda found: {**found, "run.lock": b"x"}, "'run.lock': expected"),
}


@pytest.mark.parametrize(("change", "words"), TAMPERED.values(), ids=TAMPERED.keys())
def test_what_is_wrong_is_refused_and_nothing_is_written(
    change: Callable[[Contents], Contents],
    words: str,
    delivered: tuple[RunSpec, Contents, list[str]],
    tmp_path: Path,
) -> None:
    one, contents, _ = delivered
    before = transfer.without(tmp_path, one, "failed", "an older failure", SETTINGS)
    with pytest.raises(ValueError, match=".") as refused:
        transfer.accept(tmp_path, one, change(contents))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert run_store.load_record(tmp_path, one.id) == before
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()] == [
        Path(one.id, run_store.RECORD)
    ]


def test_the_record_of_another_run_is_refused(delivered: tuple[RunSpec, Contents, list[str]], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it is of the run .*-s0-.*: expected .*-s1-"):
        transfer.accept(tmp_path, spec(seed=1), delivered[1])
    assert not list(tmp_path.iterdir())


def interrupt(one: RunSpec, results: Path, *, after_epochs: int) -> None:
    """Leave an interrupted run with its checkpoint in `results`."""
    from harness.training import train

    with SignalGuard() as watch:

        def progress(event: Event) -> None:
            if f"epoch {after_epochs}/" in event.remark:
                watch.receive(signal.SIGTERM)

        record = train.run(one, results, progress=progress, guard=watch)
    assert (record.status, len(record.curve)) == ("interrupted", after_epochs)


def test_an_interrupted_run_goes_on_elsewhere(tmp_path: Path) -> None:
    one, lines = spec(), list[str]()
    interrupt(one, tmp_path / "here", after_epochs=1)
    sent = transfer.order(one, tmp_path / "here", SETTINGS)
    assert sent.checkpoint
    contents = transfer.fulfil(sent, portable_corpus.pack(one.data, prepare(one.data).key), lines.append)
    found = transfer.accept(tmp_path / "here", one, contents)
    assert any(f"goes on after update {UPDATES_PER_EPOCH} of" in line for line in lines), lines
    assert not any(f"{one.id}: epoch 1/3" in line for line in lines)
    assert_same({one.id: found}, tmp_path / "here", local([one], tmp_path / "local"))
    assert not list((tmp_path / "here" / one.id).glob("checkpoint*"))


@pytest.fixture
def _hears_ctrl_c() -> Iterator[None]:
    """A shell that starts these tests in the background makes them deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_hears_ctrl_c")
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_what_an_interrupted_run_goes_on_from_comes_back(tmp_path: Path) -> None:
    one = spec("counting_model:build_slow", updates=2 * UPDATES_PER_EPOCH)

    def tell(line: str) -> None:
        if ": epoch 1/2" in line:
            signal.raise_signal(signal.SIGINT)  # as Ray does to cancel a task

    sent = transfer.order(one, tmp_path / "nowhere", SETTINGS)
    contents = transfer.fulfil(sent, portable_corpus.pack(one.data, prepare(one.data).key), tell)
    assert transfer.accept(tmp_path / "here", one, contents).status == "interrupted"
    stream = io.StringIO()
    record = executor.execute([one], tmp_path / "here", jobs=1, stream=stream, **SETTINGS).records[0]
    assert "goes on after update" in stream.getvalue()
    assert said(record) == said(local([one], tmp_path / "local")[one.id])


def test_a_corpus_that_was_handed_over_needs_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "validation", "test"):
        (tmp_path / name).write_text("a b c\tx y z\nb c d\ty z w\na c\tx z\n" * 3, encoding="utf-8")
    files = FileSpec(**{f"{name}_source": str(tmp_path / name) for name in ("train", "validation", "test")})
    data = DataSpec(corpus="files", tokenizer="whitespace", files=files)
    expected = prepare(data)
    handed = portable_corpus.pack(data, expected.key)
    for name in ("train", "validation", "test"):
        (tmp_path / name).unlink()
    with pytest.raises((ValueError, OSError)):
        prepare(data)
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "node"))
    # Neither does another version of a tokenizer on that machine matter: the ids are the sender's.
    monkeypatch.setattr(preprocess, "_versions", lambda data: {"sacremoses": "another"})
    portable_corpus.unpack(data, handed)
    found = prepare(data)
    assert (found.key, found.digests, found.figures) == (expected.key, expected.digests, expected.figures)
    (entry,) = cache.folder().glob("handed/*")
    (entry / "ids.npz").write_bytes(flip((entry / "ids.npz").read_bytes()))
    with pytest.raises((ValueError, OSError)):
        prepare(data)


def test_a_corpus_that_is_gone_cannot_be_handed_over() -> None:
    with pytest.raises(ValueError, match="the prepared corpus captions is gone from the cache folder"):
        portable_corpus.pack(DATA, "0" * 64)


def test_the_commit_travels_with_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "REPOSITORY", tmp_path)
    assert machine.commit() is None
    monkeypatch.setenv(machine.COMMIT, '{"digest": "abc", "dirty": true}')
    assert machine.commit() == {"digest": "abc", "dirty": True}
    for damaged in ("", "[]", "{}", "no JSON"):
        monkeypatch.setenv(machine.COMMIT, damaged)
        assert machine.commit() is None


def test_code_travels_with_the_modules_of_variants_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alone.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    variants = ["alone:BUILD", "package.inner:BUILD", "paper"]
    found = ray_launcher._code([dataclasses.replace(spec(), variant=variant) for variant in variants])
    root = ROOT
    expected = {root / "harness", root / "impls", tmp_path / "alone.py", tmp_path / "package"}
    assert {Path(one) for one in found} == expected


# The command line -----------------------------------------------------------------------------------------------------

BENCH = ["bench", "--corpus", "captions", "--tokenizer", "whitespace", "--variant", "paper"]
REFUSED = {
    "--engine rax": "'rax' is not one of local, ray, slurm; did you mean 'ray'?",
    "--address here:1": "--address requires --engine ray",
    "--engine slurm --address here:1": "--address requires --engine ray",
    "--engine ray --slurm time=3": "--slurm requires --engine slurm",
    "--engine ray --jobs 2": "--jobs 2 does not apply to --engine ray",
    "--engine ray --address ray://here:1": "--address ray://here:1: Ray client addresses do not work; give HOST:PORT",
    "--engine slurm --slurm time": "--slurm time: give KEY=VALUE, such as partition=long",
    "--engine slurm --slurm time=": "--slurm time=: give KEY=VALUE, such as partition=long",
    "--engine ray": "--engine ray: ray is not installed: python -m pip install '.[ray]'",
    "--engine slurm": "--engine slurm: submitit is not installed: python -m pip install '.[slurm]'",
}


@pytest.mark.parametrize("command", ["bench", "ablate"])
@pytest.mark.parametrize(("words", "message"), REFUSED.items(), ids=REFUSED.keys())
def test_options_that_do_not_fit_are_refused_in_a_line(
    command: str,
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for library in launcher.LIBRARIES.values():
        monkeypatch.setitem(sys.modules, library, None)
    given = ["--corpus", "captions", "--tokenizer", "whitespace", "--results", str(tmp_path / "results")]
    assert main([command, *given, *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "127.0.0.1:word", "127.0.0.1:70000"])
@pytest.mark.parametrize("named", ["option", "variable"])
def test_no_ray_cluster_is_a_line(address: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    if named == "variable":
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=f"--engine ray --address {address}: .*: expected the HOST:PORT"):
        ray_launcher.execute(
            [spec()],
            tmp_path,
            address=address if named == "option" else "auto",
            stream=io.StringIO(),
            settings=SETTINGS,
        )
    assert not list(tmp_path.iterdir())


def test_a_cluster_chooses_the_accelerator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray", reason="needs ray: pip install '.[ray]'")
    words = ["--engine", "ray", "--device", "cuda:1", "--results", str(tmp_path)]
    assert main([*BENCH, *words]) == 2
    assert "device 'cuda:1' with --engine ray: use cpu or cuda" in capsys.readouterr().err


def test_slurm_is_missed_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for words, message in (
        ([], "--engine slurm: there is no sbatch here"),
        (["--slurm", "cluster=moon"], "--slurm cluster=moon: expected slurm, or local"),
    ):
        assert main([*BENCH, "--engine", "slurm", *words, "--results", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err


def test_nothing_waits_where_the_jobs_of_slurm_are_written(tmp_path: Path) -> None:
    first, second = (slurm_launcher._folder(tmp_path) for _ in range(2))
    assert first != second
    assert first.parent == second.parent == tmp_path / slurm_launcher.FOLDER
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / slurm_launcher.FOLDER).symlink_to(tmp_path)
    with pytest.raises(ValueError, match="is a link: expected a folder to write in"):
        slurm_launcher._folder(tmp_path / "results")


def test_parameters_of_slurm_are_submitit_s_or_sbatch_s() -> None:
    pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")
    given = {"partition": "long", "time": "30", "reservation": "class"}
    assert slurm_launcher._parameters(given) == {
        "slurm_partition": "long",
        "slurm_time": 30,
        "slurm_additional_parameters": {"reservation": "class"},
    }


# Real clusters --------------------------------------------------------------------------------------------------------

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of this machine's: a head and a second node with a core each; neither knows corpora or modules."""
    pytest.importorskip("ray", reason="needs ray: pip install '.[ray]'")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", "/nonexistent/cache")
        patch.delenv("PYTHONPATH")
        noticing = {"health_check_period_ms": 500, "health_check_failure_threshold": 6}
        head = {**NODE, "include_dashboard": False, "_system_config": noticing}
        found = Cluster(initialize_head=True, head_node_args=head)
        found.add_node(**NODE)
    try:
        yield found
    finally:
        found.shutdown()


class Noticing(io.StringIO):
    """A stream that calls something, once, when enough of it has been written."""

    def __init__(self, enough: Callable[[str], bool], then: Callable[[], None]) -> None:
        super().__init__()
        self.enough, self.then, self.done = enough, then, False

    def write(self, text: str) -> int:
        length = super().write(text)
        if not self.done and self.enough(self.getvalue()):
            self.done = True
            self.then()
        return length


@pytest.mark.faults
def test_ray_ends_with_the_records_of_local_though_a_node_is_killed(cluster: Any, tmp_path: Path) -> None:
    slow = [spec("counting_model:build_slow", seed=seed) for seed in range(3)]
    quick = [spec(), spec("learned_positions", TINY), spec("counting_model:build_breaking")]
    (killed,) = cluster.worker_nodes

    def both_nodes_are_at_it(shown: str) -> bool:
        return sum(f"{one.id}: epoch 1/3" in shown for one in slow) == 2

    stream = Noticing(both_nodes_are_at_it, lambda: cluster.remove_node(killed, allow_graceful=False))
    results = tmp_path / "ray"
    outcome = ray_launcher.execute([*slow, *quick], results, address=cluster.address, stream=stream, settings=SETTINGS)
    assert stream.done, stream.getvalue()
    assert "try 2: Ray lost the one before" in stream.getvalue()
    assert not outcome.interrupted
    found = {record.id: record for record in outcome.records}
    expected = local([*slow, *quick], tmp_path / "local")
    assert [record.status for record in expected.values()].count("completed") == 5
    broken = quick[2].id
    assert found.pop(broken).reason.split(";")[0] == expected.pop(broken).reason.split(";")[0]
    assert_same(found, results, expected)
    cluster.add_node(**NODE)


@pytest.mark.faults
def test_ray_runs_the_code_that_was_sent(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the nodes' disks, which on a real cluster have none; nor does a run see the driver's results."""
    text = "import harness, os\ndef build(*words, **settings):\n"
    text += "    raise RuntimeError(f'{harness.__file__} {__file__} {os.environ[\"OMP_NUM_THREADS\"]}')\n"
    (tmp_path / "from_outside.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    one, stream = spec("from_outside:build"), io.StringIO()
    outcome = ray_launcher.execute([one], tmp_path / "ray", address=cluster.address, stream=stream, settings=SETTINGS)
    reason = outcome.records[0].reason
    assert reason.count("py_modules_files") >= 2, reason
    assert str(ROOT / "harness") not in reason.split(";")[0]
    assert " 1" in reason.split(";")[0]
    assert "failed" in stream.getvalue()
    assert "RuntimeError" in run_store.log_path(tmp_path / "ray", one.id).read_text()


@pytest.mark.faults
def test_ctrl_c_ends_the_runs_on_ray_in_order_and_the_command_goes_on_later(cluster: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    interrupted_and_gone_on(results, "--engine", "ray", "--address", cluster.address)
    for record in run_store.records(results):
        fresh = local([record.spec], tmp_path / "local")[record.id]
        assert {**said(record), "command": "", "note": ""} == {**said(fresh), "command": "", "note": ""}


@pytest.mark.faults
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds submitit's process in Linux's /proc")
def test_submitit_ends_with_the_records_of_local_though_a_job_is_preempted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitit = pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")
    slow = spec("counting_model:build_slow")
    specs = [slow, spec(), spec("learned_positions", TINY), spec("counting_model:build_breaking")]
    jobs: dict[str, Any] = {}
    submit = submitit.AutoExecutor.submit

    def noticed(self: Any, job: slurm_launcher.SlurmJob) -> Any:
        return jobs.setdefault(json.loads(job.spec)["variant"], submit(self, job))

    def preempt() -> None:
        controller = jobs[slow.variant].job_id
        (task,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
        os.kill(int(task), signal.SIGUSR2)  # as Slurm does

    monkeypatch.setattr(submitit.AutoExecutor, "submit", noticed)
    stream = Noticing(lambda shown: f"{slow.id}: epoch 1/3" in shown, preempt)
    results = tmp_path / "slurm"
    given = {"cluster": "local", "partition": "any"}
    outcome = slurm_launcher.execute(specs, results, parameters=given, stream=stream, settings=SETTINGS)
    assert stream.done
    assert f"{slow.id}: goes on after update" in stream.getvalue()
    found = {record.id: record for record in outcome.records}
    expected = local(specs, tmp_path / "local")
    broken = specs[3].id
    assert found.pop(broken).reason.split(";")[0] == expected.pop(broken).reason.split(";")[0]
    assert [record.status for record in expected.values()] == ["completed"] * 3
    assert_same(found, results, expected)
    assert not list(results.rglob("*.pkl"))


@pytest.mark.faults
def test_ctrl_c_ends_submitit_s_jobs_in_order_and_the_command_goes_on_later(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")
    interrupted_and_gone_on(tmp_path / "results", "--engine", "slurm", "--slurm", "cluster=local")
