"""An ablation as tables: for the terminal, and line by line for pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.ablation import Analysis, Factorial, FieldEffects, StudyEffects
from harness.analysis.ablation_study import Study, StudyCell
from harness.analysis.contrasts import AblationEffect, detectable
from harness.analysis.effects import LEGEND, assumption
from harness.analysis.grouping import measure
from harness.analysis.metric_registry import ABLATION
from harness.text import short_line

MISSING = "–"


# Numbers --------------------------------------------------------------------------------------------------------------


def signed(value: float | None, figure: str) -> str:
    """Return a difference with its sign and the figure's digits; what rounds to 0 has none."""
    if value is None:
        return MISSING
    digits = ABLATION[figure].digits
    rounded = f"{abs(value):,.{digits}f}"
    sign = "" if float(rounded.replace(",", "")) == 0 else "+" if value > 0 else "−"
    return sign + rounded


def interval(effect: AblationEffect) -> str:
    """Return an effect's interval, "+0.25 to +0.37", or the values of two seeds; a dash where there is neither."""
    if effect.low is None or effect.high is None:
        values = [signed(value, effect.figure) for value in effect.values]
        return f"seeds: {'; '.join(values)}" if len(values) == 2 else MISSING
    return f"{signed(effect.low, effect.figure)} to {signed(effect.high, effect.figure)}"


def written(effect: AblationEffect) -> str:
    """Return an effect for a table: "+0.31 (+0.25 to +0.37) ▼", with the symbol of what can be concluded."""
    if effect.mean is None:
        return MISSING
    bounds = "" if interval(effect) == MISSING else f" ({interval(effect)})"
    return f"{signed(effect.mean, effect.figure)}{bounds} {effect.conclusion.symbol}"


# Lines of tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LevelRow:
    """One word of a field, or one interaction: seeds, effects by figure, and which runs did not complete.

    `name` is the field or fields, `word` the word or words; the base's own line has absolute figures. `parameters` are
    those of the recipe, None where several are averaged.
    """

    name: str
    word: str
    seeds: int
    cells: Mapping[str, str]
    parameters: str
    status: str


def base_line(study: Study) -> LevelRow:
    """Return the base's own figures, means over its seeds that completed."""
    cell = study.cells[0]
    cells = {}
    for name, figure in ABLATION.items():
        found = [measure(cell.records[seed], name) for seed in sorted(cell.completed)]
        values = [value for value in found if value is not None]
        cells[name] = f"{sum(values) / len(values):,.{figure.digits}f}" if values else MISSING
    return LevelRow("base", short_line(study.variant), len(cell.completed), cells, _counted([cell]), status(cell))


def field_lines(study: Study, found: Iterable[FieldEffects]) -> list[LevelRow]:
    """Return a line for each word of each field; the field's name stands at its first word alone."""
    made = []
    for field in found:
        for place, effects in enumerate(zip(*(field.effects[name] for name in ABLATION), strict=True)):
            contrast = effects[0].contrast
            ((_, word),) = contrast.changed
            cells = [one for one in study.cells if contrast.weights.get(one.departures, 0.0) > 0]
            whole = cells or [one for one in study.cells if contrast.changed[0] in one.departures]
            name = f"{field.field} ({field.words[0]})" if place == 0 else ""
            made.append(_line(name, word, effects, whole))
    return made


def interaction_lines(study: Study, found: Factorial) -> list[LevelRow]:
    """Return a line for each interaction of two words."""
    made = []
    for effects in zip(*(found.interactions[name] for name in ABLATION), strict=True):
        changed = effects[0].contrast.changed
        cells = [cell for cell in study.cells if set(changed) <= set(cell.departures)]
        made.append(
            _line(" × ".join(name for name, _ in changed), ", ".join(word for _, word in changed), effects, cells)
        )
    return made


def _line(name: str, word: str, effects: Sequence[AblationEffect], cells: Sequence[StudyCell]) -> LevelRow:
    return LevelRow(
        name,
        word,
        len(effects[0].contrast.seeds) if effects[0].contrast.weights else 0,
        {one.figure: written(one) for one in effects},
        _counted(cells),
        "; ".join(dict.fromkeys(filter(None, map(status, cells)))),
    )


def status(cell: StudyCell) -> str:
    """Return what did not complete, such as "1 of 3 diverged"; empty where all did."""
    ends = [record.status for record in cell.records.values()]
    bad = [end for end in dict.fromkeys(sorted(ends)) if end != "completed"]
    return ", ".join(f"{ends.count(end)} of {len(ends)} {end}" for end in bad)


def _counted(cells: Sequence[StudyCell]) -> str:
    found = {parameters(cell) for cell in cells}
    (only,) = found if len(found) == 1 else (None,)
    return MISSING if only is None else f"{only:,.0f}"


def parameters(cell: StudyCell) -> float | None:
    """Return how many numbers a recipe trains."""
    return next((one for record in cell.records.values() if (one := measure(record, "parameters")) is not None), None)


# Terminal -------------------------------------------------------------------------------------------------------------


def terminal(analysis: Analysis) -> str:
    """Return the tables that `ablate` prints: for each study the words of each field against the base's."""
    return "\n\n".join(_study(one) for one in analysis.studies)


def _study(found: StudyEffects) -> str:
    study = found.study
    if study.differences:
        lines = [
            "No table: these runs are not comparable. They differ in",
            *(f"  - {one}" for one in study.differences),
        ]
        return "\n".join([study.title, *lines, *(f"  {cell.label}: {_ends(cell)}" for cell in study.cells)])
    parts = [study.title]
    if found.fields:
        parts.append(_aligned([base_line(study), *field_lines(study, found.fields)]))
        parts += detectable_notes(study, found.fields)
    if found.factorial is not None:
        crossed = " × ".join(found.factorial.fields)
        parts.append(f"Main effects in {crossed}:\n\n{_aligned(field_lines(study, found.factorial.main))}")
        parts += detectable_notes(study, found.factorial.main)
        parts.append(f"Interactions in {crossed}:\n\n{_aligned(interaction_lines(study, found.factorial))}")
    parts.append(
        f"Differences from the base with 95 % intervals; after Holm's correction"
        f"{assumption(len(study.seeds))}: {LEGEND}."
    )
    return "\n\n".join(parts)


def detectable_notes(study: Study, fields: Sequence[FieldEffects]) -> list[str]:
    """Return in a sentence which true effects a table finds; nothing where it tests nothing over seeds."""
    told = []
    for name, figure in ABLATION.items():
        effects = [effect for field in fields for effect in field.effects[name]]
        least = detectable(study, effects) if effects else None
        if least is not None:
            told.append(f"{figure.title} {least:.{figure.digits}f}{' ' * bool(figure.unit)}{figure.unit}")
    if not told:
        return []
    return [
        f"True effects that this table finds with 80 % probability{assumption(len(study.seeds))}: {', '.join(told)}."
    ]


def _ends(cell: StudyCell) -> str:
    return status(cell) or f"{len(cell.records)} completed"


def _aligned(lines: Sequence[LevelRow]) -> str:
    """Return two blocks of columns, losses and BLEU, for a terminal is not wide enough for both."""
    names = list(ABLATION)
    return "\n\n".join(_block(lines, names[start : start + 2], last=start > 0) for start in range(0, len(names), 2))


def _block(lines: Sequence[LevelRow], names: Sequence[str], *, last: bool) -> str:
    columns = [("field", [line.name for line in lines]), ("word", [line.word for line in lines])]
    columns.append(("seeds", [str(line.seeds) for line in lines]))
    columns += [(ABLATION[name].title, [line.cells[name] for line in lines]) for name in names]
    if last and any(line.status for line in lines):
        columns.append(("status", [line.status for line in lines]))
    return aligned(columns)


def aligned(columns: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return columns, each a head and its cells, as lines of text for the terminal."""
    widths = [max(map(len, (head, *cells))) for head, cells in columns]
    printed = [[head, "─" * width, *cells] for (head, cells), width in zip(columns, widths, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*printed, strict=True)
    )
