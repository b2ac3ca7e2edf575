"""The conclusions of `compare`: those of the report, with both p-values, for one, two, few and many seeds."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare_cases import BLEU, FIRST, SECOND, line_of, save_record, text
from evidence_factory import NUMBERS
from pages_factory import save_run, translations
from record_factory import record, with_digests

from harness.analysis import comparison, selection
from harness.analysis.comparison import compare
from harness.analysis.grouping import groups
from harness.analysis.leaderboard import leaderboards
from harness.analysis.selection import Side
from harness.cli.main import main
from harness.evaluation import metrics
from harness.experiments.specs import Budget, DataSpec
from harness.reporting import formatting
from harness.storage import run_store
from harness.storage.records import Status
from harness.storage.stored_files import StoredFiles

pytestmark = pytest.mark.usefixtures("unchecked")
SENTENCES = 60


def beside(results: Path, *names: str) -> tuple[tuple[Side, ...], tuple[Side, ...]]:
    """Return the named sides, and the other rows of the report's table."""
    sides = selection.find(names, results, complain=pytest.fail)
    return sides, comparison.other_rows(sides, results, run_store.records(results))


def test_compare_single_runs_shows_p_values_over_sentences_and_no_interval(tmp_path: Path) -> None:
    data = DataSpec(corpus="captions", tokenizer="whitespace")
    for variant in (FIRST, SECOND):
        save_run(tmp_path, record(variant, 0, data=data), translations(variant, 0, SENTENCES))
    report = text(tmp_path)
    assert f"A: {FIRST}; captions de-en, its test split; " in report
    assert "One seed: seed noise is unknown; p-values are over these test sentences alone." in report
    bleu = line_of("sacreBLEU ↑", report)
    assert re.search(r" – +0\.\d{3} +0\.\d{3} +~ inconclusive +– +sentences +1$", bleu), "no interval beside the test"
    assert re.search(r"\? not tested +– +– +1$", line_of("validation loss", report))
    assert not re.search(r"^BLEU-1 cumulative.*(better|worse|~)", report, re.MULTILINE)
    assert "inconclusive even on these sentences; seed variance unknown." in report
    assert "p of 1" in report, "validation losses have no test with one seed"


def test_compare_single_runs_with_different_seeds_tests_sentences(tmp_path: Path) -> None:
    first, second = (save_run(tmp_path, record(FIRST, seed), translations(FIRST, seed, SENTENCES)) for seed in (0, 1))
    output = tmp_path / "out"
    options = ["--allow", "seeds", "--results", str(tmp_path), "--output", str(output)]
    assert main(["compare", first.id, second.id, *options]) == 0
    report = output.read_text(encoding="utf-8")
    assert "no seed in common" not in report
    assert re.search(r" – +\d\.\d{3} +\d\.\d{3} .* sentences +1$", line_of("sacreBLEU ↑", report))


def test_compare_single_runs_that_differ_on_the_sentences_show_a_dagger(tmp_path: Path) -> None:
    hypotheses = translations(FIRST, 0, SENTENCES)
    save_run(tmp_path, record(FIRST, 0), hypotheses)
    second = save_run(tmp_path, record(SECOND, 0), hypotheses)
    arrays = run_store.load_sentences(tmp_path, second.id, second.fingerprints["sentences"])
    counts = arrays["bleu_sacre"].copy()
    counts[:, 2:6] = np.maximum(counts[:, 2:6] - 2, 0)
    digest = run_store.save_sentences(tmp_path, second.id, {**arrays, "bleu_sacre": counts})
    scores = {**second.scores, "bleu_sacre": float(metrics.score_from_sums("bleu_sacre", counts.sum(axis=0)))}
    run_store.save_record(tmp_path, with_digests(replace(second, scores=scores), sentences=digest))
    report = text(tmp_path)
    assert re.search(r" † +– +sentences +1$", line_of("sacreBLEU ↑", report))
    assert "on these sentences only; seed variance unknown." in report
    assert "significantly" not in report.split("Settings")[0]


def test_compare_two_seeds_shows_both_values_and_no_interval(tmp_path: Path) -> None:
    for seed in range(2):
        for variant in (FIRST, SECOND):
            save_record(tmp_path, variant, seed, scores={"bleu_sacre": BLEU[variant][seed]})
    report = text(tmp_path)
    values = r"seeds: \+1\.00; \+2\.00 +– +– +\? not tested +– +– +2$"
    assert re.search(values, line_of("sacreBLEU ↑", report))
    assert "2 seeds: not tested; a test over seeds needs 3." in report
    assert "p of 0" not in report


@pytest.fixture
def table_of_four(tmp_path: Path) -> Path:
    """Return results with a table of four rows and five seeds."""
    generator = np.random.default_rng(1)
    for step, variant in enumerate((FIRST, SECOND, "paper", "torch_reference")):
        for seed in range(5):
            bleu = 30.0 + 0.45 * step + 0.3 * generator.standard_normal()
            save_record(tmp_path, variant, seed, scores={"bleu_sacre": bleu, "chrf": 50.0 + seed})
    return tmp_path


def test_compare_two_rows_of_a_table_concludes_what_the_report_concludes(
    table_of_four: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides, table_rows = beside(table_of_four, FIRST, SECOND)
    assert [row.label for row in table_rows] == ["paper", "torch_reference"]
    metric = compare(sides, (), None, examples=0, table_rows=table_rows).metric("bleu_sacre")
    difference = metric.difference("B", "A")
    (table,) = groups(run_store.records(table_of_four))
    board = leaderboards(table, StoredFiles(table_of_four).sentences)["bleu_sacre"]
    reported = board.comparisons.between(SECOND, FIRST)
    for name in NUMBERS:
        assert getattr(difference, name) == pytest.approx(getattr(reported, name)), name
    assert metric.conclusion(difference) is board.conclusion(reported)
    assert difference.p < difference.p_holm
    of_sides = compare(sides, (), None, examples=0).metric("bleu_sacre")
    assert of_sides.table.tests == 1, "without the other rows of the report"
    assert main(["compare", FIRST, SECOND, "--results", str(table_of_four)]) == 0
    report = capsys.readouterr().out
    single, corrected = formatting.p_value(difference.p), formatting.p_value(difference.p_holm)
    assert rf"p {single} on its own, {corrected} within the 6 comparisons of the report" in report
    assert "assuming normally distributed seed noise" in report


def test_compare_beside_a_row_of_one_seed_keeps_the_rows_with_its_seeds(table_of_four: Path) -> None:
    def rows_of(*names: str) -> list[str]:
        return [row.label for row in beside(table_of_four, *names)[1]]

    save_record(table_of_four, "sinusoidal_handmade", 0, scores={"bleu_sacre": 31.0})
    assert rows_of(FIRST, SECOND) == ["paper", "torch_reference"]
    assert rows_of(FIRST, "sinusoidal_handmade") == [SECOND, "paper", "torch_reference"], "the table of seed 0"


@pytest.mark.parametrize(("budget", "status"), [("controlled", "failed"), ("source", "completed")])
def test_compare_beside_a_row_with_a_further_seed_is_that_of_the_report(
    tmp_path: Path, budget: Budget, status: Status
) -> None:
    """In the report, a failed run does not count, and rows with the source budget are compared at common seeds."""
    variants = (FIRST, SECOND, "paper")
    for variant, seed in itertools.product(variants, range(3)):
        run_store.save_record(tmp_path, record(variant, seed, budget=budget))
    run_store.save_record(tmp_path, replace(record("paper", 3, budget=budget), status=status))
    for pair in itertools.combinations(variants, 2):
        assert {row.label for row in beside(tmp_path, *pair)[1]} == {*variants} - {*pair}


def test_compare_beside_a_row_with_a_diverged_run_names_the_row(table_of_four: Path) -> None:
    save_record(table_of_four, "paper", 1, status="diverged", scores={})
    sides, table_rows = beside(table_of_four, FIRST, SECOND)
    remarks = compare(sides, (), None, examples=0, table_rows=table_rows).remarks
    assert "row paper: no value for seed 1 (diverged or missing); its differences stay empty." in remarks


def test_compare_fewer_than_five_seeds_makes_no_claim_in_prose(tmp_path: Path) -> None:
    for seed in range(4):
        save_record(tmp_path, FIRST, seed, scores={"bleu_sacre": 30.0 + 0.1 * seed})
        save_record(tmp_path, SECOND, seed, scores={"bleu_sacre": 35.0 + 0.1 * (seed % 2)})
    report = text(tmp_path)
    assert "fewer than 5 seeds are too few for a claim." in report
    assert "significantly better" not in report
    assert re.search(r"^sacreBLEU ↑.*▲ better", report, re.MULTILINE), "the table has the test"


def test_compare_three_sides_shows_each_against_the_first_and_a_matrix(tmp_path: Path) -> None:
    for variant, scores in {**BLEU, "paper": (20.0, 21.2, 21.8)}.items():
        for seed, bleu in enumerate(scores):
            save_record(tmp_path, variant, seed, scores={"bleu_sacre": bleu, "test_loss": 2.0 + 0.01 * seed})
    report = text(tmp_path, FIRST, SECOND, "paper")
    assert "Quality: C against A" in report
    matrix = report[report.index("All pairs: sacreBLEU") : report.index("All pairs: chrF")]
    assert re.search(r"^C\s+−10.00 ▼ worse\s+−11.3\d ▼ worse", matrix, re.MULTILINE)
    assert re.search(r"^A\s+−1.33 ~ inconclusive\s+\+10.00 ▲ better", matrix, re.MULTILINE)
    against_first = report[report.index("Quality: B against A") :]
    assert re.search(r"^sacreBLEU ↑.*~ inconclusive", against_first, re.MULTILINE), "the same conclusion in both tables"
