"""Rows of runs as arrays: restricted to common seeds, on the natural scale, with the covariance due to sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis import significance
from harness.analysis.effects import Basis, Evidence, Method
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.scales import Scale
from harness.analysis.significance import MetricFunction, Reals


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows restricted to common seeds, on the natural scale, and their covariance due to test sentences.

    Shapes: `figures` and `natural` [V,n], not a number for a run without; `has_sums` [V]; `shared` [V,V], 0 where a row
    has no sums.
    """

    evidence: tuple[Evidence, ...]
    metric: MetricFunction | None
    scale: Scale
    method: Method
    seeds: tuple[int, ...]
    figures: Reals
    natural: Reals
    has_sums: npt.NDArray[np.bool_]
    sentences: int
    shared: Reals
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, evidence: Sequence[Evidence], metric: MetricFunction | None, scale: Scale, method: Method) -> Sample:
        twice = [label for label, times in Counter(one.label for one in evidence).items() if times > 1]
        if twice:
            raise ValueError(f"label {twice[0]!r} names several rows: give each row its own label")
        shapes = {one.label: one.sums.shape[1:] for one in evidence if one.sums is not None}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"sentences and statistics differ between rows: {shapes}; compare rows of one test set")
        common = set.intersection(*(set(one.seeds) for one in evidence)) if evidence else set()
        seeds = tuple(sorted(common))
        rows = tuple(_cut(one, seeds) for one in evidence)
        figures = np.array([[number(value) for value in row.figures] for row in rows]).reshape(len(rows), len(seeds))
        usable, misfit = _usable(rows, metric)
        shared = np.zeros((len(rows), len(rows)))
        if metric is not None and usable.any():
            kept = np.stack([row.sums for row, fits in zip(rows, usable, strict=True) if fits and row.sums is not None])
            drawn = significance.draw_sentences(kept, metric, resamples=method.resamples, seed=method.seed)
            shared[np.ix_(usable, usable)] = significance.shared_covariance(scale.forward(drawn))
        return cls(
            evidence=rows,
            metric=metric,
            scale=scale,
            method=method,
            seeds=seeds,
            figures=figures,
            natural=scale.forward(figures),
            has_sums=usable,
            sentences=next(iter(shapes.values()))[0] if shapes else 0,
            shared=shared,
            remarks=remarks_on(evidence, rows, usable, misfit),
        )

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Which rows have a value at every seed, [V]."""
        if not self.seeds:
            return np.zeros(len(self.figures), bool)
        return np.asarray(np.isfinite(self.figures).all(axis=1), bool)

    def why_empty(self, used: npt.NDArray[np.bool_]) -> str:
        """Return why an effect of these rows has no value."""
        if not self.seeds:
            return "No common seed."
        rows = [row for row, one in zip(self.evidence, used, strict=True) if one and row.diverged]
        return f"{'; '.join(map(lost_runs, rows))}."


def _cut(evidence: Evidence, seeds: tuple[int, ...]) -> Evidence:
    """Return the runs of these seeds, in their order."""
    places = [evidence.seeds.index(seed) for seed in seeds]
    sums = evidence.sums[places] if evidence.sums is not None and places else None
    return replace(evidence, seeds=seeds, figures=tuple(evidence.figures[place] for place in places), sums=sums)


def _usable(rows: Sequence[Evidence], metric: MetricFunction | None) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Return which rows have sentence statistics that reproduce their metrics, and the labels of rows whose do not."""
    usable: npt.NDArray[np.bool_] = np.zeros(len(rows), bool)
    misfit = []
    for place, row in enumerate(rows):
        if metric is None or row.sums is None or row.diverged:
            continue
        found = metric(row.sums.sum(axis=1, dtype=np.float64))
        usable[place] = np.allclose(found, np.array(row.figures, np.float64), rtol=1e-4, atol=1e-9)
        if not usable[place]:
            misfit.append(row.label)
    return usable, misfit


def remarks_on(
    evidence: Sequence[Evidence], rows: Sequence[Evidence], usable: npt.NDArray[np.bool_], misfit: Sequence[str]
) -> tuple[str, ...]:
    """Return the remarks on these rows; `rows` are `evidence` restricted to the common seeds."""
    seeds = rows[0].seeds if rows else ()
    found = [] if seeds or len(rows) < 2 else ["No seed is common to all rows: nothing can be compared."]
    for one in evidence if seeds else ():
        if left := [seed for seed in one.seeds if seed not in seeds]:
            found.append(f"{one.label}: {named_seeds(left)} left out, because not every row has it.")
    if len(seeds) == 1:
        tested = "p-values are over these test sentences alone" if usable.any() else "nothing is tested"
        found.append(f"One seed: seed noise is unknown; {tested}.")
    if len(seeds) == 2:
        found.append("Two seeds: both values are shown; there is no interval and no test.")
    without = [row.label for row, fits in zip(rows, usable, strict=True) if not (fits or row.diverged)]
    if misfit:
        found.append(f"The stored statistics of {', '.join(misfit)} do not give their figures and are not used.")
    if without and len(seeds) >= LEAST_SEEDS:
        who = "" if len(without) == len(rows) else f" of {', '.join(without)}"
        found.append(f"Intervals{who} cover other seeds, not other test sentences.")
    return tuple(found)


def lost_runs(row: Evidence) -> str:
    """Return a sentence on the runs of a row without a value."""
    return f"{row.label}: no figure for {named_seeds(row.diverged)} (diverged)"


def named_seeds(seeds: Sequence[int]) -> str:
    """Return "seed 1" or "seeds 1, 2"."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def covered(n: int, with_sentences: bool) -> Basis:
    """Return what an interval over `n` seeds covers; two seeds have none."""
    if n == 2:
        return "nothing"
    if n > 1:
        return "seeds and sentences" if with_sentences else "seeds"
    return "sentences" if with_sentences else "nothing"


def number(value: float | None) -> float:
    """Return a value as a float; NaN if it is missing."""
    return value if value is not None and math.isfinite(value) else math.nan


def numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return floats, with None for values that are not finite."""
    return tuple(float(value) if math.isfinite(value) else None for value in values)


def number_or_none(value: Any) -> float | None:
    """Return a float, or None if it is not finite."""
    return float(value) if np.isfinite(value) else None
