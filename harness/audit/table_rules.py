"""Rules about runs that share a table: what must be equal in all of them, and what must differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.fairness import SOURCE_KINDS, Kind, Mismatch, find_mismatches
from harness.analysis.grouping import RunTable, groups, rows
from harness.audit.record_rules import SIZES_OF_RUNS
from harness.audit.run_folder import StoredRun, skip_unless
from harness.audit.sentence_traces import traces
from harness.storage.records import RunRecord
from harness.text import first_few

NAMED = "the named runs"
OWN_TRAINING = "each variant is trained as in its source"
SINGLE_RUN = "one run only"
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


def comparisons(runs: Sequence[StoredRun], *, per_budget: bool) -> tuple[ComparedRuns, ...]:
    """Return the tables of a report on these runs, or one table per budget."""
    by_id = {run.parsed.id: run for run in runs if run.parsed is not None}
    records = [run.record for run in by_id.values()]
    if per_budget:
        budgets = sorted({record.spec.budget for record in records})
        tables = [RunTable(budget, NAMED, rows(r for r in records if r.spec.budget == budget)) for budget in budgets]
    else:
        tables = list(groups(records, pilots=True))
    return tuple(
        ComparedRuns(
            table,
            tuple(by_id[record.id] for record in table.records),
            tuple(find_mismatches(table.records, table.budget)),
        )
        for table in tables
    )


def agreement(kind: Kind) -> Callable[[ComparedRuns], Iterator[str]]:
    """Return the rule that the runs of a table agree in this kind of setting."""

    def rule(comparison: ComparedRuns) -> Iterator[str]:
        skip_unless(comparison.controlled or kind in SOURCE_KINDS, OWN_TRAINING)
        skip_unless(len(comparison.group.records) > 1, SINGLE_RUN)
        yield from (str(mismatch) for mismatch in comparison.differences if mismatch.kind == kind)

    return rule


def seeds(comparison: ComparedRuns) -> Iterator[str]:
    """Every controlled variant has the same seeds, or the first of those that another one has."""
    differences = [*agreement("seeds")(comparison)]
    of_rows = [sorted(record.spec.seed for record in row.records) for row in comparison.group.rows]
    most = max(of_rows, key=len)
    if any(row != most[: len(row)] for row in of_rows):
        yield from differences


def words(comparison: ComparedRuns) -> Iterator[str]:
    """All runs have the same sizes of the corpus, target tokens in each epoch and test sentence, and references."""
    skip_unless(len(comparison.group.records) > 1, SINGLE_RUN)
    skip_unless(comparison.controlled, OWN_TRAINING)
    yield from _disagreements(
        (f"sizes.{name}", float(size), record.id)
        for record in comparison.group.records
        for name, size in record.sizes.items()
        if name not in SIZES_OF_RUNS
    )
    yield from _disagreements(
        (f"target tokens, seed {record.spec.seed}, epoch {line.epoch}", line.tokens, record.id)
        for record in comparison.group.records
        for line in record.curve
    )
    yield from _disagreements(
        (name, digest, run.name) for run in comparison.stored for name, digest in traces(run).counts.items()
    )


def replicas(comparison: ComparedRuns) -> Iterator[str]:
    """Two seeds of a variant give different runs."""
    skip_unless(any(len(row.records) > 1 for row in comparison.group.rows), "one seed only")
    for row in comparison.group.rows:
        first_seeds: dict[object, int] = {}
        for record in row.records:
            losses = tuple((line.training_loss, line.validation_loss) for line in record.curve)
            if not set(losses) - {(None, None)}:
                losses = ()  # runs that diverged in their first epoch have no losses to compare
            for name, value in (("weights", record.fingerprints.get("trained_weights")), ("losses", losses)):
                first = first_seeds.setdefault((name, value), record.spec.seed) if value else record.spec.seed
                if first != record.spec.seed:
                    yield f"{row.label}: seeds {first} and {record.spec.seed} have the same {name}"


def remarks(comparison: ComparedRuns) -> list[str]:
    """Return remarks that are no faults: runs on different machines, diverged, resumed or uncommitted ones."""
    records = comparison.group.records
    lines = list(comparison.group.caveats) + _disagreements(_origins(records))
    most = max(len(row.records) for row in comparison.group.rows)
    fewer = [f"{row.label} ({len(row.records)})" for row in comparison.group.rows if len(row.records) < most]
    lines += [f"fewer than {most} seeds: {', '.join(fewer)}"] if fewer and comparison.controlled else []
    lines += [f"diverged: {run.id} ({' '.join(run.reason.split())})" for run in records if run.status == "diverged"]
    dirty = [record.id for record in records if (record.environment.get("commit") or {}).get("dirty")]
    resumed = [record.id for record in records if record.environment.get("resumed_after_epochs")]
    for remark, ids in (("made with uncommitted changes", dirty), ("interrupted and resumed", resumed)):
        lines += [f"{remark}: {first_few(ids)}"] if ids else []
    return lines


def _origins(records: Sequence[RunRecord]) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the value and the run of each part of the environment in which runs may differ."""
    libraries = sorted({name for record in records for name in record.environment.get("versions") or {}})
    for record in records:
        environment = record.environment
        machine, commit, versions = (environment.get(name) or {} for name in ("machine", "commit", "versions"))
        yield from ((name, environment.get(name), record.id) for name in PLACES)
        yield "matmul_precision", record.spec.matmul_precision, record.id
        yield "processor", machine.get("processor"), record.id
        yield "commit", commit.get("digest"), record.id
        yield from ((name, versions.get(name), record.id) for name in libraries)


def _disagreements(values: Iterable[tuple[str, Any, str]]) -> list[str]:
    """Return a line for each name with several values, with the runs that have each; arrays are not shown."""
    runs: dict[str, dict[Any, list[str]]] = {}
    for name, value, run in values:
        runs.setdefault(name, {}).setdefault(value if isinstance(value, bytes) else str(value), []).append(run)
    lines = []
    for name, sides in runs.items():
        labels = [f"version {number}" if isinstance(value, bytes) else value for number, value in enumerate(sides, 1)]
        holders = [f"{label} in {first_few(ids)}" for label, ids in zip(labels, sides.values(), strict=True)]
        lines += [f"{name}: {'; '.join(holders)}"] if len(sides) > 1 else []
    return lines
