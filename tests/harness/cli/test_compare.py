"""`compare`: refusals, allowed differences, text of the corpus, and the output file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import HEAVY, Refused, imported_by
from compare_cases import FIRST, SECOND
from record_factory import digest, record, with_digests
from record_folders import write_set

from harness.cli.main import main
from harness.storage import run_store
from impls.recipes import TUTORIAL

pytestmark = pytest.mark.usefixtures("unchecked")


def test_differences_are_refused_until_each_is_allowed(
    variant_pair: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        run = record("paper", seed, training=replace(TUTORIAL, peak_rate=0.5))
        run_store.save_record(variant_pair, with_digests(run, stream=digest("other", seed)))
    arguments = ["compare", FIRST, "paper", "--results", str(variant_pair)]
    error = refused(arguments, "training.peak_rate (")
    assert all(f"{name} (" in error for name in ("stream of batches", "seeds"))
    allowed = ["--allow", "training.peak_rate", "--allow", "stream of batches"]
    refused([*arguments, *allowed], "--allow seeds")
    assert main([*arguments, *allowed, "--allow", "seeds", "--allow", "stream of batch"]) == 0
    printed = capsys.readouterr()
    assert "Allowed difference: seeds: 0, 1, 2 in A; 0, 1 in B." in printed.out
    assert "Allowed difference: stream of batches" in printed.out
    warning = "--allow 'stream of batch': the sides do not differ in it; did you mean 'stream of batches'?"
    assert warning in printed.err


def test_records_are_read_once(variant_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    load = run_store.load_record
    monkeypatch.setattr(run_store, "load_record", lambda results, run: (reads.append(run), load(results, run))[1])
    assert main(["compare", FIRST, SECOND, "--results", str(variant_pair)]) == 0
    assert sorted(reads) == sorted(path.parent.name for path in variant_pair.glob("*/record.json"))


def test_text_of_the_corpus_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path)
    arguments = ["compare", FIRST, "paper", "--results", str(tmp_path), "--examples", "2"]
    assert main(arguments) == 0
    with_text = capsys.readouterr().out
    for title in (
        "Sentences that B translates better",
        "n-grams that B gets right",
        "sacreBLEU by how often",
        "word F1",
        "reference  ",
    ):
        assert title in with_text
    assert "Left out" not in with_text
    assert main([*arguments, "--without-corpus-text"]) == 0
    without_text = capsys.readouterr().out
    for title in ("reference  ", "source  ", "n-grams that"):
        assert title not in without_text
    assert "word F1" in without_text
    assert "n-grams: --without-corpus-text." in without_text


def test_text_that_is_missing_or_changed_is_called_so(variant_pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", FIRST, SECOND, "--results", str(variant_pair)]) == 0
    printed = capsys.readouterr().out
    assert "n-grams: the corpus is not on this machine, or has changed since the runs." in printed


def test_output_file_has_the_text_of_the_terminal(variant_pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", FIRST, SECOND, "--results", str(variant_pair), "--format", "markdown"]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    path = variant_pair / "new" / "page.md"
    for _ in range(2):
        assert main([*arguments, "--output", str(path)]) == 0
        assert path.read_text(encoding="utf-8") == output


def test_compare_imports_no_framework_and_no_plots(variant_pair: Path) -> None:
    # The rules of `check` fail, with exit code 1: nothing is patched in another process.
    assert not imported_by("compare", FIRST, SECOND, "--results", str(variant_pair), code=1) & HEAVY


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("bleu_sacre<-0.5", 0),
        ("bleu_sacre>1.3", 1),
        ("bleu_sacre > 1.34", 0),
        ("bleu_sacre<1.34", 1),
        ("bleu_sacre:worse", 0),
        ("chrf<-100", 0),
        ("training_tokens_per_second<-1e9", 0),
    ],
)
def test_fail_on_fails_if_its_condition_holds(
    variant_pair: Path, expression: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", FIRST, SECOND, "--results", str(variant_pair), "--fail-on", expression]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == code
    if code:
        assert f"--fail-on {expression}: bleu_sacre of B (conv_ffn) minus A (learned_positions) is +1.3319" in error
        assert re.search(r", p <?0\.\d+ after Holm's correction\n", error)
