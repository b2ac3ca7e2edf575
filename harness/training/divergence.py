"""Whether an epoch diverged, and lines for the log about epochs and runs."""

from __future__ import annotations

import math

from harness.processes.progress import duration
from harness.storage.records import EpochRecord, RunRecord
from impls.contract import Totals

OVERFLOW_NATS = 700.0
"""A run whose loss is not below this has diverged: the perplexity would overflow a float64."""


def epoch_remark(epoch: EpochRecord, epochs: int) -> str:
    """Return a line with the metrics of an epoch."""
    return (
        f"epoch {epoch.epoch}/{epochs}: training loss {epoch.training_loss:.3f}, "
        f"validation loss {epoch.validation_loss:.3f}, validation perplexity {epoch.validation_perplexity:.2f}, "
        f"{epoch.tokens / epoch.training_seconds:,.0f} tokens/s"
    )


def record_remark(record: RunRecord) -> str:
    """Return a line with the result of a run."""
    if record.status != "completed":
        return record.ending
    scores = {name: math.nan if value is None else value for name, value in record.scores.items()}
    stopped = f", stopped early after epoch {record.stopped_epoch}" if record.stopped_epoch is not None else ""
    is_trained = "trained_as" not in record.environment  # otherwise its seconds are those of another run
    done = f"completed in {duration(record.speed['total_seconds'])}" if is_trained else "completed"
    return f"{done}{stopped}: test perplexity {scores['test_perplexity']:.3f}, sacreBLEU {scores['bleu_sacre']:.2f}"


def why_diverged(epoch: EpochRecord, totals: Totals) -> str:
    """Return why an epoch diverged, or an empty string."""
    if not totals.finite:
        return f"epoch {epoch.epoch}: the loss or the gradients of an update are not finite"
    for name in ("training", "validation"):
        if None in (getattr(epoch, f"{name}_loss"), getattr(epoch, f"{name}_perplexity")):
            return f"epoch {epoch.epoch}: the {name} loss is not finite, or beyond {OVERFLOW_NATS:.0f} nats"
    return ""


def has_perplexity(loss: float) -> bool:
    """Return whether a loss and its exponential are finite."""
    return math.isfinite(loss) and loss < OVERFLOW_NATS


def perplexity(loss: float) -> float | None:
    """Return the exponential of a loss; None if it is not finite."""
    return math.exp(loss) if has_perplexity(loss) else None


def finite(value: float) -> float | None:
    """Return a finite number, or None."""
    return value if math.isfinite(value) else None
