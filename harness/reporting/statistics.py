"""How far a difference between rows of runs can be believed: over seeds and over test sentences together.

Seeds are paired: seed k gives every row the same batches and initial values, so what is judged is the difference of two
rows in each seed, or any other weighted sum of rows. With d[k] the difference in seed k of n, and d[r,k] the same with
the test sentences drawn anew for the rth time, with replacement and alike for all rows and seeds,

    variance = A + C    A = variance of d[k] over seeds / n    C = mean covariance over r of d[r,k] and d[r,l], k != l
    interval = mean of d[k] +/- t(degrees) * sqrt(variance)    degrees = (n - 1) * variance / A; with two seeds 1

A is the variance of a bootstrap over seeds, worked out exactly instead of drawn, times n / (n - 1); without noise of
sentences the interval is Student's t. C, at least 0, is what other test sentences would change in all seeds alike. What
they would change in one seed alone, chance among equally good translations, stands in the spread over seeds already:
seeds and sentences drawn at once, and the whole variance times n / (n - 1), count it three times (Owen 2007).

How often a 95 % interval leaves 0 out without any difference, with 3, 5 and 8 seeds: this one in 3.7 to 5.8, 4.0 to 5.0
and 4.3 to 5.0 % of cases, whatever the shares of A and C; one from seeds and sentences drawn at once in 0.0, 0.5 and
1.1 % where a quarter of the spread is that of sentences; a plain percentile bootstrap over seeds in 23, 17 and 13 %.
These degrees lie between the too few of Cochran and Cox (2.9 % at the least) and Satterthwaite's (7.8 % at the most).

Sources: Owen 2007, The pigeonhole bootstrap; Satterthwaite 1946; Cochran and Cox 1957, section 4.14.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.reporting import significance
from harness.reporting.effects import (
    METHOD,
    Band,
    Basis,
    Comparisons,
    Contrasts,
    Correction,
    Difference,
    Effect,
    Evidence,
    Interval,
    Method,
    Table,
    minus,
)
from harness.reporting.significance import ROUNDING, Metric, Reals, holm, least_p

__all__ = [
    "METHOD",
    "Band",
    "Basis",
    "Comparisons",
    "Contrasts",
    "Correction",
    "Difference",
    "Effect",
    "Evidence",
    "Interval",
    "Method",
    "Metric",
    "Table",
    "against",
    "bands",
    "compare_all",
    "contrasts",
    "holm",
    "interval",
    "least_p",
]

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
    """Return weighted sums of rows, such as main effects and interactions of a factorial grid, judged like differences.

    `weights` has for each contrast the weight of each row, by label; rows that are not named weigh 0. With rows
    "a b", "a B", "A b", "A B" the main effect of A is {-1/2, -1/2, 1/2, 1/2}, the interaction {1, -1, -1, 1}.

    Raises: as `compare_all`, and where a weight names no row or a contrast has no weight.
    """
    labels = [one.label for one in evidence]
    matrix = np.zeros((len(weights), len(labels)))
    for row, (name, cells) in enumerate(weights.items()):
        unknown = [label for label in cells if label not in labels]
        if unknown or not any(cells.values()):
            raise ValueError(
                f"contrast {name!r} of {unknown or dict(cells)!r}: allowed is a weight of {', '.join(labels)}"
            )
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
    told = [f"{_lost(evidence)}; {len(kept)} of {len(evidence.seeds)} runs are in the mean."] if lost else []
    return Interval(**{**found, "remark": " ".join([*told, *sample.remarks])})


def bands(curves: Sequence[Sequence[float | None]], *, confidence: float = METHOD.confidence) -> Band:
    """Return mean and t interval over the seeds at each epoch of their curves; a curve that ends early lacks the rest.

    Shapes: `curves` [n,E] for n seeds and E epochs.
    """
    epochs = max(map(len, curves), default=0)
    values = np.array([[*map(_number, one), *[math.nan] * (epochs - len(one))] for one in curves], np.float64)
    means = values.mean(axis=0) if len(curves) else np.zeros(0)
    if len(curves) < 2:
        return Band(_numbers(means), None, None)
    half = significance.student(len(curves) - 1, confidence) * values.std(axis=0, ddof=1) / math.sqrt(len(curves))
    return Band(_numbers(means), _numbers(means - half), _numbers(means + half))


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
        usable, misfit = _usable(rows, metric)
        drawn = np.zeros((method.resamples, len(rows), len(seeds)))
        if metric is not None and usable.any():
            kept = np.stack([row.sums for row, fits in zip(rows, usable, strict=True) if fits and row.sums is not None])
            drawn[:, usable] = significance.draw_sentences(kept, metric, resamples=method.resamples, seed=method.seed)
        return cls(
            evidence=rows,
            metric=metric,
            method=method,
            seeds=seeds,
            figures=figures,
            has_sums=usable,
            sentences=next(iter(shapes.values()))[0] if shapes else 0,
            drawn=drawn,
            remarks=_remarks(evidence, rows, usable, misfit),
        )

    def table(self) -> dict[str, Any]:
        """Return the fields of `Table`."""
        least, told = least_p(len(self.seeds)), list(self.remarks)
        told += [f"{_lost(row)}; its differences stay empty." for row in self.evidence if row.diverged]
        if len(self.seeds) == 1:
            told.append("With one seed nothing is called significant.")
        elif least and least > 1 - self.method.confidence:
            told.append(f"{len(self.seeds)} seeds: the sign-flip test can give no p below {least:.4g}.")
        return {"seeds": self.seeds, "least_p": least, "method": self.method, "remarks": tuple(told)}


def _cut(evidence: Evidence, seeds: tuple[int, ...]) -> Evidence:
    """Return the runs of these seeds, in their order."""
    places = [evidence.seeds.index(seed) for seed in seeds]
    sums = evidence.sums[places] if evidence.sums is not None and places else None
    return replace(evidence, seeds=seeds, figures=tuple(evidence.figures[place] for place in places), sums=sums)


def _usable(rows: Sequence[Evidence], metric: Metric | None) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Return which rows have statistics of sentences that give their figures, and the labels of those that do not."""
    usable, misfit = np.zeros(len(rows), bool), []
    for place, row in enumerate(rows):
        if metric is None or row.sums is None or row.diverged:
            continue
        found = metric(row.sums.sum(axis=1, dtype=np.float64))
        usable[place] = np.allclose(found, np.array(row.figures, np.float64), rtol=1e-4, atol=1e-9)
        if not usable[place]:
            misfit.append(row.label)
    return usable, misfit


def _effects(sample: _Sample, names: Sequence[str], matrix: Reals) -> list[Effect]:
    """Return the effect of each row of `matrix`, [P,V]: the weights of the rows of the sample."""
    n, used = len(sample.seeds), matrix != 0
    lost = used @ ~np.isfinite(sample.figures).all(axis=1) | (n == 0)
    values = _values(sample.figures, matrix)
    with_sentences = (used <= sample.has_sums).all(axis=1)
    means, errors, halves = _intervals(sample, values, matrix, with_sentences)
    ps, joint = _over_seeds(values, ~lost, sample.method)
    corrected, single = holm(ps), _over_sentences(sample, matrix, with_sentences)
    found = []
    for place, name in enumerate(names):
        if lost[place]:
            found.append(_empty(name, _why_empty(sample, used[place]), n))
            continue
        mean, half, known = float(means[place]), float(halves[place]), n > 1 or with_sentences[place]
        judged = corrected[place] if sample.method.correction == "holm" else ps[place]
        found.append(
            Effect(
                label=name,
                mean=mean,
                low=mean - half if known else None,
                high=mean + half if known else None,
                standard_error=float(errors[place]) if known else None,
                n=n,
                basis=_basis(n, bool(with_sentences[place])),
                remark="",
                effect_size=significance.effect_size(values[place]),
                p=ps[place],
                p_holm=corrected[place],
                p_joint=joint[place],
                p_sentences=single[place],
                significant=judged is not None and judged < 1 - sample.method.confidence and abs(mean) > half,
                wins=int((values[place] > 0).sum()),
                losses=int((values[place] < 0).sum()),
            )
        )
    return found


def _values(figures: Reals, matrix: Reals) -> Reals:
    """Return the weighted sums in each seed, [P,n]; what is no more than rounding, apart or from 0, is none."""
    known = np.where(np.isfinite(figures), figures, 0.0)
    values = matrix @ known
    least = ROUNDING * (np.abs(matrix) @ np.abs(known)).max(axis=1, initial=0.0, keepdims=True)
    if values.shape[1]:
        flat = np.ptp(values, axis=1, keepdims=True) <= least
        values = np.where(flat, values.mean(axis=1, keepdims=True), values)
    found: Reals = np.where(np.abs(values) <= least, 0.0, values)
    return found


def _intervals(
    sample: _Sample, values: Reals, matrix: Reals, with_sentences: npt.NDArray[np.bool_]
) -> tuple[Reals, Reals, Reals]:
    """Return mean, standard error and half the interval's width of each effect, [P]."""
    n = values.shape[1]
    if not n:
        nothing = np.zeros(len(values))
        return nothing, nothing, nothing
    over_seeds = significance.variances(values) / n
    variance = over_seeds + np.where(with_sentences, significance.shared_variance(sample.drawn, matrix), 0.0)
    if n == 1:
        degrees = np.full(len(values), max(1.0, sample.sentences - 1.0))
    elif n == 2:
        degrees = np.ones(len(values))
    else:
        degrees = np.full(len(values), np.inf)
        np.divide((n - 1) * variance, over_seeds, out=degrees, where=over_seeds > 0)
    errors = np.sqrt(variance)
    return values.mean(axis=1), errors, significance.student(degrees, sample.method.confidence) * errors


def _over_seeds(
    values: Reals, kept: npt.NDArray[np.bool_], method: Method
) -> tuple[list[float | None], list[float | None]]:
    """Return the p of the paired t test and of the joint sign-flip test of each effect; None where it has none."""
    ps: list[float | None] = [None] * len(values)
    joint = list(ps)
    if values.shape[1] > 1 and kept.any():
        tested = significance.paired_p(values[kept])
        flipped = significance.joint_p(values[kept], trials=method.trials, seed=method.seed)
        for place, p, joint_p in zip(np.flatnonzero(kept), tested, flipped, strict=True):
            ps[place], joint[place] = float(p), float(joint_p)
    return ps, joint


def _over_sentences(sample: _Sample, matrix: Reals, with_sentences: npt.NDArray[np.bool_]) -> list[float | None]:
    """Return the p of approximate randomisation of each difference of two single runs; None for any other effect."""
    found: list[float | None] = [None] * len(matrix)
    pairs = {
        place: (int(np.argmax(weights)), int(np.argmin(weights)))
        for place, weights in enumerate(matrix)
        if with_sentences[place] and sorted(weights[weights != 0]) == [-1, 1]
    }
    if len(sample.seeds) != 1 or not pairs or sample.metric is None:
        return found
    rows = sorted({row for pair in pairs.values() for row in pair})
    sums = np.stack([one.sums[0] for row in rows if (one := sample.evidence[row]).sums is not None])
    places = [(rows.index(first), rows.index(second)) for first, second in pairs.values()]
    method = sample.method
    ps = significance.randomisation_p(sums, places, sample.metric, trials=method.trials, seed=method.seed)
    for place, p in zip(pairs, ps, strict=True):
        found[place] = p
    return found


def _compare(
    evidence: Sequence[Evidence], pairs: Sequence[tuple[str, str]], metric: Metric | None, method: Method
) -> Comparisons:
    sample = _Sample.of(evidence, metric, method)
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
        **sample.table(),
    )


# Words ----------------------------------------------------------------------------------------------------------------


def _remarks(
    evidence: Sequence[Evidence], rows: Sequence[Evidence], usable: npt.NDArray[np.bool_], misfit: Sequence[str]
) -> tuple[str, ...]:
    """Return what must be said beside any figure of these rows; `rows` are `evidence` cut to the common seeds."""
    seeds = rows[0].seeds if rows else ()
    found = [] if seeds or len(rows) < 2 else ["No seed is common to all rows: nothing can be compared."]
    for one in evidence if seeds else ():
        if left := [seed for seed in one.seeds if seed not in seeds]:
            found.append(f"{one.label}: {_named_seeds(left)} left out, because not every row has it.")
    if len(seeds) == 1:
        covers = "intervals cover the choice of test sentences alone" if usable.any() else "there are no intervals"
        found.append(f"One seed: seed noise is unknown; {covers}.")
    without = [row.label for row, fits in zip(rows, usable, strict=True) if not (fits or row.diverged)]
    if misfit:
        found.append(f"The stored statistics of {', '.join(misfit)} do not give their figures and are not used.")
    if without and len(seeds) > 1:
        who = "" if len(without) == len(rows) else f" of {', '.join(without)}"
        found.append(f"Intervals{who} cover other seeds, not other test sentences.")
    return tuple(found)


def _why_empty(sample: _Sample, used: npt.NDArray[np.bool_]) -> str:
    if not sample.seeds:
        return "No common seed."
    rows = [row for row, one in zip(sample.evidence, used, strict=True) if one and row.diverged]
    return f"{'; '.join(map(_lost, rows))}."


def _lost(row: Evidence) -> str:
    return f"{row.label}: no figure for {_named_seeds(row.diverged)} (diverged)"


def _named_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _empty(label: str, remark: str, n: int) -> Effect:
    return Effect(label=label, mean=None, low=None, high=None, standard_error=None, n=n, basis="nothing", remark=remark)


def _basis(n: int, with_sentences: bool) -> Basis:
    if n > 1:
        return "seeds and sentences" if with_sentences else "seeds"
    return "sentences" if with_sentences else "nothing"


def _number(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan


def _numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(float(value) if math.isfinite(value) else None for value in values)
