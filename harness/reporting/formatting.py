"""The format of numbers, intervals, p-values and missing values in reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.analysis.effects import Conclusion, Effect, Interval
from harness.reporting.document import Cell
from harness.text import short_line

MISSING = "–"


def long_line(value: object) -> str:
    """Return text, which may come from someone else, as one line of at most 4,000 characters."""
    return short_line(str(value), longest=4_000)


def number(value: float | None, digits: int) -> str:
    """Return a number with `digits` decimals, or a dash if it is missing or not finite; 0 has no sign."""
    return f"{round(value, digits) + 0.0:,.{digits}f}" if value is not None and math.isfinite(value) else MISSING


def signed(value: float | None, digits: int) -> str:
    """Return a difference with its sign; a value that rounds to 0 has no sign."""
    if value is None or not math.isfinite(value):
        return MISSING
    written = f"{abs(value):,.{digits}f}"
    return written if float(written.replace(",", "")) == 0 else ("+" if value > 0 else "−") + written


def significant_digits(value: float) -> str:
    """Return a number with three or four significant digits: 12,345, 678, 12.3, 1.23, 0.123, 0.0012."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 0.1 or value == 0:
        return f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}"
    return f"{value:#.2g}"


def quantity(value: float, _: object = None) -> str:
    """Return a number for an axis or a bar: 950, 12,000, 9.04 M."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f}".rstrip("0").rstrip(".") + " M"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def p_value(p: float | None) -> str:
    """Return a p-value for a table; one just below 0.05 is not rounded up to it."""
    if p is None:
        return MISSING
    return "<0.001" if p < 0.001 else "<0.050" if 0.0495 <= p < 0.05 else f"{p:.3f}"


def percent(share: float) -> str:
    """Return a probability in percent; small and large ones as "< 1 %" and "> 99 %"."""
    return "< 1 %" if share < 0.01 else "> 99 %" if share > 0.99 else f"{100 * share:.0f} %"


def bounds(estimate: Interval, digits: int, divisor: float = 1.0) -> str:
    """Return the ends of an interval of a difference, or the values of two seeds, or a dash."""
    if estimate.low is None or estimate.high is None:
        values = [signed(value / divisor, digits) for value in estimate.values]
        return f"seeds: {'; '.join(values)}" if len(values) == 2 else MISSING
    return f"{signed(estimate.low / divisor, digits)} to {signed(estimate.high / divisor, digits)}"


def effect_cell(effect: Effect, conclusion: Conclusion, digits: int, *details: str) -> Cell:
    """Return an effect as a cell: its mean, the symbol of its conclusion, and its interval with further details."""
    interval = bounds(effect, digits)
    return Cell(
        signed(effect.mean, digits),
        mark=conclusion.symbol,
        detail="; ".join([*([] if interval == MISSING else [interval]), *details]),
        value=effect.mean,
        tone="better" if conclusion is Conclusion.BETTER else "worse" if conclusion is Conclusion.WORSE else "",
    )


def between(estimate: Interval, digits: int, divisor: float = 1.0) -> str:
    """Return the ends of an interval of a mean, or the values of two seeds, or an empty string."""
    if estimate.low is not None and estimate.high is not None:
        return f"{estimate.low / divisor:,.{digits}f} to {estimate.high / divisor:,.{digits}f}"
    values = [f"{value / divisor:,.{digits}f}" for value in estimate.values]
    return "; ".join(values) if len(values) == 2 else ""


def interval_words(estimate: Interval, digits: int) -> str:
    """Return the interval of a mean in words, such as "95 % interval 33.7 to 36.5", or an empty string."""
    if estimate.low is not None:
        over = " over test sentences" if len(estimate.values) == 1 else ""
        return f"95 % interval{over} {between(estimate, digits)}"
    return between(estimate, digits).replace("; ", " and ")


def mebibytes(size: float | None) -> str:
    """Return bytes as MiB; "unknown" if the system does not report them."""
    return "unknown" if size is None else f"{size / 2**20:,.0f}"


def listed(parts: Sequence[str]) -> str:
    """Return parts as a sentence lists them: "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
