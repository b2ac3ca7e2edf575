"""Comparisons of rows of runs: differences, weighted sums of rows, and intervals of single rows.

The method, with its formulas and sources, is in `inference`. Here rows of runs become arrays on the natural scale of
their metric (`evidence.Sample`), and the results of `infer` become effects in the units of the metric. The test depends
on the number of seeds that all rows of a table have:

| seeds | interval of a difference | p-value |
|---|---|---|
| 3 or more | Student's t over seeds and, if their statistics are stored, test sentences | that of the same t |
| 2 | none: the two values are shown | none |
| 1 | none | for a pair with stored sentences: paired approximate randomisation, over these sentences only |

docs/statistics-simulation.md shows how often this errs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from harness.analysis import inference, significance
from harness.analysis.effects import CONFIDENCE, Basis, Comparisons, Difference, Effect, Interval, minus
from harness.analysis.evidence import Evidence, Sample, missing_values, number_or_nan
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.scales import IDENTITY, Reals, Scale
from harness.analysis.significance import MetricFunction, holm

AnyEffect = TypeVar("AnyEffect", bound=Effect)

MOST_ROWS = 100
"""The rows of a table with comparisons of all pairs, at most: 100 rows have 4,950 pairs, and 500 have 124,750."""

# Tables ---------------------------------------------------------------------------------------------------------------


def compare_rows(
    evidence: Sequence[Evidence],
    metric: MetricFunction | None = None,
    *,
    base: str | None = None,
    scale: Scale = IDENTITY,
) -> Comparisons:
    """Return the difference of every two rows, or of every row from the base, corrected for the number of pairs.

    Only the seeds that all rows have count; `remarks` names the others. All pairs are compared of at most `MOST_ROWS`.

    Args:
        evidence: The rows, each with its own label.
        metric: Maps the summed sentence statistics of a row to its metric. Without it, or without statistics, intervals
            cover the seeds alone.
        base: The label of the row that the others are compared with (default: all pairs).
        scale: The natural scale of the metric.

    Raises:
        ValueError: The rows differ in the number of test sentences, or no row has the label `base`.
    """
    labels = [row.label for row in evidence]
    if base is not None and base not in labels:
        raise ValueError(f"base={base!r}: the rows are {', '.join(labels)}")
    pairs = [(label, base) for label in labels if base is not None and label != base]
    if base is None and len(labels) <= MOST_ROWS:
        pairs = list(combinations(labels, 2))
    sample = Sample(evidence, metric, scale)
    effects = _effects(sample, [(minus(first, second), {first: 1.0, second: -1.0}) for first, second in pairs])
    natural = sample.natural[sample.complete]
    level = float(np.median(natural.mean(axis=1))) if natural.size else math.nan
    return Comparisons(
        differences=tuple(
            Difference(**vars(effect), first=first, second=second)
            for effect, (first, second) in zip(effects, pairs, strict=True)
        ),
        seeds=sample.seeds,
        tests=sum(effect.p is not None for effect in effects),
        detectable=median_detectable(effects, sample.scale, level),
        moderation=_moderation(sample),
        remarks=(
            *sample.remarks,
            *(f"{missing_values(row)}; its differences stay empty." for row in sample.evidence if row.diverged),
        ),
    )


def contrasts(
    evidence: Sequence[Evidence],
    weights: Mapping[str, Mapping[str, float]],
    metric: MetricFunction | None = None,
    *,
    scale: Scale = IDENTITY,
) -> list[Effect]:
    """Return weighted sums of rows, such as main effects and interactions of a factorial grid.

    With rows "a b", "a B", "A b", "A B" the main effect of A is {-1/2, -1/2, 1/2, 1/2}, the interaction {1, -1, -1, 1}.
    `weights` has the weight of rows by label for each contrast. Other rows weigh 0, but take part in the moderation of
    variances. The other arguments and errors are those of `compare_rows`.
    """
    return _effects(Sample(evidence, metric, scale), list(weights.items()))


def interval(evidence: Evidence, metric: MetricFunction | None = None, *, scale: Scale = IDENTITY) -> Interval:
    """Return the arithmetic mean of one row over its seeds with its interval; the remark names runs without a value.

    The interval is computed on the natural scale and transformed back. It covers the row's own mean under other seeds
    and test sentences. Two such intervals do not show whether two rows differ: differences are paired and often have
    much narrower intervals.
    """
    diverged, remarks = evidence.diverged, []
    completed = evidence.at(seed for seed in evidence.seeds if seed not in diverged)
    n = len(completed.seeds)
    if diverged:
        remarks.append(f"{missing_values(evidence)}; {n} of {len(evidence.seeds)} runs are in the mean.")
    sample = Sample([completed], metric, scale)
    remark = " ".join([*remarks, *sample.remarks])
    if not n:
        return Interval(label=evidence.label, remark=remark)
    single, has_sums = np.ones((1, 1)), bool(sample.has_sums[0])
    shared = inference.quadratic(sample.shared, single)
    centre, half = sample.natural.mean(), math.nan
    if n == 1 and has_sums:
        half = float(inference.student(sample.sentences - 1, CONFIDENCE) * np.sqrt(shared[0]))
    elif n >= LEAST_SEEDS:
        inferred = inference.infer(sample.natural, single, shared, moderate=False)
        half = float(inferred.half_width[0])
    ends = sample.scale.inverse(np.array([centre - half, centre + half]))
    low, high = (float(end) if math.isfinite(end) else None for end in ends)
    return Interval(
        label=evidence.label,
        mean=float(sample.values.mean()),
        low=low,
        high=high,
        n=n,
        basis=_basis(n, has_sums),
        remark=remark,
        values=tuple(map(float, sample.values[0])),
    )


def bands(curves: Sequence[Sequence[float | None]], *, scale: Scale = IDENTITY) -> Reals:
    """Return the mean over seeds at each epoch of their curves, which may differ in length, and its t interval.

    Shapes: `curves` [n,E] for n seeds and E epochs; the means, lower and upper ends [3,E]. A value is NaN at an epoch
    at which a run has no value; the ends are NaN with fewer than 3 runs.
    """
    epochs = max(map(len, curves), default=0)
    values = np.array(
        [[*map(number_or_nan, curve), *[math.nan] * (epochs - len(curve))] for curve in curves], np.float64
    )
    band = np.full((3, epochs), math.nan)
    if len(curves):
        band[0] = values.mean(axis=0)
    if len(curves) >= LEAST_SEEDS:
        natural = scale.forward(values)
        half = inference.student(len(curves) - 1, CONFIDENCE) * natural.std(axis=0, ddof=1) / math.sqrt(len(curves))
        band[1:] = [scale.inverse(natural.mean(axis=0) + sign * half) for sign in (-1, 1)]
    return np.where(np.isfinite(band), band, math.nan)


def with_holm(effects: Sequence[AnyEffect]) -> list[AnyEffect]:
    """Return effects with p-values after Holm's correction, and whether they are significant."""
    return [
        replace(effect, p_holm=p, significant=p is not None and p < 1 - CONFIDENCE)
        for effect, p in zip(effects, holm([effect.p for effect in effects]), strict=True)
    ]


def median_detectable(effects: Sequence[Effect], scale: Scale, level: float) -> float | None:
    """Return the true difference that the effect with the median standard error detects with a probability of 80 %.

    It is in the units of the metric, around `level` on the natural scale; None if nothing is tested over seeds.
    """
    errors = sorted((row.standard_error, row.degrees) for row in effects if row.standard_error and row.degrees)
    if not errors:
        return None
    standard_error, degrees = errors[len(errors) // 2]
    tests = sum(effect.p is not None for effect in effects)
    return float(scale.shown(inference.detectable(standard_error, degrees, tests), level))


# From rows to effects -------------------------------------------------------------------------------------------------


def _moderation(sample: Sample) -> str:
    """Return how the variances over seeds were estimated."""
    n = len(sample.seeds)
    if n < LEAST_SEEDS or sample.complete.sum() < 2:
        return ""
    used = sample.complete & sample.independent
    rows, prior = int(used.sum()), inference.prior(sample.natural[used])
    if not prior.degrees:
        return f"Each comparison estimates its own variance over seeds, with {n - 1} degrees of freedom."
    if np.isinf(prior.degrees):
        return (
            f"The variances over seeds of these {rows} rows are compatible, so all comparisons share one estimate with "
            f"{prior.most_degrees} degrees of freedom (empirical Bayes); a comparison that does not fit keeps its own."
        )
    return (
        f"The variance of each comparison over seeds has {n - 1} degrees of freedom and is shrunk towards that of all "
        f"{rows} rows, which counts {float(prior.degrees):.1f} (empirical Bayes); one that does not fit keeps its own. "
        "These variances differ by more than chance, so intervals with a noisy row may be too narrow."
    )


def _effects(sample: Sample, weights: Sequence[tuple[str, Mapping[str, float]]]) -> list[Effect]:
    """Return the effect of each weighted sum of rows, given its name and the weights of rows by label."""
    labels = [row.label for row in sample.evidence]
    matrix = np.zeros((len(weights), len(labels)))
    for place, (_, by_label) in enumerate(weights):
        for label, weight in by_label.items():
            matrix[place, labels.index(label)] = weight
    used, n = matrix != 0, len(sample.seeds)
    is_complete = ~(used & ~sample.complete).any(axis=1)
    has_sums = (~used | sample.has_sums).all(axis=1)
    effects = [
        Effect(label=name, n=n, remark="" if is_complete[place] else sample.why_empty(used[place]))
        for place, (name, _) in enumerate(weights)
    ]
    known = np.flatnonzero(is_complete)
    if not len(known):
        return effects
    for index, fields in zip(known, _estimates(sample, matrix[known], has_sums[known]), strict=True):
        effects[index] = replace(effects[index], **fields)
    if n == 1:
        for place, p in _over_sentences(sample, matrix, has_sums & is_complete).items():
            effects[place] = replace(effects[place], tested="sentences", p=p)
    return with_holm(effects)


def _estimates(sample: Sample, matrix: Reals, has_sums: npt.NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Return mean, values, interval and test of effects whose rows have a value at every seed.

    There is no test if all seeds agree and nothing else varies.
    """
    n, complete = len(sample.seeds), sample.complete
    # The other rows weigh 0, but 0 · NaN would be NaN.
    natural, values = (np.where(complete[:, None], array, 0.0) for array in (sample.natural, sample.values))
    sizes = np.abs(matrix)
    levels = sizes @ natural.mean(axis=1) / sizes.sum(axis=1)  # around which effects are shown
    means = sample.scale.shown(inference.seed_values(natural, matrix).mean(axis=1), levels)
    estimates = [
        {"mean": float(mean), "basis": _basis(n, bool(with_sums)), "values": tuple(map(float, of_seeds))}
        for mean, of_seeds, with_sums in zip(means, inference.seed_values(values, matrix), has_sums, strict=True)
    ]
    if n < LEAST_SEEDS:
        return estimates
    of_complete = matrix[:, complete]
    with_sums = np.where(has_sums[:, None], of_complete, 0.0)
    of_sentences = inference.quadratic(sample.shared[np.ix_(complete, complete)], with_sums)
    independent = sample.independent[complete]
    inferred = inference.infer(sample.natural[complete], of_complete, of_sentences, independent=independent)
    half = inferred.half_width
    low, high = (sample.scale.shown(inferred.estimate + sign * half, levels) for sign in (-1, 1))
    columns = {"low": low, "high": high}
    columns |= {name: getattr(inferred, name) for name in ("standard_error", "degrees", "p", "above_zero")}
    untested = {"basis": "nothing", "remark": "All seeds have exactly the same difference: no spread to test."}
    tests = [
        untested if math.isnan(p) else {"tested": "seeds", **dict(zip(columns, map(float, test), strict=True))}
        for p, *test in zip(inferred.p, *columns.values(), strict=True)
    ]
    return [estimate | test for estimate, test in zip(estimates, tests, strict=True)]


def _over_sentences(sample: Sample, matrix: Reals, usable: npt.NDArray[np.bool_]) -> dict[int, float]:
    """Return the p-value of approximate randomisation of each difference of two single runs, by its index."""
    pairs = {
        index: (int(np.argmax(weights)), int(np.argmin(weights)))
        for index, weights in enumerate(matrix)
        if usable[index] and sorted(weights[weights != 0]) == [-1, 1]
    }
    if not pairs or sample.metric is None:
        return {}
    rows = sorted({row for pair in pairs.values() for row in pair})
    sums = np.stack([evidence.sums[0] for row in rows if (evidence := sample.evidence[row]).sums is not None])
    indices = [(rows.index(first), rows.index(second)) for first, second in pairs.values()]
    return dict(zip(pairs, significance.randomisation_p(sums, indices, sample.metric), strict=True))


def _basis(n: int, has_sums: bool) -> Basis:
    """Return what an interval over `n` seeds covers; two seeds have none."""
    if n > 2:
        return "seeds and sentences" if has_sums else "seeds"
    return "sentences" if has_sums and n < 2 else "nothing"
