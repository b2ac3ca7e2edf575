"""The speedrun page repeats its records, and they follow its rules."""

from __future__ import annotations

import re

import numpy as np
import published_pages
import pytest
import scipy.stats
from places import ROOT

from harness.cli import bench
from harness.cli.main import parser
from harness.storage import run_store

PAGE = (ROOT / published_pages.REPORTS / "speedrun.md").read_text(encoding="utf-8")
RUNS = run_store.records(ROOT / published_pages.SPEEDRUN)
THRESHOLD = 38.0


def test_first_entry_repeats_its_records_and_passes_the_threshold() -> None:
    scores = [run.scores["bleu_sacre"] or 0.0 for run in RUNS]
    minutes = np.mean([run.speed["total_seconds"] for run in RUNS]) / 60
    p = scipy.stats.ttest_1samp(scores, THRESHOLD, alternative="greater").pvalue
    assert f"| {minutes:.0f} min | {np.mean(scores):.1f} | {len(RUNS)} | < 0.00001 |" in PAGE
    assert p < 1e-5
    reached = {next(e.epoch for e in run.curve if (e.validation_bleu or 0.0) > THRESHOLD) for run in RUNS}
    assert f"after {' or '.join(map(str, sorted(reached)))} of its {len(RUNS[0].curve)} epochs" in PAGE


@pytest.mark.usefixtures("multi30k_folder")
def test_command_of_the_first_entry_trains_its_runs() -> None:
    words = re.findall(r"`python -m harness (bench [^`]+)`", PAGE)[0].split()
    planned = {spec.id for spec in bench._plan(parser().parse_args(words))[1]}
    assert planned == {run.id for run in RUNS}
