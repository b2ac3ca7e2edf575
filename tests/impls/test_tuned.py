"""The variant `tuned` has the data and search of the published systems, and no suite runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.data.dataset import prepare
from harness.experiments import suites
from harness.experiments.overrides import override
from harness.experiments.specs import DataSpec, RunSpec
from harness.training import train
from impls import registry
from impls.contract import TransformerRecipe
from impls.weights import count


def tuned(data: DataSpec) -> RunSpec:
    return suites.spec(suites.SUITES["standard"], "tuned", budget="source", seed=0, data=data)


def test_tuned_run_has_vocabulary_and_search_of_source() -> None:
    run = tuned(DataSpec())
    assert (run.data.tokenizer, run.data.vocabulary, run.data.merges) == ("moses-bpe", "joint", 10_000)
    assert (run.data.case, run.decoding.beam, run.training) == ("lower", 5, registry.training("tuned"))
    assert isinstance(run.recipe, TransformerRecipe)
    assert (run.recipe.dropout, run.recipe.attention_rate, run.recipe.activation_rate) == (0.2, 0, 0)
    assert run.training.averaged_epochs > 1
    assert all(suites.has("tuned", framework) for framework in ("torch", "keras"))
    assert not [suite.name for suite in suites.SUITES.values() if "tuned" in (*suite.variants, *suite.in_keras)]


@pytest.mark.slow
def test_tuned_joint_vocabulary_has_published_size(
    multi30k_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wu et al. 2021 report 9,708 pieces."""
    monkeypatch.setenv("MULTI30K_DIR", str(multi30k_folder))
    run = tuned(DataSpec())
    dataset = prepare(run.data)
    assert dataset.source_words == dataset.target_words
    assert len(dataset.target_words) - 4 == pytest.approx(9_708, rel=2e-3)
    assert dataset.figures["train_target_unknown_rate"] == 0
    assert count(run.recipe, len(dataset.source_words), len(dataset.target_words)) == 8_028_411


def test_tuned_learns_captions(tmp_path: Path, cache: Path) -> None:
    run = tuned(DataSpec(corpus="captions"))
    small = ("recipe.width=16", "recipe.layers=1", "recipe.heads=2", "recipe.ffn_width=16", "data.merges=200")
    small += ("training.averaged_epochs=2", "training.epochs=3", "training.batch_size=64", "data.training_pairs=300")
    small += ("training.warmup_updates=5", "training.peak_rate=0.01", "decoding.max_tokens=8", "threads=1")
    record = train.run(replace(override(run, small), device="cpu"), tmp_path)
    assert record.status == "completed"
    assert record.chosen_epochs == (2, 3)
    assert record.sizes["source_words"] == record.sizes["target_words"]
    losses = [epoch.validation_loss for epoch in record.curve]
    assert None not in losses
    assert losses[-1] < losses[0]  # type: ignore[operator]
    assert record.scores["bleu_tokenised"] is not None
