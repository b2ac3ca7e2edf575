"""What `compare` concludes: the report's table, both p-values, one and two seeds, and what prose may claim."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare_cases import BLEU, FIRST, SECOND, compared, save_record, text
from pages_factory import save_run, translations
from record_factory import record

from harness.analysis import comparison, selection
from harness.analysis.comparison import compare
from harness.analysis.grouping import groups
from harness.analysis.leaderboard import judge, stored_sentences
from harness.analysis.statistics import METHOD
from harness.cli.main import main
from harness.evaluation import metrics
from harness.reporting import formatting
from harness.storage import run_store


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply no rule of `check`: these made-up records have no environment that could pass."""
    monkeypatch.setattr("harness.cli.compare._failures", lambda *_, **__: [])


@pytest.fixture(autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path_factory.getbasetemp() / "nothing"))
    # These made-up records have no environment that could pass the rules of `check`.
    monkeypatch.setattr("harness.cli.compare._failures", lambda *_, **__: [])


def test_one_seed_is_called_one_seed(tmp_path: Path) -> None:
    for variant in (FIRST, SECOND):
        save_run(tmp_path, record(variant, 0), translations(variant, 0, 60))
    shown = text(tmp_path)
    assert "One seed: seed noise is unknown; p-values are over these test sentences alone." in shown
    line = next(line for line in shown.split("\n") if line.startswith("sacreBLEU ↑"))
    assert re.search(r" – +0\.\d{3} +0\.\d{3} +~ inconclusive +– +sentences +1$", line), (
        "no interval beside another test"
    )
    loss = next(line for line in shown.split("\n") if line.startswith("validation loss"))
    assert re.search(r"\? not tested +– +– +1$", loss)
    assert not re.search(r"^BLEU-1 cumulative.*(better|worse|~)", shown, re.MULTILINE)
    assert "inconclusive even on these sentences; seed variance unknown." in shown


def test_compare_single_runs_with_different_seeds_tests_sentences(tmp_path: Path) -> None:
    first, second = (save_run(tmp_path, record(FIRST, seed), translations(FIRST, seed, 60)) for seed in (0, 1))
    places = ["--results", str(tmp_path), "--output", str(tmp_path / "out")]
    assert main(["compare", first.id, second.id, "--allow", "seeds", *places]) == 0
    shown = (tmp_path / "out").read_text(encoding="utf-8")
    assert "no seed in common" not in shown
    line = next(line for line in shown.split("\n") if line.startswith("sacreBLEU ↑"))
    assert re.search(r" – +\d\.\d{3} +\d\.\d{3} .* sentences +1$", line)


def test_one_seed_that_differs_on_the_sentences_has_its_own_symbol(tmp_path: Path) -> None:
    spoken = translations(FIRST, 0, 60)
    save_run(tmp_path, record(FIRST, 0), spoken)
    two = save_run(tmp_path, record(SECOND, 0), spoken)
    arrays = run_store.load_sentences(tmp_path, two.id, two.fingerprints["sentences"])
    counts = arrays["bleu_sacre"].copy()
    counts[:, 2:6] = np.maximum(counts[:, 2:6] - 2, 0)
    digest_of = run_store.save_sentences(tmp_path, two.id, {**arrays, "bleu_sacre": counts})
    worse = float(metrics.score_from_sums("bleu_sacre", counts.sum(axis=0)))
    fingerprints = {**two.fingerprints, "sentences": digest_of}
    run_store.save_record(tmp_path, replace(two, scores={**two.scores, "bleu_sacre": worse}, fingerprints=fingerprints))
    shown = text(tmp_path)
    line = next(line for line in shown.split("\n") if line.startswith("sacreBLEU ↑"))
    assert re.search(r" † +– +sentences +1$", line)
    assert "on these sentences only; seed variance unknown." in shown
    assert "significantly" not in shown.split("Settings")[0]


def test_two_seeds_show_both_values_and_no_interval(tmp_path: Path) -> None:
    for seed in range(2):
        for variant in (FIRST, SECOND):
            save_record(tmp_path, variant, seed, scores={"bleu_sacre": BLEU[variant][seed]})
    shown = text(tmp_path)
    line = next(line for line in shown.split("\n") if line.startswith("sacreBLEU ↑"))
    assert re.search(r"seeds: \+1\.00; \+2\.00 +– +– +\? not tested +– +– +2$", line)
    assert "2 seeds: not tested." in shown


def test_p_and_interval_of_a_comparison_never_disagree(tmp_path: Path) -> None:
    noise = np.random.default_rng(3)
    for variant in ("learned_positions", "conv_ffn", "paper", "torch_reference"):
        for seed in range(4):
            value = 30 + 0.6 * noise.standard_normal()
            save_record(tmp_path, variant, seed, scores={"bleu_sacre": value, "chrf": value + noise.standard_normal()})
    whole = compared(tmp_path, "learned_positions", "conv_ffn", "paper", "torch_reference")
    seen = set()
    for one in whole.figures:
        for each in one.table.differences if one.table and not one.unjudged else ():
            if each.tested == "seeds":
                assert (each.p < 0.05) == (each.low > 0 or each.high < 0)  # type: ignore[operator]
                seen.add(each.p < 0.05)  # type: ignore[operator]
    assert seen == {True, False}


def test_a_pair_is_judged_as_in_the_report_and_both_p_values_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(1)
    variants = (FIRST, SECOND, "paper", "torch_reference")
    for place, variant in enumerate(variants):
        for seed in range(5):
            value = 30.0 + 0.45 * place + 0.3 * noise.standard_normal()
            save_record(tmp_path, variant, seed, scores={"bleu_sacre": value, "chrf": 50.0 + seed})
    chosen = selection.find((FIRST, SECOND), tmp_path, complain=pytest.fail)
    others = comparison.other_rows(chosen, tmp_path)
    assert [one.label for one in others] == ["paper", "torch_reference"]
    whole = compare(chosen, (), None, examples=0, others=others).figure("bleu_sacre")
    assert whole is not None
    pair = whole.difference("B", "A")
    (group,) = groups(run_store.records(tmp_path))
    labels = [row.label for row in group.rows]
    report = judge(group, labels, stored_sentences(tmp_path), method=METHOD)["bleu_sacre"]
    same = report.comparisons.between(SECOND, FIRST)
    assert pair is not None
    for name in ("mean", "low", "high", "p", "p_holm", "standard_error", "degrees", "above_zero"):
        assert getattr(pair, name) == pytest.approx(getattr(same, name)), name
    assert whole.conclusion(pair) is report.conclusion(same)
    assert pair.p is not None
    assert pair.p_holm is not None
    assert pair.p < pair.p_holm
    assert main(["compare", FIRST, SECOND, "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    alone, corrected = formatting.p_value(pair.p), formatting.p_value(pair.p_holm)
    told = rf"p {alone} on its own, {corrected} within the 6 comparisons of the report"
    assert told in shown
    assert "assuming normally distributed seed noise" in shown
    alone = compare(chosen, (), None, examples=0).figure("bleu_sacre")
    assert alone is not None
    assert alone.table is not None
    assert alone.table.tests == 1


def test_fewer_than_five_seeds_claim_nothing_in_prose(tmp_path: Path) -> None:
    for seed in range(4):
        save_record(tmp_path, FIRST, seed, scores={"bleu_sacre": 30.0 + 0.1 * seed})
        save_record(tmp_path, SECOND, seed, scores={"bleu_sacre": 35.0 + 0.1 * (seed % 2)})
    shown = text(tmp_path)
    assert "fewer than 5 seeds are too few for a claim." in shown
    assert "significantly better" not in shown
    assert re.search(r"^sacreBLEU ↑.*▲ better", shown, re.MULTILINE), "the table tests them all the same"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for variant, figures in BLEU.items():
        for seed, value in enumerate(figures):
            save_record(tmp_path, variant, seed, scores={"bleu_sacre": value, "test_loss": 2.0 + 0.01 * seed})
    return tmp_path


def test_three_sides_have_each_against_the_first_and_a_matrix(results: Path) -> None:
    for seed, value in enumerate((20.0, 21.2, 21.8)):
        save_record(results, "paper", seed, scores={"bleu_sacre": value})
    shown = text(results, FIRST, SECOND, "paper")
    assert "Quality: B against A" in shown
    assert "Quality: C against A" in shown
    start = shown.index("All pairs: sacreBLEU")
    matrix = shown[start : shown.index("All pairs: chrF")]
    assert re.search(r"^C\s+−10.00 ▼ worse\s+−11.3\d ▼ worse", matrix, re.MULTILINE)
    assert re.search(r"^A\s+−1.33 ~ inconclusive\s+\+10.00 ▲ better", matrix, re.MULTILINE)
    first = shown[shown.index("Quality: B against A") :]
    assert re.search(r"^sacreBLEU ↑.*~ inconclusive", first, re.MULTILINE), "one table, one conclusion"
