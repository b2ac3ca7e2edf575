"""Labels of table rows: the variant, and the settings that distinguish it or differ from the built-in recipe."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.experiments import suites
from harness.experiments.overrides import override
from harness.experiments.run_names import flat_settings, short_names
from harness.experiments.serialization import canonical_json
from harness.experiments.specs import DataSpec, DecodingSpec, RunSpec
from harness.text import short_line
from impls.contract import Recipe
from impls.recipes import RECIPES, TRAININGS

SIZES = ("width", "embedding_width", "layers", "heads", "head_width", "ffn_width", "max_length")
EXECUTION_SETTINGS = ("framework", "backend", "device", "precision", "matmul_precision", "cuda_graphs", "threads")
MOST_EXPLICIT = 2


def row_labels(specs: Sequence[RunSpec]) -> list[str]:
    """Return the variant of each row, with the settings that distinguish it or differ from the built-in recipe.

    Where a variant's rows differ in more than `MOST_EXPLICIT` settings, those with its own value are left out.
    """
    flat = [flat_settings(spec) for spec in specs]
    execution = [name for name in EXECUTION_SETTINGS if _differs(name, flat)]
    varying: dict[str, list[str]] = {}
    for variant in {spec.variant for spec in specs}:
        same = [settings for settings in flat if settings["variant"] == variant]
        varying[variant] = [name for name in dict.fromkeys(itertools.chain(*same)) if _differs(name, same)]
    shown = []
    for spec, settings in zip(specs, flat, strict=True):
        names = list(dict.fromkeys([*(name for name in varying[spec.variant] if name in settings), *execution]))
        if len(names) > MOST_EXPLICIT:
            own = _own_settings(spec)
            names = [name for name in names if name not in own or settings[name] != own[name]]
        names = [*changed_fields(spec), *names]
        shown.append(dict.fromkeys("framework" if name == "backend" else name for name in names))
    short = short_names(itertools.chain(*shown))
    extras = [", ".join(_setting(name, short, flat[row]) for name in names) for row, names in enumerate(shown)]
    return [short_line(spec.variant) + f" ({extra})" * bool(extra) for spec, extra in zip(specs, extras, strict=True)]


def with_own_data(spec: RunSpec) -> RunSpec:
    """Return a run with the data and search of its variant's source; in budgets but "source", with the defaults."""
    source = suites.AS_SOURCE.get(spec.variant, ()) if spec.budget == "source" else ()
    data, decoding = DataSpec(max_length=spec.data.max_length), DecodingSpec(max_tokens=spec.decoding.max_tokens)
    return override(replace(spec, data=data, decoding=decoding), source)


def _built_in(spec: RunSpec) -> Recipe | None:
    """Return the built-in recipe of a run's variant; None if the variant has none of this kind.

    In budget "source" it has the settings of the variant's source, such as its dropout.
    """
    recipe = RECIPES.get(spec.variant)
    return with_own_data(replace(spec, recipe=recipe)).recipe if type(recipe) is type(spec.recipe) else None


def _own_settings(spec: RunSpec) -> dict[str, Any]:
    """Return the settings that a built-in variant has of its own: all but those of execution; empty for others."""
    built_in = _built_in(spec)
    if built_in is None:
        return {}
    own = replace(
        with_own_data(spec),
        recipe=built_in,
        training=TRAININGS[spec.variant],
        precision="float32",
        matmul_precision="highest",
    )
    parts = ("recipe", "training", "data", "decoding", "precision", "matmul_precision")
    return {name: value for name, value in flat_settings(own).items() if name.partition(".")[0] in parts}


def _setting(name: str, short: Mapping[str, str], settings: dict[str, Any]) -> str:
    """Return a setting as text; the framework together with the backend of Keras."""
    value = short_line(str(settings[name]))
    if name == "framework":
        return f"{settings[name]} on {settings['backend']}" if settings["backend"] else value
    return f"{short[name]}={value}"


def _differs(name: str, settings: Sequence[dict[str, Any]]) -> bool:
    return len({canonical_json(values.get(name)) for values in settings}) > 1


def changed_fields(spec: RunSpec) -> list[str]:
    """Return the fields of the recipe, except sizes, that differ from the built-in variant."""
    built_in = _built_in(spec)
    if built_in is None:
        return []
    free = [f"recipe.{name}" for name in SIZES] if is_reduced(spec) else []
    own = flat_settings(replace(spec, recipe=built_in))
    return [name for name, value in flat_settings(spec).items() if name not in free and own[name] != value]


def is_reduced(spec: RunSpec) -> bool:
    """Return whether a built-in variant is narrower than its own recipe; external variants have no standard size."""
    built_in = RECIPES.get(spec.variant)
    if built_in is None or spec.recipe is None:
        return False
    return any(getattr(spec.recipe, name, 0) < getattr(built_in, name, 0) for name in ("width", "embedding_width"))
