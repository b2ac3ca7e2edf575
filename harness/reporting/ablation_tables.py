"""The tables of an ablation: effects of levels, main effects, interactions, and the ranking of fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.analysis.ablation import Factorial, FieldEffects, Rank, StudyEffects, Tuned
from harness.analysis.ablation_study import Changes, Study, StudyCell
from harness.analysis.contrasts import AblationEffect, detectable
from harness.analysis.effects import assumption
from harness.analysis.grouping import measure
from harness.analysis.metric_registry import ABLATION
from harness.execution.rate_tuning import PILOT_SEED
from harness.reporting.document import Cell, Table
from harness.reporting.formatting import MISSING, effect_cell, number
from harness.storage.records import RunRecord
from harness.text import count, short_line

MAIN, SECOND = "validation_loss", "bleu_sacre"
"""The metrics that rank fields and are drawn."""


def cell(effect: AblationEffect) -> str | Cell:
    """Return an effect as a cell: its mean, the symbol of its conclusion, and its interval."""
    if effect.mean is None:
        return MISSING
    return effect_cell(effect, effect.conclusion, ABLATION[effect.metric].digits)


def status(study_cell: StudyCell) -> str:
    """Return how many runs did not complete, such as "1 of 3 diverged"; empty if all completed."""
    names = [record.status for record in study_cell.records.values()]
    incomplete = sorted({name for name in names if name != "completed"})
    return ", ".join(f"{names.count(name)} of {len(names)} {name}" for name in incomplete)


def first_known(records: Iterable[RunRecord], name: str) -> float | None:
    """Return a metric or size of the first record that has it."""
    return next((value for record in records if (value := measure(record, name)) is not None), None)


@dataclass(frozen=True)
class LevelRow:
    """A level of a field, or an interaction of two: its changes, number of seeds, and effects by metric.

    The base has no changes, and absolute values instead of effects. `parameters` is a dash if recipes of different
    sizes are averaged; `status` names the runs that did not complete.
    """

    name: str
    level: str
    changed: Changes
    seeds: int
    cells: Mapping[str, str | Cell]
    parameters: str
    status: str


def base_row(study: Study) -> LevelRow:
    """Return the metrics of the base, means over its completed seeds."""
    base = study.cells[0]
    cells = {}
    for name, metric in ABLATION.items():
        values = base.values(name)
        cells[name] = number(fmean(values) if values else None, metric.digits)
    variant = short_line(study.variant)
    return LevelRow("base", variant, (), len(base.completed), cells, _parameters([base]), status(base))


def field_rows(study: Study, fields: Iterable[FieldEffects]) -> list[LevelRow]:
    """Return a row for each level of each field; the first level's row names the field."""
    rows = []
    for field in fields:
        for index, effects in enumerate(zip(*(field.effects[name] for name in ABLATION), strict=True)):
            contrast = effects[0].contrast
            averaged = [part for part in study.cells if contrast.weights.get(part.changes, 0.0) > 0]
            with_level = [part for part in study.cells if contrast.changed[0] in part.changes]
            name = f"{field.field} ({field.levels[0]})" if index == 0 else ""
            rows.append(_level_row(name, effects, averaged or with_level))
    return rows


def interaction_rows(study: Study, factorial: Factorial) -> list[LevelRow]:
    """Return a row for each interaction of two levels."""
    rows = []
    for effects in zip(*(factorial.interactions[name] for name in ABLATION), strict=True):
        changed = effects[0].contrast.changed
        cells = [part for part in study.cells if set(changed) <= set(part.changes)]
        rows.append(_level_row(" × ".join(field for field, _ in changed), effects, cells))
    return rows


def _level_row(name: str, effects: Sequence[AblationEffect], cells: Sequence[StudyCell]) -> LevelRow:
    contrast = effects[0].contrast
    return LevelRow(
        name,
        ", ".join(level for _, level in contrast.changed),
        contrast.changed,
        len(contrast.seeds) if contrast.weights else 0,
        {effect.metric: cell(effect) for effect in effects},
        _parameters(cells),
        "; ".join(dict.fromkeys(filter(None, map(status, cells)))),
    )


def _parameters(cells: Sequence[StudyCell]) -> str:
    sizes = {first_known(part.records.values(), "parameters") for part in cells}
    return number(sizes.pop() if len(sizes) == 1 else None, 0)


def levels_table(rows: Sequence[LevelRow], title: str = "") -> Table:
    """Return levels or interactions as a table; its last column is the status, if any run did not complete."""
    heads = ["field (base)", "level", "seeds", *(metric.title for metric in ABLATION.values()), "parameters", "status"]
    lines = [
        (row.name, row.level, str(row.seeds), *(row.cells[name] for name in ABLATION), row.parameters, row.status)
        for row in rows
    ]
    width = len(heads) if any(row.status for row in rows) else len(heads) - 1
    columns = f"lcr{'r' * len(ABLATION)}rl"
    return Table(columns[:width], tuple(heads[:width]), tuple(line[:width] for line in lines), title)


def detectable_notes(study: Study, fields: Sequence[FieldEffects]) -> list[str]:
    """Return a sentence with the true effects that a table detects; empty if it tests nothing over seeds."""
    parts = []
    for name, metric in ABLATION.items():
        effects = [effect for field in fields for effect in field.effects[name]]
        smallest = detectable(study, effects)
        if smallest is not None:
            parts.append(f"{metric.title} {smallest:.{metric.digits}f} {metric.unit}".rstrip())
    condition = assumption(len(study.seeds))
    text = f"True effects that this table detects with 80 % probability{condition}: {', '.join(parts)}."
    return [text] if parts else []


def ranking_table(ranks: Sequence[Rank], seconds: Sequence[Rank]) -> Table:
    """Return the fields by their largest effect on the first metric, with their rank by the second."""
    main, second = (ABLATION[name].title for name in (MAIN, SECOND))
    heads = ("rank", "field", f"largest effect on {main}", f"rank by {second}", f"largest effect on {second}")
    order = [rank.field for rank in seconds]
    rows = []
    for place, rank in enumerate(ranks, start=1):
        index = order.index(rank.field)
        name = f"{rank.field} (joint vocabulary)" if rank.study.joint else rank.field
        rows.append((str(place), name, _largest(rank), str(index + 1), _largest(seconds[index])))
    return Table("llrrr", heads, tuple(rows))


def _largest(rank: Rank) -> str | Cell:
    """Return the largest effect of a field, after the level that has it and the levels that only diverged."""
    levels = [f"{level}: diverged" for level in rank.lost]
    if rank.effect is None:
        return "; ".join(levels) or MISSING
    content = cell(rank.effect)
    names = "; ".join([*levels, rank.effect.contrast.changed[0][1]])
    return replace(content, text=f"{names}: {content.text}") if isinstance(content, Cell) else MISSING


def pilots_text(tuned: Tuned) -> str:
    """Return how the learning rates were chosen."""
    rates = ", ".join(f"{rate:g}" for rate in _rates(tuned))
    lengths = [f"at most {count(choice.limit, 'update')}" for choice in tuned.choices.values() if choice.limit]
    epochs = sorted({choice.epochs for choice in tuned.choices.values() if not choice.limit})
    lengths += [f"{' to '.join(map(str, epochs))} epoch{'s' * (epochs != [1])}"] * bool(epochs)
    return f"{rates}; pilots of {' or '.join(dict.fromkeys(lengths))}, seed {PILOT_SEED}, by validation loss"


def _rates(tuned: Tuned) -> list[float]:
    return sorted({rate for choice in tuned.choices.values() for rate in choice.losses})


def tuning_tables(effects: StudyEffects) -> list[Table]:
    """Return the pilots of each recipe, and the effects without and with tuning side by side; empty without pilots."""
    study, tuned = effects.study, effects.tuned
    if tuned is None:
        return []
    tables, after = [_pilots(effects, tuned)], effects.other_rates
    if after is None or after.study.differences:
        return tables
    if effects.fields:
        rows = [[base_row(part.study), *field_rows(part.study, part.fields)] for part in (effects, after)]
        tables.append(_side_by_side("Each level against the base", rows, tuned))
    if effects.factorial is not None and after.factorial is not None:
        crossed = " × ".join(effects.factorial.fields)
        pairs = (study, effects.factorial), (after.study, after.factorial)
        rows = [field_rows(part, factorial.main) for part, factorial in pairs]
        tables.append(_side_by_side(f"Main effects in {crossed}", rows))
        rows = [interaction_rows(part, factorial) for part, factorial in pairs]
        tables.append(_side_by_side(f"Interactions in {crossed}", rows))
    return tables


def _pilots(effects: StudyEffects, tuned: Tuned) -> Table:
    rates, rows = _rates(tuned), []
    for study_cell in effects.study.cells:
        choice = tuned.choices.get(study_cell.changes)
        if choice is not None:
            texts = {rate: "diverged" if loss is None else f"{loss:.3f}" for rate, loss in choice.losses.items()}
            losses = [texts.get(rate, MISSING) for rate in rates]
            rows.append((study_cell.label, *losses, _rate(tuned, study_cell.changes), choice.edge))
    heads = ("recipe", *(f"{rate:g}" for rate in rates), "chosen", "at the edge of the grid")
    title = f"Validation loss of the pilots by learning rate ({pilots_text(tuned)})"
    if effects.ranked is not effects and effects.other_rates is None:
        title += ": every recipe keeps the learning rate of its runs, so tuning changes no effect"
    return Table(f"l{'r' * len(rates)}rl", heads, tuple(rows), title)


def _side_by_side(title: str, sides: Sequence[Sequence[LevelRow]], tuned: Tuned | None = None) -> Table:
    before, after = sides
    heads = (f"{ABLATION[name].title}, {side}" for name in (MAIN, SECOND) for side in ("untuned", "tuned"))
    later = {row.changed: row.cells for row in after}
    rows = []
    for row in before:
        cells = [side.get(name, MISSING) for name in (MAIN, SECOND) for side in (row.cells, later.get(row.changed, {}))]
        rows.append((row.name, row.level, MISSING if tuned is None else _rate(tuned, row.changed), *cells))
    return Table("llrrrrr", ("field (base)", "level", "tuned rate", *heads), tuple(rows), f"{title}, untuned and tuned")


def _rate(tuned: Tuned, changes: Changes) -> str:
    choice = tuned.choices.get(changes)
    return MISSING if choice is None or choice.rate is None else f"{choice.rate:g}"
