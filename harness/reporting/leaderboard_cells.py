"""What the tables of the HTML page show: the leaderboard with drawn intervals, and the matrix of differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from harness.analysis.effects import Conclusion, Interval
from harness.analysis.grouping import RunTable, TableRow
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.leaderboard import SYMBOLS, MetricLeaderboard
from harness.analysis.metric_registry import LEADERBOARD, Metric
from harness.reporting.bench_tables import COST, MISSING, QUALITY, SPEED, endings, vocabulary_mark, written
from harness.text import short_line

WIDTH, HEIGHT, EDGE = 136.0, 13.0, 5.0


@dataclass(frozen=True)
class LeaderboardCell:
    """One figure: what is written and what it sorts by; a judged one has its interval in words and as a bar."""

    text: str
    value: str = ""
    mark: str = ""
    range: str = ""
    bar: Markup = Markup("")
    best: bool = False


@dataclass(frozen=True)
class LeaderboardRow:
    """One row of a leaderboard; `text` is what its filter searches."""

    label: str
    framework: str
    text: str
    cells: list[LeaderboardCell]


@dataclass(frozen=True)
class Board:
    """One leaderboard; `lines` is empty where there are no runs or they are not comparable, as `differences` says."""

    heading: str
    budget: str
    explanation: str
    agreement: str = ""
    caveats: Sequence[str] = ()
    differences: Sequence[str] = ()
    heads: list[str] = field(default_factory=list)
    lines: list[LeaderboardRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MatrixCell:
    """One cell of a matrix: the row less the column; `kind` is "better", "worse" or empty where neither is certain.

    `chance` is the probability that the row is better in a new seed.
    """

    text: str
    mark: str
    range: str
    p: str
    chance: str
    kind: str


@dataclass(frozen=True)
class DifferenceMatrix:
    """All differences of one figure; where row and column are one there is None."""

    heading: str
    note: str
    names: list[str]
    lines: list[tuple[str, list[MatrixCell | None]]]


@dataclass(frozen=True)
class BarAxis:
    """The axis that the bars of a column share."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None], *, zero: bool = False) -> BarAxis:
        """Return the axis that holds `values`, and 0 where that is drawn."""
        found = [one for one in values if one is not None and math.isfinite(one)] + [0.0] * zero
        return cls(min(found, default=0.0), max(found, default=0.0))

    def place(self, value: float) -> float:
        """Return where a value stands, in the units of the drawing."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return EDGE + share * (WIDTH - 2 * EDGE)


def bar(scale: BarAxis, mean: float | None, low: float | None, high: float | None, *, zero: bool = False) -> Markup:
    """Return an interval as a small `<svg>`: a line from end to end, the mean a dot; with `zero` a line at 0."""
    if mean is None or not math.isfinite(mean):
        return Markup("")
    middle = HEIGHT / 2
    parts = [f'<path d="M0 {middle:g}H{WIDTH:g}" stroke="var(--grid)"/>']
    if zero:
        parts.append(f'<path d="M{scale.place(0.0):.1f} 0V{HEIGHT:g}" stroke="var(--faint)" stroke-dasharray="2 2"/>')
    if low is not None and high is not None:
        left, right = scale.place(low), scale.place(high)
        ends = f"M{left:.1f} {middle - 4:g}v8M{left:.1f} {middle:g}H{right:.1f}M{right:.1f} {middle - 4:g}v8"
        parts.append(f'<path d="{ends}" stroke="var(--series-0)" stroke-width="2" fill="none"/>')
    parts.append(f'<circle cx="{scale.place(mean):.1f}" cy="{middle:g}" r="3.5" fill="currentColor"/>')
    return Markup(f'<svg class="bar" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" aria-hidden="true">{"".join(parts)}</svg>')


# The leaderboard ------------------------------------------------------------------------------------------------------


def board(
    group: RunTable, labels: Sequence[str], judged: Mapping[str, MetricLeaderboard], *, explanation: str, agreement: str
) -> Board:
    """Return a group's leaderboard, best row first by the first figure that is judged."""
    first = next(iter(judged.values()), None)
    order = first.ranking if first else []
    ranked = sorted(
        zip(labels, group.rows, strict=True),
        key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order),
    )
    columns = [one for one in _columns(judged) if any(row.summary(one.name).values for _, row in ranked)]
    scales = {
        name: BarAxis.of([end for each in one.intervals.values() for end in (each.low, each.mean, each.high)])
        for name, one in judged.items()
    }
    lines = []
    for label, row in ranked:
        spec = row.records[0].spec
        cells = [
            _judged_cell(judged[column.name], label, scales[column.name])
            if column.name in judged
            else _plain_cell(group, row, column)
            for column in columns
        ]
        cells.insert(0, _rank_cell(first, label))
        cells.append(LeaderboardCell(str(len(row.counted)), str(len(row.counted))))
        cells.append(LeaderboardCell(row.status, row.status))
        lines.append(
            LeaderboardRow(label, spec.framework, f"{label} {spec.framework} {spec.device} {row.status}", cells)
        )
    return Board(
        heading=group.heading,
        budget=group.budget,
        explanation=explanation,
        agreement=agreement,
        caveats=group.caveats,
        heads=["variant", "rank", *(_title(column) for column in columns), "seeds", "runs"],
        lines=lines,
        notes=[*_notes(group, judged, columns), *endings(group)],
    )


def _columns(judged: Mapping[str, MetricLeaderboard]) -> list[Metric]:
    """Return every column once: what is judged first, then the rest of quality, size and speed."""
    known = {one.name: one for one in (*QUALITY, *COST, *SPEED)}
    return [known[name] for name in dict.fromkeys((*judged, *LEADERBOARD, *known))]


def _title(column: Metric) -> str:
    if column.name in LEADERBOARD:
        return LEADERBOARD[column.name].title
    return f"{column.head[0]} {column.head[1]}".strip()


def _rank_cell(found: MetricLeaderboard | None, label: str) -> LeaderboardCell:
    """Return the ranks that a row may have by the first figure, such as "1–3"."""
    ranks = found.rank_interval(label) if found else None
    if found is None or ranks is None:
        return LeaderboardCell(MISSING)
    first, last = ranks
    tied = "tied with the best" if found.tied_with_best(label) else ""
    return LeaderboardCell(
        text=str(first) if first == last else f"{first}–{last}", value=f"{first + last / 1000:g}", range=tied
    )


def _between(one: Interval, written: str) -> str:
    """Return an interval's ends, or the two values of two seeds, each in the format `written`."""
    if one.low is not None and one.high is not None:
        return f"{one.low:{written}} to {one.high:{written}}"
    return "; ".join(f"{value:{written}}" for value in one.values) if len(one.values) == 2 else ""


def _judged_cell(found: MetricLeaderboard, label: str, scale: BarAxis) -> LeaderboardCell:
    one, digits = found.intervals.get(label), found.metric.digits
    if one is None or one.mean is None:
        return LeaderboardCell(MISSING)
    between, against = _between(one, f".{digits}f"), found.against_best(label)
    return LeaderboardCell(
        text=f"{one.mean:.{digits}f}",
        value=f"{one.mean:.6g}",
        mark=against.symbol if against else "",
        range=between,
        bar=bar(scale, one.mean, one.low, one.high) if len(found.ranking) > 1 or between else Markup(""),
        best=len(found.ranking) > 1 and label == found.ranking[0],
    )


def _plain_cell(group: RunTable, row: TableRow, column: Metric) -> LeaderboardCell:
    summary = row.summary(column.name)
    value, deviation = written(summary, column)
    if summary.mean is None:
        return LeaderboardCell(MISSING)
    return LeaderboardCell(
        text=value,
        value=f"{summary.mean:.6g}",
        mark=vocabulary_mark(group, row, column),
        range=f"± {deviation}" if deviation else "",
    )


def _notes(group: RunTable, judged: Mapping[str, MetricLeaderboard], columns: Sequence[Metric]) -> list[str]:
    several = [one for one in judged.values() if len(one.ranking) > 1]
    found = [short_line(one) for one in dict.fromkeys(remark for one in several for remark in one.comparisons.remarks)]
    found += [note for one in several for note in one.notes]
    if several:
        found.append(f"Against the best of its column: {SYMBOLS}")
    if any(one.seeds >= LEAST_SEEDS for one in several[:1]):
        found.append(
            f"A rank is by {several[0].metric.title}: it lies between the number of significantly better variants and "
            "that of significantly worse ones."
        )
    if any(vocabulary_mark(group, row, column) for row in group.rows for column in columns):
        found.append(
            "* another vocabulary than most rows: this figure compares with no other row; sacreBLEU and chrF do."
        )
    if any(len(row.counted) > 1 for row in group.rows):
        found.append("± is the standard deviation over seeds.")
    return found


# The matrix -----------------------------------------------------------------------------------------------------------


MATRICES = ("bleu_sacre", "test_perplexity")


def matrices(group: RunTable, judged: Mapping[str, MetricLeaderboard]) -> list[DifferenceMatrix]:
    """Return the matrix of each figure that has one, for the rows of one table."""
    chosen = [judged[name] for name in MATRICES if name in judged and len(judged[name].ranking) > 1]
    return [matrix(f"{one.metric.title}, {group.heading}", one) for one in chosen]


def matrix(heading: str, found: MetricLeaderboard) -> DifferenceMatrix:
    """Return all differences of one figure, the rows in the order of their means."""
    names = found.ranking
    said = [*found.comparisons.remarks, *found.notes] if found.seeds < LEAST_SEEDS else found.notes
    if found.metric.less_is_better:
        said = [*said, "Less is better."]
    note = short_line(" ".join(said), longest=2_000)
    lines = [(name, [_difference(found, name, other) for other in names]) for name in names]
    return DifferenceMatrix(heading, note, names, lines)


def _difference(found: MetricLeaderboard, first: str, second: str) -> MatrixCell | None:
    if first == second:
        return None
    one, digits = found.comparisons.between(first, second), found.metric.digits
    if one.mean is None:
        return MatrixCell(MISSING, Conclusion.NOT_TESTED.symbol, "", "", "", "")
    conclusion = found.conclusion(one)
    chance = one.better_on_new_seed(less_is_better=found.metric.less_is_better)
    return MatrixCell(
        text=f"{one.mean:+.{digits}f}",
        mark=conclusion.symbol,
        range=_between(one, f"+.{digits}f"),
        p="" if one.p_holm is None else p_text(one.p_holm),
        chance="" if chance is None else percent(chance),
        kind=conclusion.label if conclusion in (Conclusion.BETTER, Conclusion.WORSE) else "",
    )


def percent(share: float) -> str:
    """Return a probability for a reader, never 0 or 100 %."""
    return "< 1 %" if share < 0.01 else "> 99 %" if share > 0.99 else f"{100 * share:.0f} %"


def p_text(p: float) -> str:
    """Return a p for a reader."""
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"
