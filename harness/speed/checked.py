"""What every part of a speed document keeps: finite numbers, known words, bounded texts, figures that fit the rest."""

from __future__ import annotations

import math
import typing
from dataclasses import fields
from typing import Literal, get_args

from harness.speed.timing import Samples
from harness.text import brief

TEXT_LETTERS = 4_000
"""The most that any text in a document may have."""

DERIVED = math.nan
"""The default of a figure that follows from the others: it is filled in where it is not given, and checked where it is.
"""


class Validated:
    """A dataclass whose numbers are finite and not negative, whose choices are known and whose texts are bounded."""

    def __post_init__(self) -> None:
        try:
            derived = self.derived()
        except ArithmeticError as error:
            raise ValueError(f"{type(self).__name__}: {error}: allowed are amounts above 0") from error
        for name, expected in derived.items():
            if math.isnan(getattr(self, name)):
                object.__setattr__(self, name, expected)
            if not math.isclose(getattr(self, name), expected, rel_tol=1e-9):
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed is what follows from the rest, {expected!r}")
        hints = typing.get_type_hints(type(self))
        for one in fields(self):  # type: ignore[arg-type]
            value, hint = getattr(self, one.name), hints[one.name]
            kinds = (hint, *get_args(hint))
            words = next((get_args(kind) for kind in kinds if typing.get_origin(kind) is Literal), None)
            if words is not None and isinstance(value, str) and value not in words:
                raise ValueError(f"{one.name}={brief(value)}: allowed is {', '.join(words)}")
            if isinstance(value, Samples) and not min(value.values) > 0:
                raise ValueError(f"{one.name}: a sample of {min(value.values)!r}: allowed is a number above 0")
            if isinstance(value, int | float) and not (math.isfinite(value) and value >= self.least(one.name)):
                raise ValueError(f"{one.name}={brief(value)}: allowed is a finite number of at least 0")
            if isinstance(value, str) and len(value) > TEXT_LETTERS:
                raise ValueError(f"{one.name}={brief(value)}: allowed are at most {TEXT_LETTERS:,} letters")

    def derived(self) -> dict[str, float]:
        """Return the figures that follow from the others, by name."""
        return {}

    @classmethod
    def least(cls, name: str) -> float:
        """Return the least that a number of this field may be."""
        return 0.0
