"""Plots of run records: learning curves, test scores, and quality against speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.analysis.effects import Interval
from harness.analysis.evidence import number_or_nan
from harness.analysis.grouping import TableRow
from harness.analysis.metric_registry import MAIN, METRICS, Metric
from harness.analysis.scales import Reals, Scale
from harness.analysis.statistics import bands
from harness.reporting import plot_style
from harness.reporting.document import Table
from harness.reporting.formatting import MISSING, significant_digits
from harness.reporting.plot_style import FAINT, NARROW, Layout, Style, styled

SPEEDS = ("training_tokens_per_second", "decoding_sentences_per_second")
MOST_PANELS = 12


# Learning curves ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurveChart:
    """A chart of learning curves, one panel per row of a table.

    Attributes:
        name: The end of the figure's file name.
        title: What it shows.
        lines: The fields of `EpochRecord` with their names and dashes; the first one is also the grey reference.
        metric: The digits and the scale of the values.
        unit: The label of the vertical axis.
        heading: The line above the panels.
        is_optional: Whether rows without two values have no panel.
    """

    name: str
    title: str
    lines: Mapping[str, tuple[str, Any]]
    metric: Metric
    unit: str
    heading: str
    is_optional: bool = False


LOSSES = CurveChart(
    "loss",
    "Training and validation loss",
    {"validation_loss": ("validation", "-"), "training_loss": ("training", (0, (4, 2)))},
    METRICS["validation_loss"],
    unit="nats per target token",
    heading="Solid: validation; dashed: training",
)
BLEU = CurveChart(
    "bleu",
    "Validation BLEU",
    {"validation_bleu": ("validation BLEU", "-")},
    METRICS[MAIN],
    unit=METRICS[MAIN].title,
    heading="Validation BLEU per epoch",
    is_optional=True,
)


@dataclass(frozen=True)
class Panel:
    """A row with its label, its style, and for each field the mean over seeds and the ends of its interval.

    Shapes: [3,epochs] for each field; NaN where a value is unknown.
    """

    row: TableRow
    label: str
    style: Style
    curves: Mapping[str, Reals]


def panels(rows: Sequence[TableRow], labels: Sequence[str], chart: CurveChart) -> list[Panel]:
    """Return the panels of a chart; empty if no line has values of two epochs.

    A row without any value, such as that of a run that failed before its training, has none. Of too many rows, the
    first and the best by the main metric have one.
    """
    scores = [-math.inf if (mean := row.mean(MAIN)) is None else mean for row in rows]
    best = sorted(range(1, len(rows)), key=lambda index: -scores[index])[: MOST_PANELS - 1]
    styles = plot_style.row_styles(rows)
    shown = [
        Panel(
            row, labels[index], styles[index], {field: _curve(row, field, chart.metric.scale) for field in chart.lines}
        )
        for index, row in enumerate(rows)
        if index in (0, *best)
    ]
    values = [max(np.isfinite(curve[0]).sum() for curve in panel.curves.values()) for panel in shown]
    least = 2 if chart.is_optional or max(values, default=0) < 2 else 1
    return [panel for panel, number in zip(shown, values, strict=True) if number >= least]


def _curve(row: TableRow, field: str, scale: Scale) -> Reals:
    seeds = [[number_or_nan(getattr(epoch, field)) for epoch in record.curve] for record in row.counted]
    return bands([values for values in seeds if not np.isnan(values).all()], scale=scale)


@styled
def learning_curves(curves: Sequence[Panel], chart: CurveChart, *, layout: Layout = "wide") -> Figure:
    """Draw values against epochs, one panel per row; the first panel's first line is grey in the others.

    Bands are 95 % intervals over seeds; × ends a run that did not complete.
    """
    first_field = next(iter(chart.lines))
    width, per_row, panel_height, longest = (NARROW, 2, 1.7, 19) if layout == "narrow" else (11, 4, 2.5, 27)
    height = math.ceil(len(curves) / per_row)
    least = 1 if layout == "narrow" else 2
    columns = max(math.ceil(len(curves) / height), least)  # 3 and 2 panels rather than 4 and 1
    picture, grid = plot_style.figure(
        width, 0.6 + panel_height * height, rows=height, columns=columns, sharex=True, sharey=True
    )
    for axes in grid.flat[len(curves) :]:
        axes.set_visible(False)
    names = plot_style.shorts([panel.label for panel in curves], width=longest)
    for index, (axes, panel, name) in enumerate(zip(grid.flat, curves, names, strict=False)):
        if index:
            _line(axes, curves[0].curves[first_field], color="#BBBBBB", lw=1.2, zorder=1)
        _draw(axes, panel, chart)
        axes.set_gid(plot_style.series(panel.label))
        size = 9.5 if layout == "wide" else 8
        axes.set_title(name, fontsize=size * min(1, (longest + 4) / max(map(len, name.split("\n")))))
        is_lowest = index + columns >= len(curves)
        axes.tick_params(labelbottom=is_lowest)
        axes.set_xlabel("epoch" if is_lowest else "")
        if index % columns == 0:
            axes.set_ylabel(chart.unit, fontsize=10 if layout == "wide" else 8)
    grid[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8 if layout == "wide" else 5, min_n_ticks=1))
    reference = f"; grey: {chart.lines[first_field][0]} of the first panel" if len(curves) > 1 else ""
    plot_style.subtitle(picture, f"{chart.heading}{reference}")
    plot_style.lay_out(picture)
    return picture


def _draw(axes: Axes, panel: Panel, chart: CurveChart) -> None:
    colour = panel.style.colour
    for field, (_, dashes) in chart.lines.items():
        _, lows, highs = panel.curves[field]
        indices = np.flatnonzero(np.isfinite(lows + highs))
        if len(indices):
            axes.fill_between(indices + 1, lows[indices], highs[indices], color=colour, alpha=0.16, lw=0)
        _line(axes, panel.curves[field], color=colour, linestyle=dashes, lw=1.7, zorder=3)
    for record in panel.row.records:
        values = ((epoch.epoch, number_or_nan(getattr(epoch, next(iter(chart.lines))))) for epoch in record.curve)
        known = [point for point in values if not math.isnan(point[1])]
        if record.status != "completed" and known:
            axes.plot(*known[-1], marker="x", ms=9, mew=2.2, color=colour, ls="none", zorder=4)


def _line(axes: Axes, curve: Reals, **settings: Any) -> None:
    indices = np.flatnonzero(np.isfinite(curve[0]))
    axes.plot(indices + 1, curve[0][indices], **settings)


def curve_data(panels: Sequence[Panel], chart: CurveChart) -> Table:
    """Return the table behind the curves: one row per epoch with a value, one column per line of each panel."""
    curves = [curve for panel in panels for curve in panel.curves.values()]
    heads = ("epoch", *(f"{panel.label}, {name}" for panel in panels for name, _ in chart.lines.values()))
    cells = []
    for epoch in range(1, max((curve.shape[1] for curve in curves), default=0) + 1):
        values = [_reading(curve, epoch, chart.metric.digits) for curve in curves]
        if set(values) != {MISSING}:
            cells.append((str(epoch), *values))
    return Table("r" * len(heads), heads, tuple(cells))


def curve_reading(panels: Sequence[Panel], chart: CurveChart, picture: Figure) -> dict[str, Any]:
    """Return where each epoch is in each panel, and the values there. Units: points from the left and top.

    `picture` is that of `learning_curves`.
    """
    table = curve_data(panels, chart).rows
    names = [name for name, _ in chart.lines.values()]
    height, scale = picture.get_figheight() * 72, 72 / picture.dpi
    readings = []
    for index, (axes, panel) in enumerate(zip(picture.axes, panels, strict=False)):
        columns = range(1 + index * len(names), 1 + (index + 1) * len(names))
        texts = ["; ".join(f"{name} {row[at]}" for name, at in zip(names, columns, strict=True)) for row in table]
        points = axes.transData.transform([(int(str(row[0])), axes.get_ylim()[0]) for row in table])
        box = axes.get_window_extent()
        ends = {"left": box.x0 * scale, "right": box.x1 * scale}
        ends |= {"top": height - box.y1 * scale, "bottom": height - box.y0 * scale}
        rounded = {name: round(float(end), 1) for name, end in ends.items()}
        x = [round(float(x) * scale, 1) for x, _ in points]
        readings.append({"name": panel.label, "texts": texts, "x": x, **rounded})
    return {"labels": [f"epoch {row[0]}" for row in table], "panels": readings}


def _reading(curve: Reals, epoch: int, digits: int) -> str:
    mean, low, high = curve[:, epoch - 1] if epoch <= curve.shape[1] else (math.nan,) * 3
    if math.isnan(mean):
        return MISSING
    return f"{mean:.{digits}f}" + ("" if math.isnan(low) else f" ({low:.{digits}f} to {high:.{digits}f})")


# Test scores ----------------------------------------------------------------------------------------------------------


@styled
def scores(
    rows: Sequence[TableRow],
    labels: Sequence[str],
    names: Sequence[str],
    intervals: Mapping[str, Mapping[str, Interval]],
    *,
    layout: Layout = "wide",
) -> Figure:
    """Draw scores of the test set, one panel each: seeds as rings, means as markers, intervals as lines.

    `intervals` has them by metric and label. Rows with the best mean of the first score come first.
    """
    picture, drawn = plot_style.row_panels(layout, 11, 1.2 + 0.42 * max(len(rows), 2), len(names))
    metric = METRICS[names[0]]
    costs = [math.inf if (mean := row.mean(metric.name)) is None else -metric.sign * mean for row in rows]
    order = np.argsort(costs, kind="stable")
    styles = plot_style.row_styles(rows)
    for axes, name in zip(drawn, names, strict=True):
        plot_style.titles(axes, layout, f"{METRICS[name].heading}, {METRICS[name].direction} is better", "")
        _dots(axes, [(rows[index], labels[index], styles[index]) for index in order], name, intervals.get(name, {}))
    plot_style.name_rows(drawn, layout, [labels[index] for index in order])
    rings = "rings are seeds, markers their means" if any(len(row.counted) > 1 for row in rows) else ""
    covered = {row.basis for by_label in intervals.values() for row in by_label.values() if row.low is not None}
    over = covered.pop() if len(covered) == 1 else "seeds, sentences or both" if covered else ""
    lines = f"lines are 95 % intervals over {over.replace('sentences', 'test sentences')}" if over else ""
    above = [axes.get_xlim()[0] > 0 for axes in drawn]
    cut = "axes do not start at 0" if all(above) else "not all axes start at 0" if any(above) else ""
    sentence = "; ".join(filter(None, (lines, rings, cut)))
    plot_style.subtitle(picture, f"{sentence[:1].upper()}{sentence[1:]}")
    return picture


def _dots(
    axes: Axes, rows: Sequence[tuple[TableRow, str, Style]], name: str, intervals: Mapping[str, Interval]
) -> None:
    ends = {
        label: (interval.low, interval.high)
        for label, interval in intervals.items()
        if interval.low is not None and interval.high is not None
    }
    values = [value for row, _, _ in rows for value in row.by_seed(name).values()]
    values += [end for pair in ends.values() for end in pair]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = 0.1 * max(high - low, 0.5)
    axes.set_xlim(low - margin, high + margin)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:g}")
    for index, (row, label, style) in enumerate(rows):
        axes.axhline(index, color="#EEEEEE", lw=0.8, zorder=0)
        seeds = list(row.by_seed(name).values())
        if not seeds:
            reason = "no value" if row.completed else row.status
            axes.text(0.02, index, reason, transform=axes.get_yaxis_transform(), va="center", color=FAINT, size=8)
            continue
        if len(seeds) > 1:
            axes.plot(seeds, [index + 0.3] * len(seeds), ls="none", marker="o", ms=4, mfc="none", mec=style.colour)
        mean = float(np.mean(seeds))
        text = METRICS[name].format(mean)
        if label in ends:
            axes.plot(ends[label], [index] * 2, color=style.colour, lw=2, zorder=1.5)
        axes.plot([mean], [index], gid=plot_style.series("", f"{label}: {text}"), **_point(style, size=7.5))
        axes.annotate(text, (mean, index), (0, 7), textcoords="offset points", ha="center", size=8)


def _point(style: Style, *, size: float) -> dict[str, Any]:
    return {"ls": "none", "marker": style.marker, "ms": size, "mfc": style.face, "mec": style.colour, "mew": 1.2}


# Quality against speed ------------------------------------------------------------------------------------------------


def speeds(rows: Sequence[TableRow]) -> list[str]:
    """Return the speeds that at least two rows have beside the main metric."""
    return [name for name in SPEEDS if sum(_speed_and_quality(row, name) is not None for row in rows) > 1]


def _speed_and_quality(row: TableRow, name: str) -> tuple[float, float] | None:
    scores = row.by_seed(MAIN)
    pairs = [(speed, scores[seed]) for seed, speed in row.by_seed(name).items() if seed in scores and speed > 0]
    return (float(np.mean([x for x, _ in pairs])), float(np.mean([y for _, y in pairs]))) if pairs else None


@styled
def quality_against_speed(
    rows: Sequence[TableRow], labels: Sequence[str], names: Sequence[str], *, layout: Layout = "wide"
) -> Figure:
    """Draw the main metric against speeds as labelled means; a grey line joins the Pareto front."""
    picture, drawn = plot_style.row_panels(layout, 11, max(3.6, 1 + 0.42 * len(rows)), len(names))
    texts = plot_style.shorts(labels, width=15 if layout == "narrow" else 24)
    for axes, name in zip(drawn, names, strict=True):
        ends = []
        for row, label, text, style in zip(rows, labels, texts, plot_style.row_styles(rows), strict=True):
            if (point := _speed_and_quality(row, name)) is not None:
                x, y = point
                tip = f"{label}: {METRICS[MAIN].format(y)}, {significant_digits(x)} {METRICS[name].unit}"
                axes.plot([x], [y], gid=plot_style.series(label, tip), zorder=3, **_point(style, size=8))
                ends.append((x, y, text, style))
        xs, ys = [x for x, *_ in ends], [y for _, y, *_ in ends]
        front = pareto_front(list(zip(xs, ys, strict=True)))
        axes.plot(*zip(*front, strict=True), color="#BBBBBB", lw=1.2, zorder=1)
        factor, margin = max((max(xs) / min(xs)) ** 0.2, 1.3), max((max(ys) - min(ys)) * 0.15, 0.5)
        axes.set_ylim(min(ys) - margin, max(ys) + margin)
        axes.set_xlim(min(xs) / factor, max(xs) * factor)
        plot_style.logarithmic(axes, "x", ticks=3 if layout == "narrow" else 5)
        plot_style.titles(axes, layout, METRICS[name].title.capitalize(), f"{METRICS[name].unit} (log scale)")
        if layout == "narrow" or axes is drawn[-1]:
            plot_style.label_ends(axes, ends, line=False)
    drawn[0].set_ylabel(f"{METRICS[MAIN].title}, test set")
    plot_style.subtitle(picture, "Up and to the right is better; the grey line joins the Pareto front")
    return picture


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other point equals or exceeds in both coordinates, by their first coordinate."""
    unique = set(points)
    return sorted(p for p in unique if not any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in unique))
