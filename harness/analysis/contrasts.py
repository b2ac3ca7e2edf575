"""Contrasts between recipes: weighted sums of their metrics, with intervals over seeds and test sentences."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import power, statistics
from harness.analysis.ablation_study import WORDS, Departures, Study, StudyCell
from harness.analysis.effects import Conclusion, Tested, conclude
from harness.analysis.grouping import measure
from harness.analysis.leaderboard import Sentences, metric_function, sentence_sums
from harness.analysis.metric_registry import ABLATION, scale_of
from harness.analysis.statistics import METHOD, Evidence, Method, holm
from harness.storage.records import RunRecord


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of the metrics of recipes, and the seeds at which all of them completed.

    `changed` and `against` are the levels compared, `weights` the weight of each recipe. `combinations` counts the
    combinations of the other fields in the average.
    """

    changed: Departures
    against: Departures
    weights: Mapping[Departures, float]
    seeds: tuple[int, ...]
    combinations: int

    @property
    def label(self) -> str:
        """The changed levels, such as "norm=rms", or "positions=none with norm=rms"."""
        return " with ".join(f"{field}={word}" for field, word in self.changed)


@dataclass(frozen=True)
class AblationEffect:
    """The change of a metric, as a mean over paired seeds with its 95 % interval.

    If no seed has all values, everything is None. `p` is that of the comparison on its own, `p_holm` that after
    Holm's correction for the other effects on the same figure in its table; `significant`: `p_holm` is below 0.05.
    The other fields are those of `effects.Effect`.
    """

    figure: str
    contrast: Contrast
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    significant: bool = False
    values: tuple[float, ...] = ()
    tested: Tested = "nothing"
    above_zero: float | None = None
    basis: str = "nothing"
    standard_error: float | None = None
    degrees: float | None = None

    @property
    def size(self) -> float:
        """The absolute value of the mean; −1 if it is unknown."""
        return -1.0 if self.mean is None else abs(self.mean)

    @property
    def conclusion(self) -> Conclusion:
        """Whether the effect is better, worse or inconclusive."""
        less_is_better = ABLATION[self.figure].less_is_better
        return conclude(self.mean, self.tested, significant=self.significant, less_is_better=less_is_better)


def estimate(
    study: Study, figure: str, contrasts: Sequence[Contrast], sentences: Sentences, *, at_once: int = 1
) -> list[AblationEffect]:
    """Return the effect of each contrast on a metric, all in one table.

    Each contrast keeps all seeds it has, so one that lacks a seed takes none from the others. All recipes of the study
    that completed at these seeds take part in the moderation of variances. `at_once` is for how many contrasts, of
    which these were chosen, intervals and p-values are to hold together (Bonferroni).
    """
    method = Method(confidence=1 - (1 - METHOD.confidence) / at_once)
    found: dict[int, statistics.Effect] = {}
    for seeds in dict.fromkeys(one.seeds for one in contrasts if one.seeds):
        same = [place for place, one in enumerate(contrasts) if one.seeds == seeds]
        used = {departures for place in same for departures in contrasts[place].weights}
        rows = {cell.departures: cell for cell in study.cells if cell.completed.issuperset(seeds)}
        evidence = [
            _evidence(cell, seeds, figure, sentences if departures in used else _no_sentences)
            for departures, cell in rows.items()
        ]
        weights = {
            str(place): {rows[one].label: weight for one, weight in contrasts[place].weights.items()} for place in same
        }
        metric, scale = metric_function(figure), scale_of(figure)
        table = statistics.contrasts(evidence, weights, metric, scale=scale, method=method)
        found.update(zip(same, table.effects, strict=True))
    ps = holm([found[place].p if place in found else None for place in range(len(contrasts))])
    ps = tuple(None if p is None else min(1.0, p * at_once) for p in ps)
    return [_effect(figure, one, found.get(place), ps[place]) for place, one in enumerate(contrasts)]


def _effect(figure: str, contrast: Contrast, found: statistics.Effect | None, p_holm: float | None) -> AblationEffect:
    if found is None:
        return AblationEffect(figure, contrast)
    return AblationEffect(
        figure,
        contrast,
        mean=found.mean,
        low=found.low,
        high=found.high,
        p=found.p,
        p_holm=p_holm,
        significant=p_holm is not None and p_holm < 1 - METHOD.confidence,
        values=found.values,
        tested=found.tested,
        above_zero=found.above_zero,
        basis=found.basis,
        standard_error=found.standard_error,
        degrees=found.degrees,
    )


def detectable(study: Study, effects: Sequence[AblationEffect]) -> float | None:
    """Return the true effect, at the base's level of the metric, that a table detects with a probability of 80 %.

    It is that of the effect with the median standard error; None if nothing is tested over seeds.
    """
    known = sorted((one.standard_error, one.degrees) for one in effects if one.standard_error and one.degrees)
    base = study.cells[0]
    levels = [measure(base.records[seed], effects[0].figure) for seed in base.completed] if known else []
    found = [level for level in levels if level is not None]
    if not known or not found:
        return None
    error, degrees = known[len(known) // 2]
    least = power.detectable(error, degrees, sum(one.p is not None for one in effects))
    scale = scale_of(effects[0].figure)
    return float(scale.shown(least, scale.forward(sum(found) / len(found))))


def _no_sentences(record: RunRecord) -> None:
    """Return nothing: the sentences of rows that are in no contrast are not needed."""


def _evidence(cell: StudyCell, seeds: Sequence[int], figure: str, sentences: Sentences) -> Evidence:
    records = [cell.records[seed] for seed in seeds]
    figures = tuple(measure(record, figure) for record in records)
    return Evidence(cell.label, tuple(seeds), figures, sentence_sums(records, figure, sentences))


def alone(study: Study, field: str) -> list[Contrast]:
    """Return the contrast of each level of a field with the base, the other fields as in the base."""
    own = ((field, study.base[field]),)
    made = []
    for word in WORDS[field]:
        departures = ((field, word),)
        if word != study.base[field] and study.cell(departures) is not None:
            made.append(contrast(study, departures, own, {departures: 1.0, (): -1.0}))
    return made


def averaged(study: Study, whole: Collection[Departures], changed: Departures) -> Contrast:
    """Return the main effect of a level, or the interaction of two, averaged over the levels of all other fields.

    main effect of a = mean over c of y(a, c) - y(base, c)
    interaction of a and b = mean over c of y(a, b, c) - y(a, base, c) - y(base, b, c) + y(base, base, c)

    Averaged are the combinations c of which all these recipes are among `whole`.
    """
    fields = [field for field, _ in changed]
    against = tuple((field, study.base[field]) for field in fields)
    others = dict.fromkeys(tuple(pair for pair in one if pair[0] not in fields) for one in whole)
    weights: dict[Departures, float] = {}
    combinations = 0
    for other in others:
        corners = {}
        for kept in itertools.product((True, False), repeat=len(changed)):
            corner = [pair for pair, one in zip(changed, kept, strict=True) if one]
            corners[_ordered([*other, *corner])] = (-1.0) ** (len(changed) - len(corner))
        if corners.keys() <= set(whole):
            weights.update(corners)
            combinations += 1
    weights = {departures: weight / combinations for departures, weight in weights.items()}
    return contrast(study, changed, against, weights, combinations)


def between(study: Study, first: Contrast | None, second: Contrast | None) -> Contrast:
    """Return the contrast between two levels of a field, from their contrasts with the base (None: the base)."""
    known = first or second
    assert known is not None
    weights: dict[Departures, float] = {}
    for one, sign in ((first, 1.0), (second, -1.0)):
        for departures, weight in one.weights.items() if one else ():
            weights[departures] = weights.get(departures, 0.0) + sign * weight
    return contrast(
        study,
        first.changed if first else known.against,
        second.changed if second else known.against,
        {departures: weight for departures, weight in weights.items() if weight},
        known.combinations,
    )


def contrast(
    study: Study, changed: Departures, against: Departures, weights: Mapping[Departures, float], combinations: int = 1
) -> Contrast:
    """Return a contrast at the seeds where all its recipes completed."""
    completed = [cell.completed for cell in study.cells if cell.departures in weights]
    seeds = frozenset.intersection(*completed) if completed else frozenset()
    return Contrast(changed, against, weights, tuple(sorted(seeds)), combinations)


def _ordered(pairs: Sequence[tuple[str, str]]) -> Departures:
    return tuple(sorted(pairs, key=lambda pair: list(WORDS).index(pair[0])))
