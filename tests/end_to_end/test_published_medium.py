"""The page on speed repeats the published comparison of products in bfloat16 with those in float32."""

from __future__ import annotations

import html
import re
import statistics

import published_pages
from places import ROOT
from published_records import FOLDERS, REPORTS, joined, negated

RUNS = FOLDERS[published_pages.MEDIUM]
PAGE = (REPORTS / "medium" / "index.md").read_text(encoding="utf-8")
TEXT = joined((ROOT / "docs" / "speed.md").read_text(encoding="utf-8"))
SEEDS = range(3)


def test_runs_differ_in_precision_alone() -> None:
    by_seed = {(run.spec.matmul_precision, run.spec.seed): run for run in RUNS}
    assert sorted(by_seed) == [(name, seed) for name in ("highest", "medium") for seed in SEEDS]
    for seed in SEEDS:
        one, other = (by_seed[name, seed].fingerprints for name in ("highest", "medium"))
        assert all(one[name] == other[name] for name in ("weights", "batches", "stream", "tokenised"))


def test_speed_page_repeats_the_scores_and_their_difference() -> None:
    bleu, perplexity = (
        {
            name: statistics.fmean(run.scores[key] or 0.0 for run in RUNS if run.spec.matmul_precision == name)
            for name in ("highest", "medium")
        }
        for key in ("bleu_sacre", "test_perplexity")
    )
    assert f"a BLEU of {bleu['medium']:.1f} instead of {bleu['highest']:.1f}" in TEXT
    assert f"a test perplexity of {perplexity['medium']:.2f} instead of {perplexity['highest']:.2f}" in TEXT
    effect = re.search(r"precision=highest\) \| (\S+) ~ \((\S+) to (\S+); p (\S+);", html.unescape(PAGE))
    difference, low, high = map(negated, effect.groups()[:3])
    assert f"{difference} ({high} to {low}; p {effect[4]})" in TEXT
