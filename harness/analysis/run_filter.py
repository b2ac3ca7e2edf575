"""Selects runs by their settings, for `harness.api.Runs.filter`."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Number
from operator import attrgetter
from typing import Any

from harness.experiments.run_names import flat_settings, last_part
from harness.experiments.specs import RunSpec
from harness.storage.records import RunRecord, Status
from harness.text import brief, did_you_mean
from impls import registry
from impls.recipes import RECIPES

NAMES: dict[str, tuple[str, ...]] = {
    "status": typing.get_args(Status),
    "variant": tuple(RECIPES),
    "framework": tuple(sorted({framework for _, framework in registry.BUILDERS})),
}
"""The values of what is a plain string in a record although only some names are accepted."""


def select(
    records: Sequence[RunRecord], condition: Callable[[RunRecord], bool] | None, values: Mapping[str, Any]
) -> tuple[RunRecord, ...]:
    """Return the records that fulfil a condition and have one of the accepted values of each setting.

    Raises:
        ValueError: A name is unknown or ambiguous, or a value is not one that the setting can have.
    """
    if condition is not None and not callable(condition):
        raise ValueError(f"filter: {brief(condition)} is not a function of a record; name settings: variant='paper'")
    specs = [record.spec for record in records] or [RunSpec(variant=name, recipe=RECIPES[name]) for name in RECIPES]
    settings = [flat_settings(spec) | {"run": "", "status": "", "seed": spec.seed} for spec in specs]
    for row, record in zip(settings, records, strict=False):
        row.update(run=record.id, status=record.status)
    chosen = [
        (record, row) for record, row in zip(records, settings, strict=False) if not condition or condition(record)
    ]
    for name, value in values.items():
        key = _key(name, settings)
        accepted = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        _check(name, accepted, [row[key] for row in settings if row.get(key) is not None], list(_names(key, specs)))
        chosen = [(record, row) for record, row in chosen if row.get(key) in accepted]
    return tuple(record for record, _ in chosen)


def _key(name: str, settings: Sequence[Mapping[str, Any]]) -> str:
    """Return the dotted name of a setting. Raises: ValueError if it is unknown or ambiguous."""
    dotted = name.replace("__", ".")
    last_parts = {key: last_part(key) for row in settings for key in row}
    matches = [key for key, last in last_parts.items() if dotted in (key, last)]
    if not matches:
        raise ValueError(f"{name}: no run has this setting{did_you_mean(dotted, last_parts.values())}")
    if len(matches) > 1 and dotted not in matches:
        raise ValueError(f"{name} is ambiguous: use one of {', '.join(key.replace('.', '__') for key in matches)}")
    return dotted if dotted in matches else matches[0]


def _check(name: str, wanted: Iterable[Any], stored: Sequence[Any], names: Sequence[str]) -> None:
    """Raise ValueError for a value that is none of the accepted names, or text for a number."""
    accepted = list(dict.fromkeys((*names, *stored))) if names else []
    are_numbers = bool(stored) and all(isinstance(value, Number) for value in stored)
    for value in wanted:
        if names and value is not None and value not in accepted:
            near = did_you_mean(value, accepted)
            raise ValueError(f"{name}={brief(value)}: expected one of {', '.join(accepted)}{near}")
        if are_numbers and isinstance(value, str):
            raise ValueError(f"{name}={brief(value)}: expected a value such as {stored[0]}, not text")


def _names(key: str, specs: Iterable[RunSpec]) -> Iterator[str]:
    """Yield the names that a setting accepts; none if it accepts more than certain names."""
    yield from NAMES.get(key, ())
    group, _, field = key.rpartition(".")
    for owner in {type(attrgetter(group)(spec) if group else spec) for spec in specs}:
        hint = typing.get_type_hints(owner).get(field)
        for part in (hint, *typing.get_args(hint)):
            if typing.get_origin(part) is typing.Literal:
                yield from typing.get_args(part)
