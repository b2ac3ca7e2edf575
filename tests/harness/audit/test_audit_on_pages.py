"""`report` and `compare` apply the rules of `check` that need no corpus, show what fails, and exit with 1."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from forgeries import take
from record_edits import FIRST, SECOND, edit, flip

from harness.audit import rules
from harness.cli.main import main
from harness.storage import files, run_store

pytestmark = pytest.mark.usefixtures("cache", "no_plot_files")

FORGED = edit("scores.chrf", lambda score: score + 1)


def report(results: Path) -> tuple[int, str, str]:
    """Return the exit code of `report` and its pages."""
    folder = results.parent / "page"
    code = main(["report", "--results", str(results), "--reports", str(folder)])
    markdown, html = ((folder / name).read_text(encoding="utf-8") for name in ("index.md", "index.html"))
    return code, markdown, html


def test_report_valid_runs_does_not_mention_the_check(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, *pages = report(results)
    assert code == 0
    assert not any("fail a rule of check" in page for page in pages)
    assert "check:" not in capsys.readouterr().err


def test_report_failing_rule_is_on_both_pages_and_standard_error(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FORGED(results)
    code, *pages = report(results)
    assert code == 1
    for page in pages:
        assert "fail a rule of check" in page
        assert "C25 counts" in page
    assert "bakeoff: check: C25 counts: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "names", [(run_store.HYPOTHESES, run_store.SENTENCES, run_store.ATTENTION), (run_store.WEIGHTS,)], ids=len
)
def test_report_runs_with_a_damaged_file_are_named_and_left_out(
    results: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...]
) -> None:
    damaged = [path for path in sorted(results.iterdir()) if path.name != SECOND][: len(names)]
    for folder, name in zip(damaged, names, strict=True):
        (folder / name).write_bytes(flip((folder / name).read_bytes()))
    code, *pages = report(results)
    assert code == 1
    lines = [line for line in capsys.readouterr().err.split("\n") if "left out of the report" in line]
    rows = (results.parent / "page" / "runs.csv").read_text(encoding="utf-8")
    for folder, name in zip(damaged, names, strict=True):
        assert any(str(folder / name) in line for line in lines)
        assert folder.name not in rows
    assert SECOND in rows
    assert "fail a rule of check" in pages[0]
    assert main(["report", "--results", str(results), "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)
    assert printed.err.count("left out of the report") == len(names)
    assert "bakeoff: check: " in printed.err


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_compare_failing_rule_is_shown(results: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    words = ["compare", "paper", "learned_positions", "--results", str(results), "--format", form]
    assert main(words) == 0
    assert "check:" not in capsys.readouterr().out
    FORGED(results)
    assert main(words) == 1
    captured = capsys.readouterr()
    assert "check: C25 counts: " in captured.out
    assert "bakeoff: check: C25 counts: " in captured.err


def test_compare_copies_among_its_sides_fail(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    take("nats")(results)
    assert main(["compare", FIRST, SECOND, "--results", str(results), "--allow", "seeds"]) == 1
    assert "C53 copies" in capsys.readouterr().err


def test_check_without_corpus_reads_each_file_once(valid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of many runs must not take much longer for the check."""
    hashed: Counter[Path] = Counter()
    digest = files.file_digest

    def count(path: Path, *settings: Any) -> str:
        hashed[path] += 1
        return digest(path, *settings)

    monkeypatch.setattr("harness.data.dataset.of_run_offline", lambda record: pytest.fail("it reads the corpus"))
    monkeypatch.setattr("harness.audit.run_folder.files.file_digest", count)
    report = rules.check(valid, with_corpus=False)
    assert not report.failed
    assert {run_store.HYPOTHESES, run_store.SENTENCES, run_store.ATTENTION} <= {path.name for path in hashed}
    weights = [path for path in hashed if path.name.startswith("weights")]
    assert all(count == 1 for path, count in hashed.items() if path not in weights), hashed
