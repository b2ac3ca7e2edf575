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
    path, equals, text = setting.partition("=")
    if not equals:
        raise ValueError(f"--set {setting}: expected FIELD=VALUE, such as recipe.dropout=0.3")
    changed: RunSpec = _changed(spec, path.strip().split("."), text.strip(), setting)
    return changed


def overridden(spec: RunSpec, settings: Iterable[str]) -> RunSpec:
    """Return `spec` with several settings changed in turn. Raises: as `override` does."""
    # These last: whether they are accepted depends on the others.
    last = ("matmul_precision", "cuda_graphs")
    for setting in sorted(settings, key=lambda text: text.partition("=")[0].strip() in last):
        spec = override(spec, setting)
    return spec


def _changed(settings: Any, path: Sequence[str], text: str, setting: str) -> Any:
    """Return a dataclass with the field at `path` changed."""
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
        return replace(settings, **{name: _changed(inner, rest, text, setting)})
    # The type without its bounds, which the constructor checks with a better message.
    kind = typing.get_type_hints(type(settings))[name]
    if any(map(dataclasses.is_dataclass, typing.get_args(kind))):
        raise ValueError(f"--set {setting}: {name!r} is none in this run and cannot be set")
    if rest:
        raise ValueError(f"--set {setting}: {name!r} has no field {rest[0]!r}")
    try:
        value = text if typing.get_origin(kind) is typing.Literal else parse(kind, text)
    except ValueError as error:
        raise ValueError(f"--set {setting}: {text!r} does not fit: {error}") from None
    return replace(settings, **{name: value})
