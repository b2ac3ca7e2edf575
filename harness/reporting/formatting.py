"""How numbers of a comparison are written."""

from __future__ import annotations

import math
from typing import Protocol

MISSING = "–"


class Bounded(Protocol):
    """Something with an interval."""

    @property
    def low(self) -> float | None:
        """The lower end; None where it is unknown."""

    @property
    def high(self) -> float | None:
        """The upper end; None where it is unknown."""

    @property
    def values(self) -> tuple[float, ...]:
        """The values of single seeds."""


def number(value: float | None, digits: int) -> str:
    """Return a number with so many decimals; a dash where there is none."""
    return f"{value:,.{digits}f}" if value is not None and math.isfinite(value) else MISSING


def signed(value: float | None, digits: int) -> str:
    """Return a difference with its sign; what rounds to 0 has none."""
    if value is None or not math.isfinite(value):
        return MISSING
    written = f"{abs(value):,.{digits}f}"
    return written if float(written.replace(",", "")) == 0 else ("+" if value > 0 else "−") + written


def chance(p: float | None) -> str:
    """Return a p value for a table."""
    return MISSING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def bounds(one: Bounded, digits: int, divisor: float = 1.0) -> str:
    """Return the ends of an interval, or the values of two seeds; a dash where there is neither."""
    if one.low is None or one.high is None:
        values = [signed(value / divisor, digits) for value in one.values]
        return f"seeds: {'; '.join(values)}" if len(values) == 2 else MISSING
    return f"{signed(one.low / divisor, digits)} to {signed(one.high / divisor, digits)}"
