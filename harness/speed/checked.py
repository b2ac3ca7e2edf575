"""The checks of every part of a speed document: finite numbers, known words, bounded texts, consistent figures."""

from __future__ import annotations

import math
import typing
from dataclasses import fields
from typing import Literal, get_args

from harness.speed.timing import Samples
from harness.text import brief

TEXT_LETTERS = 4_000
"""The longest text in a document."""

DERIVED = math.nan
"""The default of a figure that follows from the others. It is computed if it is not given, and checked if it is."""


class Validated:
    """A dataclass whose numbers are finite and not negative, whose choices are known and whose texts are bounded."""

    def __post_init__(self) -> None:
        try:
            derived = self.derived()
        except ArithmeticError as error:
            raise ValueError(f"{type(self).__name__}: {error}; amounts must be above 0") from error
        for name, expected in derived.items():
            if math.isnan(getattr(self, name)):
                object.__setattr__(self, name, expected)
            if not math.isclose(getattr(self, name), expected, rel_tol=1e-9):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected {expected!r}, which follows from the rest")
        hints = typing.get_type_hints(type(self))
        for name in (field.name for field in fields(self)):  # type: ignore[arg-type]
            value, hint = getattr(self, name), hints[name]
            kinds = (hint, *get_args(hint))
            words = next((get_args(kind) for kind in kinds if typing.get_origin(kind) is Literal), None)
            if words is not None and isinstance(value, str) and value not in words:
                raise ValueError(f"{name}={brief(value)}: expected one of {', '.join(words)}")
            if isinstance(value, Samples) and not min(value.values) > 0:
                raise ValueError(f"{name}: a sample is {min(value.values)!r}; samples must be above 0")
            if isinstance(value, int | float) and not (math.isfinite(value) and value >= self.least(name)):
                raise ValueError(f"{name}={brief(value)}: expected a finite number of at least 0")
            if isinstance(value, str) and len(value) > TEXT_LETTERS:
                raise ValueError(f"{name}={brief(value)}: longer than {TEXT_LETTERS:,} characters")

    def derived(self) -> dict[str, float]:
        """Return the figures that follow from others, by name."""
        return {}

    @classmethod
    def least(cls, name: str) -> float:
        """Return the smallest number that a field may have."""
        return 0.0
