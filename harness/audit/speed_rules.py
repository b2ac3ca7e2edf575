"""Rules about times and speeds: they agree with each other and are possible."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from datetime import datetime

from harness.audit.record_rules import updates_per_epoch
from harness.audit.run_folder import NOT_STARTED, ROUNDING, StoredRun, skip_unless, unequal
from harness.storage import run_store
from harness.storage.records import RunRecord

FLOAT_BYTES = 4


def times(stored: StoredRun) -> Iterator[str]:
    """The start is a time, and the total time and that of validation follow from the epochs."""
    record = stored.record
    skip_unless(record.started or record.status in run_store.FINISHED, NOT_STARTED)
    if start_time(record) is None:
        yield f"started={record.started!r}: expected a time with its zone, such as 2026-01-02T03:04:05+00:00"
    for line in record.curve:
        if not line.training_seconds > 0 or line.validation_seconds < 0:
            yield (
                f"epoch {line.epoch}: training_seconds={line.training_seconds!r} and validation_seconds="
                f"{line.validation_seconds!r}: expected a positive number and one of at least 0"
            )
    total = record.speed.get("total_seconds", math.inf)
    yield from _outside("total_seconds", total, _epoch_seconds(record), math.inf)
    if record.curve:
        median = statistics.median(line.validation_seconds for line in record.curve)
        recorded = record.speed.get("validation_seconds")
        yield from unequal("validation_seconds", recorded, median, "the median of its epochs")


def start_time(record: RunRecord) -> datetime | None:
    """Return when a run started, or None if the record has no time with a time zone."""
    try:
        time = datetime.fromisoformat(record.started)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _epoch_seconds(record: RunRecord) -> float:
    return math.fsum(line.training_seconds + line.validation_seconds for line in record.curve)


def _outside(name: str, value: float, least: float, most: float, source: str = "its epochs") -> Iterator[str]:
    """Yield a fault if a number is out of range, apart from rounding; `source` says where the range comes from."""
    if not least * (1 - ROUNDING) <= value <= most * (1 + ROUNDING):
        limits = f"at least {least:,.3f}" if most == math.inf else f"{least:,.3f} to {most:,.3f}"
        yield f"{name}={value:,.3f}, expected {limits} ({source})"


def speeds(stored: StoredRun) -> Iterator[str]:
    """Speeds agree with each other, the total time, and the memory of the machine."""
    record = stored.trained
    yield from _processes(record)
    yield from _rates(record)
    yield from _decoding(record)
    yield from _memory(record)


def _processes(record: RunRecord) -> Iterator[str]:
    """Yield faults of the first update, of compilations and of resumptions."""
    first = record.speed.get("first_update_seconds", 0.0)
    yield from _outside("first_update_seconds", first, 0, record.curve[0].training_seconds, "epoch 1")
    if record.spec.framework != "keras" and record.spec.recipe is not None and record.spec.cuda_graphs == "off":
        for name in ("compilations", "compilation_seconds"):
            source = f"{record.spec.framework} compiles nothing"
            yield from _outside(name, record.speed.get(name, 0.0), 0, 0, source)
    epochs, updates = (record.environment.get(f"resumed_after_{unit}") for unit in ("epochs", "updates"))
    if "resumed_after_updates" in record.environment and len(epochs or ()) != len(updates or ()):
        yield f"resumed_after_epochs={epochs}, but resumed_after_updates={updates}: expected as many of both"


def _rates(record: RunRecord) -> Iterator[str]:
    """Yield the speeds of training that do not follow from the learning curve, apart from rounding.

    They are those of its steady updates: neither the first one of a process nor one that compiles. A resumed run stores
    the time of its very first update only, and the compilations of its last process.
    """
    speed, updates = record.speed, record.curve[-1].updates
    resumed, compilations = record.environment.get("resumed_after_epochs"), int(speed.get("compilations", 0))
    excluded = math.inf if resumed and compilations else 1 + len(resumed or ()) + compilations
    steady = updates - excluded  # at least so many
    if record.status not in run_store.FINISHED or updates < 2 or (steady <= 0 and "epoch_seconds" not in speed):
        return
    most = math.fsum(line.training_seconds for line in record.curve) - speed.get("first_update_seconds", 0.0)
    least = 0.0 if resumed else max(0.0, most - speed.get("compilation_seconds", 0.0))
    tokens = sum(line.tokens for line in record.curve)
    fewest = max(0.0, tokens - excluded * _largest_batch(record))
    per_epoch = updates_per_epoch(record)
    rate, seconds = (speed.get(name, math.nan) for name in ("training_tokens_per_second", "epoch_seconds"))
    longest = most * per_epoch / steady if steady > 0 else math.inf
    yield from _outside("epoch_seconds", seconds, least * per_epoch / (updates - 1), longest)
    fastest = tokens / least if least > 0 else math.inf
    yield from _outside("training_tokens_per_second", rate, fewest / most if most > 0 else 0.0, fastest)
    if steady > 0:
        name, share = "training_tokens_per_second times epoch_seconds", per_epoch / steady
        yield from _outside(name, rate * seconds, fewest * share, tokens * share)


def _decoding(record: RunRecord) -> Iterator[str]:
    """Yield a total time that is too short for the epochs and the translation of the test set.

    A run with the weights of another run has the total time of that run, but a translation of its own.
    """
    if record.environment.get("trained_as"):
        return
    rate, total = (record.speed.get(name) for name in ("decoding_sentences_per_second", "total_seconds"))
    if rate and total is not None:
        epochs, decoding = _epoch_seconds(record), record.sizes.get("test_pairs", 0) / rate
        if decoding > (total - epochs) * (1 + ROUNDING) + ROUNDING:
            yield (
                f"total_seconds={total:.1f}, expected at least {epochs:.1f} for its epochs and {decoding:.1f} for the "
                f"test set at {rate:.1f} sentences per second"
            )


def _memory(record: RunRecord) -> Iterator[str]:
    """Yield a peak memory below the size of the parameters or above that of the machine that trained."""
    machine = {} if record.environment.get("trained_as") else record.environment.get("machine") or {}
    available = machine.get("memory_bytes")
    most = available if isinstance(available, int | float) else math.inf
    peak, least = record.speed.get("peak_memory_bytes"), FLOAT_BYTES * record.sizes.get("parameters", 0)
    if peak is not None and not least <= peak <= most:
        yield f"peak_memory_bytes={peak:,.0f}, expected {least:,.0f} (parameters) to {most:,.0f} (machine)"


def _largest_batch(record: RunRecord) -> int:
    """Return an upper bound of the target tokens in a batch."""
    training = record.spec.training
    return max(training.batch_size * record.spec.data.max_length, training.batch_tokens)
