"""Ablation grids, as data: runs that differ from a base in one field, or in all combinations of several."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.experiments.overrides import override
from harness.experiments.specs import RunSpec
from harness.text import did_you_mean
from impls.contract import Recipe, Training, TransformerRecipe

RECIPE_FIELDS = (
    "positions",
    "norm",
    "norm_order",
    "activation",
    "ffn",
    "tying",
    "embedding_scale",
    "embedding_init",
)
TRAINING_FIELDS = ("batching",)
FIELDS = (*RECIPE_FIELDS, *TRAINING_FIELDS)
CROSSED = ("positions", "norm", "activation")
SEEDS = (0, 1, 2)

JOINT = "data.vocabulary=joint"
NEEDS: dict[tuple[str, str], tuple[str, ...]] = {("tying", "all"): (JOINT,)}
"""The `--set` settings that a level of a field needs, and that all runs of its grid share, including its base.

Tying "all" shares the embedding between source and target, which needs a joint vocabulary. So a grid with this level
has a base with a joint vocabulary, and its runs are not compared with those of other grids. All grids around a base
with this level have a joint vocabulary.
"""


@dataclass(frozen=True)
class Grid:
    """All combinations of the levels of fields; all other settings are those of the base.

    Attributes:
        levels: The levels of each field. The base's own level is run whether it is among them or not.
    """

    levels: Mapping[str, tuple[str, ...]]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields whose levels it combines."""
        return tuple(self.levels)

    @property
    def settings(self) -> tuple[str, ...]:
        """The additional `--set` settings of its runs."""
        chosen = [(field, level) for field, levels in self.levels.items() for level in levels]
        return tuple(dict.fromkeys(setting for level in chosen for setting in NEEDS.get(level, ())))


def levels(field: str) -> tuple[str, ...]:
    """Return the values that a field of a Transformer recipe or of its training accepts, in the contract's order."""
    owner = Training if field in TRAINING_FIELDS else TransformerRecipe
    values: tuple[str, ...] = typing.get_args(typing.get_type_hints(owner)[field])
    return values


def parse_field(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the field and the levels of `FIELD` or `FIELD=LEVEL,LEVEL,...`; without levels, all of them.

    Raises: ValueError for an unknown field or level, with those that exist.
    """
    field, equals, names = text.partition("=")
    if field not in FIELDS:
        hint = did_you_mean(field, FIELDS) or "; to compare values of another setting, train each with bench --set"
        raise ValueError(f"{field!r} is not one of {', '.join(FIELDS)}{hint}")
    chosen = names.split(",") if equals else levels(field)
    for name in chosen:
        if name not in levels(field):
            accepted = ", ".join(levels(field))
            raise ValueError(f"{field}: {name!r} is not one of {accepted}{did_you_mean(name, levels(field))}")
    return field, tuple(level for level in levels(field) if level in chosen)


def grids(fields: Mapping[str, tuple[str, ...]] | None = None, *, factorial: bool = False) -> tuple[Grid, ...]:
    """Return one grid per field, or for a factorial one grid of all combinations.

    `fields` has the levels of each field to change; if empty, all levels of all fields, or for a factorial those of
    `CROSSED`.

    Raises: ValueError for a factorial of one field.
    """
    chosen = fields or {field: levels(field) for field in (CROSSED if factorial else FIELDS)}
    if factorial and len(chosen) == 1:
        raise ValueError(
            f"--factorial with --field {next(iter(chosen))} alone: give --field twice or more, or not at all to cross "
            f"{', '.join(CROSSED)}"
        )
    names = tuple(field for field in FIELDS if field in chosen)
    together = [names] if factorial else [(name,) for name in names]
    return tuple(Grid({name: chosen[name] for name in group}) for group in together)


def cells(grid: Grid, base: RunSpec) -> list[RunSpec]:
    """Return the runs of a grid around `base`, beginning with the base. They differ only in the fields of the grid.

    Raises: ValueError if the base is no Transformer recipe, a value does not fit it, or a field has no other level.
    """
    recipe = check_base(base.variant, base.recipe)
    own = {**vars(recipe), **vars(base.training)}
    for field, chosen in grid.levels.items():
        if set(chosen) == {own[field]}:
            others = ", ".join(level for level in levels(field) if level not in chosen)
            raise ValueError(f"--field {field}={own[field]}: the base has this level; name others, such as {others}")
    own_needs = (setting for field in FIELDS for setting in NEEDS.get((field, own[field]), ()))
    base = override(base, [*grid.settings, *own_needs])
    specs = []
    for combination in itertools.product(*(dict.fromkeys([own[field], *grid.levels[field]]) for field in grid.levels)):
        values = dict(zip(grid.fields, combination, strict=True))
        training: dict[str, typing.Any] = {name: values.pop(name) for name in TRAINING_FIELDS if name in values}
        changed: Recipe = replace(recipe, **values)
        specs.append(replace(base, recipe=changed, training=replace(base.training, **training)))
    return specs


def check_base(variant: str, recipe: Recipe | None) -> TransformerRecipe:
    """Return the base's recipe. Raises: ValueError if it does not have the fields that ablations change."""
    if isinstance(recipe, TransformerRecipe):
        return recipe
    kind = "a builder" if recipe is None else f"of the family {recipe.family!r}"
    raise ValueError(
        f"base {variant!r} is {kind}, which has none of these fields: expected a variant of the family "
        f"{TransformerRecipe.family!r}"
    )
