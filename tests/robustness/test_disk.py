"""Writes that fail: planted faults in every system call, and real ones: a full, a read-only and a small-minded system.

After each the old content is there to the byte, nothing else lies in the folder, and the error names path and reason.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT
from record_factory import record
from small_runs import spec

from harness.reporting import csv_export, plot_style
from harness.storage import checkpoint_files, files, run_store
from harness.storage.run_store import Hypothesis

SPEC = spec()
RECORD = replace(record("learned_positions", 0), id=SPEC.id, spec=SPEC)

NOISE = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)


# Kinds of files -------------------------------------------------------------------------------------------------------


def put_record(folder: Path, turn: int) -> None:
    run_store.save_record(folder, replace(RECORD, note=f"{turn}"))


def put_hypotheses(folder: Path, turn: int) -> None:
    run_store.save_hypotheses(folder, SPEC.id, [Hypothesis(n, ("a", f"{turn}"), f"A {turn}.") for n in range(99)])


def put_sentences(folder: Path, turn: int) -> None:
    counts = np.full((99, 4), turn, np.int32)
    run_store.save_sentences(
        folder, SPEC.id, {"nats": np.full(99, float(turn)), "tokens": np.ones(99, np.int32), "chrf": counts}
    )


def put_attention(folder: Path, turn: int) -> None:
    run_store.save_attention(folder, SPEC.id, {0: np.full((3, 20, 20), turn / 8, np.float16)})


def put_weights(folder: Path, turn: int) -> None:
    run_store.save_weights(folder, SPEC.id, {"a": NOISE + np.float32(turn)})


def put_checkpoint(folder: Path, turn: int) -> None:
    checkpoint_files.save(folder, SPEC.id, {"a": NOISE + np.float32(turn)}, {"epochs": turn})


def put_table(folder: Path, turn: int) -> None:
    csv_export.write_table([{"run": f"run {n}", "turn": turn} for n in range(400)], folder / SPEC.id / "runs.csv")


def put_page(folder: Path, turn: int) -> None:
    files.write_bytes(folder / SPEC.id / "index.html", f"<p>{turn}</p>\n".encode() * 500)


def put_picture(folder: Path, turn: int) -> None:
    figure, axes = plot_style.figure(3, 2)
    axes.flat[0].plot([turn, 1, 2])
    plot_style.write(figure, folder / SPEC.id / "picture.png")


KINDS: dict[str, Callable[[Path, int], None]] = {
    "record": put_record,
    "hypotheses": put_hypotheses,
    "sentences": put_sentences,
    "attention": put_attention,
    "weights and manifest": put_weights,
    "checkpoint": put_checkpoint,
    "table": put_table,
    "page": put_page,
    "picture": put_picture,
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Planted faults -------------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def failing(name: str, number: int, *, call: int = 1) -> Plant:
    """Let call number `call` of `os.NAME` fail."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right, calls = getattr(os, name), itertools.count(1)

        def wrong(*arguments: Any, **more: Any) -> Any:
            if next(calls) == call:
                raise OSError(number, os.strerror(number))
            return right(*arguments, **more)

        patch.setattr(os, name, wrong)

    return plant


def half_written(patch: pytest.MonkeyPatch) -> None:
    """Let the first write break off in the middle, as where a disk is full."""
    right = Path.write_bytes

    def wrong(path: Path, content: bytes) -> int:
        right(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(Path, "write_bytes", wrong)


def no_temporary(patch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any, **more: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/another/name")

    patch.setattr("tempfile.mkstemp", wrong)


FAULTS: dict[str, tuple[Plant, int]] = {
    "too many open files": (no_temporary, errno.EMFILE),
    "no space in the middle of a write": (half_written, errno.ENOSPC),
    "failing fsync": (failing("fsync", errno.EIO), errno.EIO),
    "quota at fsync": (failing("fsync", errno.EDQUOT), errno.EDQUOT),
    "failing chmod": (failing("chmod", errno.EPERM), errno.EPERM),
    "failing rename": (failing("replace", errno.EIO), errno.EIO),
    "read-only at rename": (failing("replace", errno.EROFS), errno.EROFS),
}
CASES = [(kind, fault) for kind in KINDS for fault in FAULTS]


@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_write_failing_at_any_step_keeps_the_old_file(
    tmp_path: Path, kind: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    KINDS[kind](tmp_path, 1)
    before = contents(tmp_path)
    plant, number = FAULTS[fault]
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(OSError, match=r".") as caught:
            KINDS[kind](tmp_path, 2)
    assert caught.value.errno == number
    assert Path(caught.value.filename).parent == tmp_path / SPEC.id
    assert not caught.value.filename.endswith(".partial")
    assert contents(tmp_path) == before
    KINDS[kind](tmp_path, 2)
    assert contents(tmp_path) != before


@pytest.mark.parametrize("kind", KINDS)
def test_write_unflushed_folder_holds_the_old_or_new_file(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    KINDS[kind](tmp_path / "new", 2)
    KINDS[kind](tmp_path / "old", 1)
    old, new = contents(tmp_path / "old"), contents(tmp_path / "new")
    with monkeypatch.context() as patch:
        failing("fsync", errno.EIO, call=2)(patch)
        with pytest.raises(OSError, match="Input/output error"):
            KINDS[kind](tmp_path / "old", 2)
    for name, content in contents(tmp_path / "old").items():
        assert content in (old.get(name), new.get(name), new.get(name.replace("-2.", "-1.")))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_write_file_system_without_folder_flush_succeeds(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("fsync", number, call=2)(monkeypatch)
    put_record(tmp_path, 1)
    assert run_store.load_record(tmp_path, SPEC.id) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_write_folder_that_cannot_be_created_is_named(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing("mkdir", errno.EROFS)(patch)
        with pytest.raises(OSError, match="Read-only") as caught:
            KINDS[kind](tmp_path, 1)
    assert str(tmp_path / SPEC.id) in str(caught.value.filename)
    assert contents(tmp_path) == {}


def test_write_longest_file_name_succeeds(tmp_path: Path) -> None:
    path = tmp_path / ("表" * 83 + ".csv")
    files.write_bytes(path, b"x")
    assert contents(tmp_path) == {path.name: b"x"}


def test_write_disappearing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "one.json"

    def lose_the_folder() -> None:
        with files.replacing(path) as temporary:
            temporary.write_text("whole")
            temporary.rename(tmp_path / "elsewhere")
            path.parent.rmdir()

    with pytest.raises(OSError, match="No such file") as caught:
        lose_the_folder()
    assert caught.value.filename == str(path)
    assert contents(tmp_path) == {"elsewhere": b"whole"}


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a device"])
def test_write_onto_folder_device_or_pipe_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "one.csv"
    {"pipe": os.mkfifo, "folder": os.mkdir, "link to a device": lambda one: one.symlink_to("/dev/null")}[kind](path)
    before = path.lstat()
    with pytest.raises(ValueError, match="cannot be written: expected a new file, or to replace a regular one"):
        files.write_bytes(path, b"x")
    assert path.lstat() == before


def test_write_through_a_link_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    results = tmp_path / "results"
    results.mkdir()
    (results / SPEC.id).symlink_to(outside)
    for put in (put_record, put_hypotheses, put_sentences, put_attention, put_weights):
        with pytest.raises(ValueError, match="is a link: expected a folder to write in"):
            put(results, 1)
    with pytest.raises(ValueError, match="is a link"):
        run_store.open_log(results, SPEC.id)
    assert contents(outside) == {}
    (tmp_path / "link").symlink_to(results)
    (results / SPEC.id).unlink()
    put_record(tmp_path / "link", 1)
    assert run_store.load_record(tmp_path / "link", SPEC.id) == run_store.load_record(results, SPEC.id)


# Killed processes -----------------------------------------------------------------------------------------------------

HALF = """
import sys, time
from pathlib import Path
from harness.storage import files
with files.replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    print("half", flush=True)
    sys.stdin.read()
"""


def test_write_removes_partial_files_of_dead_processes_only(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", HALF, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == "half\n"
    killed, living = started
    assert len(contents(tmp_path)) == 2
    killed.kill()
    killed.communicate()
    files.write_bytes(tmp_path / "another.json", b"{}")
    assert len([name for name in contents(tmp_path) if name.endswith(".partial")]) == 1
    living.communicate()
    assert living.returncode == 0
    assert contents(tmp_path) == {"one.json": b"half", "another.json": b"{}"}


def test_write_interrupted_by_signals_succeeds(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for turn in range(100):
            put_record(tmp_path, turn)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    found = run_store.load_record(tmp_path, SPEC.id)
    assert found is not None
    assert found.note == "99"
    assert list(contents(tmp_path)) == [f"{SPEC.id}/record.json"]


# Real systems ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 400 kB; skip where mounting is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"needs to mount a small file system: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(ballast: Path) -> None:
    """Write until there is no space."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.mark.parametrize("kind", KINDS)
def test_write_full_disk_keeps_the_old_file(small_disk: Path, kind: str) -> None:
    results = small_disk / "results"
    KINDS[kind](results, 1)
    before = contents(results)
    ballast = small_disk / "ballast"
    fill(ballast)
    with pytest.raises(OSError, match="No space left on device") as caught:
        KINDS[kind](results, 2)
    assert Path(caught.value.filename).parent == results / SPEC.id
    assert contents(results) == before
    ballast.unlink()
    KINDS[kind](results, 2)
    assert contents(results) != before


def test_report_full_disk_is_one_line_with_path_and_reason(small_disk: Path, tmp_path: Path) -> None:
    run_store.save_record(tmp_path / "results", RECORD)
    output = small_disk / "old.csv"
    output.write_bytes(b"old")
    fill(small_disk / "ballast")
    found = harness("report", "--results", tmp_path / "results", "--reports", small_disk / "reports")
    assert found.returncode == 2
    lines = [line for line in found.stderr.split("\n")[:-1] if not line.startswith("bakeoff: check: ")]
    assert len(lines) == 1
    assert lines[0].startswith(f"bakeoff: {small_disk}/reports")
    assert lines[0].endswith(": No space left on device")
    assert not list(small_disk.rglob("*.partial"))
    assert output.read_bytes() == b"old"


@pytest.mark.parametrize("kind", KINDS)
def test_write_read_only_disk_keeps_the_old_file(small_disk: Path, kind: str) -> None:
    KINDS[kind](small_disk, 1)
    before = contents(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match="Read-only file system") as caught:
        KINDS[kind](small_disk, 2)
    assert Path(caught.value.filename).parent == small_disk / SPEC.id
    assert contents(small_disk) == before


LIMITED = """
import os, resource, sys
from pathlib import Path
import numpy as np
from harness.storage import run_store
results = Path(sys.argv[1])
run_store.save_weights(results, "run", {"a": np.zeros(9, np.float32)})
run_store.load_weights(results, "run")
SET
try:
    run_store.save_weights(results, "run", {"a": np.ones(90_000, np.float32)})
except OSError as error:
    print(error.filename, error.strerror)
"""


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))", "File too large"),
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", "Too many open files"),
    ],
)
def test_write_system_limit_keeps_the_old_file(tmp_path: Path, limit: str, reason: str) -> None:
    code = LIMITED.replace("SET", limit)
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == f"{tmp_path}/run/weights.safetensors {reason}\n", found.stderr
    assert run_store.load_weights(tmp_path, "run")["a"].tolist() == [0.0] * 9
    assert sorted(contents(tmp_path)) == ["run/weights.json", "run/weights.safetensors"]


def test_list_full_standard_output_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        found = harness("list", "--results", tmp_path, stdout=full)
    assert found.returncode == 2
    assert found.stderr == "bakeoff: standard output: No space left on device\n"


def harness(*words: object, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120)
