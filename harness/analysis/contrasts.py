"""Contrasts between recipes: weighted sums of their metrics, with intervals over seeds and test sentences."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import statistics
from harness.analysis.ablation_study import LEVELS, Changes, Study, label
from harness.analysis.effects import Conclusion, Effect
from harness.analysis.evidence import Sentences, metric_function, row_evidence
from harness.analysis.grouping import group_by
from harness.analysis.metric_registry import ABLATION
from harness.analysis.scales import Scale


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of the metrics of recipes at the seeds where all of them completed.

    The levels `changed` are compared with the levels `against`, on average over `combinations` of the other fields.
    """

    changed: Changes
    against: Changes
    weights: Mapping[Changes, float]
    seeds: tuple[int, ...]
    combinations: int

    @property
    def label(self) -> str:
        """The changed levels, such as "norm=rms", or "positions=none with norm=rms"."""
        return " with ".join(f"{field}={level}" for field, level in self.changed)


@dataclass(frozen=True, kw_only=True)
class AblationEffect(Effect):
    """The effect of a contrast on a metric; `p_holm` and `significant` correct for the effects of its table."""

    metric: str
    contrast: Contrast

    @property
    def size(self) -> float:
        """The absolute value of the mean; −1 if it is unknown."""
        return -1.0 if self.mean is None else abs(self.mean)

    @property
    def conclusion(self) -> Conclusion:
        """Whether the effect is better, worse or inconclusive."""
        return self.conclude(less_is_better=ABLATION[self.metric].less_is_better)


def estimate(study: Study, metric: str, contrasts: Sequence[Contrast], sentences: Sentences) -> list[AblationEffect]:
    """Return the effect of each contrast on a metric, all in one table.

    Each contrast uses all its own seeds. All recipes of the study that completed at these seeds take part in the
    moderation of variances.
    """
    effects, scale = [Effect(label=contrast.label) for contrast in contrasts], _scale(study, metric)
    for seeds, indices in group_by(range(len(contrasts)), lambda index: contrasts[index].seeds).items():
        if not seeds:
            continue
        used = {changes for index in indices for changes in contrasts[index].weights}
        evidence = []
        for cell in (cell for cell in study.cells if cell.completed.issuperset(seeds)):
            records = [cell.records[seed] for seed in seeds]
            evidence.append(row_evidence(cell.label, records, metric, sentences if cell.changes in used else None))
        weights = {
            str(index): {label(changes): weight for changes, weight in contrasts[index].weights.items()}
            for index in indices
        }
        table = statistics.contrasts(evidence, weights, metric_function(metric), scale=scale)
        for index, effect in zip(indices, table, strict=True):
            effects[index] = effect
    ablation_effects = [
        AblationEffect(**{**vars(effect), "label": contrast.label}, metric=metric, contrast=contrast)
        for contrast, effect in zip(contrasts, effects, strict=True)
    ]
    return statistics.with_holm(ablation_effects)


def detectable(study: Study, effects: Sequence[AblationEffect]) -> float | None:
    """Return the true effect, around the baseline's mean, that a table detects with a probability of 80 %.

    It is that of the effect with the median standard error; None if nothing is tested over seeds.
    """
    if not effects:
        return None
    metric = effects[0].metric
    measured = study.cells[0].values(metric)
    if not measured:
        return None
    scale = _scale(study, metric)
    level = float(scale.forward(fmean(measured)))
    return statistics.median_detectable(effects, scale, level)


def _scale(study: Study, metric: str) -> Scale:
    """Return the scale of all effects on a metric: a score at an end of the range in one recipe decides for all."""
    return ABLATION[metric].scale.suited_to([value for cell in study.cells for value in cell.values(metric)])


def contrast(
    study: Study, changed: Changes, against: Changes, weights: Mapping[Changes, float], combinations: int = 1
) -> Contrast:
    """Return a contrast at the seeds where all its recipes completed."""
    completed = [cell.completed for cell in study.cells if cell.changes in weights]
    seeds = frozenset.intersection(*completed) if completed else frozenset()
    return Contrast(changed, against, weights, tuple(sorted(seeds)), combinations)


def against_base(study: Study, field: str) -> list[Contrast]:
    """Return the contrast of each level of a field with the base, with the other fields as in the base."""
    base = ((field, study.base[field]),)
    levels = [((field, level),) for level in LEVELS[field] if level != study.base[field]]
    return [
        contrast(study, changed, base, {changed: 1.0, (): -1.0})
        for changed in levels
        if study.cell(changed) is not None
    ]


def averaged(study: Study, recipes: Collection[Changes], changed: Changes) -> Contrast:
    """Return the main effect of a level, or the interaction of two, averaged over the levels of all other fields.

    main effect of a = mean over c of y(a, c) - y(base, c)
    interaction of a and b = mean over c of y(a, b, c) - y(a, base, c) - y(base, b, c) + y(base, base, c)

    The mean is over the combinations c for which `recipes` has all these recipes.
    """
    fields = [field for field, _ in changed]
    against = tuple((field, study.base[field]) for field in fields)
    contexts = dict.fromkeys(tuple(pair for pair in recipe if pair[0] not in fields) for recipe in recipes)
    weights: dict[Changes, float] = {}
    combinations = 0
    for context in contexts:
        corners = {}
        for selection in itertools.product((True, False), repeat=len(changed)):
            levels = list(itertools.compress(changed, selection))
            recipe = sorted([*context, *levels], key=lambda pair: list(LEVELS).index(pair[0]))
            corners[tuple(recipe)] = (-1.0) ** (len(changed) - len(levels))
        if corners.keys() <= set(recipes):
            weights.update(corners)
            combinations += 1
    weights = {changes: weight / combinations for changes, weight in weights.items()}
    return contrast(study, changed, against, weights, combinations)
