"""Rules about the digests that training records: of the batches consumed and of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.audit.record_rules import TRAINING_DIGESTS
from harness.audit.run_folder import Skipped, StoredRun
from harness.data.batch_digest import MARKS, STATISTICS, WEIGHTS_MARK
from harness.experiments.serialization import to_json
from harness.experiments.specs import ADDED_FIELDS
from harness.storage import run_store
from harness.storage.records import RunRecord


def complete(stored: StoredRun) -> Iterator[str]:
    """Batches and weights have a digest at each expected update, and no digest occurs twice."""
    record = stored.known
    if before_digests(record):
        raise Skipped("trained by an older version, which took none")
    if record.status not in run_store.FINISHED or not record.curve:
        raise Skipped("not completed")
    ends = {line.updates for line in record.curve}
    last = record.curve[-1].updates
    batches, weights = (record.fingerprints.get(name) or {} for name in ("batches", "weights_after"))
    yield from _marks("batches", batches, ends | {mark for mark in MARKS if mark <= last})
    yield from _marks("weights_after", weights, ends | {mark for mark in (WEIGHTS_MARK,) if mark <= last})
    if batches.get(str(last)) != record.fingerprints.get("stream"):
        yield f"stream is not the digest of the batches after update {last:,}"
    yield from _repeated("batches", batches)
    if record.status == "completed":  # the weights of a diverged run may be not a number from some update on
        yield from _repeated("weights_after", weights)


def before_digests(record: RunRecord) -> bool:
    """Return whether a run was trained before digests were recorded: schema 1, or scored again since.

    Such runs have the default settings of that time, so no newer run can pass for one.
    """
    spec = to_json(record.spec)
    earlier = all(spec[part].get(name, value) == value for (part, name), value in ADDED_FIELDS.items() if spec[part])
    new = {*TRAINING_DIGESTS} & record.fingerprints.keys() or {"updates_per_epoch", *STATISTICS} & record.sizes.keys()
    return earlier and not new


def _marks(name: str, found: Mapping[str, str], expected: set[int]) -> Iterator[str]:
    numbers = {int(mark) for mark in found}
    for what, marks in (("no digest", expected - numbers), ("a digest", numbers - expected)):
        if marks:
            more = f" and {len(marks) - 3} more" if len(marks) > 3 else ""
            yield f"{name}: {what} after update {', '.join(map(str, sorted(marks)[:3]))}{more}"


def _repeated(name: str, found: Mapping[str, str]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for mark in sorted(found, key=int):
        first = seen.setdefault(found[mark], mark)
        if first != mark:
            yield f"{name}: the same digest after updates {first} and {mark}"


def kept_digest(record: RunRecord) -> str | None:
    """Return the digest that the kept weights must have; None if epochs were averaged or it is unknown."""
    if record.spec.training.averaged_epochs or len(record.chosen_epochs) != 1:
        return None
    updates = next((line.updates for line in record.curve if line.epoch == record.chosen_epochs[0]), None)
    return (record.fingerprints.get("weights_after") or {}).get(str(updates))
