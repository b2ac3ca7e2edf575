"""What the HTML page shows of ablations: for each word of a field its effect and interval, drawn beside the number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.ablation import Analysis, FieldEffects, StudyEffects
from harness.reporting.ablation_tables import MISSING, base_line, field_lines, interval, signed
from harness.reporting.boards import Cell, Scale, bar
from harness.reporting.contrasts import FIGURES, Effect


@dataclass(frozen=True)
class Line:
    """One word of a field."""

    field: str
    word: str
    cells: list[Cell]


@dataclass(frozen=True)
class Forest:
    """The effects of one study, or of its factorial."""

    heading: str
    heads: list[str]
    lines: list[Line]
    notes: list[str]


def forests(analysis: Analysis) -> list[Forest]:
    """Return a forest for each study that has effects, and one for each factorial."""
    made = []
    for one in analysis.studies:
        if one.fields:
            made.append(_forest(one, one.study.title, one.fields))
        if one.factorial is not None:
            crossed = " × ".join(one.factorial.fields)
            made.append(_forest(one, f"{one.study.title}: all combinations of {crossed}", one.factorial.main))
    return made


def _forest(found: StudyEffects, heading: str, fields: Sequence[FieldEffects]) -> Forest:
    """Return the lines of some fields; the bars of one figure share an axis, with a line at no change."""
    scales = {
        name: Scale.of(
            [end for field in fields for each in field.effects[name] for end in (each.low, each.mean, each.high)],
            zero=True,
        )
        for name in FIGURES
    }
    plain = field_lines(found.study, fields)
    effects = [each for field in fields for each in zip(*(field.effects[name] for name in FIGURES), strict=True)]
    lines = [
        Line(
            line.name,
            line.word,
            [
                *(_cell(each, scales[each.figure]) for each in same),
                Cell(str(line.seeds)),
                Cell(line.status or "all completed"),
            ],
        )
        for line, same in zip(plain, effects, strict=True)
    ]
    base = base_line(found.study)
    own = ", ".join(f"{FIGURES[name].title} {text}" for name, text in base.cells.items())
    titles = [figure.title + (", less is better" if figure.less_is_better else "") for figure in FIGURES.values()]
    return Forest(heading, ["field (base)", "word", *titles, "seeds", "runs"], lines, [f"The base: {own}."])


def _cell(effect: Effect, scale: Scale) -> Cell:
    if effect.mean is None:
        return Cell(MISSING)
    return Cell(
        text=signed(effect.mean, effect.figure),
        mark=effect.conclusion.symbol,
        range="" if interval(effect) == MISSING else interval(effect),
        bar=bar(scale, effect.mean, effect.low, effect.high, zero=True),
    )
