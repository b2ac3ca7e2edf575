"""Checks of the fields of recipes and training settings."""

from __future__ import annotations

import functools
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

LARGEST_COUNT, MOST_LAYERS = 65_536, 1_024
"""Upper bounds for any size in a recipe and for its layers, so that an untrusted record cannot exhaust memory."""


def reject(settings: object, name: str, accepted: str) -> NoReturn:
    """Raise ValueError naming the field, its value and what is accepted."""
    raise ValueError(f"{type(settings).__name__}.{name}={getattr(settings, name)!r}: expected {accepted}")


def check_choices(settings: object) -> None:
    """Raise ValueError for the first Literal field whose value is not one of its choices."""
    kind: Any = type(settings)
    for name, choices in _choices(kind).items():
        if getattr(settings, name) not in choices:
            reject(settings, name, " or ".join(map(repr, choices)))


@functools.cache
def _choices(kind: type) -> dict[str, tuple[str, ...]]:
    """Return the accepted values of each Literal field of a dataclass."""
    hints = get_type_hints(kind).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


def check_counts(settings: object, *names: str) -> None:
    """Raise ValueError unless the fields are whole numbers from 1 to their bounds."""
    for name in names:
        value = getattr(settings, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            reject(settings, name, "a whole number of at least 1")
        most = MOST_LAYERS if name == "layers" else LARGEST_COUNT
        if value > most:
            reject(settings, name, f"a whole number of at most {most:,}")


def check_rate(settings: object, name: str) -> None:
    """Raise ValueError unless the field is a probability below 1."""
    value = getattr(settings, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        reject(settings, name, "a number from 0 up to but not including 1")
