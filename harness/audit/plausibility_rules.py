"""Warnings about values that are possible but unlikely."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.audit.run_folder import Skipped, StoredRun, skip_unless
from harness.audit.table_rules import ComparedRuns
from harness.experiments.specs import DataSpec
from harness.text import first_few

LOSS_GAP = 0.2
"""Largest usual difference between test loss and validation loss of the kept epoch. Units: nats per target token."""

BLEU_OF_LOSS = {1.0: 55.0, 1.7: 36.0, 2.5: 20.0, 2.85: 13.5, 3.25: 8.5, 3.7: 3.5, 5.4: 0.0}
"""Nats per reference word and the tutorials' BLEU that goes with them on Multi30k: medians of measured runs."""

BLEU_SHARE, BLEU_POINTS = 0.4, 3.0
"""Largest usual difference from that BLEU: this share of it, plus these points."""

MOST_SEEDS = 1_000


def loss_gap(stored: StoredRun) -> Iterator[str]:
    """The test loss is close to the validation loss of the kept epoch."""
    record = stored.completed
    data = record.spec.data
    skip_unless(data.files is None and data.test_split == DataSpec().test_split, "the test set may be harder or easier")
    chosen = [line.validation_loss for line in record.curve if line.epoch in record.chosen_epochs]
    losses, test = [loss for loss in chosen if loss is not None], record.scores.get("test_loss")
    if not losses or test is None:
        raise Skipped("no losses")
    if min(abs(test - loss) for loss in losses) > LOSS_GAP:
        yield f"test_loss={test:.3f}, expected {losses[-1]:.3f} (validation_loss) within {LOSS_GAP} nats"


def bleu_of_loss(stored: StoredRun) -> Iterator[str]:
    """BLEU fits the test loss, as in other runs on Multi30k."""
    record = stored.completed
    skip_unless(record.spec.data.corpus == "multi30k", "only known for Multi30k")
    sentences, bleu = stored.checked_sentences, record.scores.get("bleu_tutorial")
    if "bleu_tutorial" not in sentences or bleu is None:
        raise Skipped("no counts of bleu_tutorial")
    # Per word of the references, because a model's tokens may be pieces of words.
    words = float(sentences["bleu_tutorial"][:, 1].sum()) + len(sentences["nats"])
    nats = float(sentences["nats"].sum()) / words
    expected = float(np.interp(nats, list(BLEU_OF_LOSS), list(BLEU_OF_LOSS.values())))
    if abs(bleu - expected) > BLEU_SHARE * expected + BLEU_POINTS:
        yield f"bleu_tutorial={bleu:.1f}, expected about {expected:.0f} (as in runs with {nats:.2f} nats per word)"


def seeds(comparison: ComparedRuns) -> Iterator[str]:
    """The seeds of a row are 0 to n without a gap."""
    skip_unless(comparison.group.budget != "pilot", "pilots have a seed of their own")
    for row in comparison.group.rows:
        recorded = {record.spec.seed for record in row.records}
        missing = sorted(set(range(min(max(recorded), MOST_SEEDS))) - recorded)
        if missing:
            yield f"{row.label}: no run with seed {first_few(missing, 5)}, expected 0 to {max(recorded)}"
