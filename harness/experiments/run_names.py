"""Short names of runs for terminals: only what tells the runs of a set apart, such as "norm=rms s0"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from harness.text import short_line

_PARTS_OF_NAMES = ("variant", "seed")


def flat_settings(spec: RunSpec) -> dict[str, Any]:
    """Return every setting of a run but its seed by its dotted name, such as "recipe.norm"; objects as JSON text."""
    settings: dict[str, Any] = {}
    for name, value in to_json(replace(spec, seed=0)).items():
        if isinstance(value, dict):
            inner = {f"{name}.{key}": item for key, item in value.items() if key not in ("name", "source", "family")}
            settings.update(
                {key: canonical_json(item) if isinstance(item, dict) else item for key, item in inner.items()}
            )
        else:
            settings[name] = value
    return settings


def run_names(specs: Sequence[RunSpec]) -> dict[str, str]:
    """Return a short name for each run id: the variant if there are several, what differs, and the seed.

    Settings are compared among the runs of one variant, because recipes of different variants differ in many.
    """
    flat = {spec.id: flat_settings(spec) for spec in specs}
    by_variant: dict[str, list[dict[str, Any]]] = {}
    for spec in specs:
        by_variant.setdefault(spec.variant, []).append(flat[spec.id])
    differing = {variant: _differing(settings) for variant, settings in by_variant.items()}
    names = {}
    for spec in specs:
        own = flat[spec.id]
        changed = [f"{name.rpartition('.')[2]}={own[name]}" for name in differing[spec.variant] if name in own]
        variant = [spec.variant] if len(by_variant) > 1 or not changed else []
        names[spec.id] = short_line(" ".join([*variant, *changed, f"s{spec.seed}"]), longest=100)
    return names


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for own in settings for name in own if name not in _PARTS_OF_NAMES)
    return [name for name in names if len({canonical_json(own.get(name)) for own in settings}) > 1]
