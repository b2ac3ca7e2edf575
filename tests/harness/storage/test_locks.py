"""Locks of runs: errors name the file, and a lock file that cannot be removed or written does not end a run."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from harness.storage import locks, run_store

RUN = "run"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="uses flock")


def refuse(*arguments: object, **options: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_hold_failing_lock_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match="Input/output error") as caught, locks.hold(tmp_path, RUN):
        pass
    assert caught.value.filename == str(tmp_path / RUN / locks.LOCK)


@pytest.mark.parametrize(
    "text",
    [
        '{"process": Infinity, "host": "h", "since": "2026-01-01"}',
        '{"process": 1, "host": "h", "since": "0001-01-01T00:00+14:00"}',
    ],
)
def test_owner_of_a_lock_file_with_impossible_numbers_is_unknown(tmp_path: Path, text: str) -> None:
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / locks.LOCK).write_text(text)
    assert locks.owner(tmp_path, RUN) == "another process"


@pytest.mark.parametrize("method", ["unlink", "write_text"])
def test_hold_lock_file_that_cannot_be_changed_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(Path, method, refuse)
    for _ in range(2):
        with locks.hold(tmp_path, RUN):
            assert locks.is_held(tmp_path, RUN)
        assert not locks.is_held(tmp_path, RUN)


@pytest.mark.parametrize("stores", [True, False])
def test_hold_leaves_no_empty_folder(tmp_path: Path, stores: bool) -> None:
    with locks.hold(tmp_path, RUN):
        if stores:
            (tmp_path / RUN / "record.json").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ([RUN, "record.json"] if stores else [])


def test_hold_and_log_make_a_folder_again_that_another_process_removes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process has held the lock of the same run for a moment, and found nothing in its folder."""
    mkdir, removed = Path.mkdir, []

    def made_and_removed(path: Path, **options: Any) -> None:
        mkdir(path, **options)
        if len(removed) < 3:
            removed.append(path.rmdir())

    monkeypatch.setattr(Path, "mkdir", made_and_removed)
    with locks.hold(tmp_path, RUN):
        assert locks.is_held(tmp_path, RUN)
    removed.clear()
    with run_store.open_log(tmp_path, RUN) as log:
        assert log.writable()
