"""Finds ablations among run records: runs around one base that differ in the closed fields of recipe and batching."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.fairness import BATCHING, undeclared
from harness.analysis.grouping import groups
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from harness.storage.records import RunRecord
from harness.text import short_line
from impls.contract import Batching, Training, TransformerRecipe
from impls.recipes import RECIPES, TUTORIAL

RECIPE_WORDS: dict[str, tuple[str, ...]] = {
    name: typing.get_args(hint)
    for name, hint in typing.get_type_hints(TransformerRecipe).items()
    if typing.get_origin(hint) is typing.Literal
}
WORDS = {**RECIPE_WORDS, "batching": typing.get_args(Batching)}
"""Every field that ablations change, and the values it accepts: the closed fields of a recipe, and batching."""

Departures = tuple[tuple[str, str], ...]
"""(field, word) of what differs from a base, in the order of `WORDS`."""

Words = tuple[str, ...]
"""A word for each field of `WORDS`, in their order."""


def label(departures: Departures) -> str:
    """Return changes as text, such as "norm=rms, activation=tanh"; "base" without changes."""
    return ", ".join(f"{field}={word}" for field, word in departures) or "base"


@dataclass(frozen=True)
class StudyCell:
    """One recipe of a study: its changes from the base, and its runs by seed."""

    departures: Departures
    records: Mapping[int, RunRecord]

    @property
    def label(self) -> str:
        return label(self.departures)

    @property
    def completed(self) -> frozenset[int]:
        """The seeds whose runs completed."""
        return frozenset(seed for seed, record in self.records.items() if record.status == "completed")

    @property
    def diverged(self) -> frozenset[int]:
        """The seeds whose runs diverged."""
        return frozenset(seed for seed, record in self.records.items() if record.status == "diverged")


@dataclass(frozen=True)
class Study:
    """Runs of one variant that agree in every setting but the fields of `WORDS` and the seed.

    `base` has the value of each field in the baseline; `differences` says why the cells are not comparable with it (see
    `fairness.undeclared`), and is empty if they are.
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
        """Whether one vocabulary serves both languages."""
        return self.records[0].spec.data.vocabulary == "joint"

    @property
    def batchings(self) -> dict[str, tuple[int, ...]]:
        """The numbers of updates of the completed runs by their batching, in the order of `WORDS`."""
        found: dict[str, set[int]] = {}
        for record in self.records:
            if record.status == "completed" and record.curve:
                found.setdefault(record.spec.training.batching, set()).add(record.curve[-1].updates)
        return {name: tuple(sorted(found[name])) for name in WORDS["batching"] if name in found}

    def cell(self, departures: Iterable[tuple[str, str]] = ()) -> StudyCell | None:
        """Return the cell with these changes from the base; None if it was not run."""
        wanted = frozenset(departures)
        return next((cell for cell in self.cells if frozenset(cell.departures) == wanted), None)


def studies(records: Iterable[RunRecord], *, base: RunSpec | None = None) -> tuple[Study, ...]:
    """Return each set of controlled runs with two cells or more that differ in nothing but the fields of `WORDS`.

    The baseline is the cell of the run given, if it is among them; else the one with the most cells one field away,
    which is the middle of a grid that changes one field at a time; of several such, the variant's own.
    """
    found: dict[str, list[RunRecord]] = {}
    for record in sorted(records, key=lambda one: (one.id, one.started)):
        if record.spec.budget == "controlled" and isinstance(record.spec.recipe, TransformerRecipe):
            found.setdefault(_surroundings(record), []).append(record)
    made = [_study(same, base) for same in found.values() if len({_words(one) for one in same}) > 1]
    order = list(RECIPES)
    return tuple(
        sorted(
            made,
            key=lambda one: (
                order.index(one.variant) if one.variant in order else len(order),
                one.variant,
                one.joint,
                one.title,
            ),
        )
    )


def _surroundings(record: RunRecord) -> str:
    """Return all of a run's settings but its seed and the fields of `WORDS`."""
    settings = to_json(replace(record.spec, seed=0))
    settings["recipe"] = {k: v for k, v in settings["recipe"].items() if k not in (*RECIPE_WORDS, "name", "source")}
    del settings["training"]["batching"]
    return canonical_json(settings)


def _words(record: RunRecord) -> Words:
    return _words_of(record.spec.recipe, record.spec.training)


def _words_of(recipe: object, training: Training) -> Words:
    return (*(getattr(recipe, name) for name in RECIPE_WORDS), training.batching)


def _study(records: Sequence[RunRecord], given: RunSpec | None) -> Study:
    found: dict[Words, dict[int, RunRecord]] = {}
    for record in records:
        found.setdefault(_words(record), {})[record.spec.seed] = record
    spec = records[0].spec
    base = _base(list(found), spec.variant, given)
    cells = tuple(
        StudyCell(_departures(base, words), dict(sorted(runs.items())))
        for words, runs in sorted(found.items(), key=lambda pair: _place(base, pair[0]))
    )
    (group,) = groups([next(iter(found[base].values()))])
    title = f"{short_line(spec.variant)}, {group.title}"
    return Study(spec.variant, title, dict(zip(WORDS, base, strict=True)), cells, differences(cells))


def _base(found: Sequence[Words], variant: str, given: RunSpec | None) -> Words:
    if given is not None and _words_of(given.recipe, given.training) in found:
        return _words_of(given.recipe, given.training)
    known = RECIPES.get(variant)
    own = _words_of(known, TUTORIAL) if isinstance(known, TransformerRecipe) else None

    def rank(words: Words) -> tuple[int, bool, tuple[int, ...]]:
        near = sum(len(_departures(words, other)) == 1 for other in found)
        return -near, words != own, _place(words, words)

    return min(found, key=rank)


def _departures(base: Words, words: Words) -> Departures:
    pairs = zip(WORDS, base, words, strict=True)
    return tuple((field, word) for field, own, word in pairs if word != own)


def _place(base: Words, words: Words) -> tuple[int, ...]:
    """Return the sort key of a recipe: fewer changes first, then fields and levels in the order of the contract."""
    places = [known.index(word) for known, word in zip(WORDS.values(), words, strict=True)]
    away = [own != word for own, word in zip(base, words, strict=True)]
    first = away.index(True) if any(away) else 0
    return (sum(away), first, *places)


def differences(cells: Sequence[StudyCell], declared: Collection[str] = ()) -> tuple[str, ...]:
    """Return the differences between the runs of these cells beyond their changes and the settings `declared`.

    The baseline's runs are compared over seeds, and all cells at each seed, so that a cell that lacks a seed hides no
    difference of the others.
    """
    declared = {BATCHING, *declared}
    sets = [list(cells[0].records.values())]
    for seed in sorted({seed for cell in cells for seed in cell.records}):
        sets.append([cell.records[seed] for cell in cells if seed in cell.records])
    return tuple(dict.fromkeys(str(line) for one in sets for line in undeclared(one, declared)))
