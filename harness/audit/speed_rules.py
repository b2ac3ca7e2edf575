"""Rules about times and speeds: they agree with each other and are possible."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from datetime import datetime

from harness.audit.record_rules import ROUNDING, equal, updates_per_epoch
from harness.audit.run_folder import Skipped, StoredRun
from harness.storage import run_store
from harness.storage.records import RunRecord

RESUMED_SLACK = 0.25
"""How much faster a resumed run may seem, as a share: the first update of every process but the first is not stored."""

FLOAT_BYTES = 4


def times(stored: StoredRun) -> Iterator[str]:
    """The start is a time, and the total times and rates follow from the epochs."""
    record = stored.known
    if not record.started and record.status not in run_store.FINISHED:
        raise Skipped("broke off before it began")
    if begun(record) is None:
        yield f"started={record.started!r}: expected a time with its zone, such as 2026-01-02T03:04:05+00:00"
    for line in record.curve:
        if not line.training_seconds > 0 or line.validation_seconds < 0:
            yield f"epoch {line.epoch}: {line.training_seconds!r} and {line.validation_seconds!r} seconds"
    seconds = math.fsum(line.training_seconds + line.validation_seconds for line in record.curve)
    total = record.speed.get("total_seconds", math.inf)
    if total < seconds * (1 - ROUNDING):
        yield f"total_seconds={total:.1f}, but its epochs took {seconds:.1f}"
    yield from _rates(record)


def begun(record: RunRecord) -> datetime | None:
    """Return when a run started, or None if the record has no time with a time zone."""
    try:
        found = datetime.fromisoformat(record.started)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _rates(record: RunRecord) -> Iterator[str]:
    """Yield the speeds that do not follow from the learning curve.

    They exclude the first update of each process and updates that compile.
    """
    speed, curve = record.speed, record.curve
    if not curve:
        return
    median = statistics.median(line.validation_seconds for line in curve)
    if not equal(speed.get("validation_seconds"), median):
        yield f"validation_seconds={speed.get('validation_seconds')}, the median of its epochs is {median}"
    each = updates_per_epoch(record)
    if record.environment.get("resumed_after_epochs") or curve[-1].updates < 2:
        return
    spent, updates = math.fsum(line.training_seconds for line in curve), curve[-1].updates
    most = spent - speed.get("first_update_seconds", 0.0)
    least = max(0.0, most - speed.get("compilation_seconds", 0.0))
    share = each / (updates - 1)
    epoch = speed.get("epoch_seconds", math.nan)
    if not least * share * (1 - ROUNDING) <= epoch <= most * share * (1 + ROUNDING):
        yield f"epoch_seconds={epoch}, its epochs give {most * share}"
    tokens = sum(line.tokens for line in curve)
    rate = speed.get("training_tokens_per_second", math.nan)
    if least > 0 and not (tokens - _largest_batch(record)) / most * (1 - ROUNDING) <= rate <= tokens / least * (
        1 + ROUNDING
    ):
        yield f"training_tokens_per_second={rate:.1f}, its epochs give at most {tokens / least:.1f}"


def speeds(stored: StoredRun) -> Iterator[str]:
    """Speeds agree with each other, the total time, and the memory of the machine."""
    record = stored.known
    if not record.curve:
        raise Skipped("no epoch")
    yield from _first_update(record)
    yield from _product(record)
    yield from _resumed(record)
    yield from _decoding(record)
    yield from _memory(record)


def _first_update(record: RunRecord) -> Iterator[str]:
    first, line = record.speed.get("first_update_seconds", 0.0), record.curve[0]
    if first > line.training_seconds * (1 + ROUNDING):
        yield f"first_update_seconds={first:.1f}, but the first epoch took {line.training_seconds:.1f}"
    if record.spec.framework != "keras" and record.spec.recipe is not None:
        for name in ("compilations", "compilation_seconds"):
            if record.speed.get(name):
                yield f"{name}={record.speed[name]}, but {record.spec.framework} compiles nothing"
    processes = [len(record.environment.get(f"resumed_after_{unit}") or ()) for unit in ("epochs", "updates")]
    if len(set(processes)) > 1 and "resumed_after_updates" in record.environment:
        yield f"resumed {processes[0]} times by epochs, {processes[1]} times by updates"


def _product(record: RunRecord) -> Iterator[str]:
    """Yield a difference between the target tokens of an epoch and its seconds times its rate."""
    rate, seconds = (record.speed.get(name) for name in ("training_tokens_per_second", "epoch_seconds"))
    each, updates = updates_per_epoch(record), record.curve[-1].updates
    left_out = 1 + len(record.environment.get("resumed_after_epochs") or ())
    left_out += int(record.speed.get("compilations", 0))
    steady = updates - left_out
    if rate is None or seconds is None or each is None or steady < 1:
        return
    tokens = sum(line.tokens for line in record.curve)
    most = tokens / steady * each
    least = max(0, tokens - left_out * _largest_batch(record)) / steady * each
    if not least * (1 - ROUNDING) <= rate * seconds <= most * (1 + ROUNDING):
        yield (
            f"training_tokens_per_second times epoch_seconds is {rate * seconds:,.0f} target words an epoch, its "
            f"epochs have {record.curve[0].tokens:,}"
        )


def _resumed(record: RunRecord) -> Iterator[str]:
    """Yield the rate of a resumed run that its epochs do not allow."""
    rate = record.speed.get("training_tokens_per_second")
    if not record.environment.get("resumed_after_epochs") or rate is None or record.speed.get("compilations"):
        return
    tokens, spent = (math.fsum(getattr(line, name) for line in record.curve) for name in ("tokens", "training_seconds"))
    steady = spent - record.speed.get("first_update_seconds", 0.0)
    most = tokens / steady * (1 + RESUMED_SLACK) if steady > 0 else 0.0
    if not 0 < rate <= most:
        yield f"training_tokens_per_second={rate:.1f}, its epochs give at most {most:.1f}"


def _decoding(record: RunRecord) -> Iterator[str]:
    rate, total = (record.speed.get(name) for name in ("decoding_sentences_per_second", "total_seconds"))
    if not rate or total is None:
        return
    epochs = math.fsum(line.training_seconds + line.validation_seconds for line in record.curve)
    translating = record.sizes.get("test_pairs", 0) / rate
    if translating > (total - epochs) * (1 + ROUNDING) + ROUNDING:
        yield (
            f"total_seconds={total:.1f}, but its epochs took {epochs:.1f} and {rate:.1f} sentences a second make "
            f"{translating:.1f} for the test set"
        )


def _memory(record: RunRecord) -> Iterator[str]:
    peak = record.speed.get("peak_memory_bytes")
    there = (record.environment.get("machine") or {}).get("memory_bytes")
    if peak is None:
        return
    if isinstance(there, int | float) and peak > there:
        yield f"peak_memory_bytes={peak:,.0f}, but the machine has {there:,.0f}"
    least = FLOAT_BYTES * record.sizes.get("parameters", 0)
    if peak < least:
        yield f"peak_memory_bytes={peak:,.0f}, but its parameters alone take {least:,.0f}"


def _largest_batch(record: RunRecord) -> int:
    """Return an upper bound of the target tokens in a batch."""
    training = record.spec.training
    return max(training.batch_size * record.spec.data.max_length, training.batch_tokens)
