"""What the documentation says about the published ablation of positions at the tutorials' size, beside its effects."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import published_pages
from published_records import FOLDERS, RESULTS_PAGE, joined

from harness.storage.records import RunRecord

RUNS = [run for run in FOLDERS[published_pages.TUTORIAL_SIZE] if run.spec.budget == "controlled"]
SEEDS = sorted({run.spec.seed for run in RUNS})
TEXT = joined(RESULTS_PAGE)


def cell(positions: str, embedding_init: str) -> list[RunRecord]:
    """Return the runs of a cell by seed."""
    chosen = [
        run
        for run in RUNS
        if (run.spec.recipe.positions, run.spec.recipe.embedding_init) == (positions, embedding_init)
    ]
    return sorted(chosen, key=lambda run: run.spec.seed)


def of_variant(name: str) -> list[RunRecord]:
    """Return the runs of a variant on a GPU with the seeds of the ablation."""
    runs = [run for run in FOLDERS[published_pages.GPU] if run.spec.variant == name and run.spec.seed in SEEDS]
    return sorted(runs, key=lambda run: run.spec.seed)


def bleu(runs: list[RunRecord]) -> npt.NDArray[np.float64]:
    return np.array([run.scores["bleu_sacre"] for run in runs], dtype=float)


def loss_after_four_epochs(runs: list[RunRecord]) -> float:
    return float(np.mean([run.curve[3].validation_loss or np.nan for run in runs]))


def test_results_page_repeats_the_losses_after_four_epochs() -> None:
    base = loss_after_four_epochs(cell("learned", "xavier"))
    sinusoids, width, rotary = (
        loss_after_four_epochs(cell(*levels)) - base
        for levels in (("sinusoidal", "xavier"), ("learned", "width"), ("rotary", "xavier"))
    )
    assert f"sinusoids have a loss {sinusoids:.2f} *higher* than learned vectors" in TEXT
    assert f"`width` has one {width:.2f} higher than `xavier`" in TEXT
    assert f"is there after four epochs, too ({-rotary:.2f})" in TEXT


def test_results_page_repeats_when_the_loss_is_lowest() -> None:
    kept = {
        (positions, init): {epoch for run in cell(positions, init) for epoch in run.chosen_epochs}
        for positions in ("learned", "rotary", "sinusoidal")
        for init in ("xavier", "width")
    }
    assert kept["learned", "xavier"] | kept["rotary", "xavier"] == {6, 7, 8}
    assert kept["sinusoidal", "xavier"] == {8, 9, 10}
    assert set().union(*(epochs for (_, init), epochs in kept.items() if init == "width")) == {9, 10}
    assert "learned and rotary positions after six to eight, sinusoids after eight to ten" in TEXT


def test_results_page_repeats_differences_in_bleu() -> None:
    lead = bleu(cell("rotary", "xavier")) - bleu(cell("sinusoidal", "xavier"))
    assert f"{lead.mean():.1f} on average, {lead.min():.1f} to {lead.max():.1f} by seed" in TEXT
    cost = bleu(cell("sinusoidal", "xavier")) - bleu(cell("sinusoidal", "width"))
    assert f"with sinusoids it costs {cost.mean():.1f} BLEU" in TEXT
    here, there = (bleu(runs).mean() for runs in (cell("learned", "xavier"), of_variant("learned_positions")))
    assert f"With the same five seeds it has {here:.1f} BLEU here and {there:.1f} there" in TEXT
    tying = bleu(of_variant("paper")) - bleu(cell("sinusoidal", "xavier"))
    assert f"by {tying.mean():.1f} BLEU on average ({tying.min():.1f} to {tying.max():.1f})" in TEXT
