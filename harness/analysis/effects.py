"""Input and result types of the statistics: rows of runs, intervals, differences, tables and bands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal, get_args

import numpy.typing as npt

Correction = Literal["holm", "none"]
Basis = Literal["seeds and sentences", "seeds", "sentences", "nothing"]
Tested = Literal["seeds", "sentences", "nothing"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """The method of intervals and tests.

    `resamples` is the number of bootstrap samples of the test sentences, `trials` that of approximate randomisation,
    and `correction` the one that `significant` uses.

    Raises:
        ValueError: a number is out of range, or the correction is unknown.
    """

    resamples: int = 1000
    trials: int = 10_000
    confidence: float = 0.95
    seed: int = 0
    correction: Correction = "holm"

    def __post_init__(self) -> None:
        for name, least in (("resamples", 2), ("trials", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)!r} must be a whole number of at least {least}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence={self.confidence!r} must be between 0 and 1")
        if self.correction not in get_args(Correction):
            raise ValueError(f"correction={self.correction!r} must be one of {', '.join(get_args(Correction))}")


METHOD = Method()


@dataclass(frozen=True, eq=False)
class Evidence:
    """The runs of one row over seeds: the metric of each run, and the statistics of its test sentences if stored.

    A value that is None, infinite or NaN belongs to a run that diverged or lacks the metric.
    `sums` may hold anything for such a run.

    Shapes: `sums` [n,N,K] for n seeds and N test sentences, the same sentences in the same order for all rows.

    Raises:
        ValueError: the lengths differ, or a seed occurs twice.
    """

    label: str
    seeds: tuple[int, ...]
    figures: tuple[float | None, ...]
    sums: npt.NDArray[Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"{self.label}: seeds={self.seeds!r} has a seed twice")
        if len(self.figures) != len(self.seeds):
            raise ValueError(f"{self.label}: {len(self.figures)} values for {len(self.seeds)} seeds")
        if self.sums is not None and (self.sums.ndim != 3 or len(self.sums) != len(self.seeds) or not self.sums.size):
            raise ValueError(
                f"{self.label}: sums of shape {self.sums.shape} for {len(self.seeds)} seeds; "
                "expected seeds, sentences, statistics"
            )

    @property
    def diverged(self) -> tuple[int, ...]:
        """The seeds whose runs have no value."""
        return tuple(
            seed
            for seed, one in zip(self.seeds, self.figures, strict=True)
            if not (one is not None and math.isfinite(one))
        )


class Conclusion(Enum):
    """The conclusion from a comparison: its symbol and its label."""

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


LEGEND = ", ".join(f"{one.symbol} {one.label}" for one in Conclusion)
"""All symbols with their labels, for the foot of a table."""

NORMAL_SEEDS = 6
"""From here on a test that assumes no distribution (sign flips, p of at least 2 / 2 ** n) could reach 0.05 too."""
CLAIM_SEEDS = 5
"""Sentences of prose claim nothing with fewer seeds."""
ASSUMPTION = "assuming normally distributed seed noise"


def assumption(seeds: int) -> str:
    """Return the assumption behind claims from few seeds, after a comma; empty from 6 seeds on."""
    return f", {ASSUMPTION}" if seeds < NORMAL_SEEDS else ""


def conclude(mean: float | None, tested: Tested, *, significant: bool, less_is_better: bool) -> Conclusion:
    """Return the conclusion from a tested effect; all tables take their symbols from here."""
    if mean is None or tested == "nothing":
        return Conclusion.NOT_TESTED
    if not significant:
        return Conclusion.INCONCLUSIVE
    if tested == "sentences":
        return Conclusion.SENTENCES_ONLY
    return Conclusion.BETTER if (mean < 0) == less_is_better else Conclusion.WORSE


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over `n` seeds and its interval; None if it is unknown, and `remark` says why.

    `values` are those of the seeds. `basis` is what the interval covers: other seeds, other test sentences, or both.
    Two seeds have values and no interval.
    """

    label: str
    mean: float | None
    low: float | None
    high: float | None
    n: int
    basis: Basis
    remark: str
    values: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Effect(Interval):
    """A weighted sum of rows with its interval and test, in the units of the metric; None if unknown.

    tested          what the p-value covers: seeds, from 3 seeds on; sentences, for a pair of single runs; or nothing
    standard_error  of the estimate on the metric's natural scale (`scales`), and its degrees of freedom
    p               of the comparison on its own: below 0.05 exactly where the 95 % interval leaves 0 out
    p_holm          the same after Holm's correction for all comparisons of the table
    above_zero      the probability that it is above 0 in a new seed on the same test sentences
    significant     the p-value that `Method.correction` names is below 1 − confidence
    wins, losses    seeds in which it is above and below 0: for a difference those in which the first figure is higher,
                    lower
    """

    tested: Tested = "nothing"
    standard_error: float | None = None
    degrees: float | None = None
    p: float | None = None
    p_holm: float | None = None
    above_zero: float | None = None
    significant: bool = False
    wins: int = 0
    losses: int = 0

    def conclusion(self, *, less_is_better: bool) -> Conclusion:
        """Return the conclusion, such as better if it is significantly above 0."""
        return conclude(self.mean, self.tested, significant=self.significant, less_is_better=less_is_better)

    def better_on_new_seed(self, *, less_is_better: bool) -> float | None:
        """Return the probability that it is for the better in a new seed on the same test sentences."""
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
        """The same difference, taken the other way round."""
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
            wins=self.losses,
            losses=self.wins,
        )


@dataclass(frozen=True, kw_only=True)
class InferenceTable:
    """The properties shared by all effects of a table.

    `seeds` are those that all rows have, `tests` the number of comparisons that the p-values are corrected for, and
    `detectable` the true difference, in the figure's units, that a comparison of two rows finds significant with a
    probability of 80 %. `moderation` says how the variances were estimated.
    """

    seeds: tuple[int, ...]
    tests: int
    detectable: float | None
    moderation: str
    method: Method
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparisons(InferenceTable):
    """Differences between rows."""

    differences: tuple[Difference, ...]

    def between(self, first: str, second: str) -> Difference:
        """Return the difference of `first` less `second`, whichever way round the table has it.

        Raises:
            KeyError: the table has neither.
        """
        for one in self.differences:
            if (one.first, one.second) == (first, second):
                return one
            if (one.second, one.first) == (first, second):
                return one.reversed
        raise KeyError(f"no difference between {first!r} and {second!r}")


@dataclass(frozen=True, kw_only=True)
class Contrasts(InferenceTable):
    """Weighted sums of rows."""

    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Band:
    """The mean over seeds at each epoch, and the ends of its t interval; None in an epoch in which a run has no value.

    With one run, `low` and `high` are None.
    """

    mean: tuple[float | None, ...]
    low: tuple[float | None, ...] | None
    high: tuple[float | None, ...] | None


def minus(first: str, second: str) -> str:
    """Return the label of a difference."""
    return f"{first} − {second}"


def _negative(value: float | None) -> float | None:
    return None if value is None else 0.0 - value
