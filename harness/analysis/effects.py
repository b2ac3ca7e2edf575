"""The results of the statistics: intervals, effects, conclusions and tables of differences."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

Basis = Literal["seeds and sentences", "seeds", "sentences", "nothing"]
Tested = Literal["seeds", "sentences", "nothing"]


CONFIDENCE = 0.95
"""The confidence of intervals; a corrected p-value below 1 − `CONFIDENCE` is significant."""


class Conclusion(Enum):
    """The conclusion from a comparison, as a symbol and a label."""

    BETTER = "▲", "better"
    WORSE = "▼", "worse"
    INCONCLUSIVE = "~", "inconclusive"
    NOT_TESTED = "?", "not tested"
    SENTENCES_ONLY = "†", "on these sentences only; seed variance unknown"

    @property
    def symbol(self) -> str:
        return self.value[0]

    @property
    def label(self) -> str:
        return self.value[1]


LEGEND = ", ".join(f"{conclusion.symbol} {conclusion.label}" for conclusion in Conclusion)
"""All symbols with their labels, for the foot of a table."""

NORMAL_SEEDS = 6
"""The fewest seeds with which a sign-flip test, which assumes no distribution and has p >= 2 / 2**n, can reach 0.05."""
CLAIM_SEEDS = 5
"""The fewest seeds with which the prose of a report makes a claim."""
ASSUMPTION = "assuming normally distributed seed noise"


def assumption(seeds: int) -> str:
    """Return the assumption behind claims from few seeds, after a comma; empty from 6 seeds on."""
    return f", {ASSUMPTION}" if seeds < NORMAL_SEEDS else ""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over seeds and its interval; two seeds have values and no interval.

    Attributes:
        mean: The mean over seeds; None if it is unknown, and `remark` says why.
        n: The number of seeds.
        basis: What the interval covers: other seeds, other test sentences, or both.
        remark: What restricts the interval, in sentences.
        values: The value of each seed.
    """

    label: str
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    basis: Basis = "nothing"
    remark: str = ""
    values: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Effect(Interval):
    """A weighted sum of rows with its interval and test, in the units of the metric.

    Attributes:
        tested: What the p-value covers: seeds, from 3 seeds on; sentences, for a pair of single runs; or nothing.
        standard_error: The standard error on the natural scale of the metric, with its `degrees` of freedom.
        p: The p-value of this comparison alone: below 0.05 exactly if the 95 % interval excludes 0.
        p_holm: The p-value after Holm's correction for all comparisons of the table.
        above_zero: The probability that the effect is above 0 for a new seed on the same test sentences.
        significant: Whether `p_holm` is below 1 − `CONFIDENCE`.
    """

    tested: Tested = "nothing"
    standard_error: float | None = None
    degrees: float | None = None
    p: float | None = None
    p_holm: float | None = None
    above_zero: float | None = None
    significant: bool = False

    def conclude(self, *, less_is_better: bool) -> Conclusion:
        """Return the conclusion, such as better if the effect is significantly above 0."""
        if self.mean is None or self.tested == "nothing":
            return Conclusion.NOT_TESTED
        if not self.significant:
            return Conclusion.INCONCLUSIVE
        if self.tested == "sentences":
            return Conclusion.SENTENCES_ONLY
        return Conclusion.BETTER if (self.mean < 0) == less_is_better else Conclusion.WORSE

    def better_on_new_seed(self, *, less_is_better: bool) -> float | None:
        """Return the probability that a new seed on the same test sentences is better."""
        if self.above_zero is None:
            return None
        return 1 - self.above_zero if less_is_better else self.above_zero


@dataclass(frozen=True, kw_only=True)
class Difference(Effect):
    """The metric of row `first` minus that of row `second`."""

    first: str
    second: str

    @property
    def reversed(self) -> Difference:
        """The metric of row `second` minus that of row `first`."""
        return replace(
            self,
            label=minus(self.second, self.first),
            first=self.second,
            second=self.first,
            mean=_negative(self.mean),
            low=_negative(self.high),
            high=_negative(self.low),
            values=tuple(0.0 - value for value in self.values),
            above_zero=None if self.above_zero is None else 1 - self.above_zero,
        )


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """A table of differences between rows.

    Attributes:
        seeds: The seeds that all rows have.
        tests: The number of comparisons that the p-values are corrected for.
        detectable: The true difference, in the units of the metric, that a comparison of two rows finds significant
            with a probability of 80 %; None if nothing is tested over seeds.
        moderation: How the variances over seeds were estimated, in a sentence.
        remarks: What restricts the comparisons, in sentences.
    """

    differences: tuple[Difference, ...]
    seeds: tuple[int, ...]
    tests: int
    detectable: float | None
    moderation: str
    remarks: tuple[str, ...]

    def between(self, first: str, second: str) -> Difference:
        """Return the metric of row `first` minus that of row `second`, in whichever order the table has them.

        Raises:
            KeyError: The table does not compare these rows.
        """
        if (difference := self._by_rows.get((first, second))) is not None:
            return difference
        if (difference := self._by_rows.get((second, first))) is not None:
            return difference.reversed
        raise KeyError(f"no difference between {first!r} and {second!r}")

    @functools.cached_property
    def _by_rows(self) -> dict[tuple[str, str], Difference]:
        return {(difference.first, difference.second): difference for difference in self.differences}


def minus(first: str, second: str) -> str:
    """Return the label of a difference."""
    return f"{first} − {second}"


def _negative(value: float | None) -> float | None:
    return None if value is None else 0.0 - value
