"""The grids of ablations: cells that differ from their base in the fields of the grid only."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest
from ablation_factory import base_spec

from harness.experiments import ablation_grids, suites
from harness.experiments.ablation_grids import FACTORIAL, FIELDS, ONE_AT_A_TIME, Grid, cells, grids, levels
from harness.experiments.specs import RunSpec
from impls.contract import TransformerRecipe
from impls.recipes import LEARNED_POSITIONS, PAPER


def flat(spec: RunSpec) -> dict[str, Any]:
    """Return all settings of a run by their dotted names."""
    parts = {"": spec, "recipe.": spec.recipe, "training.": spec.training, "data.": spec.data}
    settings = {
        f"{prefix}{field.name}": getattr(part, field.name)
        for prefix, part in parts.items()
        for field in fields(part)  # type: ignore[arg-type]
    }
    return {name: value for name, value in settings.items() if name not in ("recipe", "training", "data")}


@pytest.mark.parametrize("base", [LEARNED_POSITIONS, PAPER], ids=lambda recipe: recipe.name)
def test_every_cell_differs_from_its_base_in_one_field(base: TransformerRecipe) -> None:
    for grid in ONE_AT_A_TIME:
        base_cell, *changed_cells = cells(grid, base_spec(base))
        (field,) = grid.fields
        assert base_cell.recipe == base
        setting = f"training.{field}" if field == "batching" else f"recipe.{field}"
        changed = [flat(cell)[setting] for cell in changed_cells]
        assert changed == [level for level in levels(field) if level != flat(base_cell)[setting]]
        for cell in changed_cells:
            assert [name for name, value in flat(cell).items() if value != flat(base_cell)[name]] == [setting]


def test_factorial_has_every_combination_of_levels() -> None:
    assert {grid.fields for grid in ONE_AT_A_TIME} == {(field,) for field in FIELDS}
    assert [len(cells(grid, base_spec())) for grid in ONE_AT_A_TIME] == [len(levels(field)) for field in FIELDS]
    crossed = cells(FACTORIAL, base_spec())
    assert len({cell.recipe for cell in crossed}) == len(crossed) == 5 * 4 * 4
    assert crossed[0].recipe == LEARNED_POSITIONS
    assert {(cell.recipe.positions, cell.recipe.norm, cell.recipe.activation) for cell in crossed} == set(  # type: ignore[union-attr]
        itertools.product(levels("positions"), levels("norm"), levels("activation"))
    )


def test_tying_has_a_joint_vocabulary_and_a_base_of_its_own() -> None:
    plain, tied = cells(Grid(("norm",)), base_spec()), cells(Grid(("tying",)), base_spec())
    assert {cell.data.vocabulary for cell in plain} == {"separate"}
    assert {cell.data.vocabulary for cell in tied} == {"joint"}
    assert plain[0].recipe == tied[0].recipe
    assert plain[0].id != tied[0].id
    assert {cell.data.vocabulary for cell in cells(Grid(("norm", "tying")), base_spec())} == {"joint"}


def test_grids_contain_each_field_once() -> None:
    assert grids() == ONE_AT_A_TIME
    assert grids(["norm", "positions", "norm"]) == (Grid(("positions",)), Grid(("norm",)))
    assert grids(factorial=True) == (FACTORIAL,)
    assert grids(["norm_order", "positions"], factorial=True) == (Grid(("positions", "norm_order")),)


def test_base_that_does_not_accept_a_level_is_refused() -> None:
    narrow = replace(LEARNED_POSITIONS, width=18, heads=6)
    with pytest.raises(ValueError, match="even .*positions='rotary'"):
        cells(Grid(("positions",)), base_spec(narrow))
    with pytest.raises(ValueError, match="has no field 'positions'"):
        ablation_grids.check_base("bahdanau_gru", suites.resolve("bahdanau_gru")[0])
