"""Published records are complete and fair, pages follow from them, and neither holds text of the corpus."""

from __future__ import annotations

import gzip
import html
import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import published_pages
import pytest
import readme_results
from page_outline import unpacked
from places import ROOT
from published_records import (
    EFFECT,
    FOLDERS,
    PUBLISHED,
    RECORDS,
    REPORTS,
    RESULTS_PAGE,
    controlled_differences,
    grouped,
    joined,
    section,
)

from harness.analysis.evidence import metric_function, row_evidence
from harness.analysis.metric_registry import METRICS
from harness.analysis.row_labels import changed_fields
from harness.analysis.statistics import compare_rows
from harness.cli import ablate, bench, run
from harness.cli.main import main, parser
from harness.execution import rate_tuning
from harness.experiments.specs import RunSpec
from harness.reporting.formatting import MISSING
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_published_folder_holds_only_records_translations_and_counts(folder: Path) -> None:
    records, path = FOLDERS[folder], ROOT / folder
    others = {other.name for other in (*FOLDERS, *published_pages.SPEED) if other.parent == folder}
    names = {entry.name for entry in path.iterdir()} - others
    assert names == {record.id for record in records} == {record.spec.id for record in records}
    for record in records:
        files = {file.name for file in (path / record.id).iterdir() if not file.name.startswith("weights")}
        assert files - {run_store.ATTENTION} == {run_store.RECORD, run_store.HYPOTHESES, run_store.SENTENCES}
        run_store.load_hypotheses(path, record.id, record.fingerprints["hypotheses"])
        lines = (path / record.id / run_store.HYPOTHESES).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        assert {tuple(json.loads(line)) for line in lines} == {("sentence", "text", "tokens")}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_published_runs_are_a_fair_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the corpus, every score is also recomputed from the stored translations (C31)."""
    code = main(["check", "--verbose", "--results", str(ROOT / folder)])
    output = capsys.readouterr().out
    assert code == 0, output
    if folder == published_pages.CAPTIONS or os.environ.get("MULTI30K_DIR"):
        assert f"C31 recomputed scores ok ({len(FOLDERS[folder])} runs" in re.sub(r" +", " ", output)


@pytest.mark.parametrize(
    ("words", "target"), published_pages.PAGES.items(), ids=[" ".join(words[-2:]) for words in published_pages.PAGES]
)
def test_published_pages_follow_from_the_published_results(words: list[str], target: Path, tmp_path: Path) -> None:
    for page in REPORTS.rglob("*.html"):  # pages link to existing pages only
        path = tmp_path / page.relative_to(REPORTS)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert main([*words, "--reports", str(tmp_path / target.relative_to(published_pages.REPORTS))]) == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    assert written
    for path in sorted(written):
        assert (REPORTS / path.relative_to(tmp_path)).read_bytes() == path.read_bytes(), path.relative_to(tmp_path)


def test_published_pages_follow_on_other_processors_too(tmp_path: Path) -> None:
    """The last digits of sums differ with OpenBLAS's code for another processor."""
    words, _ = published_pages.COMMANDS[published_pages.LAYERS]
    command = [sys.executable, "-m", "harness", *words.split(), "--reports", str(tmp_path)]
    command += ["--results", str(published_pages.LAYERS)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OPENBLAS_CORETYPE": "Nehalem"}, check=True)
    for name in ("effects.csv", "index.md"):
        assert (tmp_path / "ablation" / name).read_bytes() == (REPORTS / "layers" / "ablation" / name).read_bytes()


def test_published_captions_page_shows_its_text_and_aligned_words() -> None:
    page = (REPORTS / "captions" / "index.html").read_text(encoding="utf-8")
    assert '<option value="attended">' in page
    (shown,) = unpacked(page)
    (pairs,) = {record.sizes["test_pairs"] for record in FOLDERS[published_pages.CAPTIONS]}
    assert len(shown["source"]) == len(shown["reference"]) == pairs
    assert shown["attended"]
    assert "captions de-en, its test split" in page
    assert "test_2016_flickr" not in page.partition('id="translations"')[2].partition("<h2")[0]


def test_published_pages_are_short_and_every_link_leads_to_a_file() -> None:
    for page in REPORTS.rglob("index.md"):
        content = page.read_text(encoding="utf-8")
        assert len(content.split("\n")) <= 150, page
        for link in re.findall(r"\]\(([^)#]+)\)", content):
            assert (page.parent / link).is_file(), (page, link)
    for page in REPORTS.rglob("*.html"):
        for link in re.findall(r'<a href="([^"#]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / link).is_file(), (page, link)


def test_published_pages_hold_no_text_of_the_corpus(multi30k_folder: Path) -> None:
    files = [multi30k_folder / f"test_2016_flickr.{language}.gz" for language in ("de", "en")]
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).decode().split("\n")]
    long = [line for line in lines if len(line.split()) > 12]
    assert len(long) > 500
    for page in REPORTS.rglob("*.html"):
        content = html.unescape(page.read_text(encoding="utf-8"))
        packed = {text for data in unpacked(content) for text in (*data["source"], *data["reference"])}
        assert not [line for line in long if line in content or line in packed], page


def test_published_validation_losses_fall() -> None:
    for record in itertools.chain(*FOLDERS.values()):
        losses = [epoch.validation_loss for epoch in record.curve[:2]]
        assert None not in losses
        assert losses == sorted(set(losses), reverse=True)


def test_published_mean_of_seeds_equals_the_tutorial() -> None:
    records = [run for run in RECORDS if (run.spec.variant, run.spec.budget) == ("learned_positions", "source")]
    assert sorted(record.spec.seed for record in records) == [0, 1, 2]
    perplexity, bleu = (
        np.array([record.scores[name] for record in records], dtype=float)
        for name in ("tutorial_perplexity", "bleu_tutorial")
    )
    assert 5.27 <= perplexity.mean() <= 5.38, "the range of six versions of the tutorial"
    assert 35.1 <= bleu.mean() <= 36.5
    text = joined(RESULTS_PAGE)
    values = f"perplexities from {perplexity.min():.3f} to {perplexity.max():.3f}"
    values += f" and BLEU from {bleu.min():.2f} to {bleu.max():.2f}"
    assert f"Three seeds here give {values}" in text
    assert f"on average {perplexity.mean():.3f} and {bleu.mean():.2f}" in text


def test_readme_table_follows_from_the_records() -> None:
    assert readme_results.table() in readme_results.README.read_text(encoding="utf-8")


PAIRS = (
    ("learned_positions", "paper"),
    ("torch_reference", "paper"),
    ("learned_positions in Keras", "paper"),
    ("learned_positions", "torch_reference"),
    ("learned_positions in Keras", "learned_positions"),
    ("conv_ffn", "learned_positions"),
    ("sinusoidal_handmade", "learned_positions"),
    ("bahdanau_gru", "learned_positions"),
    ("bahdanau_gru", "sinusoidal_handmade"),
)
"""The differences that the results page reports on the controlled comparison, in its order."""


def row_name(record: RunRecord) -> str:
    """Return the name of a run's row on the results page."""
    return readme_results.variant(record).replace("`", "")


def test_results_page_repeats_the_runs_with_their_own_training() -> None:
    by_budget = grouped(RECORDS, lambda run: run.spec.budget)
    equal = grouped(by_budget["controlled"], row_name)
    lines = section("Each variant with its own training").split("\n")
    for variant, runs in grouped(by_budget["source"], row_name).items():
        (line,) = (line for line in lines if line.startswith(f"| `{variant}` |"))
        cells = [str(len(runs[0].curve)), str(len(runs))]
        cells += [
            f"{np.mean([run.scores[name] for run in some]):.{digits}f}"
            for name, digits in (("bleu_sacre", 1), ("test_perplexity", 2))
            for some in (runs, equal[variant])
        ]
        if runs[0].spec.data.tokenizer != equal[variant][0].spec.data.tokenizer:
            cells[-2] = MISSING  # perplexities over other tokens do not compare
        assert line.strip("| ").split(" | ")[-len(cells) :] == cells


def test_results_page_repeats_the_controlled_comparison() -> None:
    controlled = grouped((run for run in RECORDS if run.spec.budget == "controlled"), row_name)
    text = section("The controlled comparison")
    for variant, runs in controlled.items():
        bleu, perplexity = (np.mean([run.scores[name] for run in runs]) for name in ("bleu_sacre", "test_perplexity"))
        curves = np.array([[epoch.validation_bleu for epoch in run.curve] for run in runs], dtype=float).mean(axis=0)
        title = f"`{variant}`".replace(" in Keras`", "` in Keras")
        row = [title, f"{len(runs)}", f"{bleu:.1f}", f"{perplexity:.2f}"]
        assert f"| {' | '.join(row)} | {', '.join(f'{value:.1f}' for value in curves[1::2])} |" in text
    text, differences = joined(text), controlled_differences(REPORTS / "index.md")
    assert [effect.groups() for effect in EFFECT.finditer(text)] == [differences[pair] for pair in PAIRS]
    assert_noise_of_the_gru(text, controlled)


def assert_noise_of_the_gru(text: str, controlled: dict[str, list[RunRecord]]) -> None:
    """Assert that the page has the deviations over seeds, and the interval that one pair gives without other rows."""
    scores = {
        name: [run.scores["bleu_sacre"] or math.nan for run in sorted(runs, key=lambda run: run.spec.seed)]
        for name, runs in controlled.items()
    }
    deviation = {name: np.std(values, ddof=1) for name, values in scores.items()}
    gru = deviation.pop("bahdanau_gru")
    mean = np.sqrt(np.mean(np.square(list(deviation.values()))))
    assert f"over seeds is {gru:.1f} BLEU and that of the other rows {mean:.1f} on average" in text
    stored = StoredFiles(PUBLISHED).sentences
    rows = [
        row_evidence(name, controlled[name], "bleu_sacre", stored) for name in ("bahdanau_gru", "learned_positions")
    ]
    (effect,) = compare_rows(rows, metric_function("bleu_sacre"), scale=METRICS["bleu_sacre"].scale).differences
    interval = f"−{-effect.low:.2f} to −{-effect.high:.2f}"
    assert f"the interval of the difference from `learned_positions` is {interval}" in text


def test_comparison_counts_significant_metrics_among_those_tested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "paper", "conv_ffn", "--results", str(PUBLISHED)]) == 0
    table = capsys.readouterr().out.partition("Quality: B against A")[2].partition(" metrics differ significantly")[0]
    assert table.count("? not tested") == 2
    assert table.endswith("\n10 of 10")


def possible_runs(plan: ablate.AblationPlan) -> list[RunSpec]:
    """Return every run that an ablation can include, whichever rates the pilots choose."""
    rates = {pilot.training.peak_rate for pilots in plan.pilots.values() for pilot in pilots}
    return [*plan.independent_runs, *(rate_tuning.at_rate(spec, rate) for spec in plan.specs for rate in rates)]


def words_of_today(record: RunRecord) -> list[str]:
    """Return the words that plan a run today: for the earlier settings of `tuned`, with the file that has them."""
    python, option, program, command, *options = shlex.split(record.command)
    assert (python, option, program) == ("python", "-m", "harness")
    if record.spec.variant == "tuned" and changed_fields(record.spec) and "--set recipe." not in record.command:
        options = ["--config", str(ROOT / "examples" / "pre_norm_tuned.toml"), *options]
    return [command, *options]


@pytest.mark.usefixtures("multi30k_folder")
def test_published_commands_plan_their_runs() -> None:
    plans = {
        "run": lambda arguments: [run._spec(arguments)],
        "bench": lambda arguments: bench._plan(arguments)[1],
        "ablate": lambda arguments: possible_runs(ablate._plan(arguments)),
    }
    for words, records in itertools.groupby(itertools.chain(*FOLDERS.values()), key=words_of_today):
        ids = {spec.id for spec in plans[words[0]](parser().parse_args(words))}
        assert {record.id for record in records} <= ids
