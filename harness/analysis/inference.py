"""Estimate, standard error, degrees of freedom, interval and p-value of differences between rows over paired seeds.

Every comparison of this project, in reports, in `compare` and in `ablate`, goes through `infer`. Seeds are paired: seed
k gives every row the same batches and the same initial values. All figures are on their natural scale (see `scales`).

**Estimate.** With weights w over the rows of a table, such as +1 and −1 for a pair, d[k] = sum over rows of w · figure
in seed k of n. The estimate is the mean of d[k].

**Standard error.** sqrt(A + C). A = sum(w²) · s² / n is the part of the seeds: s² is the variance over seeds of d[k],
divided by sum(w²), which makes it the variance of one run, and moderated as described below. C is what other test
sentences would change in all seeds alike: the mean covariance of two different seeds under a bootstrap of the test
sentences, at least 0. What they would change in one seed alone is part of the spread over seeds already (Owen 2007).

**Degrees of freedom.** D · ((A + C) / A) ** 1.2, where D are those of s². The exponent lies between 0, too wide, and
Satterthwaite's 2, too narrow; with 3 seeds and no moderation, 1.2 keeps the coverage of a 95 % interval between 94 and
96 % (docs/statistics-simulation.md).

**Interval and p-value.** Estimate ± t(degrees) · standard error, and the two-sided p-value of Student's t with the same
standard error and degrees. So the 95 % interval leaves 0 out exactly where p < 0.05. Holm's correction for the number
of comparisons comes after that and changes the p-value alone.

**Moderation.** With 3 seeds a variance has 2 degrees of freedom, and luck decides which comparison gets a small one. A
table of at least 4 rows therefore estimates the variances of its comparisons together, by empirical Bayes (Smyth 2004,
as in limma). From the variances of all pairs of rows, v[p] with d = n − 1 degrees each:

    d0, v0    such that the mean and the variance of log v[p] are those of v0 · F(d, d0)
    d0 = ∞    where log v[p] spread no more than chance lets them: the variances are compatible, v0 is their mean
    s²        = (d0 · v0 + d · v) / (d0 + d), and v0 where d0 = ∞
    D         = min(d0 + d, (rows − 1) · (n − 1))

Pairs share rows, so that their logarithms spread less than independent ones; the variance of log v[p] is divided by
1 − the mean squared correlation of two pairs. Variances below the 20 % quantile of their distribution count as that
quantile: two-point noise gives variances of 0 by chance, which say nothing. A comparison whose own variance is too
large for v0 (F test, 5 %) is not compatible with the others and keeps its own variance and degrees.

**Fewer seeds.** With two seeds, or one, nothing is inferred over seeds.

Sources: Smyth 2004, Linear models and empirical Bayes methods for assessing differential expression, section 6;
Phipson et al. 2016, on variances that do not fit the prior; Satterthwaite 1946; Owen 2007, The pigeonhole bootstrap;
Holm 1979.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]

LEAST_SEEDS = 3
"""Below it nothing is inferred over seeds."""
LEAST_ROWS = 4
"""A table of fewer rows does not moderate: three variances cannot show whether they are compatible."""
DEGREES_EXPONENT = 1.2
FLOOR_QUANTILE = 0.2
TOO_LARGE = 0.05
ROUNDING = 1e-12
"""What two figures may differ by, as a share of them, and still be the same."""
MOST_DEGREES = 1e9


@dataclass(frozen=True)
class Prior:
    """What the rows of a table say together about the variance of one run: Smyth's s0² and d0, and their own degrees.

    Shapes: `variance` and `degrees` [...], one for each table; `degrees` 0 where nothing is moderated, infinite where
    all variances are compatible. `pooled` [...] is the mean variance, `most_degrees` the degrees of freedom it has.
    """

    variance: Reals
    degrees: Reals
    pooled: Reals
    most_degrees: int


@dataclass(frozen=True)
class Inference:
    """What `infer` finds of each effect, on the natural scale of the figure.

    Shapes: all [...,P]. `deviation` is the standard deviation of an effect over seeds, after moderation, and
    `seed_degrees` its degrees of freedom.
    """

    estimate: Reals
    standard_error: Reals
    degrees: Reals
    p: Reals
    deviation: Reals
    seed_degrees: Reals
    seeds: int

    def half_width(self, confidence: float) -> Reals:
        """Return half the width of the interval."""
        found: Reals = student(self.degrees, confidence) * self.standard_error
        return found

    @property
    def above_zero(self) -> Reals:
        """The probability that the effect is above 0 in a new seed on the same test sentences: Student's prediction."""
        from scipy.special import stdtr

        spread = self.deviation * math.sqrt(1 + 1 / self.seeds)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(spread > 0, self.estimate / spread, np.sign(self.estimate) * np.inf)
        distance = np.where((spread == 0) & (self.estimate == 0), 0.0, distance)
        found: Reals = stdtr(np.minimum(self.seed_degrees, MOST_DEGREES), distance)
        return found


def student(degrees: float | Reals, confidence: float) -> Reals:
    """Return Student's t that is exceeded on both sides together in 1 − `confidence` of cases."""
    from scipy.special import stdtrit

    found: Reals = stdtrit(np.minimum(degrees, MOST_DEGREES), (1 + confidence) / 2)
    return found


def p_value(distance: Reals, degrees: Reals) -> Reals:
    """Return the two-sided p-value of Student's t."""
    from scipy.special import stdtr

    found: Reals = 2 * stdtr(np.minimum(degrees, MOST_DEGREES), -np.abs(distance))
    return found


def infer(figures: Reals, matrix: Reals, of_sentences: Reals | None = None, *, moderate: bool = True) -> Inference:
    """Return the inference of each effect, a weighted sum of the rows of a table; leading axes are other tables.

    `of_sentences` is the variance C of each effect that other test sentences bring about in all seeds alike. `moderate`
    lets the rows of a table estimate variances over seeds together.

    Shapes: `figures` [...,V,n] for V rows and n seeds, `matrix` [P,V], `of_sentences` [...,P]; the result [...,P].

    Raises:
        ValueError: fewer than 3 seeds.
    """
    seeds = figures.shape[-1]
    if seeds < LEAST_SEEDS:
        raise ValueError(f"{seeds} seeds: inference over seeds needs at least {LEAST_SEEDS}")
    values = seed_values(figures, matrix)
    squares = (matrix**2).sum(axis=1)
    own = variances(values) / squares
    variance, seed_degrees = _moderated(own, prior(figures), seeds - 1) if moderate else (own, _flat(own, seeds - 1.0))
    from_seeds = variance * squares / seeds
    total = from_seeds if of_sentences is None else from_seeds + of_sentences
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.where(from_seeds > 0, total / np.where(from_seeds > 0, from_seeds, 1.0), np.inf)
        degrees = np.minimum(seed_degrees * ratio**DEGREES_EXPONENT, MOST_DEGREES)
    estimate, error = values.mean(axis=-1), np.sqrt(total)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(error > 0, p_value(estimate / error, degrees), np.where(estimate == 0, 1.0, np.nan))
    return Inference(estimate, error, degrees, p, np.sqrt(variance * squares), seed_degrees, seeds)


def seed_values(figures: Reals, matrix: Reals) -> Reals:
    """Return the weighted sums in each seed; what differs by no more than rounding, apart or from 0, does not differ.

    Shapes: `figures` [...,V,n], `matrix` [P,V]; the values [...,P,n].
    """
    values = matrix @ figures
    if not values.shape[-1]:
        return values
    least = ROUNDING * (np.abs(matrix) @ np.abs(figures)).max(axis=-1, keepdims=True)
    flat = np.ptp(values, axis=-1, keepdims=True) <= least
    values = np.where(flat, values.mean(axis=-1, keepdims=True), values)
    found: Reals = np.where(np.abs(values) <= least, 0.0, values)
    return found


def variances(values: Reals) -> Reals:
    """Return the variance over seeds, divided by n − 1; exactly 0 where all are equal. Shapes: [...,n] to [...]."""
    found: Reals = np.where(np.ptp(values, axis=-1) > 0, values.var(axis=-1, ddof=1), 0.0)
    return found


def quadratic(covariance: Reals, matrix: Reals) -> Reals:
    """Return the variance of each effect, at least 0. Shapes: `covariance` [...,V,V], `matrix` [P,V]; [...,P]."""
    found = ((matrix @ covariance) * matrix).sum(axis=-1)
    least = ROUNDING * ((np.abs(matrix) @ np.abs(covariance)) * np.abs(matrix)).sum(axis=-1)
    kept: Reals = np.where(found > least, found, 0.0)
    return kept


# Moderation -----------------------------------------------------------------------------------------------------------


def prior(figures: Reals) -> Prior:
    """Return what the rows of a table say together about the variance of one run over seeds.

    Shapes: `figures` [...,V,n] with n of at least 2; the prior's arrays [...].

    Source: Smyth 2004, section 6.2; its equations for the logarithms of the variances.
    """
    from scipy.special import digamma

    rows, seeds = figures.shape[-2:]
    degrees = seeds - 1
    if rows < 2:
        nothing = np.zeros(figures.shape[:-2])
        return Prior(nothing, nothing, variances(figures).mean(axis=-1), degrees)
    pairs = all_pairs(rows)
    each = variances(seed_values(figures, pairs)) / 2
    pooled = each.mean(axis=-1)
    if rows < LEAST_ROWS or seeds < LEAST_SEEDS:
        return Prior(pooled, np.zeros_like(pooled), pooled, (rows - 1) * degrees)
    floor, mean, spread = _log_chi_square(degrees)
    tiny = np.finfo(float).tiny
    logarithms = np.log(np.maximum(np.maximum(each, floor * pooled[..., None]), tiny))
    excess = logarithms.var(axis=-1, ddof=1) / (1 - _overlap(rows)) - spread
    compatible = excess <= 0
    prior_degrees = np.where(compatible, np.inf, 2 * _trigamma_inverse(np.where(compatible, 1.0, excess)))
    known = np.where(compatible, 1.0, prior_degrees)
    scaled = np.exp(logarithms.mean(axis=-1) - mean + digamma(known / 2) - np.log(known / 2))
    return Prior(np.where(compatible, pooled, scaled), prior_degrees, pooled, (rows - 1) * degrees)


def _moderated(own: Reals, found: Prior, degrees: int) -> tuple[Reals, Reals]:
    """Return the moderated variance of one run for each effect, and its degrees of freedom."""
    from scipy.special import fdtri

    weight, most = found.degrees[..., None], float(found.most_degrees)
    if not np.any(weight):
        return own, _flat(own, float(degrees))
    floor, _, _ = _log_chi_square(degrees)
    finite = np.where(np.isfinite(weight), weight, 1.0)
    raised = np.maximum(own, floor * found.pooled[..., None])
    mixed = (finite * found.variance[..., None] + degrees * raised) / (finite + degrees)
    compatible = np.isinf(weight)
    variance = np.where(compatible, found.variance[..., None], mixed)
    moderated = np.where(compatible, most, np.minimum(finite + degrees, most))
    outlying = own > fdtri(degrees, most, 1 - TOO_LARGE) * found.variance[..., None]
    return np.where(outlying, own, variance), np.where(outlying, float(degrees), moderated)


def _flat(like: Reals, value: float) -> Reals:
    return np.full(like.shape, value)


@functools.cache
def all_pairs(rows: int) -> Reals:
    """Return the weights of all pairs of rows, [P,V]: 1 for the first, −1 for the second."""
    found = np.zeros((rows * (rows - 1) // 2, rows))
    for place, (first, second) in enumerate(combinations(range(rows), 2)):
        found[place, first], found[place, second] = 1.0, -1.0
    return found


@functools.cache
def _overlap(rows: int) -> float:
    """Return the mean squared correlation of the differences of two pairs of rows."""
    pairs = all_pairs(rows)
    squared = (pairs @ pairs.T / 2) ** 2
    number = len(pairs)
    return float((squared.sum() - number) / (number * (number - 1)))


@functools.cache
def _log_chi_square(degrees: int) -> tuple[float, float, float]:
    """Return the floor of a variance as a share of its expectation, and mean and variance of log max(variance, floor).

    The variance is distributed as chi-square / degrees.
    """
    from scipy.special import gammaincinv

    shares = (np.arange(20_000) + 0.5) / 20_000
    floor = float(2 * gammaincinv(degrees / 2, FLOOR_QUANTILE) / degrees)
    logarithms = np.log(np.maximum(2 * gammaincinv(degrees / 2, shares) / degrees, floor))
    return floor, float(logarithms.mean()), float(logarithms.var())


def _trigamma_inverse(values: Reals) -> Reals:
    """Return y with trigamma(y) = `values`, by Newton's method on 1 / trigamma. Source: Smyth 2004, appendix."""
    from scipy.special import polygamma

    found: Reals = 0.5 + 1 / values
    for _ in range(20):
        trigamma = polygamma(1, found)
        found = found + trigamma * (1 - trigamma / values) / polygamma(2, found)
    return found
