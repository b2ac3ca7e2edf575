"""What is published: whole records, translations without source or reference text, and README's figures from them."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import readme_results
from places import ROOT

from harness.cli import ablate, bench, run
from harness.cli.main import main, parser
from harness.evaluation.metrics import perplexity_from_sums, score_from_sums
from harness.evaluation.rescoring import NOTE
from harness.experiments.specs import ADDED_FIELDS
from harness.speed import document_store
from harness.storage import run_store
from harness.storage.records import RunRecord

PUBLISHED = ROOT / "results" / "published"
REPORTS = ROOT / "reports" / "published"
RESULTS_PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
RECORDS = run_store.records(PUBLISHED)
ABLATION = PUBLISHED / "ablation"
FOLDERS = {PUBLISHED: RECORDS, ABLATION: run_store.records(ABLATION)}
SPEED = sorted(PUBLISHED.glob("speed-*.json"))
EARLIER = [f"--set={part}.{name}={value}" for (part, name), value in ADDED_FIELDS.items() if value is not None]
"""What the commands of records that were scored again meant when they were run."""
FIGURES = {"test_perplexity": 3, "tutorial_perplexity": 3, "bleu_tutorial": 2, "bleu_sacre": 2}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_folder_holds_a_record_translations_and_counts_alone(folder: Path) -> None:
    records = FOLDERS[folder]
    assert (
        {path.name for path in folder.iterdir() if path not in (ABLATION, *SPEED)}
        == {record.id for record in records}
        == {one.spec.id for one in records}
    )
    for record in records:
        there = {path.name for path in (folder / record.id).iterdir() if not path.name.startswith("weights")}
        assert there - {run_store.ATTENTION} == {run_store.RECORD, run_store.HYPOTHESES, run_store.SENTENCES}
        run_store.load_hypotheses(folder, record.id, record.fingerprints["hypotheses"])
        lines = (folder / record.id / run_store.HYPOTHESES).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        assert {tuple(json.loads(line)) for line in lines} == {("sentence", "text", "tokens")}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_stored_sentences_give_the_scores(folder: Path) -> None:
    for record in FOLDERS[folder]:
        arrays = run_store.load_sentences(folder, record.id, record.fingerprints["sentences"])
        perplexity = perplexity_from_sums(arrays.pop("nats").sum(), arrays.pop("tokens").sum())
        assert perplexity == pytest.approx(record.scores["test_perplexity"], rel=1e-4)
        assert {"bleu_tutorial", "bleu_tokenised", "bleu_sacre", "chrf"} == set(arrays)
        for name, counts in arrays.items():
            assert score_from_sums(name, counts.sum(axis=0)) == pytest.approx(record.scores[name], rel=0, abs=1e-9)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_published_runs_are_a_fair_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--results", str(folder)]) == 0, capsys.readouterr().out


def words_of(record: RunRecord) -> list[str]:
    """Return the arguments that plan a record's run."""
    words = shlex.split(record.command)
    assert words[:3] == ["python", "-m", "harness"]
    return [*words[3:], *(EARLIER if NOTE in record.note else [])]


PAGES = ("index.html", "models.html", "ablation/index.html", "speed/index.html")


def same_files(made: Path) -> None:
    """Check that every file written under `made` is the published one, to the byte."""
    written = [path for path in made.rglob("*") if path.is_file() and path.stat().st_size]
    assert written
    for path in sorted(written):
        assert (REPORTS / path.relative_to(made)).read_bytes() == path.read_bytes(), path.relative_to(made)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """Return a folder with an empty file for each page, to which the pages link where they exist."""
    for name in PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("results", ["results/published", "results/published/ablation"])
def test_published_pages_are_made_from_the_published_records(results: str, beside: Path) -> None:
    command = words_of(FOLDERS[ABLATION][0]) if results.endswith("ablation") else ["report"]
    assert main([*command, "--results", results, "--reports", str(beside)]) == 0
    same_files(beside)


def test_published_speed_page_is_made_from_the_published_document(beside: Path) -> None:
    (document,) = SPEED
    assert main(["speed", "--from", str(document), "--reports", str(beside)]) == 0
    same_files(beside)


def test_published_pages_are_short_and_every_link_leads_to_a_file() -> None:
    for page in REPORTS.rglob("index.md"):
        content = page.read_text(encoding="utf-8")
        assert len(content.split("\n")) <= 150, page
        for link in re.findall(r"\]\(([^)#]+)\)", content):
            assert (page.parent / link).is_file(), (page, link)
    for page in REPORTS.rglob("*.html"):
        for link in re.findall(r'<a href="([^"#]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / link).is_file(), (page, link)


def test_no_published_page_holds_text_of_the_corpus(multi30k_folder: Path) -> None:
    text = [gzip.decompress((multi30k_folder / f"test_2016_flickr.{one}.gz").read_bytes()) for one in ("de", "en")]
    long = [line for part in text for line in part.decode().split("\n") if len(line.split()) > 12]
    assert len(long) > 500
    for page in REPORTS.rglob("*.html"):
        shown = page.read_text(encoding="utf-8")
        assert not [line for line in long if line in shown], page


def test_validation_losses_fall() -> None:
    for record in itertools.chain(*FOLDERS.values()):
        if len(record.curve) > 1:
            first, second = (epoch.validation_loss for epoch in record.curve[:2])
            assert first is not None
            assert second is not None
            assert second < first


def test_the_tutorial_s_figures_are_met_by_the_mean_of_the_seeds() -> None:
    found = [one for one in RECORDS if (one.spec.variant, one.spec.budget) == ("learned_positions", "source")]
    assert sorted(one.spec.seed for one in found) == [0, 1, 2]
    perplexity, bleu = (
        np.array([one.scores[name] for one in found], dtype=float) for name in ("tutorial_perplexity", "bleu_tutorial")
    )
    assert 5.27 <= perplexity.mean() <= 5.38, "what six versions of the tutorial print"
    assert 35.1 <= bleu.mean() <= 36.5
    text = " ".join(RESULTS_PAGE.split())
    figures = f"{perplexity.mean():.3f} ± {perplexity.std(ddof=1):.3f} and {bleu.mean():.2f} ± {bleu.std(ddof=1):.2f}"
    assert f"Three seeds here give {figures} (standard deviation)" in text


def test_readme_table_is_made_from_the_records() -> None:
    assert readme_results.table(readme_results.published()) in readme_results.README.read_text(encoding="utf-8")


def test_results_page_repeats_the_speed_document() -> None:
    document = document_store.load(*SPEED)
    ours = document.subject("learned_positions/torch")
    assert ours.training is not None
    assert ours.training.limit_share is not None
    seconds = {one.name: one.thousand_seconds for one in ours.decoding}
    expected = [f"{1e3 * ours.training.update_seconds:.0f} ms", f"{100 * ours.training.limit_share.median:.0f} %"]
    expected += [f"{seconds[name]:.1f} s" for name in ("greedy", "beam")]
    ratios = {(one.baseline, one.what): one for one in document.comparisons if one.subject == ours.name}
    expected += [f"{one.ratio.median:.2f}" for (peer, what), one in ratios.items() if what == "training"]
    expected += [f"{ratios['plain', 'greedy'].ratio.median:.0f}"]
    expected += [f"{ratios['marian', way].ratio.median:.1f}" for way in ("greedy", "beam")]
    expected += [f"{1 / ratios['ctranslate2', way].ratio.median:.1f}" for way in ("greedy", "beam", "single_greedy")]
    found = re.findall(r"\d[\d.]*(?: ms| s| %)?", RESULTS_PAGE.split("## How fast")[1])
    assert not [one for one in expected if one not in found]


def test_results_page_makes_no_claim_from_the_confounded_ablation() -> None:
    finding = RESULTS_PAGE.split("## Which detail matters?")[1].split("## ")[0]
    assert "confounded" in finding
    assert "matter most" not in finding


@pytest.mark.usefixtures("multi30k_folder")
def test_every_published_score_can_be_computed_again(capsys: pytest.CaptureFixture[str]) -> None:
    for folder, records in FOLDERS.items():
        assert main(["score", "--results", str(folder)]) == 0
        assert capsys.readouterr().out.count("every score agrees") == len(records)


@pytest.mark.usefixtures("multi30k_folder")
def test_the_command_of_each_record_names_its_run() -> None:
    plans = {
        "run": lambda given: [run._spec(given)],
        "bench": lambda given: bench._plan(given)[1],
        "ablate": lambda given: ablate._plan(given).candidates(),
    }
    for words, records in itertools.groupby(itertools.chain(*FOLDERS.values()), key=words_of):
        ids = {spec.id for spec in plans[words[0]](parser().parse_args(words))}
        assert {record.id for record in records} <= ids
