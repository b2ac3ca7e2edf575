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
    """Parse a condition.

    Raises:
        ValueError: The form, the metric or the number is not accepted, or the metric is never tested for significance.
    """
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
        if metric is None or difference is None or difference.mean is None:
            reason = metric.not_compared if metric else "no record has it"
            reason = reason or (difference.remark if difference else "")
            lines.append(f"--fail-on {condition.text}: unknown for {side.letter} ({side.label}): {reason}")
        elif condition.kind == "worse" and difference.n < LEAST_SEEDS:
            lines.append(
                f"--fail-on {condition.text}: unknown for {side.letter} ({side.label}): "
                f"{count(difference.n, 'seed')} in common, but a test needs {LEAST_SEEDS}: add seeds, or use "
                f"{condition.metric}<NUMBER or >NUMBER"
            )
        elif condition.kind == "worse" and difference.tested == "nothing":
            lines.append(
                f"--fail-on {condition.text}: unknown for {side.letter} ({side.label}): {difference.remark} Use "
                f"{condition.metric}<NUMBER or >NUMBER"
            )
        elif _holds(condition, metric, difference):
            lines.append(f"--fail-on {condition.text}: {_describe(metric, difference, side, base)}")
    return lines


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
    return text if difference.p_holm is None else f"{text}, p = {p_value(difference.p_holm)}"
