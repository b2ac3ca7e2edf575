"""What the documentation says about the published runs of `tuned`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import published_pages
import pytest
from places import ROOT
from published_records import section

from harness.analysis.leaderboard import analyse_bench
from harness.reporting.formatting import between, number
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls.recipes import TRAININGS

FOLDER, CASED = ROOT / published_pages.TUNED, ROOT / published_pages.CASED
RUNS = run_store.records(FOLDER)
ON_CPU = run_store.records(ROOT / published_pages.TUNED_CPU)
SECTION = " ".join(section("A strong recipe").split())
DIRECTIONS = ("de-en", "en-de")


def in_direction(direction: str) -> list[RunRecord]:
    return [run for run in RUNS if run.spec.data.direction == direction]


ROWS = {f"`{direction}`": (FOLDER, in_direction(direction)) for direction in DIRECTIONS}
ROWS["`en-de`, cased"] = CASED, run_store.records(CASED)
"""The rows of the results page: its first cell, and the folder and runs that it describes."""


def mean(runs: list[RunRecord], metric: str) -> float:
    return float(np.mean([run.scores[metric] or 0.0 for run in runs]))


def curves(runs: list[RunRecord]) -> tuple[list[float], list[float]]:
    """Return validation loss and BLEU after each epoch, averaged over the runs."""
    losses, scores = (
        [[getattr(epoch, name) for epoch in run.curve] for run in runs]
        for name in ("validation_loss", "validation_bleu")
    )
    return list(np.mean(losses, axis=0)), list(np.mean(scores, axis=0))


def test_runs_have_all_epochs_and_the_seeds_of_the_runs_on_a_cpu() -> None:
    published = [runs for _, runs in ROWS.values()]
    assert {(run.spec.variant, run.status, len(run.curve)) for runs in published for run in runs} == {
        ("tuned", "completed", TRAININGS["tuned"].epochs)
    }
    for runs in (*published, ON_CPU):
        assert sorted(run.spec.seed for run in runs) == list(range(5))


@pytest.mark.parametrize("title", ROWS)
def test_results_page_repeats_the_scores(title: str) -> None:
    folder, runs = ROWS[title]
    boards = analyse_bench(runs, folder).tables[0].leaderboards
    (interval,) = boards["bleu_sacre"].intervals.values()
    scores = sorted(run.scores["bleu_sacre"] or 0.0 for run in runs)
    cells = [
        title,
        f"{number(interval.mean, 1)} ({between(interval, 1)})",
        f"{scores[0]:.1f} to {scores[-1]:.1f}",
        f"{mean(runs, 'bleu_tokenised'):.1f}",
        f"{mean(runs, 'test_perplexity'):.2f}",
    ]
    assert f"| {' | '.join(cells)} |" in SECTION


def test_cased_runs_differ_from_the_others_only_in_case() -> None:
    lower = sorted(in_direction("en-de"), key=lambda run: run.spec.seed)
    cased = sorted(run_store.records(CASED), key=lambda run: run.spec.seed)
    assert [replace(run.spec, data=replace(run.spec.data, case="lower")) for run in cased] == [
        run.spec for run in lower
    ]
    scores = sorted(run.scores["bleu_sacre"] or 0.0 for run in cased)
    assert f"cased `en-de` runs together have 41.0 sacreBLEU, alone {scores[0]:.1f} to {scores[-1]:.1f}" in SECTION


def test_results_page_repeats_the_curves() -> None:
    gains, falls = [], []
    for direction in DIRECTIONS:
        losses, scores = curves(in_direction(direction))
        *chosen, final = [f"{scores[epoch - 1]:.1f}" for epoch in (4, 8, 12, 16, 20, 24, 28, 30)]
        assert f"{', '.join(chosen)} and {final} for `{direction}`" in SECTION
        last, before = (slice(25, 30), slice(20, 25))
        gains.append(np.mean(scores[last]) - np.mean(scores[before]))
        falls.append(np.mean(losses[before]) - np.mean(losses[last]))
    assert (
        f"rises by {gains[0]:.1f} and {gains[1]:.1f}, and the loss falls by {falls[0]:.3f} and {falls[1]:.3f}"
        in SECTION
    )


def test_results_page_compares_with_a_cpu_and_a_published_system() -> None:
    assert f"On a CPU, 16 epochs reach {mean(ON_CPU, 'bleu_sacre'):.1f}" in SECTION
    here, there = ([values[15] for values in curves(runs)] for runs in (in_direction("de-en"), ON_CPU))
    on_cpu, on_gpu = f"{there[0]:.3f} and {there[1]:.1f} BLEU", f"{here[0]:.3f} and {here[1]:.1f}"
    assert f"on a CPU have a validation loss of {on_cpu}; those on the GPU have {on_gpu}" in SECTION
    scores = [run.scores["bleu_tokenised"] or 0.0 for run in in_direction("en-de")]
    assert max(scores) < 41.0
    assert f"This is {41.0 - np.mean(scores):.1f} above the mean here, and above all five seeds" in SECTION
