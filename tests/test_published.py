"""What is published: whole records, translations without source or reference text, and README's figures from them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from harness import store
from harness.__main__ import main, parser
from harness.commands import bench, run
from harness.scoring import perplexity_from_sums, score_from_sums

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "results" / "published"
RECORDS = store.records(PUBLISHED)
FIGURES = {"test_perplexity": 3, "tutorial_perplexity": 3, "bleu_tutorial": 2, "bleu_sacre": 2}


def test_every_folder_holds_a_record_and_translations_alone() -> None:
    assert (
        {path.name for path in PUBLISHED.iterdir()}
        == {record.id for record in RECORDS}
        == {one.spec.id for one in RECORDS}
    )
    for record in RECORDS:
        assert {path.name for path in (PUBLISHED / record.id).iterdir() if not path.name.startswith("weights")} == {
            store.RECORD,
            store.HYPOTHESES,
            *([store.SENTENCES] if "sentences" in record.fingerprints else []),
        }
        store.load_hypotheses(PUBLISHED, record.id, record.fingerprints["hypotheses"])
        lines = (PUBLISHED / record.id / store.HYPOTHESES).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        assert {tuple(json.loads(line)) for line in lines} == {("sentence", "text", "tokens")}


def test_stored_sentences_give_the_scores() -> None:
    for record in RECORDS:
        if "sentences" in record.fingerprints:
            arrays = store.load_sentences(PUBLISHED, record.id, record.fingerprints["sentences"])
            perplexity = perplexity_from_sums(arrays.pop("nats").sum(), arrays.pop("tokens").sum())
            assert perplexity == pytest.approx(record.scores["test_perplexity"], rel=1e-4)
            assert {"bleu_tutorial", "bleu_tokenised", "bleu_sacre", "chrf"} == set(arrays)
            for name, counts in arrays.items():
                assert score_from_sums(name, counts.sum(axis=0)) == pytest.approx(record.scores[name], rel=0, abs=1e-9)


def test_validation_losses_fall() -> None:
    for record in RECORDS:
        if len(record.curve) > 1:
            first, second = (epoch.validation_loss for epoch in record.curve[:2])
            assert first is not None
            assert second is not None
            assert second < first


def test_the_tutorial_s_figures_are_met() -> None:
    (found,) = (one for one in RECORDS if one.spec.variant == "learned_positions" and one.spec.budget == "source")
    assert found.scores["tutorial_perplexity"] is not None
    assert found.scores["tutorial_perplexity"] <= 5.55
    assert found.scores["bleu_tutorial"] is not None
    assert found.scores["bleu_tutorial"] >= 34.0


def test_readme_shows_the_records() -> None:
    cells = r" \| ".join(["(.+?)"] * len(FIGURES))
    row = re.compile(rf"^\| \[.*?\]\(results/published/(\S+?)/record.json\) \| .+? \| {cells} \|$", re.MULTILINE)
    told = {run: figures for run, *figures in row.findall((ROOT / "README.md").read_text(encoding="utf-8"))}
    expected = {one.id: [f"{one.scores[name]:.{digits}f}" for name, digits in FIGURES.items()] for one in RECORDS}
    assert told == expected


@pytest.mark.usefixtures("multi30k_folder")
def test_every_published_score_can_be_computed_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--results", str(PUBLISHED)]) == 0
    assert capsys.readouterr().out.count("every score agrees") == len(RECORDS)


@pytest.mark.usefixtures("multi30k_folder")
def test_the_command_of_each_record_names_its_run() -> None:
    for record in RECORDS:
        words = shlex.split(record.command)
        assert words[:3] == ["python", "-m", "harness"]
        given = parser().parse_args(words[3:])
        specs = [run._spec(given)] if words[3] == "run" else bench._plan(given)[1]
        assert record.id in {one.id for one in specs}
