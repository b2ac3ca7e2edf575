"""The ablation grids, as data: runs that differ from a base in one field, or in every combination of some."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.experiments.overrides import override
from harness.experiments.specs import RunSpec
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
TOGETHER: dict[str, tuple[str, ...]] = {"tying": (JOINT,)}
"""The settings, as written for `--set`, that all runs of a field's grid have, its base included.

Tying "all" makes source and target embedding one, which only one vocabulary of both sides allows. So the base of the
tying grid is a run of its own, with another vocabulary than the plain base, and is compared with no other grid's runs.
"""


@dataclass(frozen=True)
class Grid:
    """Every combination of the levels of `fields`, all else as in the base; with one field, one departure per cell."""

    fields: tuple[str, ...]

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that its runs have besides, the base included, as written for `--set`."""
        return tuple(dict.fromkeys(one for field in self.fields for one in TOGETHER.get(field, ())))


ONE_AT_A_TIME = tuple(Grid((field,)) for field in FIELDS)
FACTORIAL = Grid(CROSSED)


def words(field: str) -> tuple[str, ...]:
    """Return the values that a field of a Transformer recipe or of its training accepts, in the contract's order."""
    owner = Training if field in TRAINING_FIELDS else TransformerRecipe
    found: tuple[str, ...] = typing.get_args(typing.get_type_hints(owner)[field])
    return found


def grids(fields: Sequence[str] = (), *, factorial: bool = False) -> tuple[Grid, ...]:
    """Return one grid per field (all fields if none is named), or one grid of every combination.

    Without fields the factorial crosses positions, norm and activation.

    Raises:
        ValueError: A factorial of one field.
    """
    chosen = tuple(dict.fromkeys(fields))
    if not factorial:
        return tuple(grid for grid in ONE_AT_A_TIME if not chosen or grid.fields[0] in chosen)
    if len(chosen) == 1:
        raise ValueError(
            f"--factorial with --field {chosen[0]} alone: give --field twice or more, or not at all to cross "
            f"{', '.join(CROSSED)}"
        )
    return (Grid(tuple(field for field in FIELDS if field in chosen)) if chosen else FACTORIAL,)


def cells(grid: Grid, base: RunSpec) -> list[RunSpec]:
    """Return the runs of a grid around `base`, the base's own first; they differ in the fields of the grid only.

    Raises:
        ValueError: The base is no Transformer recipe, or a value does not fit it.
    """
    recipe = check_base(base.variant, base.recipe)
    for setting in grid.settings:
        base = override(base, setting)
    made = []
    for combination in itertools.product(*map(words, grid.fields)):
        chosen = dict(zip(grid.fields, combination, strict=True))
        training: dict[str, typing.Any] = {name: chosen.pop(name) for name in TRAINING_FIELDS if name in chosen}
        changed: Recipe = replace(recipe, **chosen)  # type: ignore[arg-type]
        made.append(replace(base, recipe=changed, training=replace(base.training, **training)))
    return sorted(made, key=lambda spec: (spec.recipe, spec.training) != (recipe, base.training))


def check_base(variant: str, recipe: Recipe | None) -> TransformerRecipe:
    """Return the base's recipe.

    Raises:
        ValueError: It does not have the fields that ablations change.
    """
    if isinstance(recipe, TransformerRecipe):
        return recipe
    kind = "a builder" if recipe is None else f"of the family {recipe.family!r}"
    raise ValueError(
        f"base {variant!r} is {kind}, which has no field {FIELDS[0]!r}: expected a variant of the family "
        f"{TransformerRecipe.family!r}"
    )
