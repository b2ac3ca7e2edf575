"""What statistics are made from and what they say: rows of runs, intervals, differences, tables of them, bands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy.typing as npt

Correction = Literal["holm", "none"]
Basis = Literal["seeds and sentences", "seeds", "sentences", "nothing"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """How intervals and tests are made: `trials` are those of the randomisation tests, `correction` what `significant`
    heeds.

    Raises: ValueError for a number out of its range or an unknown correction.
    """

    resamples: int = 1000
    trials: int = 10_000
    confidence: float = 0.95
    seed: int = 0
    correction: Correction = "holm"

    def __post_init__(self) -> None:
        for name, least in (("resamples", 2), ("trials", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed is a whole number of at least {least}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence={self.confidence!r}: allowed is a number between 0 and 1")
        if self.correction not in get_args(Correction):
            raise ValueError(f"correction={self.correction!r}: allowed is {', '.join(get_args(Correction))}")


METHOD = Method()


@dataclass(frozen=True, eq=False)
class Evidence:
    """One row's runs over seeds: each run's own figure, and the statistics of its test sentences where they are stored.

    A figure that is None, infinite or not a number is that of a run that diverged, or has none for another reason.
    `sums` may hold anything for such a run.

    Shapes: `sums` [n,N,K] for n seeds and N test sentences, the same sentences in the same order for all rows.

    Raises: ValueError where there are not as many of one as of another, or one seed twice.
    """

    label: str
    seeds: tuple[int, ...]
    figures: tuple[float | None, ...]
    sums: npt.NDArray[Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"{self.label}: seeds={self.seeds!r}: allowed is each seed once")
        if len(self.figures) != len(self.seeds):
            raise ValueError(
                f"{self.label}: {len(self.figures)} figures for {len(self.seeds)} seeds: allowed is as many"
            )
        if self.sums is not None and (self.sums.ndim != 3 or len(self.sums) != len(self.seeds) or not self.sums.size):
            raise ValueError(
                f"{self.label}: sums of the shape {self.sums.shape} for {len(self.seeds)} seeds: "
                "allowed is seeds, sentences, statistics"
            )

    @property
    def diverged(self) -> tuple[int, ...]:
        """The seeds whose run has no figure."""
        return tuple(
            seed
            for seed, one in zip(self.seeds, self.figures, strict=True)
            if not (one is not None and math.isfinite(one))
        )


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over `n` seeds and where the true one lies; None where that is unknown, and `remark` then says why.

    `basis` is what was drawn anew: other seeds, other test sentences, or both.
    """

    label: str
    mean: float | None
    low: float | None
    high: float | None
    standard_error: float | None
    n: int
    basis: Basis
    remark: str


@dataclass(frozen=True, kw_only=True)
class Effect(Interval):
    """A weighted sum of rows with its interval and tests; None where one cannot be had.

    effect_size   Cohen's d_z: mean of the paired differences / their deviation, corrected for few seeds (Hedges' g_z);
                  from three seeds on
    p             of the paired t test over seeds, two-sided; where all seeds differ alike, `least_p(n)`
    p_holm        the same after Holm's correction over all effects of the table
    p_joint       of the joint sign-flip test: the share of all flips of whole seeds in which any effect of the table is
                  as far from 0, in units of its own spread, as this one is; corrected for the table by that
    p_sentences   for a difference of two single runs: of approximate randomisation over test sentences
    significant   from two seeds on: the p that `Method.correction` asks for is below 1 - confidence and the interval
                  leaves 0 out
    wins, losses  seeds in which it is above and below 0: for a difference those in which the first figure is higher,
                  lower
    """

    effect_size: float | None = None
    p: float | None = None
    p_holm: float | None = None
    p_joint: float | None = None
    p_sentences: float | None = None
    significant: bool = False
    wins: int = 0
    losses: int = 0


@dataclass(frozen=True, kw_only=True)
class Difference(Effect):
    """The figure of row `first` less that of row `second`."""

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
            effect_size=_negative(self.effect_size),
            wins=self.losses,
            losses=self.wins,
        )


@dataclass(frozen=True, kw_only=True)
class Table:
    """What holds for all effects of a table: the seeds that all rows have, the least p they can give, the remarks."""

    seeds: tuple[int, ...]
    least_p: float | None
    method: Method
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparisons(Table):
    """Differences between rows."""

    differences: tuple[Difference, ...]

    def between(self, first: str, second: str) -> Difference:
        """Return the difference of `first` less `second`, whichever way round the table has it.

        Raises: KeyError where the table has neither.
        """
        for one in self.differences:
            if (one.first, one.second) == (first, second):
                return one
            if (one.second, one.first) == (first, second):
                return one.reversed
        raise KeyError(f"no difference between {first!r} and {second!r}")


@dataclass(frozen=True, kw_only=True)
class Contrasts(Table):
    """Weighted sums of rows."""

    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Band:
    """The mean over seeds at each epoch, and the ends of its t interval; None in an epoch where a run has no figure.

    `low` and `high` are None as a whole where there is one run.
    """

    mean: tuple[float | None, ...]
    low: tuple[float | None, ...] | None
    high: tuple[float | None, ...] | None


def minus(first: str, second: str) -> str:
    """Return the label of a difference."""
    return f"{first} − {second}"


def _negative(value: float | None) -> float | None:
    return None if value is None else 0.0 - value
