"""What the HTML page shows of ablations: for each word of a field its effect and interval, drawn beside the number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis.ablation import Analysis, FieldEffects, StudyEffects, Tuned
from harness.analysis.ablation_study import StudyCell
from harness.analysis.contrasts import AblationEffect
from harness.analysis.metric_registry import ABLATION
from harness.execution.rate_tuning import Choice
from harness.reporting import leaderboard_cells
from harness.reporting.ablation_tables import MISSING, base_line, detectable_notes, field_lines, interval, signed
from harness.reporting.ablation_tuning import how
from harness.reporting.leaderboard_cells import BarAxis, bar


@dataclass(frozen=True)
class ForestRow:
    """One word of a field."""

    field: str
    word: str
    cells: list[leaderboard_cells.LeaderboardCell]


@dataclass(frozen=True)
class Forest:
    """The effects of one study, or of its factorial."""

    heading: str
    heads: list[str]
    lines: list[ForestRow]
    notes: list[str]


def forests(analysis: Analysis) -> list[Forest]:
    """Return a forest for each study that has effects, and one for each factorial; after them, with tuned rates."""
    made = []
    for one in analysis.studies:
        made += _of_study(one, one.study.title)
        if one.tuned is not None and one.tuned.effects is not None:
            tuned = _of_study(one.tuned.effects, f"{one.study.title}, learning rate tuned for each recipe")
            rates = [f"{cell.label} {choice.rate:g}" for cell, choice in _rates(one, one.tuned)]
            note = f"Learning rates ({how(one.tuned)}): {', '.join(rates)}."
            made += [replace(forest, notes=[*forest.notes, note]) for forest in tuned]
    return made


def _of_study(found: StudyEffects, title: str) -> list[Forest]:
    made = [_forest(found, title, found.fields)] if found.fields else []
    if found.factorial is not None:
        crossed = " × ".join(found.factorial.fields)
        made.append(_forest(found, f"{title}: all combinations of {crossed}", found.factorial.main))
    return made


def _rates(found: StudyEffects, tuned: Tuned) -> list[tuple[StudyCell, Choice]]:
    pairs = [(cell, tuned.choices.get(cell.departures)) for cell in found.study.cells]
    return [(cell, choice) for cell, choice in pairs if choice is not None and choice.rate is not None]


def _forest(found: StudyEffects, heading: str, fields: Sequence[FieldEffects]) -> Forest:
    """Return the lines of some fields; the bars of one figure share an axis, with a line at no change."""
    scales = {
        name: BarAxis.of(
            [end for field in fields for each in field.effects[name] for end in (each.low, each.mean, each.high)],
            zero=True,
        )
        for name in ABLATION
    }
    plain = field_lines(found.study, fields)
    effects = [each for field in fields for each in zip(*(field.effects[name] for name in ABLATION), strict=True)]
    lines = [
        ForestRow(
            line.name,
            line.word,
            [
                *(_cell(each, scales[each.figure]) for each in same),
                leaderboard_cells.LeaderboardCell(str(line.seeds)),
                leaderboard_cells.LeaderboardCell(line.status or "all completed"),
            ],
        )
        for line, same in zip(plain, effects, strict=True)
    ]
    base = base_line(found.study)
    own = ", ".join(f"{ABLATION[name].title} {text}" for name, text in base.cells.items())
    titles = [figure.title + (", less is better" if figure.less_is_better else "") for figure in ABLATION.values()]
    return Forest(
        heading,
        ["field (base)", "word", *titles, "seeds", "runs"],
        lines,
        [f"The base: {own}.", *detectable_notes(found.study, fields)],
    )


def _cell(effect: AblationEffect, scale: BarAxis) -> leaderboard_cells.LeaderboardCell:
    if effect.mean is None:
        return leaderboard_cells.LeaderboardCell(MISSING)
    return leaderboard_cells.LeaderboardCell(
        text=signed(effect.mean, effect.figure),
        mark=effect.conclusion.symbol,
        range="" if interval(effect) == MISSING else interval(effect),
        bar=bar(scale, effect.mean, effect.low, effect.high, zero=True),
    )
