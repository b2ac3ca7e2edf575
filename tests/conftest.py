"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_tasks import Crew, Task


@pytest.fixture(scope="session")
def multi30k_folder() -> Path:
    """Return the folder of Multi30k's files that MULTI30K_DIR names; skip where there is none."""
    chosen = os.environ.get("MULTI30K_DIR")
    if not chosen:
        pytest.skip("needs Multi30k: MULTI30K_DIR is not set")
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        pytest.skip(f"needs Multi30k: MULTI30K_DIR={chosen} is not a folder")
    return folder


@pytest.fixture(scope="session")
def crew(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Yield the processes that do the tasks of all selected tests: what a test's parameter `task` names."""
    tasks: list[Task] = []
    for item in request.session.items:
        task = getattr(item, "callspec", None) and item.callspec.params.get("task")
        if isinstance(task, Task) and not (task.needs_multi30k and not os.environ.get("MULTI30K_DIR")):
            tasks += task.needs
    working = Crew(tmp_path_factory.mktemp("crew"), tasks)
    yield working
    working.end()
