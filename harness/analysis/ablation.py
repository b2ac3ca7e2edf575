"""The results of an ablation: the effect of each level, main effects, interactions, and a ranking of the fields."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.ablation_study import LEVELS, Changes, Study, StudyCell, differences, label, studies
from harness.analysis.confounds import Confound, confounds
from harness.analysis.contrasts import AblationEffect, Contrast, against_base, averaged, estimate
from harness.analysis.evidence import Sentences
from harness.analysis.fairness import RATE
from harness.analysis.grouping import group_by
from harness.analysis.metric_registry import ABLATION
from harness.execution.rate_tuning import Choice, cell_key, choose, finished_pilots, tuned
from harness.experiments.specs import RunSpec
from harness.storage.records import RunRecord
from harness.storage.run_store import FINISHED


@dataclass(frozen=True)
class FieldEffects:
    """The effects, by metric, of the levels of a field that were run; the first of `levels` is the base's."""

    field: str
    levels: tuple[str, ...]
    effects: Mapping[str, tuple[AblationEffect, ...]]


@dataclass(frozen=True)
class Factorial:
    """Main effects and pairwise interactions of crossed fields, each averaged over all levels of the other fields.

    Attributes:
        combinations: The number of combinations of the levels of `fields`.
        missing: The combinations that were not run.
        left_out: The combinations that did not complete at every common seed; the averages are over the rest.
    """

    fields: tuple[str, ...]
    combinations: int
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    main: tuple[FieldEffects, ...]
    interactions: Mapping[str, tuple[AblationEffect, ...]]


@dataclass(frozen=True)
class Tuned:
    """The same study with the learning rate that pilots chose for each cell.

    Attributes:
        pilots: The finished pilots of each cell that has some.
        choices: The learning rates that they chose; a cell of which a pilot of the same length is unfinished has none.
        missing: The cells without a run at the chosen rate.
        effects: The effects among the other cells; None if the baseline is missing.
    """

    pilots: Mapping[Changes, tuple[RunRecord, ...]]
    choices: Mapping[Changes, Choice]
    missing: tuple[str, ...]
    effects: StudyEffects | None


@dataclass(frozen=True)
class StudyEffects:
    """A study and its effects, which are empty if its runs are not comparable.

    Attributes:
        fields: The effects of each field that was changed alone.
        factorial: The effects of the fields that were crossed; None if there are none.
        tuned: The effects at tuned learning rates; None without pilots.
    """

    study: Study
    fields: tuple[FieldEffects, ...] = ()
    factorial: Factorial | None = None
    confounds: tuple[Confound, ...] = ()
    tuned: Tuned | None = None

    @property
    def other_rates(self) -> StudyEffects | None:
        """The effects at tuned learning rates, unless every recipe keeps the rate of its runs; None without them."""
        after = self.tuned.effects if self.tuned is not None else None
        return None if after is None or after.study.cells == self.study.cells else after

    @property
    def ranked(self) -> StudyEffects:
        """The effects that rank the fields: those at tuned learning rates if every recipe has runs at its own."""
        tuned = self.tuned
        if tuned is None or tuned.missing or tuned.effects is None or tuned.effects.study.differences:
            return self
        return tuned.effects

    def each(self) -> Iterator[tuple[str, AblationEffect]]:
        """Yield every effect on every metric with its kind: "level", "main effect" or "interaction"."""
        kinds = [("level", same) for field in self.fields for same in field.effects.values()]
        if self.factorial is not None:
            kinds += [("main effect", same) for field in self.factorial.main for same in field.effects.values()]
            kinds += [("interaction", same) for same in self.factorial.interactions.values()]
        yield from ((kind, effect) for kind, same in kinds for effect in same)


@dataclass(frozen=True)
class Rank:
    """A field in the ranking of its variant.

    Attributes:
        study: The study that measured it, whose settings hold for the effect.
        effect: The largest effect of its levels; None if no effect is known.
        lost: The levels of which no run completed and at least one diverged, so that their effect is unknown.
    """

    field: str
    study: Study
    effect: AblationEffect | None
    lost: tuple[str, ...]


@dataclass(frozen=True)
class Analysis:
    """All studies among some records, and the ranking of the fields by variant and metric, largest effect first.

    Fields with a level that only diverged come first.
    """

    studies: tuple[StudyEffects, ...]
    rankings: Mapping[str, Mapping[str, tuple[Rank, ...]]]


def analyse(records: Iterable[RunRecord], sentences: Sentences, *, base: RunSpec | None = None) -> Analysis:
    """Return the ablation studies among the records, pilots included, with their effects.

    Without the `sentences` of runs, intervals cover only other seeds. `base` is a run of the baseline, if it is known.
    """
    records = list(records)
    untuned = [_effects(study, sentences) for study in studies(records, base=base)]
    analysed = tuple(_with_tuned(effects, records, sentences) for effects in untuned)
    by_variant = group_by(analysed, lambda effects: effects.study.variant).items()
    return Analysis(
        analysed, {variant: {name: _ranking(same, name) for name in ABLATION} for variant, same in by_variant}
    )


def _effects(study: Study, sentences: Sentences) -> StudyEffects:
    if study.differences:
        return StudyEffects(study)
    contrasts = {field: against_base(study, field) for field in LEVELS}
    fields = _fields(study, {field: same for field, same in contrasts.items() if same}, sentences)
    factorial = _factorial(study, sentences)
    return StudyEffects(study, fields, factorial, confounds(study, factorial.fields if factorial else ()))


def _with_tuned(effects: StudyEffects, records: Sequence[RunRecord], sentences: Sentences) -> StudyEffects:
    """Add the effects at the learning rates that pilots among the records chose."""
    study, finished = effects.study, finished_pilots(records)
    keys = {cell.changes: cell_key(next(iter(cell.records.values())).spec) for cell in study.cells}
    pilots = {changes: tuple(finished[key]) for changes, key in keys.items() if key in finished}
    unfinished = {
        (cell_key(record.spec), record.spec.training.epochs)
        for record in records
        if record.spec.budget == "pilot" and record.status not in FINISHED
    }
    choices = {
        changes: chosen
        for changes, same in pilots.items()
        if (keys[changes], (chosen := choose(same)).epochs) not in unfinished
    }
    if not choices:
        return effects
    by_id = {record.id: record for record in records}
    cells = []
    for cell in study.cells:
        if (choice := choices.get(cell.changes)) is None:
            continue
        ids = {seed: tuned(record.spec, choice).id for seed, record in cell.records.items()}
        runs = {seed: by_id[run_id] for seed, run_id in ids.items() if run_id in by_id}
        if runs:
            cells.append(StudyCell(cell.changes, runs))
    available = {cell.changes for cell in cells}
    tuned_effects = None
    if () in available:
        tuned_study = replace(study, cells=tuple(cells), differences=differences(cells, {RATE}))
        tuned_effects = _effects(tuned_study, sentences)
    missing = tuple(cell.label for cell in study.cells if cell.changes not in available)
    return replace(effects, tuned=Tuned(pilots, choices, missing, tuned_effects))


def _fields(
    study: Study, contrasts: Mapping[str, Sequence[Contrast]], sentences: Sentences
) -> tuple[FieldEffects, ...]:
    """Return the effects of each field's contrasts; those of all fields on one metric form one table."""
    every_contrast = list(itertools.chain(*contrasts.values()))
    tables = {metric: estimate(study, metric, every_contrast, sentences) for metric in ABLATION}
    return tuple(
        FieldEffects(
            field=field,
            levels=(study.base[field], *(contrast.changed[0][1] for contrast in same)),
            effects={
                metric: tuple(effect for effect in table if effect.contrast.changed[0][0] == field)
                for metric, table in tables.items()
            },
        )
        for field, same in contrasts.items()
    )


def _factorial(study: Study, sentences: Sentences) -> Factorial | None:
    """Return the effects of the fields that are changed together in some cell; None if there are none.

    A cell counts if it shows the effect of one of its changes: the cell without this change was run, too.
    """
    together = [cell.changes for cell in study.cells if len(cell.changes) > 1]
    shown = [changes for changes in together if any(study.cell({*changes} - {change}) for change in changes)]
    crossed = {field for changes in shown for field, _ in changes}
    if not crossed:
        return None
    fields = [field for field in LEVELS if field in crossed]
    cells = [cell for cell in study.cells if {field for field, _ in cell.changes} <= crossed]
    changes = {change for cell in cells for change in cell.changes}
    levels = {field: [level for level in LEVELS[field] if (field, level) in changes] for field in fields}
    finished = [cell.completed | cell.diverged for cell in cells]
    seeds = frozenset.intersection(*finished) or frozenset.union(*finished)
    recipes = {cell.changes: None for cell in cells if seeds and seeds <= cell.completed}
    main = {field: [averaged(study, recipes, ((field, level),)) for level in levels[field]] for field in fields}
    pairs = [
        averaged(study, recipes, ((first, first_level), (second, second_level)))
        for first, second in itertools.combinations(fields, 2)
        for first_level, second_level in itertools.product(levels[first], levels[second])
    ]
    choices = [[None, *((field, level) for level in of_field)] for field, of_field in levels.items()]
    combinations = [tuple(filter(None, combination)) for combination in itertools.product(*choices)]
    run = {cell.changes for cell in cells}
    return Factorial(
        fields=tuple(fields),
        combinations=len(combinations),
        missing=tuple(label(changes) for changes in combinations if changes not in run),
        left_out=tuple(cell.label for cell in cells if cell.changes not in recipes),
        main=_fields(study, main, sentences),
        interactions={metric: tuple(estimate(study, metric, pairs, sentences)) for metric in ABLATION},
    )


def _ranking(analysed: Sequence[StudyEffects], metric: str) -> tuple[Rank, ...]:
    """Return the fields of one variant, largest effect first; a field of several studies is taken from the first."""
    ranks: dict[str, Rank] = {}
    for effects in (untuned.ranked for untuned in analysed):
        study = effects.study
        for field in effects.fields:
            measured = [effect for effect in field.effects[metric] if effect.mean is not None]
            largest = max(measured, key=lambda effect: effect.size, default=None)
            cells = {level: study.cell([(field.field, level)]) for level in field.levels[1:]}
            lost = tuple(level for level, cell in cells.items() if cell and cell.diverged and not cell.completed)
            ranks.setdefault(field.field, Rank(field.field, study, largest, lost))
    return tuple(sorted(ranks.values(), key=lambda rank: (not rank.lost, -(rank.effect.size if rank.effect else -1.0))))
