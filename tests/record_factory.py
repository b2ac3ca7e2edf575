"""Synthetic run records for the tests of reporting: plausible figures, no training."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np

from harness.experiments.specs import DataSpec, EpochRecord, RunRecord, RunSpec
from impls.contract import Recipe, Training
from impls.recipes import RECIPES, TRAININGS, TUTORIAL

SIGNATURES = {
    "bleu_tutorial": "nrefs:1|case:lc|eff:no|tok:none|smooth:none|version:2.5.1",
    "bleu_tokenised": "nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.5.1",
    "bleu_sacre": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1",
    "chrf": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.5.1",
}
FINAL = {
    "learned_positions": 1.62,
    "sinusoidal_handmade": 1.66,
    "conv_ffn": 1.60,
    "paper": 1.58,
    "paper_base": 1.70,
    "bahdanau_gru": 2.15,
    "torch_reference": 1.63,
    "plain": 1.64,
    "tuned": 1.56,
}
SPEEDS = {"bahdanau_gru": 1_450.0, "paper_base": 640.0}


def digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def narrow(recipe: Recipe) -> Recipe:
    """Return the recipe at the width of the quick suite."""
    changes: dict[str, Any] = {"width": 128}
    if hasattr(recipe, "embedding_width"):
        changes["embedding_width"] = 128
    return replace(recipe, **changes)


def run_spec(variant: str = "learned_positions", seed: int = 0, **changes: Any) -> RunSpec:
    budget = changes.get("budget", "controlled")
    training = TRAININGS.get(variant, TUTORIAL) if budget == "source" else TUTORIAL
    settings: dict[str, Any] = {"recipe": RECIPES.get(variant), "training": training, "data": DataSpec()}
    return RunSpec(variant=variant, seed=seed, **{**settings, **changes})


def curve(training: Training, final: float, noise: np.random.Generator, updates_per_epoch: int) -> Any:
    lines = []
    for epoch in range(1, training.epochs + 1):
        validation = final + 2.4 * math.exp(-epoch / 2.2) + 0.01 * noise.standard_normal()
        train = final - 0.15 + 3.0 * math.exp(-epoch / 2.6) - 0.02 * epoch
        lines.append(
            EpochRecord(
                epoch=epoch,
                updates=epoch * updates_per_epoch,
                tokens=400_000,
                learning_rate=training.peak_rate,
                training_loss=train + training.label_smoothing * 3,
                training_perplexity=math.exp(train),
                validation_loss=validation,
                validation_perplexity=math.exp(validation),
                largest_gradient_norm=2.5,
                training_seconds=300.0,
                validation_seconds=4.0,
            )
        )
    return tuple(lines)


def record(
    variant: str = "learned_positions", seed: int = 0, *, final: float | None = None, **changes: Any
) -> RunRecord:
    """Return a completed run; keyword arguments change its specification."""
    spec = run_spec(variant, seed, **changes)
    noise = np.random.default_rng([seed, *variant.encode()])
    final = FINAL.get(variant, 1.8) if final is None else final
    bleu = 60.0 - 15.5 * final + 0.35 * float(noise.standard_normal())
    rate = SPEEDS.get(variant, 2_100.0 + 400 * (final - 1.6)) * (1 + 0.01 * float(noise.standard_normal()))
    lines = curve(
        spec.training, final, noise, math.ceil((spec.data.training_pairs or 29_000) / spec.training.batch_size)
    )
    return RunRecord(
        id=spec.id,
        spec=spec,
        status="completed",
        started="2026-01-02T03:04:05+00:00",
        command=f"python -m harness run {variant} --seed {seed}",
        fingerprints=fingerprints(spec),
        environment={
            "commit": digest("commit")[:40],
            "machine": "x86_64, 2 cores",
            "versions": {"python": "3.11.9", "numpy": "2.1.0", "torch": "2.13.0"},
        },
        sizes={
            "parameters": 20_518_405 if variant == "bahdanau_gru" else 9_038_341,
            "source_words": 7_853,
            "target_words": 5_893,
            "train_pairs": spec.data.training_pairs or 29_000,
            "validation_pairs": 1_014,
            "test_pairs": 1_000,
            "train_left_out": 0,
            "validation_cut": 0,
            "test_cut": 0,
            "test_source_unknown_rate": 0.031,
            "test_target_unknown_rate": 0.017,
        },
        curve=lines,
        chosen_epochs=(spec.training.epochs,),
        scores=scores(final, bleu),
        signatures=dict(SIGNATURES),
        speed={
            "training_tokens_per_second": rate,
            "epoch_seconds": 400_000 / rate,
            "first_update_seconds": 0.91,
            "decoding_sentences_per_second": rate / 30,
            "validation_seconds": 4.2,
            "total_seconds": 400_000 / rate * spec.training.epochs + 60,
            "peak_memory_bytes": 2.1e9,
        },
        decode={"ties": 2, "unfinished": 1},
    )


def fingerprints(spec: RunSpec) -> dict[str, Any]:
    names = {"encoder.0.self.query.kernel": "256x256", "encoder.0.feed_forward.inner.kernel": "256x512"}
    if spec.variant == "bahdanau_gru":
        names = {"bridge.kernel": "1024x512"}
    rule = getattr(spec.recipe, "embedding_init", spec.recipe and spec.recipe.family)
    rule = "xavier" if rule in ("torch_reference", "plain") else rule
    weights = {name: f"{shape}:{digest(name, shape, spec.seed)}" for name, shape in names.items()}
    weights["source.embedding"] = f"7853x256:{digest('source.embedding', rule, spec.seed)}"
    return {
        "files": {"train.de": digest("train.de"), "train.en": digest("train.en")},
        "source_vocabulary": digest("source words"),
        "target_vocabulary": digest("target words"),
        "tokenised": digest("ids"),
        "stream": digest("stream", spec.seed, spec.training.batch_size),
        "weights": weights,
        "hypotheses": digest("hypotheses", spec.id),
        "trained_weights": digest("trained", spec.id),
    }


def scores(final: float, bleu: float) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        "test_loss": final,
        "test_perplexity": math.exp(final),
        "tutorial_perplexity": math.exp(final - 0.05),
        "bleu_tutorial": bleu,
        "bleu_tokenised": bleu + 0.1,
        "bleu_sacre": bleu - 1.3,
        "chrf": bleu + 22,
    }
    for order, (cumulative, individual) in enumerate(((30.0, 30.0), (14.0, 14.0), (6.0, -6.0), (0.0, -15.0)), start=1):
        found[f"bleu_{order}_cumulative"] = bleu + cumulative
        found[f"bleu_{order}_individual"] = bleu + individual
    return found
