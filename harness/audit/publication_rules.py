"""Rules for published results: sealed, from a known commit without changes, and not in the future."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from harness.audit.run_folder import Skipped, StoredRun
from harness.audit.speed_rules import begun
from harness.processes.machine import REPOSITORY
from harness.storage import run_store

CLOCKS = timedelta(hours=1)
"""How far the clocks of two machines may differ."""

GIT_SECONDS = 20


def publishable(stored: StoredRun) -> Iterator[str]:
    """A published record is sealed, its commit was clean, and the run ended in the past."""
    record = stored.known
    if not stored.memory.published:
        raise Skipped("not published results")
    if run_store.SEAL not in stored.raw:
        yield "no seal: published records of every schema have one"
    commit = record.environment.get("commit") or {}
    if not commit:
        yield "commit unknown: publish runs made from a checkout of the repository"
    elif commit.get("dirty"):
        yield "made with files that differ from those of the commit: publish runs made from a clean checkout"
    started, now = begun(record), datetime.now(UTC) + CLOCKS
    if started is None:
        return  # another rule reports it
    if started > now:
        yield f"started in the future: {record.started}"
    elif started + timedelta(seconds=min(record.speed.get("total_seconds", 0.0), 1e9)) > now:
        yield f"started {record.started} and took {record.speed['total_seconds']:,.0f} seconds, which are not over"


def known_commit(stored: StoredRun) -> Iterator[str]:
    """The commit of a published record is in this repository's history, and older than the run."""
    record = stored.known
    if not stored.memory.published:
        raise Skipped("not published results")
    digest = str((record.environment.get("commit") or {}).get("digest") or "")
    if not digest.isalnum():
        raise Skipped("no commit")
    committed = _committed(stored, digest)
    if committed is None:
        yield f"commit {digest[:12]} is not in the history of this repository"
        return
    started = begun(record)
    if started is not None and started < committed - CLOCKS:
        yield f"started {record.started}, but its commit was made {committed.isoformat()}"


def _committed(stored: StoredRun, digest: str) -> datetime | None:
    """Return the time of a commit, or None if it does not exist. Raises `Skipped` without a full history."""
    commits = stored.memory.commits
    if not commits:
        commits[""] = _git("rev-parse", "--is-shallow-repository")
    if commits[""] != "false":
        raise Skipped("no full git history here" if commits[""] else "not a git checkout")
    if digest not in commits:
        commits[digest] = _git("show", "--no-patch", "--format=%cI", f"{digest}^{{commit}}")
    return datetime.fromisoformat(commits[digest]) if commits[digest] else None


def _git(*words: str) -> str | None:
    """Return the output of git in the repository of this code, or None if git fails."""
    if not (REPOSITORY / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(REPOSITORY), *words], capture_output=True, text=True, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
