"""`check` reports attempts to publish false records, each by its rule, except a few that no inspection can detect."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from check_attempts import ATTEMPTS, UNDETECTABLE, Attempt, Base
from forgeries import publish
from record_edits import FIRST
from record_folders import folder_spec, multi30k_prepared, write_run

from harness.audit.rules import AuditReport, check
from harness.data import multi30k
from harness.experiments.specs import DataSpec
from harness.processes.machine import git
from harness.storage import files, run_store

UNSEALED = ("no seal", "no seal in a published record")

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def bases(valid: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Base, Path]:
    """Return the valid folder, and one of a run that seems to be on Multi30k, whose sentences are captions."""
    folder = tmp_path_factory.mktemp("multi30k")
    spec = folder_spec("learned_positions", 0, data=DataSpec(tokenizer="whitespace"))
    write_run(folder, spec, multi30k_prepared(spec.data), right=0.45)
    (folder / spec.id).rename(folder / FIRST)
    return {"captions": valid, "multi30k": folder}


@pytest.fixture(scope="module")
def reported_before() -> dict[tuple[Base, bool, bool], set[str]]:
    """Return a dictionary of the codes that are reported before an edit, by base, corpus and publication."""
    return {}


def reported(report: AuditReport) -> set[str]:
    return {outcome.rule.code for outcome in (*report.outcomes, *report.warnings) if outcome.findings}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_check_attempt_is_reported_by_its_rule(
    bases: dict[Base, Path],
    reported_before: dict[tuple[Base, bool, bool], set[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    attempt = ATTEMPTS[name]
    if attempt.code == "C34" and git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("needs a git checkout with its history")
    results = tmp_path / "results"
    shutil.copytree(bases[attempt.base], results)
    if attempt.published:
        publish(results)
    condition = (attempt.base, attempt.corpus, attempt.published)
    if condition not in reported_before:
        reported_before[condition] = reported(run_check(results, attempt, monkeypatch))
    assert attempt.code not in reported_before[condition]
    attempt.mutate(results)
    assert attempt.code in reported(run_check(results, attempt, monkeypatch))
    if name not in UNSEALED:
        for path in results.glob(f"*/{run_store.RECORD}"):
            value = json.loads(path.read_text(encoding="utf-8"))
            assert files.seal(value) == value[files.SEAL], "an attempt without a seal is reported for that alone"


def run_check(results: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> AuditReport:
    with monkeypatch.context() as patch:
        if not attempt.corpus:
            patch.setattr("harness.data.dataset.of_run_offline", lambda record: None)
        return check(results, published=attempt.published)


@pytest.mark.parametrize("name", UNDETECTABLE)
def test_check_undetectable_attempt_is_not_reported(results: Path, name: str) -> None:
    mutate, reason = UNDETECTABLE[name]
    assert reason.endswith(".")
    mutate(results)
    assert not reported(check(results)), "this can be detected: move it to the other table"


def test_multi30k_pairs_equal_the_lines_of_its_files(multi30k_folder: Path) -> None:
    from harness.audit.corpus_rules import PAIRS

    for split, pairs in PAIRS.items():
        (text,) = multi30k.texts([f"{split}.en"]).values()
        assert text.count(b"\n") == pairs
