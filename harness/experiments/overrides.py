"""Settings changed on the command line: `--set field=value`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from harness.experiments.serialization import parse
from harness.experiments.specs import RunSpec
from harness.text import did_you_mean


def override(spec: RunSpec, setting: str) -> RunSpec:
    """Return `spec` with one setting changed, in the syntax of the command line: "recipe.dropout=0.3".

    The value is converted to the type of the field; "none" is None in an optional field.

    Raises:
        ValueError: The field is unknown or the value is not accepted; the message suggests the closest field.
    """
    return overridden(spec, [setting])


def overridden(spec: RunSpec, settings: Iterable[str]) -> RunSpec:
    """Return `spec` with settings changed together; the last one of a field wins. Raises: as `override` does."""
    changes: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: expected FIELD=VALUE, such as recipe.dropout=0.3")
        *outer, name = path.strip().split(".")
        value = _parsed(spec, [*outer, name], text.strip(), setting)
        inner = changes
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[name] = value
    changed: RunSpec = _replaced(spec, changes)
    return changed


def _replaced(settings: Any, changes: dict[str, Any]) -> Any:
    """Return a dataclass with changed fields; each dataclass checks its fields once, when all of them are changed."""
    values = {
        name: _replaced(getattr(settings, name), change) if isinstance(change, dict) else change
        for name, change in changes.items()
    }
    return replace(settings, **values)


def _parsed(settings: Any, path: Sequence[str], text: str, setting: str) -> Any:
    """Return the value of the field at `path`, converted to its type. Raises: as `override` does."""
    name, *rest = path
    fields = [field.name for field in dataclasses.fields(settings)]
    if name not in fields:
        hint = did_you_mean(name, fields) or f"; the fields are {', '.join(fields)}"
        raise ValueError(f"--set {setting}: unknown field {name!r}{hint}")
    inner = getattr(settings, name)
    if dataclasses.is_dataclass(inner) and not isinstance(inner, type):
        if not rest:
            example = f"{name}.{dataclasses.fields(inner)[0].name}"
            raise ValueError(f"--set {setting}: {name!r} has fields of its own; name one, such as {example}")
        return _parsed(inner, rest, text, setting)
    # The type without its bounds, which the constructor checks with a better message.
    kind = typing.get_type_hints(type(settings))[name]
    if any(map(dataclasses.is_dataclass, typing.get_args(kind))):
        raise ValueError(f"--set {setting}: {name!r} is none in this run and cannot be set")
    if rest:
        raise ValueError(f"--set {setting}: {name!r} has no field {rest[0]!r}")
    try:
        return text if typing.get_origin(kind) is typing.Literal else parse(kind, text)
    except ValueError as error:
        raise ValueError(f"--set {setting}: {text!r} does not fit: {error}") from None
