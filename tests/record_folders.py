"""Whole folders of runs that were never trained: every figure is worked out from the others, as a real run's is."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from small_runs import DATA, TINY, TRAINING, spec

from harness.data import multi30k
from harness.data.batch_digest import expected_batches, weights_digest
from harness.data.batches import evaluation_batches, updates_per_epoch
from harness.data.dataset import Dataset, Split, detokenise, prepare
from harness.evaluation.evaluate import test_scores
from harness.evaluation.metrics import perplexity_from_sums
from harness.experiments.specs import DataSpec, DecodingSpec, EpochRecord, RunRecord, RunSpec
from harness.processes import machine
from harness.storage import run_store
from harness.storage.run_store import Hypothesis
from harness.training.schedules import learning_rate
from impls import weights
from impls.contract import Arrays, Numbers, Recipe

RECIPES: dict[str, Recipe] = {
    "learned_positions": TINY,
    "paper": replace(TINY, positions="sinusoidal", tying="output"),
}
SCHEDULE = replace(TRAINING, schedule="inverse_sqrt", warmup_updates=10)
DECODING = DecodingSpec(max_tokens=40)
LOSSES = (5.0, 3.5, 3.6)


def folder_spec(variant: str, seed: int, **changes: Any) -> RunSpec:
    """Return the spec of one run of the set."""
    return spec(variant, RECIPES[variant], **{"seed": seed, "training": SCHEDULE, "decoding": DECODING, **changes})


def write_set(results: Path, *, seeds: int = 2, **changes: Any) -> list[RunRecord]:
    """Write the folders of both variants and each seed."""
    return [write_run(results, folder_spec(variant, seed, **changes)) for variant in RECIPES for seed in range(seeds)]


def write_run(results: Path, run: RunSpec, prepared: Dataset | None = None, *, right: float = 0.8) -> RunRecord:
    """Write the folder of one completed run, on `prepared` or else on what its settings name.

    `right` is the share of right words in its translations.
    """
    prepared = prepared or prepare(run.data)
    noise = np.random.default_rng([run.seed, *run.variant.encode()])
    assert run.recipe is not None
    first = weights.initial(run.recipe, len(prepared.source_words), len(prepared.target_words), run.seed)
    hypotheses = translations(prepared, noise, right)
    scores = test_scores(prepared, hypotheses, run.decoding.unknown)
    sentences: Arrays = {
        "tokens": np.array([len(one) - 1 for one in prepared.test.target], np.int32),
        **scores.statistics,
    }
    sentences["nats"] = sentences["tokens"] * noise.uniform(2.2, 3.9, len(hypotheses))
    loss = float(sentences["nats"].sum() / sentences["tokens"].sum())
    perplexities = {
        "test_loss": loss,
        "test_perplexity": float(perplexity_from_sums(sentences["nats"].sum(), sentences["tokens"].sum())),
        "tutorial_perplexity": tutorial_perplexity(prepared, sentences),
    }
    trained = {
        name: one + np.float32(0.01) * noise.standard_normal(one.shape, np.float32) for name, one in first.items()
    }
    curve = made_curve(run, prepared, noise)
    consumed = expected_batches(prepared.train, run.training, seed=run.seed, updates=[line.updates for line in curve])
    record = RunRecord(
        id=run.id,
        spec=run,
        status="completed",
        started="2026-01-02T03:04:05+00:00",
        command=f"python -m harness run {run.variant} --seed {run.seed}",
        fingerprints={
            **prepared.digests,
            "batches": consumed.marks,
            "stream": consumed.digest,
            "weights_after": {
                str(line.updates): weights_digest(trained if line.epoch == 2 else {run.id: np.array(line.epoch)})
                for line in curve
            },
            "weights": machine.array_digests(first),
            "hypotheses": run_store.save_hypotheses(results, run.id, hypotheses),
            "trained_weights": run_store.save_weights(results, run.id, trained),
            "sentences": run_store.save_sentences(results, run.id, sentences),
            "attention": run_store.save_attention(results, run.id, attention(hypotheses[:3])),
        },
        environment=environment(run),
        sizes={
            "parameters": sum(one.size for one in first.values()),
            "updates_per_epoch": curve[0].updates,
            **prepared.figures,
            **consumed.statistics(),
        },
        curve=curve,
        chosen_epochs=(2,),
        scores={**perplexities, **scores.values},
        signatures=dict(scores.signatures),
        speed=speeds(curve),
        decode={"ties": 1, "unfinished": 0, "unknown_tokens": 0},
    )
    run_store.save_record(results, record)
    return record


def tutorial_perplexity(prepared: Dataset, sentences: Arrays) -> float:
    """Return exp of the mean over evaluation batches of each batch's nats per target word."""
    batches = [rows for _, rows in evaluation_batches(prepared.test)]
    return math.exp(
        math.fsum(sentences["nats"][one].sum() / sentences["tokens"][one].sum() for one in batches) / len(batches)
    )


def multi30k_prepared(data: DataSpec) -> Dataset:
    """Return captions as if they were Multi30k: with its files' digests and its numbers of pairs."""
    captions = prepare(DATA)
    names = multi30k.names(data.direction, data.test_split)
    files = {name: multi30k.DIGESTS[name] for pair in names.values() for name in pair}
    pairs = {"train": 29_000, "validation": 1_014, "test": 1_000}
    tests = ("test_source_text", "test_target_text", "test_target_tokens", "test_target_moses")
    return replace(
        captions,
        data=data,
        digests={**captions.digests, "files": files},
        figures={**captions.figures, **{f"{name}_pairs": count for name, count in pairs.items()}},
        **{
            name: Split(*(repeated(side, count) for side in (found.source, found.target)), left_out=0, cut=0)
            for name, count in pairs.items()
            for found in [getattr(captions, name)]
        },
        **{name: tuple(repeated(getattr(captions, name), pairs["test"])) for name in tests},
    )


def repeated(values: Sequence[Any], count: int) -> list[Any]:
    return list(itertools.islice(itertools.cycle(values), count))


def translations(prepared: Dataset, noise: np.random.Generator, right: float) -> list[Hypothesis]:
    """Return the references with some of their words replaced."""
    words = prepared.target_words
    tokens = [
        tuple(word if noise.random() < right else words[int(noise.integers(4, len(words)))] for word in one)
        for one in prepared.test_target_tokens
    ]
    return [
        Hypothesis(number, *one) for number, one in enumerate(zip(tokens, detokenise(prepared, tokens), strict=True))
    ]


def attention(hypotheses: list[Hypothesis]) -> dict[int, Numbers]:
    """Return attention that looks at 8 source positions alike."""
    return {one.sentence: np.full((1, len(one.tokens) + 1, 8), 1 / 8, np.float16) for one in hypotheses}


def made_curve(run: RunSpec, prepared: Dataset, noise: np.random.Generator) -> tuple[EpochRecord, ...]:
    """Return three epochs, of which the second has the least validation loss."""
    lines, each = [], updates_per_epoch(prepared.train, run.training)
    for epoch, level in enumerate(LOSSES, start=1):
        training, validation = (level + 0.1 * float(noise.random()) for _ in range(2))
        lines.append(
            EpochRecord(
                epoch=epoch,
                updates=epoch * each,
                tokens=sum(len(one) - 1 for one in prepared.train.target),
                learning_rate=learning_rate(run.training, epoch * each),
                training_loss=training,
                training_perplexity=math.exp(training),
                validation_loss=validation - 0.5 * (epoch == 2),
                validation_perplexity=math.exp(validation - 0.5 * (epoch == 2)),
                largest_gradient_norm=2.5,
                training_seconds=3.0 + float(noise.random()),
                validation_seconds=0.2 + float(noise.random()),
            )
        )
    return tuple(lines)


def speeds(curve: tuple[EpochRecord, ...]) -> dict[str, float]:
    """Return the speeds that the curve makes, the first update apart."""
    first, updates = 0.9, curve[-1].updates
    steady = sum(line.training_seconds for line in curve) - first
    tokens = sum(line.tokens for line in curve)
    return {
        "total_seconds": sum(line.training_seconds + line.validation_seconds for line in curve) + 15,
        "first_update_seconds": first,
        "training_tokens_per_second": tokens * (updates - 1) / updates / steady,
        "epoch_seconds": steady / (updates - 1) * curve[0].updates,
        "validation_seconds": statistics.median(line.validation_seconds for line in curve),
        "peak_memory_bytes": 2.1e8,
        "decoding_sentences_per_second": 80.0,
    }


def environment(run: RunSpec) -> dict[str, Any]:
    """Return an environment with the versions of this one, so that what is computed again may be held against it."""
    return {
        "python": "3.11.7",
        "versions": {"torch": "2.13.0", **machine.versions()},
        "commit": {"digest": "a" * 40, "dirty": False},
        "machine": {"processor": "a processor", "cores": 2, "memory_bytes": 8e9, "system": "Linux"},
        "framework": run.framework,
        "backend": run.framework,
        "device": run.device,
        "precision": run.precision,
        "threads": run.threads,
        "variables": {"OMP_NUM_THREADS": str(run.threads)},
        "resumed_after_epochs": [],
    }
