"""The ablation grids, as data: recipes that differ from a base in one field, or in every combination of some."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.specs import RunSpec, override
from impls.contract import Recipe, TransformerRecipe

FIELDS = ("positions", "norm", "norm_order", "activation", "ffn", "tying", "embedding_scale")
CROSSED = ("positions", "norm", "activation")
SEEDS = (0, 1, 2)

JOINT = "data.vocabulary=joint"
TOGETHER: dict[str, tuple[str, ...]] = {"tying": (JOINT,)}
"""What all runs of a field's grid have, its base too, in the words of `--set`.

Tying "all" makes source and target embedding one, which only one vocabulary of both sides allows. So the base of the
tying grid is a run of its own, with other words than the plain base, and is compared with no other grid's.
"""


@dataclass(frozen=True)
class Grid:
    """Every combination of the words of `fields`, all else being the base's; of one field, one departure a cell."""

    fields: tuple[str, ...]

    @property
    def settings(self) -> tuple[str, ...]:
        """What its runs have besides, the base too, in the words of `--set`."""
        return tuple(dict.fromkeys(one for field in self.fields for one in TOGETHER.get(field, ())))


ONE_AT_A_TIME = tuple(Grid((field,)) for field in FIELDS)
FACTORIAL = Grid(CROSSED)


def words(field: str) -> tuple[str, ...]:
    """Return the words that a field of a Transformer recipe may hold, in the order in which the contract lists them."""
    found: tuple[str, ...] = typing.get_args(typing.get_type_hints(TransformerRecipe)[field])
    return found


def grids(fields: Sequence[str] = (), *, factorial: bool = False) -> tuple[Grid, ...]:
    """Return a grid a field (all fields where none is named), or one grid of every combination.

    Without fields the factorial crosses positions, norm and activation; with one field there is nothing to cross.

    Raises: ValueError for a factorial of one field.
    """
    chosen = tuple(dict.fromkeys(fields))
    if not factorial:
        return tuple(grid for grid in ONE_AT_A_TIME if not chosen or grid.fields[0] in chosen)
    if len(chosen) == 1:
        raise ValueError(f"--factorial with --field {chosen[0]} alone: allowed is two fields or more, or none for all")
    return (Grid(tuple(field for field in FIELDS if field in chosen)) if chosen else FACTORIAL,)


def cells(grid: Grid, base: RunSpec) -> list[RunSpec]:
    """Return the runs of a grid around `base`, the base's own first; they differ in the fields of the grid alone.

    Raises: ValueError where the base is no Transformer recipe, or cannot take a word.
    """
    recipe = check_base(base.variant, base.recipe)
    for setting in grid.settings:
        base = override(base, setting)
    made = []
    for combination in itertools.product(*map(words, grid.fields)):
        changed: Recipe = replace(recipe, **dict(zip(grid.fields, combination, strict=True)))  # type: ignore[arg-type]
        made.append(replace(base, recipe=changed))
    return sorted(made, key=lambda spec: spec.recipe != recipe)


def check_base(variant: str, recipe: Recipe | None) -> TransformerRecipe:
    """Return the base's recipe. Raises: ValueError where it has not the fields that ablations change."""
    if isinstance(recipe, TransformerRecipe):
        return recipe
    kind = "a builder" if recipe is None else f"of the family {recipe.family!r}"
    raise ValueError(
        f"base {variant!r} is {kind}, which has no field {FIELDS[0]!r}: allowed is a variant of the family "
        f"{TransformerRecipe.family!r}"
    )
