"""`report` and `compare` apply the rules of `check` that need no corpus, show what fails, and exit with 1."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from forgeries import take
from record_edits import FIRST, SECOND, edit
from record_folders import write_set

from harness.audit import rules
from harness.cli.main import main
from harness.storage import files, run_store

pytestmark = pytest.mark.usefixtures("cache")

FORGED = edit("scores.chrf", lambda one: one + 1)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("valid")
    write_set(results)
    return results


@pytest.fixture
def results(valid: Path, tmp_path: Path) -> Path:
    shutil.copytree(valid, tmp_path / "results")
    return tmp_path / "results"


def report(results: Path) -> tuple[int, str, str]:
    """Return the exit code of `report` and its pages."""
    code = main(["report", "--results", str(results), "--reports", str(results.parent / "page")])
    page = results.parent / "page"
    return code, *((page / name).read_text(encoding="utf-8") for name in ("index.md", "index.html"))  # type: ignore[return-value]


def test_a_report_of_valid_runs_says_nothing_of_the_check(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, *pages = report(results)
    assert code == 0
    assert not any("fails the check" in page for page in pages)
    assert "check:" not in capsys.readouterr().err


def test_a_report_shows_what_fails_on_both_pages_and_standard_error(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FORGED(results)
    code, *pages = report(results)
    assert code == 1
    for page in pages:
        assert "fails the check" in page
        assert "C25 counts" in page
    assert "bakeoff: check: C25 counts: " in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_a_comparison_shows_what_fails(results: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    words = ["compare", "paper", "learned_positions", "--results", str(results), "--format", form]
    assert main(words) == 0
    assert "check:" not in capsys.readouterr().out
    FORGED(results)
    assert main(words) == 1
    said = capsys.readouterr()
    assert "check: C25 counts: " in said.out
    assert "bakeoff: check: C25 counts: " in said.err


def test_a_comparison_finds_copies_among_its_sides(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    take("nats")(results)
    assert main(["compare", FIRST, SECOND, "--results", str(results), "--allow", "seeds"]) == 1
    assert "C53 copies" in capsys.readouterr().err


def test_neither_reads_the_corpus_nor_a_file_twice(valid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of many runs must not take much longer for the check."""
    hashed: Counter[Path] = Counter()
    digest = files.file_digest

    def count(path: Path, *settings: Any) -> str:
        hashed[path] += 1
        return digest(path, *settings)

    monkeypatch.setattr("harness.data.dataset.at_hand", lambda record: pytest.fail("it reads the corpus"))
    monkeypatch.setattr("harness.audit.run_folder.files.file_digest", count)
    loaded: Counter[str] = Counter()
    for name in ("load_hypotheses", "load_sentences"):
        load = getattr(run_store, name)
        monkeypatch.setattr(
            run_store,
            name,
            lambda results, run, *more, load=load, name=name: loaded.update([name]) or load(results, run),
        )
    found = rules.without_corpus(valid)
    assert not found.failed
    weights = [path for path in hashed if path.name.startswith("weights")]
    assert all(count == 1 for path, count in hashed.items() if path not in weights), hashed
    assert set(loaded.values()) == {4}
