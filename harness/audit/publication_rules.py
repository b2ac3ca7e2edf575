"""Rules for published results: sealed, made from a known commit without changes, and not in the future."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from harness.audit.run_folder import StoredRun, skip_unless
from harness.audit.speed_rules import start_time
from harness.processes.machine import git
from harness.storage.records import RunRecord

CLOCKS = timedelta(hours=1)
"""Largest difference between the clocks of two machines."""

NOT_PUBLISHED = "not published results"


def publishable(stored: StoredRun) -> Iterator[str]:
    """A published record is sealed, its commit was clean, and the run ended in the past."""
    record = stored.record
    skip_unless(stored.context.published, NOT_PUBLISHED)
    if stored.seal == "missing":
        yield "no seal: published records must have one"
    commits = _commits(record)
    if not record.environment.get("commit"):
        yield "commit unknown: publish runs made from a checkout of the repository"
    elif any(commit.get("dirty") for commit in commits):
        yield "made with uncommitted changes: publish runs made from a clean checkout"
    started, now = start_time(record), datetime.now(UTC) + CLOCKS
    if started is None:
        return  # another rule reports it
    seconds = record.speed.get("total_seconds", 0.0)
    if started > now:
        yield f"started={record.started}: expected a time in the past"
    elif started + timedelta(seconds=min(seconds, 1e9)) > now:
        yield f"started={record.started} and total_seconds={seconds:,.0f}: expected an end in the past"


def known_commit(stored: StoredRun) -> Iterator[str]:
    """The commits of a published record are in this repository's history, and the first one is older than the run."""
    record = stored.record
    skip_unless(stored.context.published, NOT_PUBLISHED)
    digests = [str(commit["digest"]) for commit in _commits(record) if commit.get("digest")]
    skip_unless(digests and all(digest.isalnum() for digest in digests), "no commit")
    times = [_commit_time(stored, digest) for digest in digests]
    for digest, time in zip(digests, times, strict=True):
        if time is None:
            yield f"commit {digest[:12]} is not in the history of this repository"
    started, committed = start_time(record), times[0]
    if started is not None and committed is not None and started < committed - CLOCKS:
        yield f"started={record.started}, before its commit was made ({committed.isoformat()})"


def _commits(record: RunRecord) -> list[dict[str, Any]]:
    """Return the commits of the processes of a run, the first one first; processes with the next one's are left out."""
    earlier = [process.get("commit") for process in record.environment.get("earlier_processes") or ()]
    return [commit for commit in [*earlier, record.environment.get("commit")] if isinstance(commit, dict)]


def _commit_time(stored: StoredRun, digest: str) -> datetime | None:
    """Return the time of a commit, or None if it does not exist. Raises: Skipped without a full history."""
    shallow = stored.context.cached("git", lambda: git("rev-parse", "--is-shallow-repository"))
    skip_unless(shallow == "false", "no full git history here" if shallow else "not a git checkout")
    commit = f"{digest}^{{commit}}"
    time = stored.context.cached(commit, lambda: git("show", "--no-patch", "--format=%cI", commit))
    return datetime.fromisoformat(time) if time else None
