"""Failing writes: planted in every system call, and real ones on a full, a read-only and a limited system.

After each, the old file is unchanged, nothing else is in the folder, and the error names path and reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from stored_files import RECORD, SPEC, WRITERS, save_record

from harness.storage import files, run_store

KINDS = pytest.mark.parametrize("kind", WRITERS)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_write_fails(folder: Path, kind: str, reason: str) -> OSError:
    """Write a second version, which must fail and leave the first; return the error."""
    before = contents(folder)
    with pytest.raises(OSError, match=reason) as caught:
        WRITERS[kind](folder, 2)
    assert Path(caught.value.filename).parent == folder / SPEC.id
    assert not caught.value.filename.endswith(".partial")
    assert contents(folder) == before
    return caught.value


def assert_write_succeeds(folder: Path, kind: str) -> None:
    before = contents(folder)
    WRITERS[kind](folder, 2)
    assert contents(folder) != before


# Planted faults -------------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def failing(name: str, number: int, *, call: int = 1) -> Plant:
    """Let call number `call` of `os.NAME` fail."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right, calls = getattr(os, name), itertools.count(1)

        def wrong(*arguments: Any, **settings: Any) -> Any:
            if next(calls) == call:
                raise OSError(number, os.strerror(number))
            return right(*arguments, **settings)

        patch.setattr(os, name, wrong)

    return plant


def half_written(patch: pytest.MonkeyPatch) -> None:
    """Let the first write break off in the middle, as on a full disk."""
    right = Path.write_bytes

    def wrong(path: Path, content: bytes) -> int:
        right(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(Path, "write_bytes", wrong)


def no_temporary_file(patch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any, **settings: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/another/name")

    patch.setattr("tempfile.mkstemp", wrong)


FAULTS: dict[str, tuple[Plant, int]] = {
    "too many open files": (no_temporary_file, errno.EMFILE),
    "no space in the middle of a write": (half_written, errno.ENOSPC),
    "failing fsync": (failing("fsync", errno.EIO), errno.EIO),
    "quota at fsync": (failing("fsync", errno.EDQUOT), errno.EDQUOT),
    "failing chmod": (failing("chmod", errno.EPERM), errno.EPERM),
    "failing rename": (failing("replace", errno.EIO), errno.EIO),
    "read-only at rename": (failing("replace", errno.EROFS), errno.EROFS),
}


@pytest.mark.parametrize("fault", FAULTS)
@KINDS
def test_write_failing_at_any_step_keeps_the_old_file(
    tmp_path: Path, kind: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[kind](tmp_path, 1)
    plant, number = FAULTS[fault]
    with monkeypatch.context() as patch:
        plant(patch)
        assert assert_write_fails(tmp_path, kind, ".").errno == number
    assert_write_succeeds(tmp_path, kind)


@KINDS
def test_write_unflushed_folder_holds_the_old_or_new_file(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[kind](tmp_path / "new", 2)
    WRITERS[kind](tmp_path / "old", 1)
    old, new = contents(tmp_path / "old"), contents(tmp_path / "new")
    with monkeypatch.context() as patch:
        failing("fsync", errno.EIO, call=2)(patch)
        with pytest.raises(OSError, match="Input/output error"):
            WRITERS[kind](tmp_path / "old", 2)
    written = contents(tmp_path / "old")
    assert written.keys() >= old.keys()
    for name, content in written.items():
        assert content in (old.get(name), new.get(name), new.get(name.replace("-2.", "-1.")))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_write_file_system_without_folder_flush_succeeds(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("fsync", number, call=2)(monkeypatch)
    save_record(tmp_path, 1)
    assert run_store.load_record(tmp_path, SPEC.id) is not None


@KINDS
def test_write_folder_that_cannot_be_created_is_named(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing("mkdir", errno.EROFS)(patch)
        with pytest.raises(OSError, match="Read-only") as caught:
            WRITERS[kind](tmp_path, 1)
    assert str(tmp_path / SPEC.id) in str(caught.value.filename)
    assert contents(tmp_path) == {}


def test_write_longest_file_name_succeeds(tmp_path: Path) -> None:
    path = tmp_path / ("表" * 83 + ".csv")
    files.write_bytes(path, b"x")
    assert contents(tmp_path) == {path.name: b"x"}


def test_write_disappearing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "removed" / "file.json"

    def remove_the_folder() -> None:
        with files.replacing(path) as temporary:
            temporary.write_text("content")
            temporary.rename(tmp_path / "elsewhere")
            path.parent.rmdir()

    with pytest.raises(OSError, match="No such file") as caught:
        remove_the_folder()
    assert caught.value.filename == str(path)
    assert contents(tmp_path) == {"elsewhere": b"content"}


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_write_onto_folder_device_or_pipe_is_refused(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "file.csv"
    make(path)
    before = path.lstat()
    with pytest.raises(ValueError, match="cannot be written: expected a new file, or to replace a regular one"):
        files.write_bytes(path, b"x")
    assert path.lstat() == before


def test_write_through_a_link_is_refused(tmp_path: Path) -> None:
    outside, results = tmp_path / "outside", tmp_path / "results"
    outside.mkdir()
    results.mkdir()
    (results / SPEC.id).symlink_to(outside)
    for kind in ("record", "hypotheses", "sentences", "attention", "weights"):
        with pytest.raises(ValueError, match="is a link: expected a folder to write in"):
            WRITERS[kind](results, 1)
    with pytest.raises(ValueError, match="is a link"):
        run_store.open_log(results, SPEC.id)
    assert contents(outside) == {}
    (tmp_path / "link").symlink_to(results)
    (results / SPEC.id).unlink()
    save_record(tmp_path / "link", 1)
    assert run_store.load_record(tmp_path / "link", SPEC.id) == run_store.load_record(results, SPEC.id)


# Killed and interrupted processes -------------------------------------------------------------------------------------

WRITING_HALF = """
import sys, time
from pathlib import Path
from harness.storage import files
with files.replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    print("half", flush=True)
    sys.stdin.read()
"""


def test_write_removes_partial_files_of_dead_processes_only(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITING_HALF, str(tmp_path / "first.json")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    killed, living = (subprocess.Popen(command, cwd=ROOT, text=True, **pipes) for _ in range(2))
    for process in (killed, living):
        assert process.stdout.readline() == "half\n"
    assert len(contents(tmp_path)) == 2
    killed.kill()
    killed.communicate()
    files.write_bytes(tmp_path / "second.json", b"{}")
    assert len([name for name in contents(tmp_path) if name.endswith(".partial")]) == 1
    living.communicate()
    assert living.returncode == 0
    assert contents(tmp_path) == {"first.json": b"half", "second.json": b"{}"}


def test_write_interrupted_by_signals_succeeds(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for version in range(100):
            save_record(tmp_path, version)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    record = run_store.load_record(tmp_path, SPEC.id)
    assert record.note == "99"
    assert list(contents(tmp_path)) == [f"{SPEC.id}/record.json"]


# Real systems ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 400 kB; skip if mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    mount = subprocess.run(command, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"needs to mount a small file system: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@KINDS
def test_write_full_disk_keeps_the_old_file(small_disk: Path, kind: str) -> None:
    results, ballast = small_disk / "results", small_disk / "ballast"
    WRITERS[kind](results, 1)
    fill(ballast)
    assert_write_fails(results, kind, "No space left on device")
    ballast.unlink()
    assert_write_succeeds(results, kind)


def test_report_full_disk_is_one_line_with_path_and_reason(small_disk: Path, tmp_path: Path) -> None:
    run_store.save_record(tmp_path / "results", RECORD)
    old = small_disk / "old.csv"
    old.write_bytes(b"old")
    fill(small_disk / "ballast")
    report = harness("report", "--results", tmp_path / "results", "--reports", small_disk / "reports")
    assert report.returncode == 2
    (line,) = [line for line in report.stderr.split("\n")[:-1] if not line.startswith("bakeoff: check: ")]
    assert line.startswith(f"bakeoff: {small_disk}/reports")
    assert line.endswith(": No space left on device")
    assert not list(small_disk.rglob("*.partial"))
    assert old.read_bytes() == b"old"


@KINDS
def test_write_read_only_disk_keeps_the_old_file(small_disk: Path, kind: str) -> None:
    WRITERS[kind](small_disk, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_write_fails(small_disk, kind, "Read-only file system")


LIMITED = """
import os, resource, sys
from pathlib import Path
import numpy as np
from harness.storage import run_store
results = Path(sys.argv[1])
run_store.save_weights(results, "run", {"a": np.zeros(9, np.float32)})
run_store.load_weights(results, "run")
resource.setrlimit(resource.LIMIT)
try:
    run_store.save_weights(results, "run", {"a": np.ones(90_000, np.float32)})
except OSError as error:
    print(error.filename, error.strerror)
"""


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("RLIMIT_FSIZE, (4096, 4096)", "File too large"), ("RLIMIT_NOFILE, (3, 3)", "Too many open files")],
)
def test_write_system_limit_keeps_the_old_file(tmp_path: Path, limit: str, reason: str) -> None:
    code = LIMITED.replace("LIMIT", limit)
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert process.stdout == f"{tmp_path}/run/weights.safetensors {reason}\n", process.stderr
    assert run_store.load_weights(tmp_path, "run")["a"].tolist() == [0.0] * 9
    assert sorted(contents(tmp_path)) == ["run/weights.safetensors"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_list_full_standard_output_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = harness("list", "--results", tmp_path, stdout=full)
    assert process.returncode == 2
    assert process.stderr == "bakeoff: standard output: No space left on device\n"


NO_SPACE = """
import resource, sys
from harness.cli import experiment_file
from harness.cli.main import main, parser
resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))
try:
    if sys.argv[1] == "new":
        raise SystemExit(main(sys.argv[1:]))
    experiment_file.save(parser().parse_args(sys.argv[1:]))
except OSError as error:
    print(f"{error.filename}: {error.strerror}", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "name"),
    [(["new", "mine"], "mine.py"), (["bench", "--jobs", "12", "--save-config", "saved.toml"], "saved.toml")],
)
def test_file_of_a_command_without_space_is_named_and_not_left_empty(
    tmp_path: Path, words: list[str], name: str
) -> None:
    command = [sys.executable, "-c", NO_SPACE, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert process.stderr.removeprefix("bakeoff: ") == f"{name}: File too large\n"
    assert contents(tmp_path) == {}


READING = """
import sys
from harness.cli.main import main
print("ENDS", *[main([command, "--results", sys.argv[1]]) for command in ("list", "clean", "score", "check")])
"""


def obey_permissions() -> None:
    """Let permissions apply to root too, by giving up two capabilities."""
    if sys.platform == "linux":
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP, which applies to the next program


@pytest.mark.parametrize("closed", [".", RECORD.id, "lost+found"])
def test_commands_name_a_folder_that_they_cannot_read_and_pass_over_lost_and_found(tmp_path: Path, closed: str) -> None:
    save_record(tmp_path / "results", 1)
    folder = tmp_path / "results" / closed
    folder.mkdir(exist_ok=True)
    folder.chmod(0)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BAKEOFF_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", READING, str(tmp_path / "results")]
    streams: Any = {"env": environment, "capture_output": True, "text": True}
    process = subprocess.run(command, **streams, timeout=120, preexec_fn=obey_permissions)
    folder.chmod(0o700)
    if closed == ".":
        assert process.stdout.splitlines()[-1] == "ENDS 2 2 2 2", process.stdout
        assert process.stderr == 4 * f"bakeoff: {tmp_path / 'results'}: Permission denied\n"
    elif closed == RECORD.id:
        assert process.stdout.splitlines()[-1] == "ENDS 2 2 2 2", process.stderr
        named = f"bakeoff: {folder / 'record.json'}: cannot be read (Permission denied)\n"
        assert process.stderr.count(named) == 2  # list and score
    else:  # the record has no translations
        assert process.stdout.splitlines()[-1] == "ENDS 0 0 2 1", process.stderr
        assert "Permission denied" not in process.stderr


def harness(*words: object, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120)
