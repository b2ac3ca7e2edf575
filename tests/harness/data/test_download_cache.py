"""The cache of downloads: read-only or full disks, and several processes at once."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest
from command_line import Refused
from fault_server import DIGESTS, MARGIN, WANTED, Server, assert_downloaded, slow, stall, whole

from harness.data import cache, corpora
from harness.experiments.specs import DataSpec

pytestmark = pytest.mark.usefixtures("small_multi30k")


def test_fetch_from_a_full_cache_writes_nothing(monkeypatch: pytest.MonkeyPatch, good_server: Server) -> None:
    loaded = corpora.load(DataSpec())
    monkeypatch.setattr(Path, "mkdir", None)  # as in a read-only cache
    monkeypatch.setattr(filelock.FileLock, "acquire", None)
    assert corpora.load(DataSpec()) == loaded


@pytest.mark.parametrize("place", ["occupied", "occupied/below"])
def test_fetch_cache_that_is_a_file_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_server: Server, refused: Refused
) -> None:
    (tmp_path / "occupied").write_bytes(b"")
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / place))
    error = refused(["data", "--corpus", "multi30k"], "the cache folder")
    assert re.fullmatch(rf"bakeoff: the cache folder .*{place} cannot be written \(.*\): .*BAKEOFF_CACHE\n", error)
    assert good_server.asked == []


def test_fetch_full_disk_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_server: Server
) -> None:
    def write_half(path: Path, content: bytes) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_half)
        with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\): name another one"):
            corpora.load(DataSpec())
    assert list((tmp_path / "cache/multi30k").iterdir()) == []
    assert_downloaded()


LOAD = f"""
from harness.data import corpora, multi30k
from harness.experiments.specs import DataSpec
multi30k.DIGESTS = {DIGESTS!r}
assert corpora.load(DataSpec()).digests == {{name: multi30k.DIGESTS[name] for name in {WANTED!r}}}
"""


def loading() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", LOAD], stderr=subprocess.PIPE)


@pytest.mark.parametrize("processes", [2, pytest.param(8, marks=pytest.mark.faults)])
def test_fetch_concurrent_processes_share_one_download(
    processes: int, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", server.serve("good", slow(0.3)))
    running_processes = [loading() for _ in range(processes)]
    errors = [process.communicate(timeout=60)[1] for process in running_processes]
    assert [process.returncode for process in running_processes] == [0] * processes, errors
    assert sorted(server.asked) == sorted(f"/good/{name}.gz" for name in WANTED)
    assert_downloaded()


def test_fetch_after_a_killed_process_succeeds(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", server.serve("stalling", whole, stall))
    server.answers["/stalling/val.de.gz"] = [stall(b"")]
    first = loading()
    while "/stalling/val.de.gz" not in server.asked and first.poll() is None:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", server.serve("good"))
    started = time.monotonic()
    assert_downloaded()
    assert time.monotonic() - started < MARGIN
    assert "/good/train.de.gz" not in server.asked, "what the killed one had is kept"


def test_turn_is_not_waited_for_beyond_its_limit(monkeypatch: pytest.MonkeyPatch, good_server: Server) -> None:
    monkeypatch.setattr(cache, "TURN_SECONDS", 0.2)
    started = time.monotonic()
    with cache.turn("multi30k"):
        assert_downloaded()
    assert 0.2 < time.monotonic() - started < MARGIN


def test_turn_without_file_locks_succeeds(monkeypatch: pytest.MonkeyPatch, good_server: Server) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    assert_downloaded()
