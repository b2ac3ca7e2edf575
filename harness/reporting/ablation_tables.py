"""The tables of an ablation: effects of levels, main effects, interactions, and the ranking of fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.analysis.ablation import Factorial, FieldEffects, Rank
from harness.analysis.ablation_study import Study, StudyCell
from harness.analysis.contrasts import AblationEffect, detectable
from harness.analysis.effects import Conclusion, assumption
from harness.analysis.grouping import measure
from harness.analysis.metric_registry import ABLATION
from harness.reporting import formatting
from harness.reporting.document import Cell, Table
from harness.reporting.formatting import MISSING
from harness.text import short_line

MAIN, SECOND = "validation_loss", "bleu_sacre"


# Numbers --------------------------------------------------------------------------------------------------------------


def signed(value: float | None, figure: str) -> str:
    """Return a difference with its sign and the metric's digits; a value that rounds to 0 has no sign."""
    return formatting.signed(value, ABLATION[figure].digits)


def interval(effect: AblationEffect) -> str:
    """Return an effect's interval, "+0.25 to +0.37", or the values of two seeds; a dash where there is neither."""
    return formatting.bounds(effect, ABLATION[effect.figure].digits)


def written(effect: AblationEffect) -> str:
    """Return an effect on one line: "+0.31 (+0.25 to +0.37) ▼", with the symbol of what can be concluded."""
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
    cells: Mapping[str, str | Cell]
    parameters: str
    status: str


def base_row(study: Study) -> LevelRow:
    """Return the base's own figures, means over its seeds that completed."""
    cell = study.cells[0]
    cells = {}
    for name, figure in ABLATION.items():
        found = [measure(cell.records[seed], name) for seed in sorted(cell.completed)]
        values = [value for value in found if value is not None]
        cells[name] = f"{sum(values) / len(values):,.{figure.digits}f}" if values else MISSING
    return LevelRow("base", short_line(study.variant), len(cell.completed), cells, _counted([cell]), status(cell))


def field_rows(study: Study, found: Iterable[FieldEffects]) -> list[LevelRow]:
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


def interaction_rows(study: Study, found: Factorial) -> list[LevelRow]:
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
        {effect.figure: cell(effect) for effect in effects},
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


# Tables ---------------------------------------------------------------------------------------------------------------


def cell(effect: AblationEffect) -> str | Cell:
    """Return an effect as a cell: its mean, the symbol of what can be concluded, and its interval."""
    if effect.mean is None:
        return MISSING
    bounds = interval(effect)
    tones: Mapping[Conclusion, Literal["better", "worse"]] = {Conclusion.BETTER: "better", Conclusion.WORSE: "worse"}
    return Cell(
        signed(effect.mean, effect.figure),
        mark=effect.conclusion.symbol,
        detail="" if bounds == MISSING else bounds,
        value=effect.mean,
        tone=tones.get(effect.conclusion, ""),
    )


def levels_table(rows: Sequence[LevelRow], title: str = "") -> Table:
    """Return rows of levels or interactions as a table; the last column says which runs did not complete."""
    heads = ["field (base)", "level", "seeds", *(metric.title for metric in ABLATION.values()), "parameters"]
    ended = any(row.status for row in rows)
    lines = [
        (row.name, row.word, str(row.seeds), *(row.cells[name] for name in ABLATION), row.parameters)
        + ((row.status,) if ended else ())
        for row in rows
    ]
    columns = "lcr" + "r" * len(ABLATION) + "r" + "l" * ended
    return Table(columns, (*heads, *(["status"] if ended else [])), tuple(lines), title)


def ranking_table(ranks: Sequence[Rank], seconds: Sequence[Rank]) -> Table:
    """Return the fields by their largest effect on the first metric, with their rank by the second."""
    main, second = (ABLATION[name].title for name in (MAIN, SECOND))
    heads = ("rank", "field", f"largest effect on {main}", f"best, worst level for {main}", f"rank by {second}")
    order = [rank.field for rank in seconds]
    rows = []
    for place, rank in enumerate(ranks, start=1):
        other = order.index(rank.field)
        name = f"{rank.field} (joint vocabulary)" if rank.joint else rank.field
        spread = rank.spread
        apart = _named(f"{spread.best}, {spread.worst}", spread.effect) if spread else MISSING
        rows.append((str(place), name, _largest(rank), apart, str(other + 1), _largest(seconds[other])))
    return Table("llrrrr", (*heads, f"largest effect on {second}"), tuple(rows))


def _largest(rank: Rank) -> str | Cell:
    lost = "; ".join(f"{word}: diverged" for word in rank.lost)
    if rank.effect is None:
        return lost or MISSING
    return _named("; ".join(filter(None, (lost, rank.effect.contrast.changed[0][1]))), rank.effect)


def _named(name: str, effect: AblationEffect) -> str | Cell:
    """Return an effect's cell with the level or levels that it is of."""
    shown = cell(effect)
    return replace(shown, text=f"{name}: {shown.text}") if isinstance(shown, Cell) else MISSING


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
        f"True effects that this table detects with 80 % probability{assumption(len(study.seeds))}: {', '.join(told)}."
    ]
