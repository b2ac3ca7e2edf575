"""Finds ablations among run records: runs around one base that differ in the closed fields of recipe and batching."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.fairness import BATCHING, undeclared
from harness.analysis.grouping import group_by, groups, measure, rows, variant_order
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from harness.storage.records import RunRecord
from harness.text import short_line
from impls.contract import Batching, TransformerRecipe
from impls.recipes import RECIPES

RECIPE_LEVELS: dict[str, tuple[str, ...]] = {
    name: typing.get_args(hint)
    for name, hint in typing.get_type_hints(TransformerRecipe).items()
    if typing.get_origin(hint) is typing.Literal
}
LEVELS = {**RECIPE_LEVELS, "batching": typing.get_args(Batching)}
"""Every field that ablations change, and its levels: the closed fields of a recipe, and batching."""

Changes = tuple[tuple[str, str], ...]
"""The changes from a base, (field, level), in the order of `LEVELS`."""

Levels = tuple[str, ...]
"""A level for each field of `LEVELS`, in their order."""


def label(changes: Changes) -> str:
    """Return changes as text, such as "norm=rms, activation=tanh"; "base" without changes."""
    return ", ".join(f"{field}={level}" for field, level in changes) or "base"


@dataclass(frozen=True)
class StudyCell:
    """A recipe of a study: its changes from the base, and its runs by seed."""

    changes: Changes
    records: Mapping[int, RunRecord]

    @property
    def label(self) -> str:
        return label(self.changes)

    @property
    def completed(self) -> frozenset[int]:
        """The seeds whose runs completed."""
        return frozenset(seed for seed, record in self.records.items() if record.status == "completed")

    @property
    def diverged(self) -> frozenset[int]:
        """The seeds whose runs diverged."""
        return frozenset(seed for seed, record in self.records.items() if record.status == "diverged")

    def values(self, metric: str) -> list[float]:
        """Return a metric of the completed runs that have it, by ascending seed."""
        values = [measure(self.records[seed], metric) for seed in sorted(self.completed)]
        return [value for value in values if value is not None]


@dataclass(frozen=True)
class Study:
    """Runs of one variant that agree in every setting except the fields of `LEVELS` and the seed.

    Attributes:
        title: The variant and the title of its table.
        base: The level of each field in the baseline.
        cells: The recipes, the baseline first.
        differences: The reasons why the cells are not comparable (see `fairness.undeclared`); empty if they are.
    """

    variant: str
    title: str
    base: Mapping[str, str]
    cells: tuple[StudyCell, ...]
    differences: tuple[str, ...]

    @property
    def records(self) -> tuple[RunRecord, ...]:
        return tuple(record for cell in self.cells for record in cell.records.values())

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for cell in self.cells for seed in cell.records}))

    @property
    def joint(self) -> bool:
        """Whether both languages share one vocabulary."""
        return self.records[0].spec.data.vocabulary == "joint"

    @property
    def batchings(self) -> dict[str, tuple[int, ...]]:
        """The numbers of updates of the completed runs by their batching, in the order of `LEVELS`."""
        completed = [record for record in self.records if record.status == "completed" and record.curve]
        by_batching = group_by(completed, lambda record: record.spec.training.batching)
        return {
            batching: tuple(sorted({record.curve[-1].updates for record in by_batching[batching]}))
            for batching in LEVELS["batching"]
            if batching in by_batching
        }

    def cell(self, changes: Iterable[tuple[str, str]] = ()) -> StudyCell | None:
        """Return the cell with these changes from the base; None if it was not run."""
        pairs = frozenset(changes)
        return next((cell for cell in self.cells if frozenset(cell.changes) == pairs), None)


def studies(records: Iterable[RunRecord], *, base: RunSpec | None = None) -> tuple[Study, ...]:
    """Return each set of controlled runs that differ only in the fields of `LEVELS` and have two cells or more.

    The baseline is the cell of `base` if it is among the runs. Otherwise it is the cell with the most cells one field
    away, which is the centre of a grid that changes one field at a time; the variant's own recipe wins a tie.
    """
    candidates = [
        record
        for record in sorted(records, key=lambda record: (record.id, record.started))
        if record.spec.budget == "controlled" and isinstance(record.spec.recipe, TransformerRecipe)
    ]
    by_settings = group_by(candidates, _other_settings)
    several = [same for same in by_settings.values() if len({_levels(record.spec) for record in same}) > 1]
    return tuple(
        sorted(
            _told_apart([_study(same, base) for same in several]),
            key=lambda study: (variant_order(study.variant), study.joint, study.title),
        )
    )


def _told_apart(studies: Sequence[Study]) -> list[Study]:
    """Return the studies; a title that several have also names the settings in which they differ."""
    named: list[Study] = []
    for same in group_by(studies, lambda study: study.title).values():
        if len(same) > 1:
            bases = [replace(study.records[0], id=str(index)) for index, study in enumerate(same)]
            labels = {int(row.records[0].id): row.label for row in rows(bases)}
            variant = short_line(same[0].variant)
            same = [
                replace(study, title=study.title.replace(variant, labels[index], 1)) for index, study in enumerate(same)
            ]
        named += same
    return named


def differences(cells: Sequence[StudyCell], declared: Collection[str] = ()) -> tuple[str, ...]:
    """Return the differences between the runs of these cells beyond their changes and the settings `declared`.

    The baseline's runs are compared over seeds, and all cells at each seed, so that a cell that lacks a seed hides no
    difference of the others.
    """
    sets = [list(cells[0].records.values())]
    for seed in sorted({seed for cell in cells for seed in cell.records}):
        sets.append([cell.records[seed] for cell in cells if seed in cell.records])
    mismatches = [mismatch for records in sets for mismatch in undeclared(records, {BATCHING, *declared})]
    return tuple(dict.fromkeys(map(str, mismatches)))


def _other_settings(record: RunRecord) -> str:
    """Return all settings of a run except its seed and the fields of `LEVELS`."""
    settings = to_json(replace(record.spec, seed=0))
    fields = (*RECIPE_LEVELS, "name", "source")
    settings["recipe"] = {name: value for name, value in settings["recipe"].items() if name not in fields}
    del settings["training"]["batching"]
    return canonical_json(settings)


def _levels(spec: RunSpec) -> Levels:
    return (*(getattr(spec.recipe, name) for name in RECIPE_LEVELS), spec.training.batching)


def _study(records: Sequence[RunRecord], base_run: RunSpec | None) -> Study:
    by_levels = group_by(records, lambda record: _levels(record.spec))
    spec = records[0].spec
    base = _base(list(by_levels), spec.variant, base_run)
    cells = tuple(
        StudyCell(_changes(base, levels), dict(sorted({run.spec.seed: run for run in by_levels[levels]}.items())))
        for levels in sorted(by_levels, key=lambda levels: _sort_key(base, levels))
    )
    (table,) = groups(by_levels[base][:1])
    title = f"{short_line(spec.variant)}, {table.title}"
    return Study(spec.variant, title, dict(zip(LEVELS, base, strict=True)), cells, differences(cells))


def _base(cells: Sequence[Levels], variant: str, base_run: RunSpec | None) -> Levels:
    """Return the baseline among the cells; see `studies`."""
    if base_run is not None and _levels(base_run) in cells:
        return _levels(base_run)
    built_in = RECIPES.get(variant)
    is_transformer = isinstance(built_in, TransformerRecipe)
    own_levels = _levels(RunSpec(variant=variant, recipe=built_in)) if is_transformer else None

    def rank(levels: Levels) -> tuple[int, bool, tuple[int, ...]]:
        neighbours = sum(len(_changes(levels, cell)) == 1 for cell in cells)
        return -neighbours, levels != own_levels, _sort_key(levels, levels)

    return min(cells, key=rank)


def _changes(base: Levels, levels: Levels) -> Changes:
    triples = zip(LEVELS, base, levels, strict=True)
    return tuple((field, level) for field, base_level, level in triples if level != base_level)


def _sort_key(base: Levels, levels: Levels) -> tuple[int, ...]:
    """Return the sort key of a recipe: fewer changes first, then fields and levels in the order of the contract."""
    positions = [accepted.index(level) for accepted, level in zip(LEVELS.values(), levels, strict=True)]
    is_changed = [base_level != level for base_level, level in zip(base, levels, strict=True)]
    first_change = is_changed.index(True) if any(is_changed) else 0
    return (sum(is_changed), first_change, *positions)
