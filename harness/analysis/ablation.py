"""The results of an ablation: the effect of each level, main effects, interactions, and a ranking of the fields."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.ablation_study import WORDS, Departures, Study, StudyCell, differences, label, studies
from harness.analysis.confounds import Confound, confounds
from harness.analysis.contrasts import AblationEffect, Contrast, alone, averaged, between, estimate
from harness.analysis.fairness import RATE
from harness.analysis.leaderboard import Sentences
from harness.analysis.metric_registry import ABLATION
from harness.execution.rate_tuning import Choice, cell_key, choose, finished_pilots, tuned
from harness.experiments.specs import RunSpec
from harness.storage.records import RunRecord


@dataclass(frozen=True)
class Spread:
    """The difference between the worst and the best level of a field in a metric.

    Its interval holds for all pairs of levels at once, because the pair was selected by its values.
    """

    best: str
    worst: str
    effect: AblationEffect


@dataclass(frozen=True)
class FieldEffects:
    """The effects of the levels of a field against the base's level, and the spread of the levels.

    `words` are all that were run, the base's first; `effects` and `spread` go by figure. `spread` is None where no
    effect is known.
    """

    field: str
    words: tuple[str, ...]
    effects: Mapping[str, tuple[AblationEffect, ...]]
    spread: Mapping[str, Spread | None]


@dataclass(frozen=True)
class Factorial:
    """Main effects and pairwise interactions of crossed fields, each averaged over all levels of the other fields.

    `missing` are the combinations of `combinations` that were not run, `left_out` those that did not complete at every
    seed of `seeds`; an average is of what remains. `interactions` go by figure.
    """

    fields: tuple[str, ...]
    combinations: int
    seeds: tuple[int, ...]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    main: tuple[FieldEffects, ...]
    interactions: Mapping[str, tuple[AblationEffect, ...]]


@dataclass(frozen=True)
class Tuned:
    """The same study with the learning rate that pilots chose for each cell.

    `pilots` and `choices` go by cell, for the cells that have finished pilots. `missing` names the cells without a run
    at the chosen rate; `effects` is of the others, and None if the baseline is missing.
    """

    pilots: Mapping[Departures, tuple[RunRecord, ...]]
    choices: Mapping[Departures, Choice]
    missing: tuple[str, ...]
    effects: StudyEffects | None


@dataclass(frozen=True)
class StudyEffects:
    """A study and its effects; none if its runs are not comparable.

    `confounds` are the fields that change the size of embeddings relative to positions without being crossed with it.
    `tuned` is None where no pilots chose learning rates.
    """

    study: Study
    fields: tuple[FieldEffects, ...] = ()
    factorial: Factorial | None = None
    confounds: tuple[Confound, ...] = ()
    tuned: Tuned | None = None


@dataclass(frozen=True)
class Rank:
    """A field in the ranking of its variant: its level with the largest effect on a metric, and its spread.

    `lost` are the levels of which no run completed and at least one diverged, so that their effect is unknown.
    `joint`: whether it was measured with a joint vocabulary.
    """

    field: str
    joint: bool
    effect: AblationEffect | None
    spread: Spread | None
    lost: tuple[str, ...]


@dataclass(frozen=True)
class Analysis:
    """All studies among some records, and a ranking by variant and figure: the field with the largest effect first.

    Fields with a level that only diverged come first.
    """

    studies: tuple[StudyEffects, ...]
    rankings: Mapping[str, Mapping[str, tuple[Rank, ...]]]


def analyse(records: Iterable[RunRecord], sentences: Sentences, *, base: RunSpec | None = None) -> Analysis:
    """Return the ablation studies among the records, with their effects.

    Args:
        records: the runs, pilots included.
        sentences: returns the sentence statistics of a run; without them intervals cover only other seeds.
        base: a run of the baseline, if it is known.
    """
    records = list(records)
    found = tuple(_with_tuned(_study(study, sentences), records, sentences) for study in studies(records, base=base))
    variants: dict[str, list[StudyEffects]] = {}
    for one in found:
        variants.setdefault(one.study.variant, []).append(one)
    rankings = {variant: {figure: _ranking(same, figure) for figure in ABLATION} for variant, same in variants.items()}
    return Analysis(found, rankings)


def _study(study: Study, sentences: Sentences) -> StudyEffects:
    if study.differences:
        return StudyEffects(study)
    single = {field: alone(study, field) for field in WORDS}
    fields = _fields(study, {field: found for field, found in single.items() if found}, sentences)
    crossed = _factorial(study, sentences)
    return StudyEffects(study, fields, crossed, confounds(study, crossed.fields if crossed else ()))


def _with_tuned(found: StudyEffects, records: Sequence[RunRecord], sentences: Sentences) -> StudyEffects:
    """Add the effects at the learning rates that pilots among the records chose."""
    by_key = finished_pilots(records)
    keys = {cell.departures: cell_key(next(iter(cell.records.values())).spec) for cell in found.study.cells}
    pilots = {departures: tuple(by_key[key]) for departures, key in keys.items() if key in by_key}
    chosen = {departures: choose(same) for departures, same in pilots.items()}
    if not chosen:
        return found
    by_id = {record.id: record for record in records}
    cells = []
    for cell in found.study.cells:
        wanted = {seed: tuned(one.spec, chosen.get(cell.departures)).id for seed, one in cell.records.items()}
        runs = {seed: by_id[run] for seed, run in wanted.items() if run in by_id}
        if cell.departures in chosen and runs:
            cells.append(StudyCell(cell.departures, runs))
    there = {cell.departures for cell in cells}
    effects = None
    if () in there:
        study = replace(found.study, cells=tuple(cells), differences=differences(cells, {RATE}))
        effects = _study(study, sentences)
    missing = tuple(cell.label for cell in found.study.cells if cell.departures not in there)
    return replace(found, tuned=Tuned(pilots, chosen, missing, effects))


def _fields(
    study: Study, contrasts: Mapping[str, Sequence[Contrast]], sentences: Sentences
) -> tuple[FieldEffects, ...]:
    """Return the effects of each field's contrasts; those of all fields on one metric form one table."""
    everything = [one for same in contrasts.values() for one in same]
    tables = {figure: estimate(study, figure, everything, sentences) for figure in ABLATION}
    made = []
    for field, same in contrasts.items():
        effects = {
            figure: tuple(one for one in table if one.contrast.changed[0][0] == field)
            for figure, table in tables.items()
        }
        words = (study.base[field], *(one.changed[0][1] for one in same))
        spread = {figure: _spread(study, figure, effects[figure], sentences) for figure in ABLATION}
        made.append(FieldEffects(field, words, effects, spread))
    return tuple(made)


def _spread(study: Study, figure: str, effects: Sequence[AblationEffect], sentences: Sentences) -> Spread | None:
    """Return the difference between the best and the worst level of a field; the base's level has effect 0."""
    known = {one.contrast.changed[0][1]: one for one in effects if one.mean is not None}
    if not known:
        return None
    own = effects[0].contrast.against[0][1]
    means: dict[str, float] = {own: 0.0, **{word: one.mean for word, one in known.items() if one.mean is not None}}
    order = sorted(means, key=lambda word: means[word] if ABLATION[figure].less_is_better else -means[word])
    first, last = (known[word].contrast if word in known else None for word in (order[0], order[-1]))
    pairs = len(means) * (len(means) - 1) // 2
    (effect,) = estimate(study, figure, [between(study, last, first)], sentences, at_once=pairs)
    return Spread(order[0], order[-1], effect)


def _factorial(study: Study, sentences: Sentences) -> Factorial | None:
    """Return the effects of the fields that are changed together in some cell; None if there are none."""
    crossed = {field for cell in study.cells if len(cell.departures) > 1 for field, _ in cell.departures}
    if not crossed:
        return None
    fields = [field for field in WORDS if field in crossed]
    inside = [cell for cell in study.cells if {field for field, _ in cell.departures} <= crossed]
    found = {pair for cell in inside for pair in cell.departures}
    words = {field: [word for word in WORDS[field] if (field, word) in found] for field in fields}
    ended = [cell.completed | cell.diverged for cell in inside]
    seeds = frozenset.intersection(*ended) or frozenset.union(*ended)
    whole = {cell.departures: None for cell in inside if seeds and seeds <= cell.completed}
    main = {field: [averaged(study, whole, ((field, word),)) for word in words[field]] for field in fields}
    pairs = [
        averaged(study, whole, ((first, one), (second, other)))
        for first, second in itertools.combinations(fields, 2)
        for one, other in itertools.product(words[first], words[second])
    ]
    wanted = _combinations(words)
    ran = {cell.departures for cell in inside}
    return Factorial(
        fields=tuple(fields),
        combinations=len(wanted),
        seeds=tuple(sorted(seeds)),
        missing=tuple(label(one) for one in wanted if one not in ran),
        left_out=tuple(cell.label for cell in inside if cell.departures not in whole),
        main=_fields(study, main, sentences),
        interactions={figure: tuple(estimate(study, figure, pairs, sentences)) for figure in ABLATION},
    )


def _combinations(words: Mapping[str, Sequence[str]]) -> list[Departures]:
    """Return every combination of the levels of some fields, the base's levels included."""
    choices = [[None, *((field, word) for word in known)] for field, known in words.items()]
    return [tuple(pair for pair in one if pair is not None) for one in itertools.product(*choices)]


def _ranking(found: Sequence[StudyEffects], figure: str) -> tuple[Rank, ...]:
    """Return the fields of one variant, largest effect first; a field of several studies is taken from the first."""
    ranks: dict[str, Rank] = {}
    for one in found:
        for field in one.fields:
            effects = field.effects[figure]
            largest = max((one for one in effects if one.mean is not None), key=lambda one: one.size, default=None)
            lost = tuple(word for word in field.words[1:] if _lost(one.study, field.field, word))
            rank = Rank(field.field, one.study.joint, largest, field.spread[figure], lost)
            ranks.setdefault(field.field, rank)
    return tuple(sorted(ranks.values(), key=lambda rank: (not rank.lost, -(rank.effect.size if rank.effect else -1.0))))


def _lost(study: Study, field: str, word: str) -> bool:
    cell = study.cell([(field, word)])
    return cell is not None and bool(cell.diverged) and not cell.completed
