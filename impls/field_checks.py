"""Checks of the fields of recipes and training settings, and of lengths."""

from __future__ import annotations

import functools
import math
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


def is_whole(value: object) -> bool:
    """Return whether a value is an int; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is an int or a finite float; True and False are not."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def check_counts(settings: object, *names: str) -> None:
    """Raise ValueError unless the fields are whole numbers from 1 to their bounds."""
    for name in names:
        value = getattr(settings, name)
        if not is_whole(value) or value < 1:
            reject(settings, name, "a whole number of at least 1")
        most = MOST_LAYERS if name == "layers" else LARGEST_COUNT
        if value > most:
            reject(settings, name, f"a whole number of at most {most:,}")


def check_rates(settings: object, *names: str) -> None:
    """Raise ValueError unless the fields are probabilities below 1."""
    for name in names:
        value = getattr(settings, name)
        if not is_number(value) or not 0 <= value < 1:
            reject(settings, name, "a number from 0 up to but not including 1")


def check_positive(settings: object, name: str, accepted: str = "a number above 0") -> None:
    """Raise ValueError unless the field is a number above 0."""
    value = getattr(settings, name)
    if not is_number(value) or not value > 0:
        reject(settings, name, accepted)


def check_length(positions: int, max_length: int) -> None:
    """Raise ValueError if a sentence has more positions than a model."""
    if positions > max_length:
        raise ValueError(
            f"{positions} positions exceed max_length={max_length}: shorten the sentences, or use a recipe with more"
        )
