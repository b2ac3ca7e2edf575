"""Text of strangers is escaped in the terminal, in CSV files, on pages and in LaTeX."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hostile_text import HOSTILE, rendered
from record_factory import record

from harness import text as terminal
from harness.cli import console
from harness.cli.main import main
from harness.processes.progress import Event
from harness.processes.progress_display import Display
from harness.reporting import bench_report, csv_export, render_latex
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls.recipes import RECIPES

CONTROLS = (
    "\x1b[2J\x1b[1;1Hempty",
    "\x1b]0;title\x07",
    "\x1b]8;;https://example.invalid\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31mred\x9d0;title\x9c",
    "right\rwrong",
    "a\bb\x7f\x00\x0b\x0c",
    "\u202egnp.exe\u2066\u200f",
    "end\u2028of\u2029line\x85",
    "zero\u200bwidth\u2060\ufeff\u00ad",
    "tags\U000e0041\U000e007f",
    "fillers\u3164\u115f\uffa0\u2800",
    "letters\ufe0f\U000e0100",
)
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f]"
    "|[\u3164\u115f\uffa0\ufeff\u2800\U000e0000-\U000e0fff\ufe0f]"
)

FORMULAS = (
    '=HYPERLINK("http://example.invalid")',
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    " =1+1",
    "\uff1d1+1",
    '=cmd|" /C calc"!A0',
)


def record_with(text: str, row: int, **changes: Any) -> RunRecord:
    """Return a record with a foreign variant and note; each `row` has a recipe of its own."""
    recipe = replace(RECIPES["learned_positions"], width=64 * (row + 1))
    return replace(record(text, recipe=recipe), note=text, **changes)


def unprintable(text: str) -> set[str]:
    return {letter for letter in text if not letter.isprintable() and letter != "\n"}


@pytest.mark.parametrize("words", ["می\u200cخواهم", "क्\u200dष", "👩\u200d💻"])
def test_joiners_inside_words_stay(words: str) -> None:
    assert terminal.one_line(words) == terminal.short_line(words) == words


@pytest.mark.parametrize("text", [*CONTROLS, *HOSTILE])
def test_printable_control_and_invisible_characters_are_escaped(text: str) -> None:
    assert unprintable(terminal.printable(text)) <= {"\t"}
    assert not UNSAFE.search(terminal.printable(text) + terminal.short_line(text))
    assert "\n" not in terminal.one_line(f"{text}\nbakeoff: all is well")
    quoted = json.dumps({"a": text}, ensure_ascii=False)
    assert json.loads(terminal.printable(quoted)) == {"a": text}


def test_printable_other_text_is_unchanged() -> None:
    text = "Zwei Hunde – ein Mädchen\tläuft\n日本語 العربية 👩\u200d🚀 Ω"
    assert terminal.printable(text) == text


def test_list_and_check_hostile_names_and_reasons_are_escaped(tmp_path: Path, capsys: Any) -> None:
    for row, text in enumerate([*CONTROLS, *HOSTILE]):
        failure = {"status": "failed", "reason": text} if row % 2 else {}
        run = record_with(text, row, **failure)
        run_store.save_record(tmp_path, run)
        name = f"x{row}{text.translate({0: None, 47: None, 92: None})}\nRuns: none"
        run_store.save_record(tmp_path, replace(run, id=name, status="failed", reason=text))
    assert main(["list", "--results", str(tmp_path)]) == 0
    assert main(["check", "--json", "--results", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert not unprintable(output.out + output.err)
    assert "\nRuns: none" not in output.out


def test_warn_hostile_text_is_one_line(capsys: Any) -> None:
    console.warn("one\ntwo\x1b[2J")
    assert capsys.readouterr().err == "bakeoff: one two\\u001b[2J\n"


def test_display_hostile_text_does_not_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    display = Display(screen)
    for text in CONTROLS:
        display(Event(run=text, stage="training", remark=text))
        display.line(text)
    display.close()
    assert not unprintable(re.sub(r"\x1b\[(\d+A|2K|\?25[lh]|[\d;]*m)|\r", "", screen.getvalue()))


def test_csv_text_is_no_formula_and_numbers_stay_numbers(tmp_path: Path) -> None:
    records = [
        record_with(text, row, scores={**record().scores, "chrf": -1.5, text: 2.5}) for row, text in enumerate(FORMULAS)
    ]
    csv_export.save(records, tmp_path)
    tables = {}
    for name in (csv_export.RUNS, csv_export.CURVES):
        tables[name] = list(csv.reader(io.StringIO((tmp_path / name).read_text(encoding="utf-8"))))
        for cell in itertools.chain.from_iterable(tables[name]):
            assert not cell.startswith(("\t", "\r", "\n", " "))
            if cell.startswith(csv_export.FORMULA):
                float(cell)
    heads, *rows = tables[csv_export.RUNS]
    assert len(rows) == len(FORMULAS)
    assert len(tables[csv_export.CURVES]) == 1 + sum(len(line.curve) for line in records)
    assert {row[heads.index("chrf")] for row in rows} == {"-1.5"}
    assert all(row[1].startswith("'") for row in rows)


@pytest.mark.usefixtures("no_plot_files")  # other tests plot
def test_report_hostile_text_is_escaped(tmp_path: Path) -> None:
    texts, controls = [" ".join(HOSTILE[start::3]) for start in range(3)], "".join(CONTROLS)
    environment = {"versions": {controls: controls}, "commit": {"digest": controls}}
    changes: dict[str, Any] = {"signatures": {"bleu": controls}, "environment": environment}
    records = [record_with(text, row, **changes) for row, text in enumerate(texts)]
    records[2] = replace(records[2], status="failed", reason=texts[2], scores={}, curve=())
    page = bench_report.write(bench_report.document(records), records, tmp_path)
    assert not UNSAFE.search(page.read_text(encoding="utf-8"))
    assert "\\u001b" in page.read_text(encoding="utf-8")
    html = rendered(page.with_suffix(".md").read_text(encoding="utf-8"))
    assert set(re.findall(r"<\s*/?\s*([a-zA-Z!][\w-]*)", html)) <= TAGS
    links = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert all(link.startswith(("figures/", "https://", "#")) or link.endswith((".csv", ".html")) for link in links)
    assert not any("example.invalid" in link or "javascript" in link for link in links)
    assert "window.ran" in html


TAGS = {
    *("a", "blockquote", "br", "code", "details", "em", "h1", "h2", "h3", "h4", "hr", "img", "li", "ol", "p", "pre"),
    *("strong", "summary", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}


@pytest.mark.parametrize("text", [*HOSTILE, *CONTROLS, *FORMULAS])
def test_latex_hostile_text_is_escaped(text: str) -> None:
    escaped = render_latex.escape(text)
    assert not unprintable(escaped)
    rest = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]|\{[\[\]*]\}|\$-\$|\$\\\w+\$|\\ldots\{\}|([-',])\{\}(?=\1)", "", escaped)
    assert not set(rest) & set('\\{}$&#^_%~<>|"')
