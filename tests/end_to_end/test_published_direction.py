"""The published runs from English to German, and what the documentation says about them."""

from __future__ import annotations

import published_pages
from places import ROOT

from harness.storage import run_store

RUNS = run_store.records(ROOT / published_pages.EN_DE)


def test_results_page_repeats_the_other_direction() -> None:
    runs = {(run.spec.data.direction, run.spec.variant, run.status) for run in RUNS}
    assert runs == {("en-de", "tuned", "completed")}
    assert len({run.spec.seed for run in RUNS}) == len(RUNS) == 2
    text = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    sacre, tokens = (
        " and ".join(f"{score:.1f}" for score in sorted(run.scores[name] for run in RUNS))
        for name in ("bleu_sacre", "bleu_tokenised")
    )
    (epochs,) = {len(run.curve) for run in RUNS}
    losses = [sum(run.curve[epoch].validation_loss or 0 for run in RUNS) / 2 for epoch in (-2, -1)]
    assert f"two seeds reach {sacre} sacreBLEU ({tokens} BLEU on lower-cased tokens) after {epochs} of" in text
    assert f"the validation loss still falls, from {losses[0]:.3f} to {losses[1]:.3f}" in text
