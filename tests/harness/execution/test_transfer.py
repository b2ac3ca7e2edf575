"""What is sent to another machine, and which files are accepted from it."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from remote_runs import SETTINGS, assert_same, local_records, reproducible
from small_corpora import small
from small_runs import DATA, UPDATES_PER_EPOCH, spec

from harness.data import cache, preprocess
from harness.data.dataset import pack, prepare, unpack
from harness.execution import local, transfer
from harness.execution.transfer import Contents
from harness.experiments.specs import RunSpec
from harness.processes import machine
from harness.processes.progress import Event
from harness.processes.signals import SignalGuard
from harness.storage import files, run_store
from harness.storage.records import RunRecord
from harness.training import train

pytestmark = pytest.mark.usefixtures("processes")

Delivery = tuple[RunSpec, Contents, list[str]]
"""A run, its files, and the lines of its progress."""


def execute(run: RunSpec, results: Path, say: Callable[[str], None], checkpoint_folder: str = "") -> Contents:
    """Execute a run in this process as a node does, from the checkpoint in `results`, if any."""
    remote = transfer.remote_run(run, results, SETTINGS, checkpoint_folder=checkpoint_folder)
    return transfer.execute_remote(remote, pack(prepare(run.data)), say)


@pytest.fixture(scope="module")
def delivery(tmp_path_factory: pytest.TempPathFactory) -> Delivery:
    run, lines = spec(), list[str]()
    return run, execute(run, tmp_path_factory.mktemp("none"), lines.append), lines


@pytest.fixture(scope="module")
def local_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, RunRecord]]:
    """Return the results folder and the record by id of the same run on this machine."""
    results = tmp_path_factory.mktemp("local")
    return results, local_records([spec()], results)


def test_accepted_results_equal_those_of_a_local_run(
    delivery: Delivery, local_run: tuple[Path, dict[str, RunRecord]], tmp_path: Path
) -> None:
    run, contents, lines = delivery
    record = transfer.accept_results(tmp_path, run, contents)
    assert_same({run.id: record}, tmp_path, local_run[1])
    assert (record.command, record.note) == ("the command", "a note")
    accepted, expected = ({path.name for path in (results / run.id).iterdir()} for results in (tmp_path, local_run[0]))
    assert accepted == expected
    assert any("epoch 3/3" in line for line in lines)
    assert not any("\n" in line for line in lines)


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def edit(content: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(content), **changes}).encode()


def without_seal(content: bytes) -> bytes:
    return json.dumps({name: value for name, value in json.loads(content).items() if name != files.SEAL}).encode()


RECORD = run_store.RECORD
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:-7],
    "flipped": flip,
    "empty": lambda content: b"",
}
TAMPERED: dict[str, tuple[str, Callable[[bytes], bytes] | None, str]] = {
    **{
        f"{name} {word}": (name, change, name)
        for name in (*transfer.HASHED.values(), RECORD)
        for word, change in CHANGES.items()
    },
    **{f"{name} missing": (name, None, name) for name in (*transfer.HASHED.values(), RECORD)},
    "edited record": (RECORD, lambda content: edit(content, note="another"), "its seal is not that of its content"),
    "unsealed record": (RECORD, without_seal, "record.json: damaged (it has no seal"),
    "deep record": (RECORD, lambda content: b"[" * 100_000, "record.json: damaged"),
    "outside": ("../evil.txt", lambda content: b"x", "'../evil.txt': expected"),
    "absolute": ("/tmp/checkpoint.json", lambda content: b"x", "'/tmp/checkpoint.json': expected"),
    "unknown": ("run.lock", lambda content: b"x", "'run.lock': expected"),
}


@pytest.mark.parametrize(("name", "change", "message"), TAMPERED.values(), ids=TAMPERED.keys())
def test_tampered_files_are_refused_and_nothing_is_written(
    name: str, change: Callable[[bytes], bytes] | None, message: str, delivery: Delivery, tmp_path: Path
) -> None:
    run, contents, _ = delivery
    failure = RunRecord(id=run.id, spec=run, status="failed", reason="an older failure")
    run_store.save_record(tmp_path, failure)
    tampered = {file: content for file, content in contents.items() if file != name}
    if change is not None:
        tampered[name] = change(contents.get(name, b""))
    with pytest.raises(ValueError, match=".") as refusal:
        transfer.accept_results(tmp_path, run, tampered)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert run_store.load_record(tmp_path, run.id) == failure
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()] == [Path(run.id, RECORD)]


def test_record_of_another_run_is_refused(delivery: Delivery, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it is of the run .*-s0-.*: expected .*-s1-"):
        transfer.accept_results(tmp_path, spec(seed=1), delivery[1])
    assert not list(tmp_path.iterdir())


def test_run_that_failed_while_it_stored_its_results_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    run, there = spec(), tmp_path / "there"
    monkeypatch.setattr(run_store, "save_weights", fail)
    with pytest.raises(run_store.RunFailed, match="No space left"):
        train.run(run, there)
    contents = {path.name: path.read_bytes() for path in (there / run.id).iterdir()}
    assert run_store.HYPOTHESES in contents  # but not in the record
    record = transfer.accept_results(tmp_path / "here", run, contents)
    assert record == run_store.load_record(there, run.id)
    assert list((tmp_path / "here" / run.id).glob("checkpoint*"))


def interrupt(run: RunSpec, results: Path, *, after_epochs: int) -> None:
    """Leave an interrupted run with its checkpoint in `results`."""
    with SignalGuard() as guard:

        def progress(event: Event) -> None:
            if f"epoch {after_epochs}/" in event.remark:
                guard.receive(signal.SIGTERM)

        record = train.run(run, results, progress=progress, guard=guard)
    assert (record.status, len(record.curve)) == ("interrupted", after_epochs)


@pytest.mark.parametrize("place", ["here", "shared"])
def test_interrupted_run_resumes_on_another_machine(
    place: str, local_run: tuple[Path, dict[str, RunRecord]], tmp_path: Path
) -> None:
    run, lines, results = spec(), list[str](), tmp_path / "here"
    interrupt(run, tmp_path / place, after_epochs=1)
    if place == "shared":
        (tmp_path / place / run.id / RECORD).unlink()  # a lost machine writes none
    contents = execute(run, results, lines.append, checkpoint_folder=str(tmp_path / place) if place == "shared" else "")
    record = transfer.accept_results(results, run, contents)
    assert any(f"after update {UPDATES_PER_EPOCH} of" in line for line in lines), lines
    assert not any(f"{run.id}: epoch 1/3" in line for line in lines)
    assert any(f"{run.id}: epoch 2/3" in line for line in lines)
    assert_same({run.id: record}, results, local_run[1])
    assert not list(tmp_path.glob("*/*/checkpoint*"))


@pytest.fixture
def _default_sigint() -> Iterator[None]:
    """Handle SIGINT, which a shell that starts these tests in the background lets them ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_default_sigint")
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_checkpoint_of_a_remote_interrupted_run_comes_back(tmp_path: Path) -> None:
    run = spec("counting_model:build_slow", updates=2 * UPDATES_PER_EPOCH)

    def say(line: str) -> None:
        if ": epoch 1/2" in line:
            signal.raise_signal(signal.SIGINT)  # as Ray does to cancel a task

    contents = execute(run, tmp_path / "nowhere", say)
    assert transfer.accept_results(tmp_path / "here", run, contents).status == "interrupted"
    stream = io.StringIO()
    record = local.execute([run], tmp_path / "here", jobs=1, stream=stream, settings=SETTINGS).records[0]
    assert "after update" in stream.getvalue()
    assert reproducible(record) == reproducible(local_records([run], tmp_path / "local")[run.id])


def test_packed_corpus_needs_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small(tmp_path)
    expected = prepare(data)
    packed = pack(expected)
    (tmp_path / "train.tsv").unlink()
    with pytest.raises(ValueError, match=r"train\.tsv: cannot be read"):
        prepare(data)
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "node"))
    # The version of the tokenizer on that machine does not matter: the ids are the sender's.
    monkeypatch.setattr(preprocess, "_versions", lambda data: {"sacremoses": "another"})
    unpack(data, packed)
    dataset = prepare(data)
    assert (dataset.key, dataset.digests, dataset.figures) == (expected.key, expected.digests, expected.figures)
    (entry,) = cache.folder().glob("handed/*")
    (entry / "ids.npz").write_bytes(flip((entry / "ids.npz").read_bytes()))
    with pytest.raises(ValueError, match=r"train\.tsv: cannot be read"):
        prepare(data)


def test_missing_corpus_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="the prepared corpus captions is no longer in the cache folder"):
        pack(replace(prepare(DATA), key="0" * 64))


def test_commit_of_sent_code_is_that_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "REPOSITORY", tmp_path)
    assert machine.commit() is None
    monkeypatch.setenv(machine.COMMIT, '{"digest": "abc", "dirty": true}')
    assert machine.commit() == {"digest": "abc", "dirty": True}
    for damaged in ("", "null", "[]", "{}", "no JSON"):
        monkeypatch.setenv(machine.COMMIT, damaged)
        assert machine.commit() is None
