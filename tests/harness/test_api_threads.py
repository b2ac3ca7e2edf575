"""The Python interface in several threads of one process."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_runs import TINY

import harness
from harness.training import load

pytestmark = pytest.mark.usefixtures("cache")
SETTINGS = {"data.training_pairs": 200, "training.batch_size": 16, "decoding.max_tokens": 5, "threads": 1}
RECIPE = dataclasses.replace(TINY, dropout=0.3)


def train(results: Path, seed: int, epochs: int = 2) -> str:
    """Return the digest of the weights of a trained run."""
    run = harness.run(RECIPE, epochs=epochs, seed=seed, results=results, settings=SETTINGS)
    return run.record.fingerprints["trained_weights"]


def test_runs_in_threads_have_the_weights_of_runs_one_after_another(tmp_path: Path) -> None:
    alone = [train(tmp_path / "alone", seed) for seed in range(3)]
    with ThreadPoolExecutor(4) as threads:
        tasks = [threads.submit(train, tmp_path / "threads", seed) for seed in (0, 1, 2, 0)]
        together = [task.result() for task in tasks]
    assert together == [*alone, alone[0]]


def test_translation_in_another_thread_does_not_change_a_training(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", 0, epochs=8)
    (run,) = harness.load(tmp_path / "alone")
    with ThreadPoolExecutor(1) as threads:
        training = threads.submit(train, tmp_path / "threads", 0, epochs=8)
        while not training.done():
            load._stored_model.cache_clear()
            assert len(harness.translate(run, ["Ein Hund"])) == 1
    assert training.result() == alone
