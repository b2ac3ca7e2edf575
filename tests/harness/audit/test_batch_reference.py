"""The independent batches of `check` are those of training, also of very long runs."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from consumed_batches import expected_batches
from small_runs import DATA, TRAINING

from harness.audit.batch_reference import expected
from harness.data.dataset import prepare
from harness.data.vocabulary import Split
from impls.contract import Training

UPDATES = (1, 7, 50, 130)
"""The last is in another block of batches than the first."""

BATCHINGS = {
    "random": TRAINING,
    "length": replace(TRAINING, batching="length", batch_size=9),
    "tokens": replace(TRAINING, batching="tokens", batch_tokens=90),
}


@pytest.mark.parametrize("batching", BATCHINGS)
def test_expected_batches_are_those_of_training(batching: str, cache: object) -> None:
    train, training = prepare(DATA).train, BATCHINGS[batching]
    result = expected(train, training, seed=3, updates=UPDATES)
    trained = expected_batches(train, training, seed=3, updates=UPDATES)
    assert {str(update): digest for update, digest in result.marks.items()} == trained.marks
    assert result.statistics == trained.statistics()
    assert result.tokens[max(UPDATES)] == trained.target_tokens


def test_batches_of_18_000_epochs_are_computed_in_seconds() -> None:
    sentences = [np.array([2, *range(4, 5 + length), 3], np.int32) for length in range(10)]
    began = time.process_time()
    result = expected(Split(sentences, sentences), Training(batch_size=10), seed=0, updates=range(1, 18_001))
    assert len(result.marks) == 18_000
    assert time.process_time() - began < 5
