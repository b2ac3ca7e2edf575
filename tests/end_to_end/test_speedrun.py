"""The speedrun page repeats its records, and they follow its rules."""

from __future__ import annotations

import re

import numpy as np
import published_pages
import pytest
import scipy.stats
from published_records import FOLDERS, REPORTS, joined, section

from harness.cli import bench
from harness.cli.main import parser
from impls.recipes import RECIPES

PAGE = (REPORTS / "speedrun.md").read_text(encoding="utf-8")
RUNS = FOLDERS[published_pages.SPEEDRUN]
THRESHOLD = 38.0


def test_first_entry_repeats_its_records_and_follows_the_rules() -> None:
    scores = [run.scores["bleu_sacre"] or 0.0 for run in RUNS]
    minutes = np.mean([run.speed["total_seconds"] for run in RUNS]) / 60
    p = scipy.stats.ttest_1samp(scores, THRESHOLD, alternative="greater").pvalue
    assert f"| {minutes:.1f} min | {np.mean(scores):.1f} | {len(RUNS)} | {p:.3f} |" in PAGE
    assert len(RUNS) >= 3
    assert p < 0.01
    assert not [run.id for run in RUNS if run.environment.get("earlier_processes")]
    assert {(run.spec.device, run.environment["commit"]["digest"][:7]) for run in RUNS} == {("cpu", "ea8271a")}
    assert "from commit ea8271a" in PAGE
    reached = f"{np.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f} by seed) in {minutes:.1f} minutes"
    assert reached in joined(section("A strong recipe"))


def test_page_repeats_what_the_earlier_settings_need() -> None:
    on_cpu, on_gpu = (FOLDERS[folder] for folder in (published_pages.TUNED_CPU, published_pages.TUNED))
    earlier = [run for run in on_cpu if run.spec.recipe != RECIPES["tuned"]]
    reached = {next(e.epoch for e in run.curve if (e.validation_bleu or 0.0) > THRESHOLD) for run in earlier}
    scores = [run.scores["bleu_sacre"] or 0.0 for run in on_gpu if run.spec.data.direction == "de-en"]
    text = joined(PAGE)
    assert f"`tuned` needs {' or '.join(map(str, sorted(reached)))} epochs for 38 BLEU on the validation set" in text
    assert f"reaches {np.mean(scores):.1f} on the test set after 30" in text


@pytest.mark.usefixtures("multi30k_folder")
def test_command_of_the_first_entry_trains_its_runs() -> None:
    words = re.findall(r"python -m harness (bench [^`]+)```", PAGE)[0].replace("\\\n", " ").split()
    planned = {spec.id for spec in bench._plan(parser().parse_args(words))[1]}
    assert planned == {run.id for run in RUNS}
