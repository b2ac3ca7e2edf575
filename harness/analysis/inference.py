"""Estimate, standard error, degrees of freedom, interval and p-value of differences between rows over paired seeds.

Every comparison in reports, `compare` and `ablate` goes through `infer`. Seeds are paired: seed k gives every row the
same batches and the same initial values. All values are on the natural scale of their metric (see `scales`).

**Estimate.** With weights w over the rows of a table, such as +1 and −1 for a pair, d[k] = sum over rows of w · value
at seed k of n. The estimate is the mean of d[k].

**Standard error.** sqrt(A + C). A = sum(w²) · s² / n is the part of the seeds: s² is the variance over seeds of d[k],
divided by sum(w²), which makes it the variance of one run, and moderated as described below. C is the part of the test
sentences that all seeds share: the mean covariance of two different seeds by the jackknife over test sentences, at
least 0. The effect of the sentences on one seed alone is already part of the variance over seeds (Owen 2007).

**Degrees of freedom.** D · ((A + C) / A) ** 1.2, where D are those of s². The exponent lies between 0 (intervals too
wide) and Satterthwaite's 2 (too narrow). With 3 seeds and no moderation, 1.2 keeps the coverage of a 95 % interval
between 94 and 96 % (docs/statistics-simulation.md).

**Interval and p-value.** Estimate ± t(degrees) · standard error, and the two-sided p-value of Student's t with the same
standard error and degrees. The 95 % interval therefore excludes 0 exactly if p < 0.05. Holm's correction for the number
of comparisons follows and changes the p-value only.

**Moderation.** With 3 seeds a variance has 2 degrees of freedom, and some comparisons get a small one by chance. A
table of at least 4 rows therefore estimates the variances of its comparisons together, by empirical Bayes (Smyth 2004,
as in limma). From the variances of all pairs of rows, v[p] with d = n − 1 degrees each:

    d0, v0    such that the mean and the variance of log v[p] are those of v0 · F(d, d0)
    d0 = ∞    if log v[p] vary no more than by chance: the variances are compatible, and v0 is their mean
    s²        = (d0 · v0 + d · v) / (d0 + d), and v0 if d0 = ∞
    D         = min(d0 + d, (rows − 1) · (n − 1))

Pairs share rows, so their logarithms vary less than independent ones; the variance of log v[p] is divided by 1 − the
mean squared correlation of two pairs, which is 1 / (rows + 1). Variances below the 20 % quantile of their distribution
are raised to it: two-point noise gives variances of 0 by chance, which carry no information. A comparison whose own
variance is too large for v0 (F test, 5 %) is not compatible with the others and keeps its own variance and degrees.
Rows with the same trained weights and another search are one row here: their differences vary less than those of runs.

**Fewer seeds.** With one or two seeds there is no inference over seeds.

Sources: Smyth 2004, Linear models and empirical Bayes methods for assessing differential expression, section 6;
Phipson et al. 2016, on variances that do not fit the prior; Satterthwaite 1946; Efron and Stein 1981, The jackknife
estimate of variance; Owen 2007, The pigeonhole bootstrap; Holm 1979.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from harness.analysis.effects import CONFIDENCE
from harness.analysis.scales import Reals

LEAST_SEEDS = 3
"""The fewest seeds with inference over seeds."""
LEAST_ROWS = 4
"""The fewest rows of a table with moderation: three variances cannot show whether they are compatible."""
DEGREES_EXPONENT = 1.2
FLOOR_QUANTILE = 0.2
TOO_LARGE = 0.05
ROUNDING = 1e-12
"""The relative difference up to which two values count as equal."""
MOST_DEGREES = 1e9
"""The degrees of freedom if nothing varies over seeds."""
POWER = 0.8
NORMAL_DEGREES = 1e4
"""The degrees of freedom from which Student's t is treated as normal."""


@dataclass(frozen=True)
class Prior:
    """The information that the rows of a table give together about the variance of one run.

    Attributes:
        variance: Smyth's s0², [...] for each table.
        degrees: Smyth's d0, [...]; 0 without moderation, infinite if all variances are compatible.
        pooled: The mean variance, [...], with `most_degrees` degrees of freedom.
    """

    variance: Reals
    degrees: Reals
    pooled: Reals
    most_degrees: int


@dataclass(frozen=True)
class Inference:
    """The result of `infer` for each effect, on the natural scale of the metric; arrays are [...,P].

    Attributes:
        estimate: The mean over seeds, with its `standard_error`, which has the degrees of freedom `degrees`.
        p: The two-sided p-value; NaN if all seeds have the same value and nothing else varies.
        deviation: The standard deviation over seeds, after moderation, with the degrees of freedom `seed_degrees`.
    """

    estimate: Reals
    standard_error: Reals
    degrees: Reals
    p: Reals
    deviation: Reals
    seed_degrees: Reals
    seeds: int

    @property
    def half_width(self) -> Reals:
        """Half the width of the interval."""
        return student(self.degrees, CONFIDENCE) * self.standard_error

    @property
    def above_zero(self) -> Reals:
        """The probability, from Student's t, that the effect is above 0 for a new seed on the same test sentences."""
        spread = self.deviation * math.sqrt(1 + 1 / self.seeds)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(spread > 0, self.estimate / spread, np.sign(self.estimate) * np.inf)
        distance = np.where((spread == 0) & (self.estimate == 0), 0.0, distance)
        probability: Reals = scipy.special.stdtr(self.seed_degrees, distance)
        return probability


def student(degrees: float | Reals, confidence: float) -> Reals:
    """Return the quantile of Student's t that is exceeded on either side with probability 1 − `confidence`."""
    quantile: Reals = scipy.special.stdtrit(degrees, (1 + confidence) / 2)
    return quantile


def infer(
    values: Reals,
    matrix: Reals,
    of_sentences: Reals | None = None,
    *,
    moderate: bool = True,
    independent: npt.NDArray[np.bool_] | slice = slice(None),
) -> Inference:
    """Return the inference of each effect, a weighted sum of the rows of a table; leading axes are other tables.

    Args:
        values: The metric of each run, [...,V,n] for V rows and n seeds.
        matrix: The weights of the rows in each effect, [P,V].
        of_sentences: The variance C of each effect that the test sentences cause in all seeds alike, [...,P].
        moderate: Whether the rows of a table estimate the variances over seeds together.
        independent: The rows that do so (default: all).

    Raises:
        ValueError: There are fewer than 3 seeds.
    """
    seeds = values.shape[-1]
    if seeds < LEAST_SEEDS:
        raise ValueError(f"{seeds} seeds: inference over seeds needs at least {LEAST_SEEDS}")
    effects = seed_values(values, matrix)
    squares = (matrix**2).sum(axis=1)
    variance = variances(effects) / squares
    seed_degrees = np.full_like(variance, seeds - 1.0)
    if moderate:
        variance, seed_degrees = _moderated(variance, prior(values[..., independent, :]), seeds - 1)
    from_seeds = variance * squares / seeds
    total = from_seeds if of_sentences is None else from_seeds + of_sentences
    degrees = combined_degrees(seed_degrees, from_seeds, total)
    estimate, error = effects.mean(axis=-1), np.sqrt(total)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = scipy.special.stdtr(degrees, -np.abs(estimate / error))
        p = np.where(error > 0, 2 * tail, np.where(estimate == 0, 1.0, np.nan))
    return Inference(estimate, error, degrees, p, np.sqrt(variance * squares), seed_degrees, seeds)


def combined_degrees(seed_degrees: float | Reals, from_seeds: float | Reals, total: float | Reals) -> Reals:
    """Return the degrees of freedom of A + C, `total`, of which A, `from_seeds`, has `seed_degrees`."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        degrees: Reals = seed_degrees * np.divide(total, from_seeds) ** DEGREES_EXPONENT
    return np.where(np.equal(from_seeds, 0), MOST_DEGREES, np.minimum(degrees, MOST_DEGREES))


def seed_values(values: Reals, matrix: Reals) -> Reals:
    """Return the weighted sums of rows at each seed, without differences from 0 or between seeds that are rounding.

    Shapes: `values` [...,V,n], `matrix` [P,V]; the sums [...,P,n].
    """
    sums = matrix @ values
    if not sums.shape[-1]:
        return sums
    tolerance = ROUNDING * (np.abs(matrix) @ np.abs(values)).max(axis=-1, keepdims=True)
    constant = np.ptp(sums, axis=-1, keepdims=True) <= tolerance
    sums = np.where(constant, sums.mean(axis=-1, keepdims=True), sums)
    return np.where(np.abs(sums) <= tolerance, 0.0, sums)


def variances(values: Reals) -> Reals:
    """Return the variance over seeds, divided by n − 1; exactly 0 if all are equal. Shapes: [...,n] to [...]."""
    return np.where(np.ptp(values, axis=-1) > 0, values.var(axis=-1, ddof=1), 0.0)


def quadratic(covariance: Reals, matrix: Reals) -> Reals:
    """Return the variance of each effect, at least 0. Shapes: `covariance` [...,V,V], `matrix` [P,V]; [...,P]."""
    variance = ((matrix @ covariance) * matrix).sum(axis=-1)
    tolerance = ROUNDING * ((np.abs(matrix) @ np.abs(covariance)) * np.abs(matrix)).sum(axis=-1)
    return np.where(variance > tolerance, variance, 0.0)


def chi_square_share(degrees: float, probability: float | Reals) -> Reals:
    """Return the quantile of a chi-square variable, divided by its degrees of freedom, which are its mean."""
    share: Reals = 2 * scipy.special.gammaincinv(degrees / 2, probability) / degrees
    return share


def detectable(standard_error: float, degrees: float, comparisons: int) -> float:
    """Return the true difference that is found significant with a probability of 80 %.

    It is tested at (1 − `CONFIDENCE`) / `comparisons`, the first and strictest step of Holm's correction; a table in
    which several differences are real detects smaller ones.
    """
    limit = float(student(degrees, 1 - (1 - CONFIDENCE) / max(1, comparisons)))
    if degrees >= NORMAL_DEGREES:
        return standard_error * (limit + float(scipy.special.ndtri(POWER)))
    return standard_error * float(scipy.special.nctdtrinc(degrees, 1 - POWER, limit))


# Moderation -----------------------------------------------------------------------------------------------------------


def prior(values: Reals) -> Prior:
    """Return the information that the rows of a table give together about the variance of one run over seeds.

    Shapes: `values` [...,V,n] with n of at least 2; the arrays of the prior [...].

    Source: Smyth 2004, section 6.2; its equations for the logarithms of the variances.
    """
    rows, seeds = values.shape[-2:]
    degrees = seeds - 1
    if rows < 2:
        zero = np.zeros(values.shape[:-2])
        return Prior(zero, zero, variances(values).mean(axis=-1), degrees)
    pair_variances = variances(seed_values(values, all_pairs(rows))) / 2
    pooled = pair_variances.mean(axis=-1)
    if rows < LEAST_ROWS or seeds < LEAST_SEEDS:
        return Prior(pooled, np.zeros_like(pooled), pooled, (rows - 1) * degrees)
    floor, mean, spread = _log_chi_square(degrees)
    raised = np.maximum(pair_variances, floor * pooled[..., None])
    logarithms = np.log(np.maximum(raised, np.finfo(float).tiny))
    excess = logarithms.var(axis=-1, ddof=1) / (1 - 1 / (rows + 1)) - spread
    compatible = excess <= 0
    prior_degrees = np.where(compatible, np.inf, 2 * _trigamma_inverse(np.where(compatible, 1.0, excess)))
    half = np.where(compatible, 1.0, prior_degrees) / 2
    scaled = np.exp(logarithms.mean(axis=-1) - mean + scipy.special.digamma(half) - np.log(half))
    return Prior(np.where(compatible, pooled, scaled), prior_degrees, pooled, (rows - 1) * degrees)


def _moderated(variance: Reals, prior: Prior, degrees: int) -> tuple[Reals, Reals]:
    """Return the moderated variance of one run for each effect, and its degrees of freedom."""
    prior_degrees, prior_variance = prior.degrees[..., None], prior.variance[..., None]
    most = float(prior.most_degrees)
    if not np.any(prior_degrees):
        return variance, np.full_like(variance, float(degrees))
    floor, _, _ = _log_chi_square(degrees)
    compatible = np.isinf(prior_degrees)
    finite = np.where(compatible, 1.0, prior_degrees)
    raised = np.maximum(variance, floor * prior.pooled[..., None])
    mixed = (finite * prior_variance + degrees * raised) / (finite + degrees)
    moderated = np.where(compatible, prior_variance, mixed)
    moderated_degrees = np.where(compatible, most, np.minimum(finite + degrees, most))
    outlying = variance > scipy.special.fdtri(degrees, most, 1 - TOO_LARGE) * prior_variance
    return np.where(outlying, variance, moderated), np.where(outlying, float(degrees), moderated_degrees)


@functools.cache
def all_pairs(rows: int) -> Reals:
    """Return the weights of all pairs of rows, [P,V]: 1 for the first, −1 for the second."""
    first, second = np.triu_indices(rows, k=1)
    identity = np.eye(rows)
    return identity[first] - identity[second]


@functools.cache
def _log_chi_square(degrees: int) -> tuple[float, float, float]:
    """Return the floor of a variance as a share of its expectation, and mean and variance of log max(variance, floor).

    The variance is distributed as chi-square / degrees.
    """
    shares = (np.arange(20_000) + 0.5) / 20_000
    floor = chi_square_share(degrees, FLOOR_QUANTILE)
    logarithms = np.log(np.maximum(chi_square_share(degrees, shares), floor))
    return float(floor), float(logarithms.mean()), float(logarithms.var())


def _trigamma_inverse(values: Reals) -> Reals:
    """Return y with trigamma(y) = `values`, by Newton's method on 1 / trigamma. Source: Smyth 2004, appendix."""
    y = 0.5 + 1 / values
    for _ in range(20):
        trigamma = scipy.special.polygamma(1, y)
        y = y + trigamma * (1 - trigamma / values) / scipy.special.polygamma(2, y)
    return y
