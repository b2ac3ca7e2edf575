"""Warnings about values that are possible but unlikely and deserve a look."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.audit.run_folder import Skipped, StoredRun
from harness.audit.table_rules import ComparedRuns

LOSS_GAP = 0.2
"""How far the test loss may be from the validation loss of the kept epoch. Units: nats per target word."""

BLEU_OF_LOSS = {1.0: 55.0, 1.7: 36.0, 2.5: 20.0, 2.85: 13.5, 3.25: 8.5, 3.7: 3.5, 5.4: 0.0}
"""Nats per word of the references and the tutorials' BLEU that go with them on Multi30k: medians of runs here."""

BLEU_SHARE, BLEU_POINTS = 0.4, 3.0
"""How far BLEU may be from that: so large a share of it, and so many points more."""


def loss_gap(stored: StoredRun) -> Iterator[str]:
    """The test loss is close to the validation loss of the kept epoch."""
    record = stored.completed
    kept = [line.validation_loss for line in record.curve if line.epoch in record.chosen_epochs]
    losses = [loss for loss in kept if loss is not None]
    test = record.scores.get("test_loss")
    if not losses or test is None:
        raise Skipped("no losses")
    if min(abs(test - loss) for loss in losses) > LOSS_GAP:
        yield f"test_loss={test:.3f}, validation_loss={losses[-1]:.3f}: more than {LOSS_GAP} nats apart"


def bleu_of_loss(stored: StoredRun) -> Iterator[str]:
    """BLEU fits the test loss, as in other runs on Multi30k."""
    record = stored.completed
    if record.spec.data.corpus != "multi30k":
        raise Skipped("known for Multi30k alone")
    found, bleu = stored.whole.sentences, record.scores.get("bleu_tutorial")
    if "bleu_tutorial" not in found or bleu is None:
        raise Skipped("no counts of bleu_tutorial")
    # Per word of the references, because a model's tokens may be pieces of words.
    words = float(found["bleu_tutorial"][:, 1].sum()) + len(found["nats"])
    nats = float(found["nats"].sum()) / words
    expected = float(np.interp(nats, list(BLEU_OF_LOSS), list(BLEU_OF_LOSS.values())))
    if abs(bleu - expected) > BLEU_SHARE * expected + BLEU_POINTS:
        yield f"bleu_tutorial={bleu:.1f} at {nats:.2f} nats per word: runs with that loss have about {expected:.0f}"


def seeds(comparison: ComparedRuns) -> Iterator[str]:
    """The seeds of a row are 0 to n without a gap."""
    if comparison.group.budget == "pilot":
        raise Skipped("pilots have a seed of their own")
    for row in comparison.group.rows:
        found = {record.spec.seed for record in row.records}
        missing = sorted(set(range(min(max(found), 1_000))) - found)
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            yield f"{row.label}: seed {', '.join(map(str, missing[:5]))}{more} missing of 0 to {max(found)}"
