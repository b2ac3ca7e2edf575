"""How far a difference between rows of runs can be believed: over seeds and over test sentences together.

Seeds are paired: seed k gives every row the same batches and initial values, so what is judged is the difference of two
rows in each seed, or any other weighted sum of rows. With d[k] the difference in seed k of n, and d[r,k] the same with
the test sentences drawn anew for the rth time, with replacement and alike for all rows and seeds,

    variance = variance of d[k] over seeds / n  +  max(0, mean over k != l of the covariance of d[r,k] and d[r,l] over r)
    interval = mean of d[k] +/- t(degrees) * sqrt(variance)
    degrees  = (n - 1) * variance / its first part; with two seeds 1

The first part is that of a bootstrap over seeds, worked out exactly instead of drawn, times n / (n - 1); without noise of
the sentences the interval is Student's t. The second is what other test sentences would change in all seeds alike. What
they change in one seed alone, as chance among equally good translations, stands in the spread over seeds already.

Drawing seeds and sentences at once and taking the whole variance times n / (n - 1) would count that share three times
(Owen 2007): simulated without any difference, such an interval leaves 0 out in 0.0 % of cases with 3 seeds and about 1 %
with 8, where this one does in 3.7 to 5.7 %, and a plain percentile bootstrap over the seeds in 23, 17 and 13 % with 3, 5
and 8. The degrees lie between those of Cochran and Cox, which are too few, and Satterthwaite's, too many for few seeds:
7.8 % with 3.

Sources: Owen 2007, The pigeonhole bootstrap; Satterthwaite 1946; Cochran and Cox 1957, section 4.14.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations, product
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Metric = Callable[[Reals], Reals]
"""Turns sums of the statistics of sentences, [...,K], into figures, [...]."""

Correction = Literal["holm", "none"]
Basis = Literal["seeds and sentences", "seeds", "sentences", "nothing"]

MOST_EXACT_SEEDS = 12
"""All 2 ** n flips of signs are tried up to here; beyond it `Method.trials` random ones."""

_ROUNDING = 1e-12
_CHUNK = 4_000_000


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
            raise ValueError(f"{self.label}: {len(self.figures)} figures for {len(self.seeds)} seeds: allowed is as many")
        if self.sums is not None and (self.sums.ndim != 3 or len(self.sums) != len(self.seeds) or not self.sums.size):
            raise ValueError(
                f"{self.label}: sums of the shape {self.sums.shape} for {len(self.seeds)} seeds: "
                "allowed is seeds, sentences, statistics"
            )

    @property
    def diverged(self) -> tuple[int, ...]:
        """The seeds whose run has no figure."""
        return tuple(seed for seed, one in zip(self.seeds, self.figures, strict=True) if not _finite(one))


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

    effect_size   Cohen's d_z: mean of the paired differences / their deviation, times Hedges' correction for few seeds,
                  gamma(m / 2) / (sqrt(m / 2) * gamma((m - 1) / 2)) with m = n - 1; from three seeds on
    p             of the paired t test over seeds, two-sided; where all seeds differ alike, `least_p(n)`
    p_holm        the same after Holm's correction over all effects of the table
    p_joint       of the joint sign-flip test: the share of all flips of whole seeds in which any effect of the table is
                  as far from 0, in units of its own spread, as this one is; corrected for the table by that
    p_sentences   for a difference of two single runs: of approximate randomisation over test sentences
    significant   from two seeds on: the p that `Method.correction` asks for is below 1 - confidence and the interval
                  leaves 0 out
    wins, losses  seeds in which it is above and below 0; for a difference: in which the first figure is the higher, lower

    Source: Hedges 1981, equation 6e; Holm 1979; Westfall and Young 1993, section 2.3 (max-t).
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
            label=_minus(self.second, self.first),
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


# Tables ---------------------------------------------------------------------------------------------------------------


def compare_all(evidence: Sequence[Evidence], metric: Metric | None = None, *, method: Method = METHOD) -> Comparisons:
    """Return the difference of every two rows, seed against seed, corrected for their number.

    Only the seeds that all rows have count; `remarks` names the others. `metric` must give the rows' figures from their
    summed statistics; without it, or without statistics, intervals cover the seeds alone.

    Raises: ValueError where two rows have one label, or rows not the same number of test sentences.
    """
    labels = [one.label for one in evidence]
    return _compare(evidence, list(combinations(labels, 2)), metric, method)


def against(
    evidence: Sequence[Evidence], base: str, metric: Metric | None = None, *, method: Method = METHOD
) -> Comparisons:
    """Return the difference of every other row less row `base`, as `compare_all` does, corrected for these alone.

    Raises: as `compare_all`, and where no row is called `base`.
    """
    labels = [one.label for one in evidence]
    if base not in labels:
        raise ValueError(f"base={base!r}: allowed is {', '.join(labels)}")
    return _compare(evidence, [(label, base) for label in labels if label != base], metric, method)


def contrasts(
    evidence: Sequence[Evidence],
    weights: Mapping[str, Mapping[str, float]],
    metric: Metric | None = None,
    *,
    method: Method = METHOD,
) -> Contrasts:
    """Return weighted sums of rows, such as the main effects and interactions of a factorial grid, judged as differences.

    `weights` has for each contrast the weight of each row, by label; rows that are not named weigh 0. With rows
    "a b", "a B", "A b", "A B" the main effect of A is {-1/2, -1/2, 1/2, 1/2}, the interaction {1, -1, -1, 1}.

    Raises: as `compare_all`, and where a weight names no row or a contrast has no weight.
    """
    labels = [one.label for one in evidence]
    matrix = np.zeros((len(weights), len(labels)))
    for row, (name, cells) in enumerate(weights.items()):
        unknown = [label for label in cells if label not in labels]
        if unknown or not any(cells.values()):
            raise ValueError(f"contrast {name!r} of {unknown or dict(cells)!r}: allowed is a weight of {', '.join(labels)}")
        for label, weight in cells.items():
            matrix[row, labels.index(label)] = weight
    sample = _Sample.of(evidence, metric, method)
    return Contrasts(effects=tuple(_effects(sample, list(weights), matrix)), **sample.table())


def interval(evidence: Evidence, metric: Metric | None = None, *, method: Method = METHOD) -> Interval:
    """Return the mean of one row's figures over its seeds with its interval; runs without a figure are in the remark.

    It says how far the row's own mean would move with other seeds and test sentences. Whether two rows differ is not to
    be read from two of these: their differences are paired, and often far surer.

    Raises: ValueError as `compare_all`.
    """
    lost = set(evidence.diverged)
    kept = [place for place, seed in enumerate(evidence.seeds) if seed not in lost]
    finished = replace(
        evidence,
        seeds=tuple(evidence.seeds[place] for place in kept),
        figures=tuple(evidence.figures[place] for place in kept),
        sums=evidence.sums[kept] if evidence.sums is not None and kept else None,
    )
    sample = _Sample.of([finished], metric, method)
    (effect,) = _effects(sample, [evidence.label], np.ones((1, 1)))
    found = {one.name: getattr(effect, one.name) for one in fields(Interval)}
    told = [_lost(evidence, evidence.seeds) + ": the mean is without"] if lost and kept else []
    told = told or ([_lost(evidence, evidence.seeds)] if lost else [])
    if len(kept) == 1:
        told.append(_one_seed(bool(sample.has_sums[0])))
    return Interval(**{**found, "remark": "; ".join(told)})


def bands(curves: Sequence[Sequence[float | None]], *, confidence: float = METHOD.confidence) -> Band:
    """Return mean and t interval over the seeds at each epoch of their curves; a curve that ends early lacks the rest.

    Shapes: `curves` [n,E] for n seeds and E epochs.
    """
    epochs = max(map(len, curves), default=0)
    values = np.array([[*map(_number, one), *[math.nan] * (epochs - len(one))] for one in curves], np.float64)
    means = values.mean(axis=0) if len(curves) else np.zeros(0)
    if len(curves) < 2:
        return Band(_numbers(means), None, None)
    half = _quantile(len(curves) - 1, confidence) * values.std(axis=0, ddof=1) / math.sqrt(len(curves))
    return Band(_numbers(means), _numbers(means - half), _numbers(means + half))


# Tests ----------------------------------------------------------------------------------------------------------------


def least_p(n: int) -> float | None:
    """Return the least two-sided p that a sign-flip test over `n` seeds can give, 2 / 2 ** n; None without seeds."""
    return 2.0 ** (1 - n) if n else None


def holm(ps: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return `ps` after Holm's correction for the number of those that are there; None stays None.

    The ith smallest of m becomes the largest of (m - j + 1) * p[j] over j <= i, at most 1.

    Source: Holm 1979.
    """
    order = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    found: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        found[place] = largest
    return tuple(found)


def randomisation_p(
    first: npt.NDArray[Any], second: npt.NDArray[Any], metric: Metric, *, trials: int = METHOD.trials, seed: int = 0
) -> float:
    """Return the p of approximate randomisation for two single runs: is the difference more than a choice of sentences?

    In each trial every sentence's statistics change sides with probability 1/2. (c + 1) / (trials + 1) for c trials whose
    difference is at least as far from 0: sacreBLEU's paired test "ar", whose every trial is drawn alike from `seed`,
    but that ties count, so that a run against itself has p = 1. It says nothing about other seeds.

    Shapes: `first`, `second` [N,K].

    Source: Riezler and Maxwell 2005; sacreBLEU's `significance.py`.
    """
    ours, theirs = np.asarray(first, np.float64), np.asarray(second, np.float64)
    whole = ours.sum(axis=0), theirs.sum(axis=0)
    observed = abs(float(metric(whole[0]) - metric(whole[1])))
    # sacreBLEU draws all trials in one call, and bits drawn in parts would be others.
    chosen = np.random.default_rng(seed).integers(2, size=(trials, len(ours)), dtype=bool)
    count = 0
    for part in _chunks(trials, len(ours)):
        mixed = whole[1] + chosen[part].astype(np.float64) @ (ours - theirs)
        found = np.abs(metric(mixed) - metric(whole[0] + whole[1] - mixed))
        count += int((found >= observed * (1 - 1e-9)).sum())
    return (count + 1) / (trials + 1)


def _joint_p(values: Reals, method: Method) -> Reals:
    """Return each effect's p under flips of the signs of whole seeds; `values` [P,n].

    |sum over seeds| / root of the sum of squares, which flips leave alone, rises with |t| and is never infinite.
    """
    effects, n = values.shape
    norms = np.sqrt((values**2).sum(axis=1))
    scaled = values / np.where(norms > 0, norms, 1.0)[:, None]
    observed = np.abs(scaled.sum(axis=1)) * (1 - 1e-9)
    exact = n <= MOST_EXACT_SEEDS
    if exact:
        signs = np.array(list(product((1.0, -1.0), repeat=n)))
    else:
        signs = np.random.default_rng(method.seed).choice((1.0, -1.0), size=(method.trials, n))
    counts = np.zeros(effects)
    for part in _chunks(len(signs), effects):
        largest = np.abs(signs[part] @ scaled.T).max(axis=1)
        counts += (largest[:, None] >= observed).sum(axis=0)
    found: Reals = counts / len(signs) if exact else (counts + 1) / (len(signs) + 1)
    return found


# From rows to effects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Rows cut to their common seeds, and their figures with the test sentences drawn anew.

    Shapes: `figures` [V,n], not a number for a run without; `has_sums` [V]; `drawn` [R,V,n], 0 where a row has no sums.
    """

    evidence: tuple[Evidence, ...]
    metric: Metric | None
    method: Method
    seeds: tuple[int, ...]
    figures: Reals
    has_sums: npt.NDArray[np.bool_]
    sentences: int
    drawn: Reals
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, evidence: Sequence[Evidence], metric: Metric | None, method: Method) -> _Sample:
        twice = [label for label, times in Counter(one.label for one in evidence).items() if times > 1]
        if twice:
            raise ValueError(f"label {twice[0]!r} is that of several rows: allowed is each label once")
        shapes = {one.label: one.sums.shape[1:] for one in evidence if one.sums is not None}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"sentences and statistics differ: {shapes}: allowed is the same for all rows")
        common = set.intersection(*(set(one.seeds) for one in evidence)) if evidence else set()
        seeds = tuple(sorted(common))
        rows = tuple(_cut(one, seeds) for one in evidence)
        figures = np.array([[_number(value) for value in row.figures] for row in rows]).reshape(len(rows), len(seeds))
        usable, unfit = _usable(rows, metric)
        drawn = np.zeros((method.resamples, len(rows), len(seeds)))
        if metric is not None and usable.any():
            drawn[:, usable] = _drawn([row.sums for row in rows if usable[rows.index(row)]], metric, method)
        return cls(
            evidence=rows,
            metric=metric,
            method=method,
            seeds=seeds,
            figures=figures,
            has_sums=usable,
            sentences=next(iter(shapes.values()))[0] if shapes else 0,
            drawn=drawn,
            remarks=(*_seed_remarks(evidence, seeds, usable), *(_lost(one, seeds) for one in rows if one.diverged), *unfit),
        )

    def table(self) -> dict[str, Any]:
        """Return the fields of `Table`."""
        return {
            "seeds": self.seeds,
            "least_p": least_p(len(self.seeds)),
            "method": self.method,
            "remarks": self.remarks,
        }
