"""What is wrong with a test set: too few sentences, or sentences that are in the training text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.storage.records import RunRecord
from harness.text import count

FEW_SENTENCES = 50
"""With fewer test sentences, the variance that they cause is itself uncertain, which intervals do not cover."""
LARGEST_OVERLAP = 0.05
"""A larger share of test pairs in the training text is warned of."""


def of_test_set(records: Sequence[RunRecord]) -> list[str]:
    """Return the warnings of the test set of some runs, in sentences."""
    sentences = min((record.sizes.get("test_pairs", FEW_SENTENCES) for record in records), default=FEW_SENTENCES)
    lines = [few_sentences(int(sentences))] if sentences < FEW_SENTENCES else []
    if repeated := overlap(records):
        lines.append(f"{repeated}.")
    return lines


def few_sentences(number: int) -> str:
    """Return a warning of too few test sentences."""
    return f"Only {count(number, 'test sentence')}: intervals are too narrow, and p-values too small."


def overlap(records: Iterable[RunRecord]) -> str:
    """Return a warning of test pairs that are training pairs too, as a clause; empty if they are few or not counted."""
    for sizes in (record.sizes for record in records):
        repeated, pairs = sizes.get("test_pairs_in_train", 0), sizes.get("test_pairs", 0)
        if repeated > LARGEST_OVERLAP * pairs:
            return f"{repeated:,.0f} of {pairs:,.0f} test pairs are in the training text, so scores are too high"
    return ""
