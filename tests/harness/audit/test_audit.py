"""`check`: a valid set of records passes every rule, and each planted mutation is caught by the rules that should."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from check_attempts import ATTEMPTS
from check_mutations import MUTATIONS, WITH_CORPUS
from places import ROOT
from record_edits import FIRST, PAPER, SECOND, edit, read, respecify, write
from record_factory import record as made_up
from record_folders import folder_spec, write_run, write_set
from small_runs import TINY, TRAINING, spec

from harness.audit.rules import RULES, WARNINGS, AuditReport, check
from harness.cli.main import main
from harness.data import multi30k
from harness.data.dataset import at_hand
from harness.storage import run_store
from harness.training import train

NOT_PUBLISHED = {"C33", "C34", "C36"}
"""The rules that say nothing of runs that are neither published nor on Multi30k."""

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("valid")
    write_set(results)
    return results


@pytest.fixture
def results(valid: Path, tmp_path: Path) -> Path:
    """Return a copy of the valid set."""
    shutil.copytree(valid, tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def _no_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.data.dataset.at_hand", lambda data: None)


def failed(found: AuditReport) -> set[str]:
    return {one.rule.code for one in found.failed}


def test_every_run_that_is_made_right_passes_every_rule(valid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--verbose", "--results", str(valid)]) == 0
    verdict, *lines = capsys.readouterr().out.split("\n")
    assert [line[:3] for line in lines[: len(RULES)]] == [rule.code for rule in RULES]
    assert all(" ok (" in line or line[:3] in NOT_PUBLISHED for line in lines[: len(RULES)]), lines
    assert not any(" warning: " in line or "; " in line for line in lines[: len(RULES)]), lines
    assert verdict.startswith("Passed: a fair comparison of 4 runs in 1 table. 3 rules skipped: ")


def test_codes_are_distinct_and_every_rule_says_what_must_hold() -> None:
    for words in ([rule.code for rule in RULES], [rule.name for rule in RULES], [rule.sentence for rule in RULES]):
        assert len(set(words)) == len(words)
    assert all(rule.sentence.endswith((".", ":")) and "\n" not in rule.sentence for rule in RULES)


def test_there_is_a_mutation_for_every_rule() -> None:
    caught = set().union(*(codes for _, codes in (*MUTATIONS.values(), *WITH_CORPUS.values())))
    caught |= {one.code for one in ATTEMPTS.values()}
    assert caught == {rule.code for rule in (*RULES, *WARNINGS)}


@pytest.mark.usefixtures("_no_corpus")
@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_caught_by_its_rules(results: Path, name: str) -> None:
    mutate, expected = MUTATIONS[name]
    mutate(results)
    assert failed(check(results)) == expected


@pytest.mark.parametrize("name", WITH_CORPUS)
def test_where_the_corpus_is_a_consistent_forgery_is_caught_too(results: Path, name: str) -> None:
    mutate, expected = WITH_CORPUS[name]
    mutate(results)
    run = next(path.name for path in results.iterdir() if path.name not in {SECOND, PAPER} and "learned" in path.name)
    assert failed(check(results, prefixes=[run])) == expected


def leaves(value: Any, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in pairs:
        if isinstance(one, dict | list) and one:
            yield from leaves(one, *path, name)
        else:
            yield (*path, name), one


def other(value: Any) -> Any:
    """Return a value of the same kind that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else 1


@pytest.mark.usefixtures("_no_corpus")
def test_every_value_of_a_record_is_sealed_and_none_breaks_the_check(results: Path) -> None:
    record = read(results, FIRST)
    paths = [(path, value) for path, value in leaves(record) if "weights" not in path and path != ("seal",)]
    assert len(paths) > 150
    for path, value in paths:
        changed = json.loads(json.dumps(record))
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = other(value)
        write(results, FIRST, changed, sealed=False)
        found = check(results, prefixes=[FIRST])
        assert failed(found) & {"C01", "C05"}, path


# What is no fault, and what cannot be tried ---------------------------------------------------------------------------


def ends(found: AuditReport) -> dict[str, str]:
    return {one.rule.code: one.end for one in found.outcomes}


@pytest.mark.usefixtures("_no_corpus")
def test_what_is_not_there_is_not_tried_and_why_is_said(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in results.glob("*/weights*"):
        path.unlink()
    for path in results.glob("*/sentences*"):
        path.unlink()
        edit("fingerprints.sentences", ..., run=path.parent.name)(results)
    assert main(["check", "--verbose", "--results", str(results)]) == 0
    lines = {line[:3]: line for line in capsys.readouterr().out.split("\n")}
    assert "skipped (no sentences.safetensors" in lines["C25"]
    assert "skipped (weights not stored" in lines["C27"]
    assert all("skipped (no corpus: " in lines[code] for code in ("C29", "C30", "C31", "C62"))
    verdict = lines["Pas"]
    assert "12 rules skipped: C25 counts, C26 counted words, C27 weights, C29 corpus" in verdict


@pytest.mark.usefixtures("_no_corpus")
def test_where_runs_were_made_is_remarked_on(results: Path) -> None:
    edit("environment.commit", {"digest": "b" * 40, "dirty": True})(results)
    edit("environment.machine.processor", "another processor")(results)
    edit("environment.versions.torch", "2.12.0", run=PAPER)(results)
    edit("environment.resumed_after_epochs", [1], run=PAPER)(results)
    respecify("threads", 2, run=SECOND)(results)
    found = check(results)
    text = "\n".join(found.remarks)
    for words in ("commit: ", "processor: ", "torch: ", "not those of the commit: ", "resumed: ", "captions"):
        assert words in text


def diverge(results: Path) -> None:
    value = read(results, FIRST)
    value |= {"status": "diverged", "reason": "epoch 3: the training loss is not finite", "chosen_epochs": []}
    value |= {"scores": {}, "signatures": {}, "decode": {}}
    for name in ("hypotheses", "trained_weights", "sentences", "attention"):
        del value["fingerprints"][name]
    value["curve"][2] |= dict.fromkeys(("training_loss", "training_perplexity", "validation_loss"))
    write(results, FIRST, value)


@pytest.mark.usefixtures("_no_corpus")
def test_a_diverged_run_is_named_and_no_fault(results: Path) -> None:
    diverge(results)
    found = check(results)
    assert not found.failed
    assert any(line.startswith(f"diverged: {FIRST} (epoch 3") for line in found.remarks)


@pytest.mark.usefixtures("_no_corpus")
def test_an_unfinished_run_is_missed(results: Path) -> None:
    with run_store.open_log(results, "paper-unfinished") as log:
        log.write(b"began\n")
    (results / ".hidden").mkdir()
    assert failed(check(results)) == {"C01", "C06"}


@pytest.mark.usefixtures("_no_corpus")
def test_tables_are_those_of_the_report_unless_runs_are_named(results: Path) -> None:
    other_pairs = replace(FIRST_SPEC.data, training_pairs=150)
    extra = write_run(results, replace(FIRST_SPEC, data=other_pairs))
    found = check(results)
    assert not found.failed
    assert len(found.comparisons) == 2
    assert failed(check(results, prefixes=[extra.id, PAPER])) >= {"C40", "C42", "C46"}


FIRST_SPEC = folder_spec("learned_positions", 0)


def test_a_budget_is_checked_alone(results: Path) -> None:
    sources = results / "sources"
    for variant in ("learned_positions", "paper"):
        write_run(
            sources, folder_spec(variant, 0, budget="source", training=replace(TRAINING, batch_size=40 - len(variant)))
        )
    shutil.copytree(sources, results, dirs_exist_ok=True)
    shutil.rmtree(sources)
    found = check(results, budget="source")
    assert len(found.runs) == 2
    assert not found.failed
    assert {code for code, end in ends(found).items() if end == "n/a"} == {
        "C42",
        "C43",
        "C45",
        "C46",
        "C47",
        "C48",
        "C49",
        "C50",
        "C51",
        "C52",
        *NOT_PUBLISHED,
    }
    assert len(check(results).runs) == 6


def test_all_is_told_as_json(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit("scores.chrf", 1.0)(results)
    assert main(["check", "--results", str(results), "--run", FIRST, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fair"] is False
    assert found["runs"] == [FIRST]
    assert [one["code"] for one in found["rules"]] == [rule.code for rule in RULES]
    (fault,) = next(one["faults"] for one in found["rules"] if one["code"] == "C25")
    assert fault["where"] == FIRST
    assert "chrf=1.0" in fault["what"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "nowhere"], "nowhere: there is no such folder"),
        (["--run", "nothing"], "run 'nothing': there is none"),
        (["--run", "learned"], "2 runs begin so"),
        (["--budget", "source"], "no run with the budget 'source'"),
        (["--budget", "fair"], "'fair' is not one of controlled, source"),
    ],
)
def test_bad_input_is_one_line(
    valid: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["check", "--results", str(valid), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_empty_folder_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--results", str(tmp_path)]) == 2
    assert "there is no record in it" in capsys.readouterr().err


@pytest.mark.parametrize("variant", ["learned_positions", "counting_model:build"])
def test_a_run_that_was_trained_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    monkeypatch.setattr("harness.processes.machine.commit", lambda: {"digest": "a" * 40, "dirty": False})
    settings = replace(TRAINING, averaged_epochs=2, label_smoothing=0.1)
    recipe = None if ":" in variant else TINY
    record = train.run(spec(variant, recipe, training=settings, updates=12), tmp_path)
    assert record.status == "completed"
    found = check(tmp_path)
    assert not found.failed, found.failed
    untried = {code for code, end in ends(found).items() if end == "n/a" and code < "C40"}
    assert untried == NOT_PUBLISHED | ({"C28"} if recipe is None else set())


def test_an_early_stop_passes_if_patience_explains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.processes.machine.commit", lambda: {"digest": "a" * 40, "dirty": False})
    settings = replace(TRAINING, epochs=5, peak_rate=0.0, patience=1)
    record = train.run(spec("learned_positions", TINY, training=settings), tmp_path)
    assert record.stopped_epoch == len(record.curve) == 2

    def findings() -> list[str]:
        outcomes = {outcome.rule.code: outcome for outcome in check(tmp_path).outcomes}
        return [finding.what for finding in outcomes["C15"].findings]

    assert findings() == []
    longer = replace(record.curve[-1], epoch=3, updates=record.curve[-1].updates + record.curve[0].updates)
    for wrong, message in (
        (replace(record, stopped_epoch=None), "stopped_epoch=None, its curve and training.patience make it 2"),
        (replace(record, curve=record.curve[:1]), "1 epochs, its settings make 5"),
        (replace(record, curve=(*record.curve, longer)), "3 epochs, its settings make 2"),
        (replace(record, spec=replace(record.spec, training=replace(settings, patience=2))), "settings make 5"),
    ):
        run_store.save_record(tmp_path, wrong)
        assert any(message in finding for finding in findings()), message


def test_it_loads_no_framework_and_no_tables(valid: Path) -> None:
    heavy = {"torch", "tensorflow", "jax", "keras", "spacy", "pandas", "matplotlib"}
    code = (
        "import sys\nfrom harness.cli.main import main\n"
        f"assert main(['check', '--results', {str(valid)!r}]) == 0\n"
        f"print('LOADED', sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("LOADED []\n")


def test_nothing_is_downloaded_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    monkeypatch.setattr(multi30k, "_download", lambda missing: pytest.fail("it downloads"))
    assert at_hand(made_up()) is None


def test_check_prints_the_verdict_first_and_then_only_findings(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit("scores.chrf", 1.0)(results)
    assert main(["check", "--results", str(results), "--run", FIRST]) == 1
    verdict, *lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert "C25" in verdict
    assert any(line.startswith("C25 ") and "FAIL" in line for line in lines)
    assert not any(" ok (" in line for line in lines)
    assert "--explain CODE" in lines[-1]


def test_check_explains_a_rule_and_reads_no_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "c05", "--results", "nowhere"]) == 0
    assert capsys.readouterr().out == f"C05 seal: {RULES[4].sentence}\n"
