"""Tables of rows of runs tested together: differences, weighted sums of rows, and intervals of single rows.

The method, with its formulas and sources, is in `inference`. Here rows of runs become arrays on the natural scale of
their figure (`scales`), and what `infer` finds becomes effects in the figure's own units. What is tested depends on the
seeds that all rows of a table have:

| seeds | interval of a difference | p-value |
|---|---|---|
| 3 or more | Student's t over seeds and, where they are stored, test sentences | that of the same t |
| 2 | none: the two values are shown | none |
| 1 | none | for a pair whose sentences are stored: paired approximate randomisation, over these sentences only |

How often this errs is simulated: docs/statistics-simulation.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis import inference, power, significance
from harness.analysis.effects import (
    METHOD,
    Band,
    Basis,
    Comparisons,
    Contrasts,
    Difference,
    Effect,
    Evidence,
    Interval,
    Method,
    minus,
)
from harness.analysis.inference import LEAST_SEEDS, Inference
from harness.analysis.samples import Sample, covered, lost_runs, number, number_or_none, numbers
from harness.analysis.scales import IDENTITY, Scale
from harness.analysis.significance import MetricFunction, Reals, holm

__all__ = [
    "METHOD",
    "Band",
    "Basis",
    "Comparisons",
    "Contrasts",
    "Difference",
    "Effect",
    "Evidence",
    "Interval",
    "Method",
    "MetricFunction",
    "against",
    "bands",
    "compare_all",
    "contrasts",
    "holm",
    "interval",
]

# Tables ---------------------------------------------------------------------------------------------------------------


def compare_all(
    evidence: Sequence[Evidence],
    metric: MetricFunction | None = None,
    *,
    scale: Scale = IDENTITY,
    method: Method = METHOD,
) -> Comparisons:
    """Return the difference of every two rows, seed by seed, corrected for the number of pairs.

    Only the seeds that all rows have count; `remarks` names the others. `metric` must give the rows' figures from their
    summed statistics; without it, or without statistics, intervals cover the seeds alone.

    Raises:
        ValueError: two rows have one label, or not all rows the same number of test sentences.
    """
    labels = [one.label for one in evidence]
    return _compare(evidence, list(combinations(labels, 2)), metric, scale, method)


def against(
    evidence: Sequence[Evidence],
    base: str,
    metric: MetricFunction | None = None,
    *,
    scale: Scale = IDENTITY,
    method: Method = METHOD,
) -> Comparisons:
    """Return the difference of every other row less row `base`, corrected for the number of these.

    Raises: as `compare_all`, and where no row is called `base`.
    """
    labels = [one.label for one in evidence]
    if base not in labels:
        raise ValueError(f"base={base!r}: the rows are {', '.join(labels)}")
    return _compare(evidence, [(label, base) for label in labels if label != base], metric, scale, method)


def contrasts(
    evidence: Sequence[Evidence],
    weights: Mapping[str, Mapping[str, float]],
    metric: MetricFunction | None = None,
    *,
    scale: Scale = IDENTITY,
    method: Method = METHOD,
) -> Contrasts:
    """Return weighted sums of rows, such as main effects and interactions of a factorial grid.

    `weights` has for each contrast the weight of each row, by label; rows that are not named weigh 0, but take part in
    the moderation of variances. With rows "a b", "a B", "A b", "A B" the main effect of A is {-1/2, -1/2, 1/2, 1/2},
    the interaction {1, -1, -1, 1}.

    Raises: as `compare_all`, and where a weight names no row or a contrast has no weight.
    """
    labels = [one.label for one in evidence]
    matrix = np.zeros((len(weights), len(labels)))
    for row, (name, cells) in enumerate(weights.items()):
        unknown = [label for label in cells if label not in labels]
        if unknown or not any(cells.values()):
            raise ValueError(f"contrast {name!r} of {unknown or dict(cells)!r}: give weights to {', '.join(labels)}")
        for label, weight in cells.items():
            matrix[row, labels.index(label)] = weight
    sample = Sample.of(evidence, metric, scale, method)
    effects = _effects(sample, list(weights), matrix)
    return Contrasts(effects=tuple(effects), **_table(sample, effects))


def interval(
    evidence: Evidence, metric: MetricFunction | None = None, *, scale: Scale = IDENTITY, method: Method = METHOD
) -> Interval:
    """Return the mean of one row over its seeds with its interval; the remark names runs without a value.

    The mean is the arithmetic one; the interval is made on the natural scale and transformed back. It says how far the
    row's own mean would move with other seeds and test sentences. Two of these do not tell whether two rows differ:
    differences are paired, and often far more certain.

    Raises:
        ValueError: as `compare_all`.
    """
    lost = set(evidence.diverged)
    kept = [place for place, seed in enumerate(evidence.seeds) if seed not in lost]
    finished = replace(
        evidence,
        seeds=tuple(evidence.seeds[place] for place in kept),
        figures=tuple(evidence.figures[place] for place in kept),
        sums=evidence.sums[kept] if evidence.sums is not None and kept else None,
    )
    sample = Sample.of([finished], metric, scale, method)
    told = [f"{lost_runs(evidence)}; {len(kept)} of {len(evidence.seeds)} runs are in the mean."] if lost else []
    remark, n = " ".join([*told, *sample.remarks]), len(kept)
    if not n:
        return Interval(label=evidence.label, mean=None, low=None, high=None, n=0, basis="nothing", remark=remark)
    single, usable = np.ones((1, 1)), bool(sample.has_sums[0])
    shared = inference.quadratic(sample.shared, single)
    centre, half = sample.natural.mean(), math.nan
    if n == 1 and usable:
        half = float(inference.student(max(1.0, sample.sentences - 1.0), method.confidence) * np.sqrt(shared[0]))
    elif n >= LEAST_SEEDS:
        found = inference.infer(sample.natural, single, shared, moderate=False)
        half = float(found.half_width(method.confidence)[0])
    low, high = (number_or_none(scale.inverse(np.array(end))) for end in (centre - half, centre + half))
    return Interval(
        label=evidence.label,
        mean=float(sample.figures.mean()),
        low=low,
        high=high,
        n=n,
        basis=covered(n, usable),
        remark=remark,
        values=tuple(map(float, sample.figures[0])),
    )


def bands(
    curves: Sequence[Sequence[float | None]], *, scale: Scale = IDENTITY, confidence: float = METHOD.confidence
) -> Band:
    """Return mean and t interval over the seeds at each epoch of their curves; a curve that ends early lacks the rest.

    Fewer than 3 curves have no interval.

    Shapes: `curves` [n,E] for n seeds and E epochs.
    """
    epochs = max(map(len, curves), default=0)
    values = np.array([[*map(number, one), *[math.nan] * (epochs - len(one))] for one in curves], np.float64)
    means = values.mean(axis=0) if len(curves) else np.zeros(0)
    if len(curves) < LEAST_SEEDS:
        return Band(numbers(means), None, None)
    natural = scale.forward(values)
    spread = inference.student(len(curves) - 1, confidence) * natural.std(axis=0, ddof=1) / math.sqrt(len(curves))
    low, high = (scale.inverse(natural.mean(axis=0) + sign * spread) for sign in (-1, 1))
    return Band(numbers(means), numbers(low), numbers(high))


# From rows to effects -------------------------------------------------------------------------------------------------


def _table(sample: Sample, effects: Sequence[Effect]) -> dict[str, Any]:
    """Return the fields of `Table`."""
    told = list(sample.remarks)
    told += [f"{lost_runs(row)}; its differences stay empty." for row in sample.evidence if row.diverged]
    tests = sum(one.p is not None for one in effects)
    return {
        "seeds": sample.seeds,
        "tests": tests,
        "detectable": _detectable(sample, effects, tests),
        "moderation": _moderation(sample),
        "method": sample.method,
        "remarks": tuple(told),
    }


def _detectable(sample: Sample, effects: Sequence[Effect], tests: int) -> float | None:
    """Return what the comparison with the median standard error detects, around the median of the rows."""
    known = sorted((one.standard_error, one.degrees) for one in effects if one.standard_error and one.degrees)
    if not known:
        return None
    error, degrees = known[len(known) // 2]
    tests = tests if sample.method.correction == "holm" else 1
    least = power.detectable(error, degrees, tests, confidence=sample.method.confidence)
    middle = np.median(sample.natural[sample.known].mean(axis=1))
    return float(sample.scale.shown(np.array(least), middle))


def _moderation(sample: Sample) -> str:
    """Return how the variances over seeds were estimated."""
    rows, n = int(sample.known.sum()), len(sample.seeds)
    if n < LEAST_SEEDS or rows < 2:
        return ""
    found = inference.prior(sample.natural[sample.known])
    if not found.degrees:
        return f"Each comparison estimates its own variance over seeds, with {n - 1} degrees of freedom."
    if np.isinf(found.degrees):
        return (
            f"The variances over seeds of these {rows} rows are compatible, so that all comparisons share one, with "
            f"{found.most_degrees} degrees of freedom (empirical Bayes); one that does not fit keeps its own."
        )
    return (
        f"The variances over seeds of these {rows} rows differ by more than chance, so that each comparison's own, "
        f"with {n - 1} degrees of freedom, is moderated by a common one that counts {float(found.degrees):.1f} "
        "(empirical Bayes); one that does not fit keeps its own."
    )


def _effects(sample: Sample, names: Sequence[str], matrix: Reals) -> list[Effect]:
    """Return the effect of each row of `matrix`, [P,V]: the weights of the rows of the sample."""
    used, known = matrix != 0, sample.known
    without = (used & ~known).any(axis=1)
    with_sentences = (~used | sample.has_sums).all(axis=1)
    n = len(sample.seeds)
    effects = [
        _empty(name, sample.why_empty(used[place]), n)
        if without[place]
        else _shown(sample, name, matrix[place], bool(with_sentences[place]))
        for place, name in enumerate(names)
    ]
    kept = [place for place in range(len(names)) if not without[place]]
    if kept and n >= LEAST_SEEDS:
        weights = np.where(with_sentences[kept][:, None], matrix[kept][:, known], 0.0)
        of_sentences = inference.quadratic(sample.shared[np.ix_(known, known)], weights)
        found = inference.infer(sample.natural[known], matrix[kept][:, known], of_sentences)
        for row, place in enumerate(kept):
            effects[place] = _inferred(sample, effects[place], found, row, matrix[place])
    elif kept and n == 1:
        for place, p in _over_sentences(sample, matrix, with_sentences & ~without).items():
            effects[place] = replace(effects[place], tested="sentences", p=p)
    return _corrected(effects, sample.method)


def _shown(sample: Sample, name: str, weights: Reals, with_sentences: bool) -> Effect:
    """Return an effect that is not tested yet: its estimate and its values, in the figure's units."""
    single, n = weights[None], len(sample.seeds)
    used = weights != 0
    natural = inference.seed_values(sample.natural[used], single[:, used])[0]
    values = inference.seed_values(sample.figures[used], single[:, used])[0]
    middle = _middle(sample, weights)
    return Effect(
        label=name,
        mean=float(sample.scale.shown(natural.mean(), middle)),
        low=None,
        high=None,
        n=n,
        basis=covered(n, with_sentences) if n != 2 else "nothing",
        remark="",
        values=tuple(map(float, values)),
        wins=int((values > 0).sum()),
        losses=int((values < 0).sum()),
    )


def _middle(sample: Sample, weights: Reals) -> Any:
    """Return the mean of the rows' levels, each by the size of its weight: where an effect is shown."""
    used = weights != 0
    return np.average(sample.natural[used].mean(axis=1), weights=np.abs(weights[used]))


def _inferred(sample: Sample, effect: Effect, found: Inference, row: int, weights: Reals) -> Effect:
    """Return an effect with what `infer` found of it; as it is where all seeds differ alike and nothing else varies."""
    p = float(found.p[row])
    if math.isnan(p):
        return replace(effect, basis="nothing", remark="All seeds have exactly the same difference: no spread to test.")
    middle, centre = _middle(sample, weights), found.estimate[row]
    half = found.half_width(sample.method.confidence)[row]
    low, high = (float(sample.scale.shown(end, middle)) for end in (centre - half, centre + half))
    return replace(
        effect,
        low=low,
        high=high,
        tested="seeds",
        standard_error=float(found.standard_error[row]),
        degrees=float(found.degrees[row]),
        p=p,
        above_zero=float(found.above_zero[row]),
    )


def _corrected(effects: Sequence[Effect], method: Method) -> list[Effect]:
    corrected = holm([one.p for one in effects])
    made = []
    for one, p_holm in zip(effects, corrected, strict=True):
        judged = p_holm if method.correction == "holm" else one.p
        made.append(replace(one, p_holm=p_holm, significant=judged is not None and judged < 1 - method.confidence))
    return made


def _over_sentences(sample: Sample, matrix: Reals, usable: npt.NDArray[np.bool_]) -> dict[int, float]:
    """Return the p-value of approximate randomisation of each difference of two single runs, by its place."""
    pairs = {
        place: (int(np.argmax(weights)), int(np.argmin(weights)))
        for place, weights in enumerate(matrix)
        if usable[place] and sorted(weights[weights != 0]) == [-1, 1]
    }
    if not pairs or sample.metric is None:
        return {}
    rows = sorted({row for pair in pairs.values() for row in pair})
    sums = np.stack([one.sums[0] for row in rows if (one := sample.evidence[row]).sums is not None])
    places = [(rows.index(first), rows.index(second)) for first, second in pairs.values()]
    method = sample.method
    ps = significance.randomisation_p(sums, places, sample.metric, trials=method.trials, seed=method.seed)
    return dict(zip(pairs, ps, strict=True))


def _compare(
    evidence: Sequence[Evidence],
    pairs: Sequence[tuple[str, str]],
    metric: MetricFunction | None,
    scale: Scale,
    method: Method,
) -> Comparisons:
    sample = Sample.of(evidence, metric, scale, method)
    places = {row.label: place for place, row in enumerate(evidence)}
    matrix = np.zeros((len(pairs), len(evidence)))
    for row, (first, second) in enumerate(pairs):
        matrix[row, places[first]], matrix[row, places[second]] = 1.0, -1.0
    effects = _effects(sample, [minus(*pair) for pair in pairs], matrix)
    return Comparisons(
        differences=tuple(
            Difference(**vars(effect), first=first, second=second)
            for effect, (first, second) in zip(effects, pairs, strict=True)
        ),
        **_table(sample, effects),
    )


def _empty(label: str, remark: str, n: int) -> Effect:
    return Effect(label=label, mean=None, low=None, high=None, n=n, basis="nothing", remark=remark)
