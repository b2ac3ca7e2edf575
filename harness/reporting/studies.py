"""Finds ablations among run records: runs that differ in the closed words of their recipes alone, around one base."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.reporting.fairness import fairness
from harness.reporting.groups import groups, plain
from harness.specs import RunRecord, canonical_json, to_json
from impls.contract import TransformerRecipe
from impls.recipes import RECIPES

WORDS: dict[str, tuple[str, ...]] = {
    name: typing.get_args(hint)
    for name, hint in typing.get_type_hints(TransformerRecipe).items()
    if typing.get_origin(hint) is typing.Literal
}
"""Every closed field of a Transformer recipe, and its words."""

Departures = tuple[tuple[str, str], ...]
"""(field, word) of what differs from a base, in the order of `WORDS`."""

Words = tuple[str, ...]
"""A word for each field of `WORDS`, in their order."""


def label(departures: Departures) -> str:
    """Return departures in words, such as "norm=rms, activation=tanh"; the base's, which has none, is "base"."""
    return ", ".join(f"{field}={word}" for field, word in departures) or "base"


@dataclass(frozen=True)
class Cell:
    """One recipe of a study: where it departs from the base, and its runs by seed."""

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
    """Runs of one variant that agree in every setting but the closed words of their recipes, and the seed.

    `base` are the words that the cells are held against; `differences` is why they may not be (see `fairness`).
    """

    variant: str
    title: str
    base: Mapping[str, str]
    cells: tuple[Cell, ...]
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

    def cell(self, departures: Iterable[tuple[str, str]] = ()) -> Cell | None:
        """Return the cell with these departures from the base; None where it was not run."""
        wanted = frozenset(departures)
        return next((cell for cell in self.cells if frozenset(cell.departures) == wanted), None)


def studies(records: Iterable[RunRecord], *, base: TransformerRecipe | None = None) -> tuple[Study, ...]:
    """Return each set of controlled runs that has two recipes or more which differ in closed words alone.

    The base is the recipe given, if its words are among them; else the one with the most recipes one word away, which
    is the middle of a grid that changes one field at a time; of several such, the variant's own.
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
    """Return everything of a run's settings but its seed and its recipe's closed words."""
    settings = to_json(replace(record.spec, seed=0))
    settings["recipe"] = {k: v for k, v in settings["recipe"].items() if k not in (*WORDS, "name", "source")}
    return canonical_json(settings)


def _words(record: RunRecord) -> Words:
    return _words_of(record.spec.recipe)


def _words_of(recipe: object) -> Words:
    return tuple(getattr(recipe, name) for name in WORDS)


def _study(records: Sequence[RunRecord], given: TransformerRecipe | None) -> Study:
    found: dict[Words, dict[int, RunRecord]] = {}
    for record in records:
        found.setdefault(_words(record), {})[record.spec.seed] = record
    spec = records[0].spec
    base = _base(list(found), spec.variant, given)
    cells = tuple(
        Cell(_departures(base, words), dict(sorted(runs.items())))
        for words, runs in sorted(found.items(), key=lambda pair: _place(base, pair[0]))
    )
    (group,) = groups([records[0]])
    title = f"{plain(spec.variant)}, {group.title}"
    return Study(spec.variant, title, dict(zip(WORDS, base, strict=True)), cells, _differences(cells))


def _base(found: Sequence[Words], variant: str, given: TransformerRecipe | None) -> Words:
    if given is not None and _words_of(given) in found:
        return _words_of(given)
    known = RECIPES.get(variant)
    own = _words_of(known) if isinstance(known, TransformerRecipe) else None

    def rank(words: Words) -> tuple[int, bool, tuple[int, ...]]:
        near = sum(len(_departures(words, other)) == 1 for other in found)
        return -near, words != own, _place(words, words)

    return min(found, key=rank)


def _departures(base: Words, words: Words) -> Departures:
    pairs = zip(WORDS, base, words, strict=True)
    return tuple((field, word) for field, own, word in pairs if word != own)


def _place(base: Words, words: Words) -> tuple[int, ...]:
    """Return what sorts recipes: fewer departures first, then fields and words in the contract's order."""
    places = [known.index(word) for known, word in zip(WORDS.values(), words, strict=True)]
    away = [own != word for own, word in zip(base, words, strict=True)]
    first = away.index(True) if any(away) else 0
    return (sum(away), first, *places)


def _differences(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Check the base's runs over seeds, and all recipes at each seed, so that a seed that one lacks hides nothing."""
    sets = [list(cells[0].records.values())]
    for seed in sorted({seed for cell in cells for seed in cell.records}):
        sets.append([cell.records[seed] for cell in cells if seed in cell.records])
    return tuple(dict.fromkeys(line for one in sets for line in fairness(one)))
