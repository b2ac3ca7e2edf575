"""Rules about runs that share a table: what must be equal in all of them, and what must differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.fairness import SOURCE_KINDS, Kind, Mismatch, unfair
from harness.analysis.grouping import RunTable, groups, rows
from harness.audit.run_folder import Skipped, StoredRun
from harness.evaluation.metrics import SMOOTHING

NAMED = "the runs named"
PLACES = ("framework", "backend", "device", "precision", "threads", "python")


@dataclass(frozen=True)
class ComparedRuns:
    """Runs that share a table of a report, and the settings in which they differ but should agree."""

    group: RunTable
    stored: tuple[StoredRun, ...]
    differences: tuple[Mismatch, ...]

    @property
    def controlled(self) -> bool:
        return self.group.budget != "source"


def comparisons(found: Sequence[StoredRun], *, named: bool) -> tuple[ComparedRuns, ...]:
    """Return the tables that a report forms of these runs; one per budget if the runs are `named` one by one."""
    by_id = {one.record.id: one for one in found if one.record is not None}
    records = [one.record for one in by_id.values() if one.record is not None]
    if named:
        budgets = sorted({record.spec.budget for record in records})
        made = [RunTable(one, NAMED, rows(r for r in records if r.spec.budget == one)) for one in budgets]
    else:
        made = list(groups(records, pilots=True))
    return tuple(
        ComparedRuns(
            group,
            tuple(by_id[record.id] for record in group.records),
            tuple(unfair(group.records, group.budget)),
        )
        for group in made
    )


def agreement(kind: Kind) -> Callable[[ComparedRuns], Iterator[str]]:
    """Return the rule that the runs of a table agree in this kind of setting."""

    def rule(comparison: ComparedRuns) -> Iterator[str]:
        if not comparison.controlled and kind not in SOURCE_KINDS:
            raise Skipped("each is trained as its source trains it")
        _two(comparison)
        yield from (str(one) for one in comparison.differences if one.kind == kind)

    return rule


def words(comparison: ComparedRuns) -> Iterator[str]:
    """All runs have the same target tokens in each epoch and test sentence, and the same references."""
    _two(comparison)
    if not comparison.controlled:
        raise Skipped("each is trained as its source trains it")
    epochs = (
        (f"target words, seed {one.spec.seed}, epoch {line.epoch}", line.tokens, one.id)
        for one in comparison.group.records
        for line in one.curve
    )
    yield from _sides(epochs)
    counts = []
    for one in comparison.stored:
        try:
            found = one.sentences
        except (Skipped, ValueError, OSError):
            continue  # another rule reports it
        counts.append(("target words of the test sentences", found["tokens"].tobytes(), one.name))
        for name in SMOOTHING:
            if name in found and found[name].shape[1] > 1:
                counts.append((f"reference words of {name}", found[name][:, 1].tobytes(), one.name))
    yield from _sides(counts, shown=False)


def replicas(comparison: ComparedRuns) -> Iterator[str]:
    """Two seeds of a variant give different runs."""
    if max(len(row.records) for row in comparison.group.rows) < 2:
        raise Skipped("one seed alone")
    for row in comparison.group.rows:
        seen: dict[object, int] = {}
        for record in row.records:
            told = [("weights", record.fingerprints.get("trained_weights"))]
            told.append(("losses", tuple((line.training_loss, line.validation_loss) for line in record.curve)))
            for name, value in told:
                first = seen.setdefault((name, value), record.spec.seed) if value else record.spec.seed
                if first != record.spec.seed:
                    yield f"{row.label}: seeds {first} and {record.spec.seed} have the same {name}"


def remarks(comparison: ComparedRuns) -> list[str]:
    """Return remarks that are no faults: runs on different machines, diverged, resumed or uncommitted ones."""
    records = comparison.group.records
    found = list(comparison.group.caveats)
    for name in PLACES:
        found += _sides((name, record.environment.get(name), record.id) for record in records)
    found += _sides(("processor", (r.environment.get("machine") or {}).get("processor"), r.id) for r in records)
    found += _sides(("commit", (r.environment.get("commit") or {}).get("digest"), r.id) for r in records)
    libraries = sorted({name for record in records for name in record.environment.get("versions") or {}})
    for name in libraries:
        found += _sides((name, (r.environment.get("versions") or {}).get(name), r.id) for r in records)
    found += [f"diverged: {one.id} ({' '.join(one.reason.split())})" for one in records if one.status == "diverged"]
    dirty = [one.id for one in records if (one.environment.get("commit") or {}).get("dirty")]
    if dirty:
        found.append(f"made with files that are not those of the commit: {_who(dirty)}")
    resumed = [one.id for one in records if one.environment.get("resumed_after_epochs")]
    if resumed:
        found.append(f"interrupted and resumed: {_who(resumed)}")
    return found


def _two(comparison: ComparedRuns) -> None:
    if len(comparison.group.records) < 2:
        raise Skipped("one run alone")


def _sides(told: Iterable[tuple[str, Any, str]], *, shown: bool = True) -> list[str]:
    """Return a line for each name with several values: which run has which."""
    found: dict[str, dict[Any, list[str]]] = {}
    for name, value, who in told:
        found.setdefault(name, {}).setdefault(value if isinstance(value, bytes) else str(value), []).append(who)
    return [
        f"{name}: "
        + "; ".join(f"{value} in {_who(who)}" if shown else f"one in {_who(who)}" for value, who in sides.items())
        for name, sides in found.items()
        if len(sides) > 1
    ]


def _who(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
