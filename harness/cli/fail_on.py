"""`compare --fail-on`: conditions under which a comparison fails, for continuous integration."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from harness.analysis.comparison import Comparison
from harness.analysis.comparison_metrics import MetricComparison
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
    figure: str
    kind: Literal["<", ">", "worse"]
    number: float = 0.0


def read(text: str) -> Condition:
    """Return the condition that `text` writes.

    Raises:
        ValueError: another form, an unknown figure (naming the nearest), one that is never significant, or a number
            that is not finite.
    """
    found = re.fullmatch(r"\s*(\w+)\s*(?:(:)\s*worse|([<>])\s*(\S+))\s*", text)
    if not found:
        raise ValueError(f"--fail-on {text!r}: {FORMS}")
    name, worse, sign, written = found.groups()
    if name not in COMPARISON:
        hint = did_you_mean(name, COMPARISON) or f"; the metrics are {', '.join(COMPARISON)}"
        raise ValueError(f"--fail-on {text!r}: there is no metric {name!r}{hint}")
    if worse:
        if COMPARISON[name].kind == "cost":
            raise ValueError(f"--fail-on {text!r}: {name} is not tested for significance; use {name}<NUMBER or >NUMBER")
        return Condition(text, name, "worse")
    try:
        number = float(written)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"--fail-on {text!r}: {written!r} is not a finite number")
    return Condition(text, name, "<" if sign == "<" else ">", number)


def holds(condition: Condition, found: Comparison) -> list[str]:
    """Return a line for each side of which the condition holds, or is unknown.

    Raises:
        ValueError: "worse" is asked of fewer than 3 seeds, over which nothing is tested.
    """
    one, base = found.figure(condition.figure), found.sides[0]
    lines = []
    for side in found.sides[1:]:
        difference = one.difference(side.letter, base.letter) if one else None
        if one is None or difference is None or difference.mean is None:
            why = (one.silent if one else "no record has it") or (difference.remark if difference else "")
            lines.append(f"--fail-on {condition.text}: unknown for {side.letter} ({side.label}): {why}")
        elif condition.kind == "worse" and difference.n < LEAST_SEEDS:
            raise ValueError(
                f"--fail-on {condition.text}: {count(difference.n, 'seed')} in common, but a test "
                f"needs {LEAST_SEEDS}: add seeds, or use {condition.figure}<NUMBER or >NUMBER"
            )
        elif _holds(condition, one, difference):
            lines.append(f"--fail-on {condition.text}: {_told(one, difference, side, base)}")
    return lines


def _holds(condition: Condition, one: MetricComparison, difference: Difference) -> bool:
    if condition.kind == "worse":
        return one.conclusion(difference) is Conclusion.WORSE
    assert difference.mean is not None
    return difference.mean < condition.number if condition.kind == "<" else difference.mean > condition.number


def _told(one: MetricComparison, difference: Difference, side: Side, base: Side) -> str:
    digits = 4 if one.figure.digits < 4 else one.figure.digits
    names = f"{side.letter} ({side.label}) minus {base.letter} ({base.label})"
    said = f"{one.figure.name} of {names} is {signed(difference.mean, digits)}"
    if difference.low is not None:
        said += f" (95 % interval {bounds(difference, digits)}, n = {difference.n})"
    return f"{said}, p = {p_value(difference.p_holm)}" if difference.p_holm is not None else said
