"""Ablation grids, as data: runs that differ from a base in one field, or in all combinations of several."""

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
"""The `--set` settings that all runs of a field's grid share, including its base.

Tying "all" shares the embedding between source and target, which needs a joint vocabulary. So the tying grid has a base
with a joint vocabulary, and its runs are not compared with those of other grids.
"""


@dataclass(frozen=True)
class Grid:
    """All combinations of the levels of `fields`; all other settings are those of the base."""

    fields: tuple[str, ...]

    @property
    def settings(self) -> tuple[str, ...]:
        """The additional `--set` settings of its runs."""
        return tuple(dict.fromkeys(setting for field in self.fields for setting in TOGETHER.get(field, ())))


ONE_AT_A_TIME = tuple(Grid((field,)) for field in FIELDS)
FACTORIAL = Grid(CROSSED)


def levels(field: str) -> tuple[str, ...]:
    """Return the values that a field of a Transformer recipe or of its training accepts, in the contract's order."""
    owner = Training if field in TRAINING_FIELDS else TransformerRecipe
    values: tuple[str, ...] = typing.get_args(typing.get_type_hints(owner)[field])
    return values


def grids(fields: Sequence[str] = (), *, factorial: bool = False) -> tuple[Grid, ...]:
    """Return one grid per field, or one grid of all combinations.

    Args:
        fields: The fields; if empty, all fields, or for a factorial positions, norm and activation.
        factorial: Whether to combine the levels of the fields.

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
    """Return the runs of a grid around `base`, beginning with the base. They differ only in the fields of the grid.

    Raises:
        ValueError: The base is no Transformer recipe, or a value does not fit it.
    """
    recipe = check_base(base.variant, base.recipe)
    for setting in grid.settings:
        base = override(base, setting)
    specs = []
    for combination in itertools.product(*map(levels, grid.fields)):
        chosen = dict(zip(grid.fields, combination, strict=True))
        training: dict[str, typing.Any] = {name: chosen.pop(name) for name in TRAINING_FIELDS if name in chosen}
        changed: Recipe = replace(recipe, **chosen)  # type: ignore[arg-type]
        specs.append(replace(base, recipe=changed, training=replace(base.training, **training)))
    return sorted(specs, key=lambda spec: (spec.recipe, spec.training) != (recipe, base.training))


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
