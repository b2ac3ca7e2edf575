"""Short names of runs for terminals, with only the settings that differ within a set, such as "norm=rms s0"."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from harness.experiments.serialization import canonical_json, leaves, to_json
from harness.experiments.specs import RunSpec
from harness.text import short_line

_PARTS_OF_NAMES = ("variant", "seed")

_LABELS = ("recipe.name", "recipe.source", "recipe.family")

_json = functools.lru_cache(maxsize=10_000, typed=True)(canonical_json)
"""The JSON of a setting; thousands of runs have few different values."""


def flat_settings(spec: RunSpec) -> dict[str, Any]:
    """Return all settings of a run except its seed, by dotted name such as "recipe.norm", "data.files.test_source"."""
    return {name: value for name, value in leaves({**to_json(spec), "seed": 0}) if name not in _LABELS}


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the last part of each dotted name, or all of it where others end alike, as recipe and data.max_length."""
    ordered = list(dict.fromkeys(names))
    times = Counter(map(last_part, ordered))
    return {name: last_part(name) if times[last_part(name)] == 1 else name for name in ordered}


def last_part(name: str) -> str:
    """Return the last part of a dotted name, such as "norm" of "recipe.norm"."""
    return name.rpartition(".")[2]


def run_names(specs: Sequence[RunSpec]) -> list[str]:
    """Return a short name for each run: the settings that differ from most runs of its variant, and the seed.

    The variant is part of the name if there are several, or if no setting differs.
    """
    flat = [flat_settings(spec) for spec in specs]
    by_variant: dict[str, list[dict[str, Any]]] = {}
    for settings in flat:
        by_variant.setdefault(settings["variant"], []).append(settings)
    usual = {variant: _usual(variant_settings) for variant, variant_settings in by_variant.items()}
    short = short_names(itertools.chain(*usual.values()))
    names = []
    for spec, settings in zip(specs, flat, strict=True):
        changed = [
            f"{short[name]}={settings[name]}"
            for name, value in usual[spec.variant].items()
            if settings.get(name) is not None and _json(settings[name]) != value
        ]
        variant = [spec.variant] if len(by_variant) > 1 or not changed else []
        names.append(short_line(" ".join([*variant, *changed, f"s{spec.seed}"]), longest=100))
    return names


def names_by_id(specs: Sequence[RunSpec]) -> dict[str, str]:
    """Return the names of `run_names` by run id."""
    return {spec.id: name for spec, name in zip(specs, run_names(specs), strict=True)}


def _usual(settings: Sequence[dict[str, Any]]) -> dict[str, str | None]:
    """Return the settings that differ between runs, with the value (as JSON) of more than half of them, or None.

    Settings that follow from the budget are left out.
    """
    usual: dict[str, str | None] = {}
    for name in dict.fromkeys(name for flat in settings for name in flat if name not in _PARTS_OF_NAMES):
        values = Counter(_json(flat.get(name)) for flat in settings)
        by_budget = {(flat["budget"], _json(flat.get(name))) for flat in settings}
        follows = name != "budget" and len(by_budget) == len({budget for budget, _ in by_budget})
        if len(values) > 1 and not follows:
            value, times = values.most_common(1)[0]
            usual[name] = value if 2 * times > len(settings) else None
    return usual
