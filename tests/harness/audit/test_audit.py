"""`check`: valid records pass every rule, and each mutation fails the rules that should detect it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from check_attempts import ATTEMPTS
from check_mutations import MUTATIONS, WITH_CORPUS
from command_line import HEAVY, Refused, imported_by
from places import ROOT
from record_edits import FIRST, PAPER, SECOND, edit, read, respecify, write
from record_factory import record as made_up
from record_folders import folder_spec, write_run
from small_runs import TINY, TRAINING, spec

from harness.audit.rules import OF_RUNS, RULES, WARNINGS, AuditReport, RuleOutcome, check
from harness.cli.main import main
from harness.data import multi30k
from harness.data.dataset import of_run_offline
from harness.storage import locks, run_store
from harness.training import train

NOT_PUBLISHED = {"C33", "C34", "C36"}
"""The rules that are skipped for runs that are neither published nor on Multi30k."""

FIRST_SPEC = folder_spec("learned_positions", 0)

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def _no_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.data.dataset.of_run_offline", lambda data: None)


def failed(report: AuditReport) -> set[str]:
    return {outcome.rule.code for outcome in report.failed}


def skipped(report: AuditReport) -> set[str]:
    return {outcome.rule.code for outcome in report.skipped}


def test_runs_in_progress_are_left_out_with_a_remark(tmp_path: Path, refused: Refused) -> None:
    running = tmp_path / "running"
    running.mkdir()
    (running / run_store.LOG).write_text("update 1", encoding="utf-8")
    refused(["check", "--results", str(tmp_path)], "no run has ended; in progress: running")
    write_run(tmp_path, FIRST_SPEC)
    os.utime(running)
    starting = check(tmp_path)  # its process loads its libraries, and does not hold the lock yet
    os.utime(running, (0, 0))
    assert "C01" in failed(check(tmp_path))
    with locks.hold(tmp_path, running.name):
        os.utime(running, (0, 0))
        report = check(tmp_path)
        assert "C01" in failed(check(tmp_path, published=True))
    for remarked in (starting, report):
        assert not failed(remarked)
        assert "1 run in progress, not checked: running" in remarked.remarks
    shutil.rmtree(running)
    run_store.remove_record(tmp_path, FIRST_SPEC.id)
    assert "C01" in failed(check(tmp_path)), "a run whose record was just removed is not in progress"


def test_folders_of_results_inside_another_are_named_and_not_checked(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "ablation", tmp_path / "gpu"):
        write_run(folder, FIRST_SPEC)
    report = check(tmp_path)
    assert len(report.runs) == 1
    assert "2 folders of results inside this one, not checked: ablation, gpu" in report.remarks
    assert not any("inside" in remark for remark in check(tmp_path / "gpu").remarks)


def test_rules_codes_are_distinct_and_sentences_complete() -> None:
    for attribute in ("code", "name", "sentence"):
        assert len({getattr(rule, attribute) for rule in RULES}) == len(RULES)
    assert all(rule.sentence.endswith((".", ":")) and "\n" not in rule.sentence for rule in RULES)


def test_rules_each_have_a_mutation() -> None:
    caught = set().union(*(codes for _, codes in (*MUTATIONS.values(), *WITH_CORPUS.values())))
    caught |= {attempt.code for attempt in ATTEMPTS.values()}
    assert caught == {rule.code for rule in (*RULES, *WARNINGS)}


def test_check_valid_runs_pass_every_rule(valid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--verbose", "--results", str(valid)]) == 0
    verdict, *lines = capsys.readouterr().out.split("\n")
    assert [line[:3] for line in lines[: len(RULES)]] == [rule.code for rule in RULES]
    assert all(" ok (" in line or line[:3] in NOT_PUBLISHED for line in lines[: len(RULES)]), lines
    assert not any(" warning: " in line or "; " in line for line in lines[: len(RULES)]), lines
    assert verdict.startswith("Passed: a fair comparison of 4 runs in 1 table. 3 rules skipped: ")


@pytest.mark.usefixtures("_no_corpus")
@pytest.mark.parametrize("name", MUTATIONS)
def test_check_mutation_fails_its_rules_only(results: Path, name: str) -> None:
    mutate, expected = MUTATIONS[name]
    mutate(results)
    assert failed(check(results)) == expected


@pytest.mark.parametrize("name", WITH_CORPUS)
def test_check_consistent_forgery_fails_with_the_corpus(results: Path, name: str) -> None:
    mutate, expected = WITH_CORPUS[name]
    mutate(results)
    run = next(path.name for path in results.iterdir() if path.name not in {SECOND, PAPER} and "learned" in path.name)
    assert failed(check(results, prefixes=[run])) == expected


# Skips and remarks ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_corpus")
def test_check_missing_files_skip_rules_with_reasons(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in results.glob("*/weights*"):
        path.unlink()
    assert main(["check", "--verbose", "--results", str(results)]) == 0
    output = capsys.readouterr().out
    assert "not checked against the text: " in output
    lines = {line[:3]: line for line in output.split("\n")}
    assert "skipped (weights not stored" in lines["C27"]
    assert all("skipped (no corpus: " in lines[code] for code in ("C29", "C30", "C31", "C62"))
    verdict = lines["Pas"]
    assert "9 rules skipped: C27 weights, C29 corpus, C30 batches" in verdict


@pytest.mark.usefixtures("_no_corpus")
def test_check_runs_of_an_installed_package_pass_without_a_commit(results: Path) -> None:
    edit("environment.commit", None)(results)
    report = check(results)
    assert not report.failed
    assert "1 rule skipped on some runs: C10 commit" in report.verdict


def test_check_different_environments_give_remarks(results: Path) -> None:
    edit("environment.commit", {"digest": "b" * 40, "dirty": True})(results)
    edit("environment.machine.processor", "another processor")(results)
    edit("environment.versions.torch", "2.12.0", run=PAPER)(results)
    edit("environment.resumed_after_epochs", [1], run=PAPER)(results)
    respecify("threads", 2, run=SECOND)(results)
    edit("sizes.test_pairs_in_train", 100)(results)
    text = "\n".join(check(results).remarks)
    remarks = ("commit: ", "processor: ", "torch: ", "uncommitted changes: ", "resumed: ", "captions")
    assert [words for words in (*remarks, "test pairs are in the training") if words not in text] == []


@pytest.mark.usefixtures("_no_corpus")
def test_check_fewer_seeds_and_a_diverged_run_give_remarks_and_no_fault(results: Path) -> None:
    shutil.rmtree(results / SECOND)
    value = read(results, FIRST)
    value |= {"status": "diverged", "reason": "epoch 3: the training loss is not finite", "chosen_epochs": []}
    value |= {"scores": {}, "signatures": {}, "decode": {}}
    for name in ("hypotheses", "trained_weights", "sentences", "attention"):
        del value["fingerprints"][name]
    value["curve"][2] |= dict.fromkeys(("training_loss", "training_perplexity", "validation_loss"))
    write(results, FIRST, value)
    report = check(results)
    assert not report.failed
    assert "fewer than 2 seeds: learned_positions (1)" in report.remarks
    assert any(line.startswith(f"diverged: {FIRST} (epoch 3") for line in report.remarks)


@pytest.mark.usefixtures("_no_corpus")
def test_check_two_seeds_that_diverge_in_their_first_epoch_have_no_equal_losses(results: Path) -> None:
    for run in (FIRST, SECOND):
        value = read(results, run)
        value |= {"status": "diverged", "curve": value["curve"][:1], "scores": {}}
        value["curve"][0] |= dict.fromkeys(("training_loss", "training_perplexity", "validation_loss"))
        value["fingerprints"].pop("trained_weights")
        write(results, run, value)
    assert "C51" not in failed(check(results))


@pytest.mark.usefixtures("_no_corpus")
def test_check_unfinished_run_fails(results: Path) -> None:
    with run_store.open_log(results, "paper-unfinished") as log:
        log.write(b"began\n")
    os.utime(results / "paper-unfinished", (0, 0))
    (results / ".hidden").mkdir()
    assert failed(check(results)) == {"C01", "C06"}


# Selection and output -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_corpus")
def test_check_named_runs_share_one_table(results: Path) -> None:
    extra = write_run(results, replace(FIRST_SPEC, data=replace(FIRST_SPEC.data, training_pairs=150)))
    report = check(results)
    assert not report.failed
    assert len(report.comparisons) == 2
    assert failed(check(results, prefixes=[extra.id, PAPER])) >= {"C40", "C42", "C46"}


def test_check_budget_reads_only_its_runs(results: Path) -> None:
    for variant in ("learned_positions", "paper"):
        training = replace(TRAINING, batch_size=40 - len(variant))
        write_run(results, folder_spec(variant, 0, budget="source", training=training))
    report = check(results, budget="source")
    assert len(report.runs) == 2
    assert not report.failed
    controlled = {"C42", "C43", *(f"C{number}" for number in range(45, 51)), "C52"}
    assert skipped(report) == {*controlled, "C51", *NOT_PUBLISHED}
    assert len(check(results).runs) == 6


def test_check_prints_faults_as_text_and_json(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit("scores.chrf", 1.0)(results)
    assert main(["check", "--results", str(results), "--run", FIRST]) == 1
    verdict, *lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert "C25" in verdict
    assert any(line.startswith("C25 ") and "FAIL" in line for line in lines)
    assert not any(" ok (" in line for line in lines)
    assert "--explain CODE" in lines[-1]
    assert main(["check", "--results", str(results), "--run", FIRST, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["fair"] is False
    assert document["runs"] == [FIRST]
    assert [rule["code"] for rule in document["rules"]] == [rule.code for rule in RULES]
    (fault,) = next(rule["findings"] for rule in document["rules"] if rule["code"] == "C25")
    assert fault["where"] == FIRST
    assert fault["what"].startswith("chrf=1.0, expected ")


def test_check_explain_prints_a_rule_and_reads_no_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "c05", "--results", "nowhere"]) == 0
    assert capsys.readouterr().out == f"C05 seal: {RULES[4].sentence}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "nowhere"], "nowhere: there is no such folder"),
        (["--run", "nothing"], "run 'nothing': there is none"),
        (["--run", "learned"], "2 ids begin with it"),
        (["--budget", "source"], "no run with the budget 'source'"),
        (["--budget", "fair"], "'fair' is not one of controlled, source"),
        (["--results", str(ROOT / "docs")], "there is no record in it"),
    ],
)
def test_check_bad_input_gives_one_line(valid: Path, arguments: list[str], message: str, refused: Refused) -> None:
    refused(["check", "--results", str(valid), *arguments], message)


@pytest.mark.parametrize("command", ["check", "report"])
def test_command_on_the_folder_of_a_run_or_of_experiments_says_which_to_give(
    results: Path, command: str, refused: Refused
) -> None:
    run = next(results.glob("*/record.json")).parent
    refused([command, "--results", str(run)], f"the folder of one run; give the folder around it: --results {results}")
    message = f"there is no record in it; folders in it have runs: give one as --results {results}"
    refused([command, "--results", str(results.parent)], message)


@pytest.mark.parametrize(
    ("variant", "rate"),
    [("learned_positions", TRAINING.peak_rate), ("learned_positions", 0.0), ("counting_model:build", 1.0)],
)
@pytest.mark.usefixtures("clean_commit")
def test_check_trained_run_passes(tmp_path: Path, variant: str, rate: float) -> None:
    settings = replace(TRAINING, peak_rate=rate, averaged_epochs=2, label_smoothing=0.1)
    recipe = None if ":" in variant else TINY
    record = train.run(spec(variant, recipe, training=settings, updates=12), tmp_path)
    assert record.status == "completed"
    report = check(tmp_path)
    assert not report.failed, report.failed
    without_recipe = {"C28"} if recipe is None else set()
    assert {code for code in skipped(report) if code < "C40"} == NOT_PUBLISHED | without_recipe


@pytest.mark.usefixtures("clean_commit")
def test_check_early_stop_passes_if_patience_explains_it(tmp_path: Path) -> None:
    settings = replace(TRAINING, epochs=5, peak_rate=0.0, patience=1)
    record = train.run(spec("learned_positions", TINY, training=settings), tmp_path)
    assert record.stopped_epoch == len(record.curve) == 2
    assert not check(tmp_path).failed
    longer = replace(record.curve[-1], epoch=3, updates=record.curve[-1].updates + record.curve[0].updates)
    for wrong, message in (
        (replace(record, stopped_epoch=None), "stopped_epoch=None, expected 2 (its curve and training.patience)"),
        (replace(record, curve=record.curve[:1]), "1 epoch, expected 5 (its settings)"),
        (replace(record, curve=(*record.curve, longer)), "3 epochs, expected 2 (its settings)"),
        (replace(record, spec=replace(record.spec, training=replace(settings, patience=2))), "2 epochs, expected 5"),
    ):
        run_store.save_record(tmp_path, wrong)
        (outcome,) = [outcome for outcome in check(tmp_path).failed if outcome.rule.code == "C15"]
        assert message in "\n".join(map(str, outcome.findings))


def test_check_loads_no_framework(valid: Path) -> None:
    assert not imported_by("check", "--results", str(valid)) & HEAVY


def test_of_run_offline_without_the_corpus_downloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    monkeypatch.setattr(multi30k, "_download", lambda missing: pytest.fail("it downloads"))
    assert of_run_offline(made_up()) is None


@pytest.mark.parametrize(
    ("applied", "end"),
    [(2, "No rule skipped."), (0, "1 rule skipped: C01 schema."), (1, "1 rule skipped on some runs: C01 schema.")],
)
def test_verdict_names_the_skipped_rules_or_says_that_there_are_none(applied: int, end: str) -> None:
    skips = {"no corpus": 2 - applied} if applied < 2 else {}
    verdict = AuditReport(("a", "b"), (), (RuleOutcome(OF_RUNS[0], applied, (), skips),)).verdict
    assert verdict == f"Passed: 2 runs, of which no two share a table. {end}"
