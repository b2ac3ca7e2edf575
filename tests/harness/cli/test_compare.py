"""Runs held against each other: figures by hand, refusals, forms that can be read back, and conditions for CI."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import scipy.stats
from compare_cases import BLEU, FIRST, SECOND, compared, save_record, text
from pages_factory import save_run, translations
from places import ROOT
from record_factory import digest, record
from record_folders import write_set

from harness.analysis import comparability, example_sentences, selection, subsets
from harness.analysis.comparison import ReferenceCorpus
from harness.analysis.effects import Conclusion
from harness.analysis.selection import Side
from harness.cli import fail_on
from harness.cli.main import main
from harness.reporting import comparison_data, comparison_report, render_latex, render_text
from harness.reporting.document import Heading, Items, Table
from harness.storage import run_store
from harness.storage.run_store import Hypothesis
from impls.recipes import RECIPES

HOSTILE = (
    '=HYPERLINK("http://evil")',
    "\x1b]0;title\x07\x1b[31mred",
    "\\input{/etc/passwd} & 100% $x$ #1 ~^_{}",
    "| a | <script>alert(1)</script> [x](javascript:y) `",
    "@SUM(1+1)\u202e\u009b31m",
)


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply no rule of `check`: these made-up records have no environment that could pass."""
    monkeypatch.setattr("harness.cli.compare._failures", lambda *_, **__: [])


@pytest.fixture(autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path_factory.getbasetemp() / "nothing"))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for variant, figures in BLEU.items():
        for seed, value in enumerate(figures):
            save_record(tmp_path, variant, seed, scores={"bleu_sacre": value, "test_loss": 2.0 + 0.01 * seed})
    return tmp_path


# Figures --------------------------------------------------------------------------------------------------------------


def test_a_difference_is_second_less_first_with_students_interval(results: Path) -> None:
    one = compared(results).figure("bleu_sacre")
    assert one is not None
    difference = one.difference("B", "A")
    assert difference is not None
    # On the logit scale, by SciPy's paired t test, and shown around the middle of the two means on that scale.
    logits = [scipy.special.logit(np.array(BLEU[name]) / 100) for name in (SECOND, FIRST)]
    expected = scipy.stats.ttest_rel(*logits)
    middle = np.mean(logits)
    ends = [
        100 * (scipy.special.expit(middle + end / 2) - scipy.special.expit(middle - end / 2))
        for end in (np.mean(logits[0] - logits[1]), *expected.confidence_interval(0.95))
    ]
    assert [difference.mean, difference.low, difference.high] == pytest.approx(ends)
    assert difference.mean == pytest.approx(4 / 3, abs=0.002)
    assert difference.p == pytest.approx(expected.pvalue)
    assert difference.values == pytest.approx((1.0, 2.0, 1.0))
    assert one.conclusion(difference) is Conclusion.INCONCLUSIVE
    assert [each.mean for each in one.intervals] == pytest.approx([31.0, 97 / 3])
    reverse = compared(results, SECOND, FIRST).figure("bleu_sacre")
    assert reverse is not None
    back = reverse.difference("B", "A")
    assert back is not None
    assert (back.mean, back.low) == (pytest.approx(-ends[0]), pytest.approx(-ends[2]))


@pytest.mark.parametrize(
    ("name", "step", "there", "back"),
    [
        ("bleu_sacre", 1.0, Conclusion.BETTER, Conclusion.WORSE),
        ("test_loss", 1.0, Conclusion.WORSE, Conclusion.BETTER),
    ],
)
def test_which_way_is_better_is_the_figures_own(
    tmp_path: Path, name: str, step: float, there: Conclusion, back: Conclusion
) -> None:
    for seed in range(3):
        save_record(tmp_path, FIRST, seed, scores={name: 5.0})
        save_record(tmp_path, SECOND, seed, scores={name: 5.0 + step + 0.1 * (seed - 1)})
    one = compared(tmp_path).figure(name)
    assert one is not None
    assert one.conclusion(one.difference("B", "A")) is there
    assert one.conclusion(one.difference("A", "B")) is back


def test_orders_of_bleu_come_from_the_counts_of_sentences() -> None:
    from sacrebleu.metrics.bleu import BLEU as Sacre

    from harness.analysis.evidence import bleu_of_order

    counts, totals = [40, 22, 9, 3], [50, 45, 40, 35]
    sums = np.array([[50, 55, *counts, *totals]], float)
    for order in range(1, 5):
        score = Sacre.compute_bleu(counts[:order], totals[:order], 50, 55, max_ngram_order=order)
        assert bleu_of_order(sums, order, individual=False)[0] == pytest.approx(score.score)
        single = 100 * math.exp(1 - 55 / 50) * counts[order - 1] / totals[order - 1]
        assert bleu_of_order(sums, order, individual=True)[0] == pytest.approx(single)
    assert bleu_of_order(np.array([[9.0, 9, 5, 2, 0, 0, 9, 8, 7, 6]]), 4, individual=False)[0] == 0


def test_speed_and_size_are_shown_and_never_called_significant(tmp_path: Path) -> None:
    for seed in range(3):
        for variant, value, machine in ((FIRST, 1000.0, "one"), (SECOND, 2000.0 + seed, "another")):
            one = record(variant, seed)
            speed = {**one.speed, "training_tokens_per_second": value}
            save_record(tmp_path, variant, seed, speed=speed, environment={**one.environment, "machine": machine})
    whole = compared(tmp_path)
    rate = whole.figure("training_tokens_per_second")
    assert rate is not None
    difference = rate.difference("B", "A")
    assert difference is not None
    assert difference.significant, "without a planted difference this shows nothing"
    assert rate.conclusion(difference) is Conclusion.NOT_TESTED
    assert rate.unjudged == "measured on different machines"
    shown = render_text.blocks(comparison_report.document(whole))
    line = next(line for line in shown.split("\n") if line.startswith("training throughput, tokens/s"))
    assert "2.001" in line
    assert line.endswith("?")
    assert "A was measured on: one; threads: 2." in shown
    assert "B was measured on: another; threads: 2." in shown
    written_data = json.loads(comparison_data.to_json(whole))
    told = next(one for one in written_data["figures"] if one["name"] == "training_tokens_per_second")
    assert told["differences"][0]["significant"] is False
    assert told["differences"][0]["conclusion"] == "not tested"


def test_missing_statistics_are_said_and_leave_the_rest(results: Path) -> None:
    whole = compared(results)
    one = whole.figure("bleu_sacre")
    assert one is not None
    assert one.difference("B", "A").basis == "seeds"  # type: ignore[union-attr]
    assert not whole.parts
    told = "\n".join(whole.left_out)
    assert "not every run has the statistics of its sentences" in told
    assert "Sentences that differ most" in told
    assert "Intervals cover other seeds, not other test sentences." in whole.remarks


def test_a_diverged_run_is_shown_and_empties_its_difference(results: Path) -> None:
    save_record(results, SECOND, 1, status="diverged", reason="loss is not finite", scores={"bleu_sacre": None})
    shown = text(results)
    assert "Did not complete: B, seed 1: diverged after 10 epochs: loss is not finite." in shown
    assert "2 completed, 1 diverged" in shown
    assert "cannot be compared: B: no figure for seed 1 (diverged)." in shown
    line = next(line for line in shown.split("\n") if line.startswith("sacreBLEU ↑"))
    assert "32.00" in line, "the mean of the completed runs"


# Which runs -----------------------------------------------------------------------------------------------------------


def test_sides_are_variants_runs_and_files(results: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    outside = save_record(elsewhere, "paper", 0)
    run = record(FIRST, 1).id
    chosen = selection.find(
        [SECOND, run[:-4], str(elsewhere / outside.id), f"{FIRST}@seed=2"], results, complain=pytest.fail
    )
    assert [side.letter for side in chosen] == ["A", "B", "C", "D"]
    assert [side.seeds for side in chosen] == [(0, 1, 2), (1,), (0,), (2,)]
    assert [side.label for side in chosen] == [SECOND, f"{FIRST}, seed 1", "paper", f"{FIRST}, seed 2"]
    (first, *_) = selection.find([str(elsewhere / outside.id / "record.json"), SECOND], results, complain=pytest.fail)
    assert first.records[0].id == outside.id


def test_a_variant_with_several_rows_is_refused_with_words_that_choose(results: Path) -> None:
    for position in ("alibi", "none"):
        recipe = replace(RECIPES[FIRST], positions=position)  # type: ignore[arg-type]
        run_store.save_record(results, record(FIRST, 0, recipe=recipe))
    with pytest.raises(ValueError, match="3 rows of runs") as refused:
        selection.find([FIRST, SECOND], results, complain=pytest.fail)
    ways = re.findall(r"'(learned_positions@[^']+)'", str(refused.value))
    assert len(ways) == 3
    for way in ways:
        (side, _) = selection.find([way, SECOND], results, complain=pytest.fail)
        assert f"recipe.positions={side.records[0].spec.recipe.positions}".endswith(way.partition("@")[2])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([FIRST], "give two or more"),
        ([FIRST, "conv_fnn"], "did you mean 'conv_ffn'?"),
        ([FIRST, FIRST], "name the same runs"),
        ([FIRST, f"{FIRST}@seed=9"], "'seed=9' matches no run; the values are 0, 1, 2"),
        ([FIRST, f"{FIRST}@sed=0"], "did you mean 'seed'?"),
        ([FIRST, f"{FIRST}@max_length=100"], "data.max_length"),
        ([FIRST, "no/such/record.json"], "there is no record.json"),
        ([FIRST, __file__], "is neither a record.json"),
    ],
)
def test_what_names_no_row_is_refused_in_one_line(
    results: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words, "--results", str(results)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


# What may be compared -------------------------------------------------------------------------------------------------


def test_runs_that_differ_are_refused_by_name_until_each_is_allowed(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        one = record("paper", seed)
        training = replace(one.spec.training, peak_rate=0.5)
        spec = replace(one.spec, training=training)
        changed = {**one.fingerprints, "stream": digest("other", seed)}
        run_store.save_record(results, replace(one, id=spec.id, spec=spec, fingerprints=changed))
    arguments = ["compare", FIRST, "paper", "--results", str(results)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for name in ("training.peak_rate", "stream of batches", "seeds"):
        assert f"{name} (" in error
    allowed = ["--allow", "training.peak_rate", "--allow", "stream of batches"]
    assert main([*arguments, *allowed]) == 2
    assert "--allow seeds" in capsys.readouterr().err
    assert main([*arguments, *allowed, "--allow", "seeds", "--allow", "stream of batch"]) == 0
    done = capsys.readouterr()
    assert "Not the same on all sides, and allowed: seeds: 0, 1, 2 in A; 0, 1 in B." in done.out
    assert "and allowed: stream of batches" in done.out
    assert "--allow stream of batch: the sides do not differ in it; did you mean 'stream of batches'?" in done.err


def test_other_test_sentences_are_not_paired(results: Path) -> None:
    for seed in range(3):
        one = record("paper", seed)
        files = {**one.fingerprints["files"], "test.en": digest("another test set")}
        save_run(
            results, replace(one, fingerprints={**one.fingerprints, "files": files}), translations("paper", seed, 30)
        )
    whole = compared(results, FIRST, "paper", allow=["file test.en"])
    assert whole.left_out == (
        "Sentences, lengths, words and n-grams: the sides were not measured on the same sentences.",
    )
    assert not whole.parts
    assert not whole.extremes


def test_runs_of_both_budgets_need_leave_and_other_words_are_not_compared(results: Path) -> None:
    for seed in range(3):
        one = record(FIRST, seed, budget="source")
        changed = {**one.fingerprints, "target_vocabulary": digest("other words")}
        run_store.save_record(results, replace(one, fingerprints=changed))
    words = (f"{FIRST}@budget=controlled", f"{FIRST}@budget=source")
    with pytest.raises(ValueError, match=r"budget \(controlled in A; source in B\)"):
        compared(results, *words)
    chosen = selection.find(words, results, complain=pytest.fail)
    names = [one.name for one in comparability.disagreements(chosen)]
    whole = compared(results, *words, allow=names)
    perplexity, bleu = whole.figure("test_perplexity"), whole.figure("bleu_sacre")
    assert perplexity is not None
    assert bleu is not None
    assert perplexity.difference("B", "A") is None
    assert perplexity.silent == "the sides have different target words"
    assert bleu.difference("B", "A") is not None


def test_settings_and_versions_that_differ_are_named(results: Path) -> None:
    one = record(SECOND, 0)
    environment = {**one.environment, "versions": {"torch": "9.9"}, "python": "3.13.1"}
    save_record(results, SECOND, 0, environment=environment)
    told = {one.name: one.values for one in compared(results).settings}
    assert told["variant"] == (FIRST, SECOND)
    assert told["recipe.activation"] == ("relu", "gelu")
    assert told["version of torch"] == ("2.13.0", "9.9 / 2.13.0")
    assert "training.epochs" not in told
    assert "seed" not in told


# Parts, sentences and n-grams -----------------------------------------------------------------------------------------

REFERENCES = (("a", "red", "dog"), ("a", "cat", "runs", "fast"), ("the", "dog"))
CORPUS = ReferenceCorpus(
    source=("ein roter Hund", "eine Katze rennt schnell", "der Hund"),
    reference=("a red dog", "a cat runs fast", "the dog"),
    words=REFERENCES,
    frequencies={"a": 5_000, "dog": 200, "red": 20, "cat": 20, "the": 2_000, "runs": 3},
)
TRANSLATIONS = {
    FIRST: (("a", "red", "dog"), ("a", "dog"), ("the", "dog")),
    SECOND: (("a", "red", "cat"), ("a", "cat", "runs"), ("<unk>", "dog")),
}


def little(results: Path, tmp: Path) -> list[Side]:
    """Return two sides of two seeds with the same few translations."""
    for variant, lines in TRANSLATIONS.items():
        for seed in range(2):
            spoken = [Hypothesis(number, words, " ".join(words)) for number, words in enumerate(lines)]
            save_run(tmp, record(variant, seed), spoken)
    return list(selection.find([FIRST, SECOND], tmp, complain=pytest.fail))


def test_words_are_scored_by_how_often_training_has_them(
    results: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pair = little(results, tmp_path_factory.mktemp("little"))
    assert CORPUS.frequencies is not None
    parts = subsets.words(pair, (0, 1), REFERENCES, CORPUS.frequencies)
    assert parts is not None
    scores = {one.title: (one.size, *one.scores) for one in parts.parts}
    # runs: none and one of one. red, cat: the first has red (1 of 1 said, 2 wanted), the second red, cat, cat of 2.
    assert scores["3–9"] == (1, 0.0, 100.0)
    assert scores["10–99"] == pytest.approx((2, 200 * 1 / (1 + 2), 200 * 2 / (3 + 2)))
    # dog: the first says it 3 times, right in 2 sentences of 2; the second once, right.
    assert scores["100–999"] == pytest.approx((2, 200 * 2 / (3 + 2), 200 * 1 / (1 + 2)))
    # a, a, the: the first has all; the second lacks "the".
    assert scores["1,000 or more"] == pytest.approx((3, 100.0, 200 * 2 / (2 + 3)))
    assert parts.notes == ("1 words of the references are not in the vocabulary, so that no run can produce them.",)


def test_ngrams_count_what_both_have_right(results: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    first, second = little(results, tmp_path_factory.mktemp("little"))
    made_grams = example_sentences.ngrams((first, second), (0, 1), REFERENCES, count=50)
    assert made_grams is not None
    more, less = ({one.words: (one.first, one.second, one.share, one.seeds) for one in own} for own in made_grams)
    assert more == dict.fromkeys(("cat", "runs", "a cat", "cat runs", "a cat runs"), (0, 2, 0.75, 2))
    assert less["dog"] == (4, 2, 3 / 8, 2)
    assert less["a red dog"] == (2, 0, 0.25, 2)
    assert "a" not in {**more, **less}, "both have it as often"
    assert not any("<unk>" in one for one in (*more, *less))


def test_sentences_are_told_by_their_own_scores(results: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pair = little(results, tmp_path_factory.mktemp("little"))
    counts = np.zeros((2, 2, 3, 10), int)
    counts[..., :] = [4, 4, 2, 1, 1, 1, 4, 3, 2, 1]
    counts[1, :, 1] = [4, 4, 4, 3, 2, 1, 4, 3, 2, 1]
    counts[1, 0, 2] = [4, 4, 4, 3, 2, 1, 4, 3, 2, 1]
    counts[0, :, 0] = [4, 4, 4, 3, 2, 1, 4, 3, 2, 1]
    chosen = example_sentences.most_different(
        (pair[0], pair[1]),
        (0, 1),
        (counts[0], counts[1]),
        "bleu_sacre",
        count=5,
        texts=(CORPUS.source, CORPUS.reference),
    )
    assert chosen is not None
    better, worse = chosen
    half = 100 * (0.5 * (1 / 3) * 0.5 * 1) ** 0.25
    assert [one.number for one in better] == [1, 2]
    assert [one.number for one in worse] == [0]
    assert better[0].difference == pytest.approx(100 - half)
    assert better[1].difference == pytest.approx((100 - half) / 2)
    assert better[0].translations == ("a dog", "a cat runs")
    assert better[0].reference == "a cat runs fast"


def test_lengths_divide_all_sentences_and_are_scored_alone(
    results: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pair = little(results, tmp_path_factory.mktemp("little"))
    lengths = np.array([4, 4, 9, 9, 9, 20])
    right = np.stack([lengths, lengths, *(lengths - n for n in range(4)), *(lengths - n for n in range(4))], axis=-1)
    wrong = right.copy()
    wrong[lengths == 9, 2:6] = 0
    sums = [np.stack([right, right]), np.stack([wrong, wrong])]
    parts = subsets.by_length(pair, (0, 1), sums, "bleu_sacre").parts
    assert [(one.title, one.size) for one in parts] == [("4", 2), ("9", 3), ("20", 1)]
    assert [one.scores for one in parts] == [(100.0, 100.0), (100.0, 0.0), (100.0, 100.0)]
    assert [one.changes[0].mean for one in parts] == pytest.approx([0, -100, 0], abs=0.01)


# With a corpus --------------------------------------------------------------------------------------------------------


def test_text_of_the_corpus_is_shown_where_it_is_here_and_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path)
    arguments = ["compare", FIRST, "paper", "--results", str(tmp_path), "--examples", "2"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    for title in (
        "Sentences that B translates better",
        "n-grams that B has right",
        "sacreBLEU by how often",
        "word F1",
    ):
        assert title in shown
    assert "reference  " in shown
    assert "Left out" not in shown
    assert main([*arguments, "--without-corpus-text"]) == 0
    bare = capsys.readouterr().out
    assert "reference  " not in bare
    assert "source  " not in bare
    assert "n-grams that" not in bare
    assert "word F1" in bare
    assert "n-grams: --without-corpus-text." in bare


# Forms ----------------------------------------------------------------------------------------------------------------


def test_csv_reads_back_with_every_difference(results: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(comparison_data.to_csv(compared(results)))))
    assert all(None not in line and None not in line.values() for line in lines)
    (bleu,) = [line for line in lines if (line["section"], line["name"]) == ("figure", "bleu_sacre")]
    assert (bleu["first"], bleu["second"], bleu["significant"], bleu["n"]) == ("A", "B", "0", "3")
    assert float(bleu["difference"]) == pytest.approx(4 / 3, abs=0.002)
    assert float(bleu["low"]) < 0 < float(bleu["high"])
    assert (bleu["tested_over"], bleu["conclusion"], bleu["comparisons"]) == ("seeds", "inconclusive", "1")
    assert {line["section"] for line in lines} == {"side", "setting", "figure"}


def test_json_reads_back_with_schema_and_all_pairs(results: Path) -> None:
    for seed in range(3):
        save_record(results, "paper", seed)
    whole = json.loads(comparison_data.to_json(compared(results, FIRST, SECOND, "paper")))
    assert whole["schema"] == 2
    assert [side["letter"] for side in whole["sides"]] == ["A", "B", "C"]
    (bleu,) = [one for one in whole["figures"] if one["name"] == "bleu_sacre"]
    assert [(one["side"], one["less"]) for one in bleu["differences"]] == [("B", "A"), ("C", "A"), ("C", "B")]
    assert bleu["differences"][0]["mean"] == pytest.approx(4 / 3, abs=0.002)
    assert (bleu["comparisons"], bleu["table"]) == (3, "sides")


def cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)&", line)) + 1


def sane(latex: str) -> None:
    """Check that braces close, environments nest, and every row has as many cells as its table has columns."""
    bare = re.sub(r"\\[\\{}&%$#_]", "", latex)
    bare = re.sub(r"(?m)%.*$", "", bare)
    assert bare.count("{") == bare.count("}")
    tables = re.findall(
        r"\\begin\{tabular\}\{([^\n]*)\}\n\\toprule\n(.*?)\\bottomrule\n\\end\{tabular\}", latex, re.DOTALL
    )
    assert tables
    assert len(tables) == latex.count("\\begin{table}") == latex.count("\\end{table}")
    for columns, body in tables:
        wanted = len(re.sub(r"p\{[^}]*\}", "p", columns))
        rows = [row for row in body.split("\n") if row and row != "\\midrule"]
        assert all(row.endswith(r" \\") and cells(row) == wanted for row in rows), rows


@pytest.mark.parametrize("form", ["text", "markdown", "csv", "json", "latex"])
def test_hostile_text_stays_text_in_every_form(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    for place, hostile in enumerate(HOSTILE):
        one = record(FIRST, 0, recipe=replace(RECIPES[FIRST], width=64 * (place + 1)))
        variant = replace(one.spec, variant=hostile)
        spoken = [Hypothesis(number, (hostile,), hostile) for number in range(8)]
        save_run(tmp_path, replace(one, id=variant.id, spec=variant, note=hostile, reason=hostile), spoken)
    words = sorted(str(path) for path in tmp_path.iterdir())
    assert main(["compare", *words, "--format", form, "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert not [letter for letter in shown if not (letter.isprintable() or letter == "\n")]
    if form == "latex":
        sane(shown)
        assert "\\input" not in shown
    elif form == "csv":
        texts = [value for line in csv.reader(io.StringIO(shown)) for value in line]
        assert any(cell.startswith("'=HYPERLINK") for cell in texts)
        for cell in texts:
            if cell.startswith(("=", "+", "-", "@")):
                float(cell)
    elif form == "markdown":
        assert "<script" not in shown
        assert "](javascript" not in shown
        for block in shown.split("\n\n"):
            if block.startswith("|"):
                assert len({line.count("|") for line in block.split("\n") if line}) == 1
    elif form == "json":
        assert json.loads(shown)["sides"][0]["label"]


def test_latex_escapes_what_it_would_read_as_commands() -> None:
    assert render_latex.escape(r"\a{b}_&%$#~^") == (
        r"\textbackslash{}a\{b\}\_\&\%\$\#\textasciitilde{}\textasciicircum{}"
    )
    made_table = render_latex.blocks([Heading("100 %"), Table("lp", ("a", "b"), (("[x]", "*"),)), Items(("n_1",))])
    sane(made_table)
    assert "{[}x{]} & {*} \\\\" in made_table, "a bracket or star after a row's end is an option"
    assert r"\caption{100 \%}" in made_table


def test_the_output_file_holds_what_the_terminal_would(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", FIRST, SECOND, "--results", str(results), "--format", "markdown"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    path = results / "made" / "page.md"
    assert main([*arguments, "--output", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == shown
    assert main([*arguments, "--output", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == shown, "the same records, the same bytes"


def test_comparing_loads_no_framework_and_nothing_that_draws(results: Path) -> None:
    code = (
        "import sys\nfrom harness.cli.main import main\n"
        f"assert main(['compare', {FIRST!r}, {SECOND!r}, '--results', {str(results)!r}]) in (0, 1)\n"
        "heavy = {'torch', 'tensorflow', 'jax', 'keras', 'spacy', 'matplotlib', 'pandas'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))\n"
    )
    root = ROOT
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("LOADED []\n")


# Conditions -----------------------------------------------------------------------------------------------------------


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
def test_a_condition_fails_the_command_exactly_where_it_holds(
    results: Path, expression: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", FIRST, SECOND, "--results", str(results), "--fail-on", expression]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == code
    if code:
        assert f"--fail-on {expression}: bleu_sacre of B (conv_ffn) minus A (learned_positions) is +1.3319" in error


def test_worse_wants_a_significant_difference(tmp_path: Path) -> None:
    for seed in range(3):
        save_record(tmp_path, FIRST, seed, scores={"bleu_sacre": 30.0, "chrf": 50.0})
        save_record(tmp_path, SECOND, seed, scores={"bleu_sacre": 29.0 + 0.1 * seed, "chrf": 49.0 + 2 * (seed == 1)})
    whole = compared(tmp_path)
    assert len(fail_on.holds(fail_on.read("bleu_sacre:worse"), whole)) == 1
    assert not fail_on.holds(fail_on.read("chrf:worse"), whole)
    assert not fail_on.holds(fail_on.read("bleu_sacre:worse"), compared(tmp_path, SECOND, FIRST))


def test_a_condition_that_cannot_be_told_fails(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_record(results, SECOND, 1, status="diverged", scores={"bleu_sacre": None})
    assert main(["compare", FIRST, SECOND, "--results", str(results), "--fail-on", "bleu_sacre<-50"]) == 1
    assert "unknown for B (conv_ffn): B: no figure for seed 1 (diverged)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("bleu_sacer<1", "did you mean 'bleu_sacre'?"),
        ("bleu_sacre=1", "give METRIC<NUMBER"),
        ("bleu_sacre<nan", "'nan' is not a finite number"),
        ("bleu_sacre<x", "'x' is not a finite number"),
        ("epoch_seconds:worse", "not tested for significance"),
    ],
)
def test_a_condition_that_says_nothing_is_refused(expression: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        fail_on.read(expression)


def test_worse_is_refused_where_it_could_never_hold(results: Path) -> None:
    whole = compared(results, f"{FIRST}@seed=0", f"{SECOND}@seed=0")
    with pytest.raises(ValueError, match="1 seed in common, but a test needs 3"):
        fail_on.holds(fail_on.read("bleu_sacre:worse"), whole)
