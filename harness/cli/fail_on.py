"""`compare --fail-on`: conditions under which a comparison fails, for continuous integration."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from harness.analysis.comparison import Comparison, MetricComparison
from harness.analysis.effects import Conclusion, Difference
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.metric_registry import COMPARISON
from harness.analysis.selection import Side
from harness.reporting.formatting import bounds, p_value, signed
from harness.text import count, did_you_mean

FORMS = "give METRIC<NUMBER, METRIC>NUMBER or METRIC:worse"


@dataclass(frozen=True)
class Condition:
    """A metric whose difference from the first side is below or above a number, or significantly worse."""

    text: str
    metric: str
    kind: Literal["<", ">", "worse"]
    number: float = 0.0


def read(text: str) -> Condition:
    """Parse a condition. Raises: ValueError for a wrong form, metric or number, or a metric that is never tested."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:(:)\s*worse|([<>])\s*(\S+))\s*", text)
    if not match:
        raise ValueError(f"--fail-on {text!r}: {FORMS}")
    name, worse, sign, number_text = match.groups()
    if name not in COMPARISON:
        hint = did_you_mean(name, COMPARISON) or f"; the metrics are {', '.join(COMPARISON)}"
        raise ValueError(f"--fail-on {text!r}: there is no metric {name!r}{hint}")
    if worse:
        if COMPARISON[name].kind == "cost" or COMPARISON[name].direction == "neither":
            raise ValueError(f"--fail-on {text!r}: {name} is not tested for significance; use {name}<NUMBER or >NUMBER")
        return Condition(text, name, "worse")
    try:
        number = float(number_text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"--fail-on {text!r}: {number_text!r} is not a finite number")
    return Condition(text, name, "<" if sign == "<" else ">", number)


def holds(condition: Condition, comparison: Comparison) -> list[str]:
    """Return a line for each side for which a condition holds or is unknown."""
    metric, base = comparison.metric(condition.metric), comparison.sides[0]
    lines = []
    for side in comparison.sides[1:]:
        difference = metric.difference(side.letter, base.letter) if metric else None
        unknown = _unknown(condition, metric, difference)
        if unknown is not None:
            lines.append(f"--fail-on {condition.text}: unknown for {side.letter} ({side.label}): {unknown}")
        elif metric and difference and _holds(condition, metric, difference):
            lines.append(f"--fail-on {condition.text}: {_describe(metric, difference, side, base)}")
    return lines


def _unknown(condition: Condition, metric: MetricComparison | None, difference: Difference | None) -> str | None:
    """Return why nobody knows whether a condition holds; None if it is known."""
    instead = f"{condition.metric}<NUMBER or >NUMBER"
    if metric is None:
        return "no record has it"
    if difference is None or difference.mean is None:
        return metric.not_compared or (difference.remark if difference else "")
    if condition.kind == "worse" and difference.n < LEAST_SEEDS:
        seeds = count(difference.n, "seed")
        return f"{seeds} in common, but a test needs {LEAST_SEEDS}: add seeds, or use {instead}"
    if condition.kind == "worse" and difference.tested == "nothing":
        return f"{difference.remark} Use {instead}"
    return None


def _holds(condition: Condition, metric: MetricComparison, difference: Difference) -> bool:
    if condition.kind == "worse":
        return metric.conclusion(difference) is Conclusion.WORSE
    assert difference.mean is not None
    return difference.mean < condition.number if condition.kind == "<" else difference.mean > condition.number


def _describe(metric: MetricComparison, difference: Difference, side: Side, base: Side) -> str:
    digits = max(4, metric.definition.digits)
    names = f"{side.letter} ({side.label}) minus {base.letter} ({base.label})"
    text = f"{metric.definition.name} of {names} is {signed(difference.mean, digits)}"
    if difference.low is not None:
        text += f" (95 % interval {bounds(difference, digits)}, n = {difference.n})"
    return text if difference.p_holm is None else f"{text}, p {p_value(difference.p_holm)} after Holm's correction"
