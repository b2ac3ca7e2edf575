"""The rule that rows of a controlled table differ only in the variant or in ablated fields."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from harness.analysis.grouping import TableRow
from harness.audit.run_folder import Skipped
from harness.audit.table_rules import ComparedRuns
from harness.experiments.serialization import to_json
from impls.recipes import RECIPES

NAMES = ("name", "source", "family")
PROPORTIONAL = {"ffn_width": "width", "head_width": "width"}
"""Fields that a smaller recipe may have reduced in proportion to another."""

Fields = dict[str, Any]


def differences(comparison: ComparedRuns) -> Iterator[str]:
    """Rows of a controlled table differ in their variant, in one field, or are all combinations of some fields."""
    if not comparison.controlled:
        raise Skipped("each is trained as its source trains it")
    if comparison.group.budget == "tuned":
        raise Skipped("a base that kept its learning rate stands in the controlled table")
    if len(comparison.group.rows) < 2:
        raise Skipped("one row alone")
    variants: dict[str, list[TableRow]] = {}
    for row in comparison.group.rows:
        variants.setdefault(row.variant, []).append(row)
    bases = {}
    for variant, found in variants.items():
        base = _base(found)
        bases[variant] = base
        yield from _undeclared(found, base)
    yield from _departures(bases)


def _fields(row: TableRow) -> Fields:
    """Return the settings that a row may differ in: recipe, precision and framework."""
    spec = row.records[0].spec
    recipe = {name: value for name, value in (to_json(spec.recipe) or {}).items() if name not in NAMES}
    return {**recipe, "precision": spec.precision, "framework": (spec.framework, spec.backend)}


def _changed(row: TableRow, base: TableRow) -> frozenset[str]:
    one, other = _fields(row), _fields(base)
    return frozenset(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _base(rows: Sequence[TableRow]) -> TableRow:
    """Return the row from which most others differ in at most one field; of several, the closest to its variant."""

    def rank(row: TableRow) -> tuple[int, int]:
        near = sum(len(_changed(other, row)) <= 1 for other in rows)
        known = to_json(RECIPES.get(row.variant)) or {}
        return -near, sum(known.get(name, value) != value for name, value in _fields(row).items())

    return min(rows, key=rank)


def _undeclared(rows: Sequence[TableRow], base: TableRow) -> Iterator[str]:
    """Yield the rows of a variant that differ from its base in several fields, without a row for each combination."""
    there = {frozenset((name, repr(_fields(row).get(name))) for name in _changed(row, base)) for row in rows}
    for row in rows:
        own = [(name, repr(_fields(row).get(name))) for name in sorted(_changed(row, base))]
        parts = (frozenset(part) for size in range(1, len(own)) for part in itertools.combinations(own, size))
        if any(part not in there for part in parts):
            told = ", ".join(f"{name}={value}" for name, value in own)
            yield f"{row.label} differs from {base.label} in {len(own)} fields ({told}): no row has fewer of them"


def _departures(bases: dict[str, TableRow]) -> Iterator[str]:
    """Yield the fields of a built-in variant that are neither its own nor common to all variants."""
    fields = {variant: _fields(row) for variant, row in bases.items()}
    for name in ("precision",):
        values = {variant: own[name] for variant, own in fields.items()}
        if len(set(values.values())) > 1:
            yield f"{name}: {', '.join(f'{value} in {variant}' for variant, value in values.items())}"
    for variant, own in fields.items():
        known = to_json(RECIPES.get(variant)) or {}
        for name, value in own.items():
            if name not in known or value == known[name] or _in_proportion(name, own, known):
                continue
            others = [one for one in fields if one != variant and name in fields[one] and one in RECIPES]
            unlike = [one for one in others if fields[one][name] != value]
            if unlike:
                yield f"{name}={value!r} in {variant}, whose own is {known[name]!r}; not so in {', '.join(unlike)}"


def _in_proportion(name: str, own: Fields, known: Fields) -> bool:
    """Whether a size is reduced in proportion to another size of the variant."""
    whole = PROPORTIONAL.get(name)
    if whole not in own or not own[name] or not known.get(name):
        return False
    return bool(own[whole] != known[whole] and max(1, known[name] * own[whole] // known[whole]) == own[name])
