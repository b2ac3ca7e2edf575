"""`settings` lists every setting of a run with its value, the accepted values and a line of help."""

from __future__ import annotations

import json

import pytest

from harness.cli import settings
from harness.cli.main import main
from harness.experiments import suites
from harness.experiments.overrides import override
from harness.experiments.specs import DataSpec, RunSpec
from impls import registry


def spec(variant: str) -> RunSpec:
    return suites.spec(suites.SUITES["standard"], variant, budget="source", seed=0, data=DataSpec())


@pytest.mark.parametrize("variant", registry.names())
def test_settings_of_every_variant_have_help_and_can_be_set(variant: str) -> None:
    rows = list(settings.settings(spec(variant)))
    assert len({row.name for row in rows}) == len(rows) > 40
    assert all(row.help and row.accepted for row in rows)
    for row in rows:
        value = "none" if row.value is None else row.value
        assert override(spec(variant), [f"{row.name}={value}"]) == spec(variant)


def test_settings_help_names_only_existing_settings() -> None:
    names = {row.name for variant in registry.names() for row in settings.settings(spec(variant))}
    assert set(settings.HELP) == names


def test_settings_prints_values_that_options_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "paper", "--json", "--set", "recipe.norm=rms", "--epochs", "4"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["recipe.norm"]["value"], rows["training.epochs"]["value"]) == ("rms", 4)
    assert rows["recipe.norm"]["accepted"] == "layernorm, handmade, rms, none"
    assert rows["updates"]["accepted"] == "integer or none"


def test_settings_as_text_has_a_line_per_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].startswith("Settings of learned_positions")
    assert sum(line.startswith("recipe.dropout ") for line in lines) == 1
