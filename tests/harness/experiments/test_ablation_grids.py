"""The grids of ablations: cells that differ from their base in the fields of the grid only."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from ablation_factory import base_spec

from harness.experiments.ablation_grids import CROSSED, FIELDS, Grid, cells, grids, levels, parse_field
from harness.experiments.run_names import flat_settings
from impls.contract import TransformerRecipe
from impls.recipes import LEARNED_POSITIONS, PAPER, TUNED


def all_levels(*fields: str) -> Grid:
    """Return the grid of all levels of the fields."""
    return Grid({field: levels(field) for field in fields})


@pytest.mark.parametrize("base", [LEARNED_POSITIONS, PAPER], ids=lambda recipe: recipe.name)
def test_every_cell_differs_from_its_base_in_one_field(base: TransformerRecipe) -> None:
    for grid in grids():
        base_cell, *changed_cells = cells(grid, base_spec(base))
        (field,) = grid.fields
        assert base_cell.recipe == base
        setting = f"training.{field}" if field == "batching" else f"recipe.{field}"
        settings, changed = flat_settings(base_cell), [flat_settings(cell)[setting] for cell in changed_cells]
        assert changed == [level for level in levels(field) if level != settings[setting]]
        for cell in changed_cells:
            assert [name for name in settings if flat_settings(cell)[name] != settings[name]] == [setting]


def test_factorial_has_every_combination_of_levels() -> None:
    assert [grid.fields for grid in grids()] == [(field,) for field in FIELDS]
    assert [len(cells(grid, base_spec())) for grid in grids()] == [len(levels(field)) for field in FIELDS]
    (factorial,) = grids(factorial=True)
    assert factorial.fields == CROSSED
    crossed = cells(factorial, base_spec())
    assert len({cell.recipe for cell in crossed}) == len(crossed) == 5 * 4 * 4
    assert crossed[0].recipe == LEARNED_POSITIONS
    assert {(cell.recipe.positions, cell.recipe.norm, cell.recipe.activation) for cell in crossed} == set(  # type: ignore[union-attr]
        itertools.product(levels("positions"), levels("norm"), levels("activation"))
    )


def test_tying_all_has_a_joint_vocabulary_and_a_base_of_its_own() -> None:
    plain, tied = cells(all_levels("norm"), base_spec()), cells(all_levels("tying"), base_spec())
    assert {cell.data.vocabulary for cell in plain} == {"separate"}
    assert {cell.data.vocabulary for cell in tied} == {"joint"}
    assert plain[0].recipe == tied[0].recipe
    assert plain[0].id != tied[0].id
    assert {cell.data.vocabulary for cell in cells(all_levels("norm", "tying"), base_spec())} == {"joint"}
    output = cells(Grid({"tying": ("none", "output")}), base_spec())
    assert [cell.recipe.tying for cell in output] == ["none", "output"]  # type: ignore[union-attr]
    assert output[0] == plain[0]
    around_tied = cells(all_levels("norm"), base_spec(TUNED))
    assert {cell.data.vocabulary for cell in around_tied} == {"joint"}


def test_grids_contain_each_field_once() -> None:
    chosen = {field: levels(field) for field in ("norm", "positions")}
    assert grids(chosen) == (all_levels("positions"), all_levels("norm"))
    assert grids(chosen, factorial=True) == (all_levels("positions", "norm"),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("norm_order", ("norm_order", ("post", "pre"))),
        ("positions=rotary,learned,rotary", ("positions", ("learned", "rotary"))),
        ("batching=tokens", ("batching", ("tokens",))),
    ],
)
def test_field_with_levels_is_parsed(text: str, expected: tuple[str, tuple[str, ...]]) -> None:
    assert parse_field(text) == expected


def test_chosen_levels_are_run_beside_the_base() -> None:
    (grid,) = grids({"positions": ("rotary",), "embedding_init": ("xavier", "width")}, factorial=True)
    recipes = [cell.recipe for cell in cells(grid, base_spec())]
    assert [(recipe.positions, recipe.embedding_init) for recipe in recipes] == [  # type: ignore[union-attr]
        ("learned", "xavier"),
        ("learned", "width"),
        ("rotary", "xavier"),
        ("rotary", "width"),
    ]


def test_base_that_does_not_accept_a_level_is_refused() -> None:
    narrow = replace(LEARNED_POSITIONS, width=18, heads=6)
    with pytest.raises(ValueError, match="even .*positions='rotary'"):
        cells(all_levels("positions"), base_spec(narrow))
