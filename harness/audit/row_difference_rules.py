"""The rule that rows of a controlled table differ only in the variant or in ablated fields."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from harness.analysis.grouping import TableRow
from harness.audit.run_folder import skip_unless
from harness.audit.table_rules import OWN_TRAINING, ComparedRuns
from harness.experiments.serialization import to_json
from impls.recipes import RECIPES

NAMES = ("name", "source", "family")
PRECISIONS = ("precision", "matmul_precision")
PROPORTIONAL = {"ffn_width": "width", "head_width": "width"}
"""Fields that a smaller recipe may have reduced in proportion to another."""

Fields = dict[str, Any]


def differences(comparison: ComparedRuns) -> Iterator[str]:
    """Rows of a controlled table differ in their variant, in one field, or are all combinations of some fields."""
    rows, budget = comparison.group.rows, comparison.group.budget
    skip_unless(comparison.controlled, OWN_TRAINING)
    skip_unless(budget != "tuned", "a base that kept its learning rate stands in the controlled table")
    skip_unless(len(rows) > 1, "one row only")
    bases = {}
    for variant in dict.fromkeys(row.variant for row in rows):
        same_variant = [row for row in rows if row.variant == variant]
        bases[variant] = _base(same_variant)
        yield from _undeclared(same_variant, bases[variant])
    yield from _unlike_recipes({variant: _fields(row) for variant, row in bases.items()})


def _fields(row: TableRow) -> Fields:
    """Return the settings that a row may differ in: recipe, precision, that of matrix products, and framework."""
    spec = row.records[0].spec
    recipe = {name: value for name, value in (to_json(spec.recipe) or {}).items() if name not in NAMES}
    precisions = {name: getattr(spec, name) for name in PRECISIONS}
    return {**recipe, **precisions, "framework": (spec.framework, spec.backend)}


def _changed(row: TableRow, base: TableRow) -> list[tuple[str, str]]:
    """Return the fields in which a row differs from a base, in order, with their values in the row."""
    fields, expected = _fields(row), _fields(base)
    names = sorted(fields.keys() | expected.keys())
    return [(name, repr(fields.get(name))) for name in names if fields.get(name) != expected.get(name)]


def _base(rows: Sequence[TableRow]) -> TableRow:
    """Return the row from which most others differ in at most one field; of several, the closest to its variant."""
    of_rows = list(map(_fields, rows))
    names = sorted({name for fields in of_rows for name in fields})
    values = [tuple(fields.get(name) for name in names) for fields in of_rows]
    equal = Counter(values)
    # The rows that agree in all fields but one, for each field: rows are not compared pair by pair.
    others = [Counter(row[:index] + row[index + 1 :] for row in values) for index in range(len(names))]

    def rank(place: int) -> tuple[int, int]:
        row, fields = values[place], of_rows[place]
        near = sum(same[row[:index] + row[index + 1 :]] - equal[row] for index, same in enumerate(others))
        recipe = to_json(RECIPES.get(rows[place].variant)) or {}
        return -near - equal[row], sum(recipe.get(name, value) != value for name, value in fields.items())

    return rows[min(range(len(rows)), key=rank)]


def _undeclared(rows: Sequence[TableRow], base: TableRow) -> Iterator[str]:
    """Yield the rows of a variant that differ from its base in several fields, without a row for each combination."""
    of_rows = [_changed(row, base) for row in rows]
    present = set(map(frozenset, of_rows))
    for row, changed in zip(rows, of_rows, strict=True):
        subsets = (subset for size in range(1, len(changed)) for subset in itertools.combinations(changed, size))
        if any(frozenset(subset) not in present for subset in subsets):
            values = ", ".join(f"{name}={value}" for name, value in changed)
            yield (
                f"{row.label} differs from {base.label} in {len(changed)} fields ({values}): expected a row for each "
                "combination of fewer"
            )


def _unlike_recipes(variants: dict[str, Fields]) -> Iterator[str]:
    """Yield the fields in which a built-in variant departs from its recipe, if other variants do not do so too."""
    for name in PRECISIONS:
        values = {variant: fields[name] for variant, fields in variants.items()}
        if len(set(values.values())) > 1:
            yield f"{name}: {', '.join(f'{value} in {variant}' for variant, value in values.items())}"
    for variant, fields in variants.items():
        recipe = to_json(RECIPES.get(variant)) or {}
        for name, value in fields.items():
            if name not in recipe or value == recipe[name] or _in_proportion(name, fields, recipe):
                continue
            built_in = [key for key in variants if key != variant and name in variants[key] and key in RECIPES]
            share = _share(name, variant, fields)
            unlike = [
                key
                for key in built_in
                if variants[key][name] != value and (share is None or _share(name, key, variants[key]) != share)
            ]
            if unlike:
                expected = f"expected {recipe[name]!r} (its recipe) or the same value in {', '.join(unlike)}"
                yield f"{name}={value!r} in {variant}, {expected}"


def _share(name: str, variant: str, fields: Fields) -> Fraction | None:
    """Return how large a size is, as a share of that of the variant's recipe; None for other fields."""
    size = getattr(RECIPES[variant], name, None)
    return Fraction(fields[name], size) if name in PROPORTIONAL and size and fields[name] else None


def _in_proportion(name: str, fields: Fields, recipe: Fields) -> bool:
    """Return whether a size is reduced in proportion to another size of the variant."""
    size = PROPORTIONAL.get(name)
    if size not in fields or not fields[size] or not recipe.get(name):
        return False
    return bool(fields[size] != recipe[size] and max(1, recipe[name] * fields[size] // recipe[size]) == fields[name])
