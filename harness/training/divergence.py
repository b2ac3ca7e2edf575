"""What an epoch and a run have come to, in words, and whether they diverged."""

from __future__ import annotations

import math

from harness.processes.progress import duration
from harness.storage.records import EpochRecord, RunRecord
from impls.contract import Totals

OVERFLOW_NATS = 700.0
"""A loss beyond this has no perplexity that a float64 can hold: the run counts as diverged."""


def epoch_remark(epoch: EpochRecord, epochs: int) -> str:
    """Return a line that says what an epoch came to."""
    return (
        f"epoch {epoch.epoch}/{epochs}: training loss {epoch.training_loss:.3f}, "
        f"validation loss {epoch.validation_loss:.3f}, validation perplexity {epoch.validation_perplexity:.2f}, "
        f"{epoch.tokens / epoch.training_seconds:,.0f} tokens/s"
    )


def record_remark(record: RunRecord) -> str:
    """Return a line that says how a run ended."""
    if record.status != "completed":
        return f"{record.status}: {record.reason}"
    scores = {name: math.nan if value is None else value for name, value in record.scores.items()}
    return (
        f"completed in {duration(record.speed['total_seconds'])}: test perplexity {scores['test_perplexity']:.3f}, "
        f"tutorial BLEU {scores['bleu_tutorial']:.2f}"
    )


def why_diverged(epoch: EpochRecord, totals: Totals) -> str:
    """Return why an epoch has no perplexity, or nothing."""
    if not totals.finite:
        return f"epoch {epoch.epoch}: the loss or the gradients of an update are not finite"
    for name in ("training", "validation"):
        if None in (getattr(epoch, f"{name}_loss"), getattr(epoch, f"{name}_perplexity")):
            return f"epoch {epoch.epoch}: the {name} loss is not finite, or beyond {OVERFLOW_NATS:.0f} nats"
    return ""


def has_perplexity(loss: float) -> bool:
    """Return whether a loss is finite, and its exponential too."""
    return math.isfinite(loss) and loss < OVERFLOW_NATS


def perplexity(loss: float) -> float | None:
    """Return the exponential of a loss, None where it has none."""
    return math.exp(loss) if has_perplexity(loss) else None


def finite(value: float) -> float | None:
    """Return a number that is one, else None."""
    return value if math.isfinite(value) else None
