"""The formats of comparisons: JSON can be read back, LaTeX is well-formed, hostile text stays text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from compare_cases import FIRST, SECOND, compared, save_record
from pages_factory import save_run
from places import ROOT
from record_factory import record

from harness.cli.main import main
from harness.reporting import comparison_data, render_latex
from harness.reporting.document import Heading, Items, Table
from harness.storage.run_store import Hypothesis
from impls.recipes import RECIPES

HOSTILE = (
    '=HYPERLINK("http://evil")',
    "\x1b]0;title\x07\x1b[31mred",
    "\\input{/etc/passwd} & 100% $x$ #1 ~^_{}",
    "| a | <script>alert(1)</script> [x](javascript:y) `",
    "@SUM(1+1)\u202e\u009b31m",
)


def test_json_has_its_schema_and_all_pairs(variant_pair: Path) -> None:
    for seed in range(3):
        save_record(variant_pair, "paper", seed)
    document = json.loads(comparison_data.to_json(compared(variant_pair, FIRST, SECOND, "paper")))
    assert document["schema"] == 4
    assert [side["letter"] for side in document["sides"]] == ["A", "B", "C"]
    (bleu,) = [metric for metric in document["metrics"] if metric["name"] == "bleu_sacre"]
    differences = bleu["differences"]
    assert [(pair["side"], pair["minus"]) for pair in differences] == [("B", "A"), ("C", "A"), ("C", "B")]
    assert differences[0]["mean"] == pytest.approx(4 / 3, abs=0.002)
    assert differences[0]["low"] < 0 < differences[0]["high"]
    assert (differences[0]["conclusion"], differences[0]["significant"], differences[0]["n"]) == (
        "inconclusive",
        False,
        3,
    )
    assert (bleu["comparisons"], bleu["table"]) == (3, "sides")
    (rate,) = [metric for metric in document["metrics"] if metric["name"] == "training_tokens_per_second"]
    assert rate["differences"][0]["significant"] is False
    assert rate["differences"][0]["conclusion"] == "not tested"


def test_json_names_p_values_alike_in_metrics_and_in_parts_of_the_test_set(capsys: pytest.CaptureFixture[str]) -> None:
    sides = ["learned_positions", "conv_ffn", "--results", str(ROOT / "results" / "published" / "gpu")]
    assert main(["compare", *sides, "--format", "json", "--examples", "0"]) == 0
    document = json.loads(capsys.readouterr().out)
    (bleu,) = [metric for metric in document["metrics"] if metric["name"] == "bleu_sacre"]
    changes = [change for part in document["parts"] for subset in part["parts"] for change in subset["changes"]]
    for effects in (bleu["differences"], changes):
        tested = [(effect["p"], effect["p_holm"]) for effect in effects]
        assert all(p <= corrected for p, corrected in tested)
        assert any(p < corrected for p, corrected in tested)


def assert_well_formed(latex: str) -> None:
    """Check that braces close, environments nest, and every row has as many cells as its table has columns."""
    bare = re.sub(r"\\[\\{}&%$#_]", "", latex)
    bare = re.sub(r"(?m)%.*$", "", bare)
    assert bare.count("{") == bare.count("}")
    pattern = r"\\begin\{tabular\}\{([^\n]*)\}\n\\toprule\n(.*?)\\bottomrule\n\\end\{tabular\}"
    tables = re.findall(pattern, latex, re.DOTALL)
    assert tables
    assert len(tables) == latex.count("\\begin{table}") == latex.count("\\end{table}")
    for columns, body in tables:
        cells = len(re.sub(r"p\{[^}]*\}", "p", columns))
        for row in filter(None, body.split("\n")):
            if row != "\\midrule":
                assert row.endswith(r" \\"), row
                assert len(re.findall(r"(?<!\\)&", row)) + 1 == cells, row


@pytest.fixture
def hostile_runs(tmp_path: Path) -> list[str]:
    """Store runs with hostile names, notes, reasons and translations, and return their paths."""
    for index, hostile in enumerate(HOSTILE):
        run = record(hostile, recipe=replace(RECIPES[FIRST], width=64 * (index + 1)))
        hypotheses = [Hypothesis(number, (hostile,), hostile) for number in range(8)]
        save_run(tmp_path, replace(run, note=hostile, reason=hostile), hypotheses)
    return sorted(str(path) for path in tmp_path.iterdir())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("form", ["text", "markdown", "json", "latex"])
def test_hostile_text_stays_text(
    form: str, hostile_runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *hostile_runs, "--format", form, "--results", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert not [letter for letter in output if not (letter.isprintable() or letter == "\n")]
    if form == "latex":
        assert_well_formed(output)
        assert "\\input" not in output
    elif form == "markdown":
        assert "<script" not in output
        assert "](javascript" not in output
        for block in output.split("\n\n"):
            if block.startswith("|"):
                assert len({line.count("|") for line in block.split("\n") if line}) == 1
    elif form == "json":
        assert json.loads(output)["sides"][0]["label"]


def test_latex_escapes_commands() -> None:
    assert render_latex.escape(r"\a{b}_&%$#~^") == (
        r"\textbackslash{}a\{b\}\_\&\%\$\#\textasciitilde{}\textasciicircum{}"
    )
    assert render_latex.escape("--allow a-b '' ,, ---") == "-{}-allow a-b '{}' ,{}, -{}-{}-", "ligatures of T1 fonts"
    assert render_latex.escape("▲ ▼ † ⁇").isascii(), "LaTeX has no glyphs for the symbols of conclusions"
    latex = render_latex.blocks([Heading("100 %"), Table("lp", ("a", "b"), (("[x]", "*"),)), Items(("n_1",))])
    assert_well_formed(latex)
    assert "{[}x{]} & {*} \\\\" in latex, "a bracket or star after the end of a row is an option"
    assert r"\caption{100 \%}" in latex
