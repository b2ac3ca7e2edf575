"""Records with translations, sentence statistics, attention and weights in run folders, for the tests of pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from record_factory import record

from harness.evaluation import metrics
from harness.experiments.specs import DataSpec, RunRecord
from harness.reporting.run_files import Text
from harness.storage import run_store

WORDS = (
    "a",
    "man",
    "woman",
    "dog",
    "in",
    "the",
    "red",
    "blue",
    "shirt",
    "park",
    "is",
    "running",
    "street",
    "with",
    "ball",
)
ATTENDED = 2
SOURCE, REFERENCE = "quelltext", "referencetext"
"""Words that stand in every source and every reference, and nowhere else."""


def sentences(count: int, noise: np.random.Generator) -> list[run_store.Hypothesis]:
    """Return translations of 5 to 14 made-up words."""
    found = []
    for number in range(count):
        tokens = tuple(WORDS[place] for place in noise.integers(0, len(WORDS), int(noise.integers(5, 15))))
        found.append(run_store.Hypothesis(number, tokens, " ".join(tokens) + "."))
    return found


def made(variant: str, seed: int, count: int) -> list[run_store.Hypothesis]:
    """Return the translations that `folder` stores for a run."""
    return sentences(count, np.random.default_rng([7, seed, *variant.encode()]))


def put(results: Path, one: RunRecord, hypotheses: Sequence[run_store.Hypothesis]) -> RunRecord:
    """Store a run's folder and return its record, with scores that its sentence statistics give and all digests."""
    noise = np.random.default_rng([one.spec.seed, *one.spec.variant.encode()])
    count = len(hypotheses)
    words = np.array([max(len(hypothesis.tokens), 4) for hypothesis in hypotheses])
    right = [noise.binomial(words - order, 0.75 - 0.1 * order) for order in range(4)]
    bleu = np.stack([words, words, *right, *(words - order for order in range(4))], axis=-1).astype(np.int32)
    arrays = {"nats": words * 1.6 + noise.normal(size=count), "tokens": words.astype(np.int32), "bleu_sacre": bleu}
    scores = {
        **one.scores,
        "bleu_sacre": float(metrics.score_from_sums("bleu_sacre", bleu.sum(axis=0))),
        "test_perplexity": float(metrics.perplexity_from_sums(arrays["nats"].sum(), arrays["tokens"].sum())),
    }
    maps = {}
    for hypothesis in hypotheses[:ATTENDED]:
        shape = (3, len(hypothesis.tokens) + 1)
        maps[hypothesis.sentence] = noise.dirichlet(np.ones(6), shape).astype(np.float16)
    digests = {
        "hypotheses": run_store.save_hypotheses(results, one.id, hypotheses),
        "sentences": run_store.save_sentences(results, one.id, arrays),
        "attention": run_store.save_attention(results, one.id, maps),
    }
    done = replace(one, scores=scores, fingerprints={**one.fingerprints, **digests})
    run_store.save_record(results, done)
    return done


def folder(
    results: Path, variants: Iterable[str], *, seeds: int, count: int, weights: bool = False, budget: str = "controlled"
) -> list[RunRecord]:
    """Store runs of variants with some seeds and return their records."""
    stored = []
    for variant in variants:
        for seed in range(seeds):
            one = record(variant, seed, budget=budget)
            if weights and seed == 0:
                table = np.random.default_rng(0).normal(size=(20, 16)).astype(np.float32)
                digest = run_store.save_weights(results, one.id, {"source.positions": table})
                one = replace(one, fingerprints={**one.fingerprints, "trained_weights": digest})
            stored.append(put(results, one, made(variant, seed, count)))
    return stored


def texts(count: int, data: DataSpec | None = None) -> dict[DataSpec, Text]:
    """Return a test set of so many sentences, whose text is told from everything else."""
    tokens = [("<sos>", SOURCE, "zwei", "drei", "vier", "<eos>")] * count
    source = [f"{SOURCE} nummer {number}" for number in range(count)]
    return {data or DataSpec(): Text(source, [f"{REFERENCE} number {number}" for number in range(count)], tokens)}
