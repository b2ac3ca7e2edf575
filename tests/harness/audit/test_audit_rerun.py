"""`check --rerun`: training again reproduces the digests of a real run, and not those of an invented one."""

from __future__ import annotations

import io
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_edits import OTHER, edit
from record_folders import folder_spec, write_run
from small_runs import TINY, TRAINING, spec

from harness.audit import rerun_rules
from harness.audit.rerun_rules import Rerun
from harness.audit.rules import apply_rules
from harness.audit.run_folder import AuditContext, Skipped, read
from harness.cli.main import main
from harness.execution import local

pytestmark = pytest.mark.usefixtures("cache", "processes")

UPDATES = 56
RUN = spec("learned_positions", TINY, training=replace(TRAINING, epochs=8), updates=UPDATES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("trained")
    outcome = local.execute([RUN], results, jobs=1, stream=io.StringIO())  # in a process like that of `--rerun`
    assert outcome.records[0].status == "completed"
    return results


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "results")
    return tmp_path / "results"


def lines(results: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, str]:
    main(["check", "--results", str(results), "--rerun", "1", "--verbose", *options])
    return {line[:3]: line for line in capsys.readouterr().out.split("\n")}


def test_rerun_real_run_passes(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = lines(results, capsys, "--rerun-epoch")
    assert all("ok (1 run)" in outcomes[code] for code in ("C70", "C71", "C72"))


def test_rerun_other_batches_and_loss_fail(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit("fingerprints.batches", lambda digests: {**digests, "10": OTHER}, run=RUN.id)(results)
    edit("curve.0.training_loss", lambda loss: loss + 0.1, run=RUN.id)(results)
    assert "batches up to update 10 have another digest" in lines(results, capsys)["C70"]
    assert "FAIL" in lines(results, capsys, "--rerun-epoch")["C72"]


def rerun(results: Path, **environment: Any) -> Rerun:
    """Return a rerun of a run of a clean commit with other weights, in the environment of the record or another."""
    edit("environment.commit", {"digest": "c" * 40, "dirty": False}, run=RUN.id)(results)
    stored = read(results, RUN.id, AuditContext())
    current = {**stored.record.environment, **environment}
    answer = {"batches": {}, "weights_after": {"50": OTHER}, "loss": 1.0, "environment": current}
    return Rerun(stored, answer)


def test_rerun_other_weights_on_the_same_machine_fail(results: Path) -> None:
    assert list(rerun_rules.weights(rerun(results))) == ["the weights after update 50 have another digest"]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"machine": {"processor": "another"}}, "processor"),
        ({"versions": {}}, "torch"),
        ({"commit": {"digest": "d" * 40, "dirty": False}}, "digest"),
        ({"commit": {"digest": "c" * 40, "dirty": True}}, "dirty"),
    ],
)
def test_rerun_other_weights_elsewhere_are_warned_of(results: Path, environment: dict[str, Any], words: str) -> None:
    again = rerun(results, **environment)
    with pytest.raises(Skipped, match=f"cannot tell: .*{words}"):
        list(rerun_rules.weights(again))
    (outcome,) = apply_rules(rerun_rules.WARNINGS, [("", "", again)])
    assert outcome.end == "warn"
    assert re.search(f"nothing is proven: the weights after update 50 differ.*{words}", str(outcome.findings[0]))


def test_rerun_same_weights_elsewhere_are_not_warned_of(results: Path) -> None:
    again = rerun(results, machine={"processor": "another"})
    again.answer["weights_after"].update(again.stored.record.fingerprints["weights_after"])
    (outcome,) = apply_rules(rerun_rules.WARNINGS, [("", "", again)])
    assert outcome.end == "ok"


def test_rerun_that_proves_nothing_is_printed(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit("fingerprints.weights_after", lambda digests: {**digests, "50": OTHER}, run=RUN.id)(results)
    edit("environment.machine.processor", "another", run=RUN.id)(results)
    assert main(["check", "--results", str(results), "--rerun", "1"]) == 0
    printed = capsys.readouterr().out
    assert "1 warning: W04 rerun undecided." in printed
    assert "nothing is proven" in printed


def test_rerun_failed_training_is_skipped_with_the_reason(results: Path) -> None:
    edit("spec.data.corpus", "multi30k", run=RUN.id)(results)
    edit("spec.data.direction", "fr-de", run=RUN.id)(results)
    failed = rerun_rules._rerun(read(results, RUN.id, AuditContext()), 5)
    assert failed.failure.startswith("cannot be trained here: ")
    assert "fr-de" in failed.failure
    (outcome,) = apply_rules(rerun_rules.RULES[:1], [("", "", failed)])
    assert outcome.end == "n/a"


def test_rerun_external_model_is_not_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = write_run(tmp_path, folder_spec("learned_positions", 0))
    edit("spec.recipe", None, run=record.id)(tmp_path)
    assert main(["check", "--results", str(tmp_path), "--rerun", "1"]) == 2
    assert "no completed run of a recipe is among the runs; those of builders are left out" in capsys.readouterr().err


def test_rerun_runs_are_chosen_by_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [write_run(tmp_path, folder_spec("learned_positions", seed)) for seed in range(3)]
    chosen: list[str] = []

    def note(stored: Any, updates: int) -> Rerun:
        chosen.append(stored.name)
        assert updates == records[0].curve[-1].updates  # fewer than 50
        return Rerun(stored, {}, "not now")

    monkeypatch.setattr(rerun_rules, "_rerun", note)
    for _ in range(2):
        main(["check", "--results", str(tmp_path), "--rerun", "2", "--rerun-seed", "1"])
    assert chosen[:2] == chosen[2:]
    assert len(set(chosen)) == 2
    assert {record.id for record in records} >= set(chosen)


def test_check_help_states_what_no_inspection_detects(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "No inspection of records can detect" in text
    for words in ("losses", "seeds that were left out", "--rerun N", "proves nothing"):
        assert words in text
