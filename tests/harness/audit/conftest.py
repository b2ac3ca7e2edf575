"""Folders of valid runs for the tests of the rules."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from record_folders import write_set

from harness.evaluation import evaluate
from harness.evaluation.metrics import Scores


@pytest.fixture(scope="module", autouse=True)
def _scores_are_computed_once() -> Iterator[None]:
    """Compute the scores of the same translations once in a module: most edits concern one run of several."""
    compute, computed = evaluate.test_scores, dict[Any, Scores]()

    def test_scores(prepared: Any, hypotheses: Any, unknown: Any) -> Scores:
        key = (prepared.data, str(prepared.digests["files"]), tuple(map(repr, hypotheses)), unknown)
        if key not in computed:
            computed[key] = compute(prepared, hypotheses, unknown)
        return computed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "test_scores", test_scores)
        yield


@pytest.fixture(scope="module")
def valid(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two seeds of two variants, which pass every rule."""
    results = tmp_path_factory.mktemp("valid")
    write_set(results)
    return results


@pytest.fixture
def results(valid: Path, tmp_path: Path) -> Path:
    """Return a copy of the valid folder."""
    shutil.copytree(valid, tmp_path / "results")
    return tmp_path / "results"
