"""Plots of run records: learning curves, BLEU, and quality against speed; the same figures in Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from harness.analysis.effects import Band
from harness.analysis.grouping import TableRow
from harness.analysis.metric_registry import METRICS, scale_of
from harness.analysis.statistics import bands
from harness.reporting.formatting import MISSING, significant_digits
from harness.reporting.plot_style import (
    FAINT,
    TIP,
    Style,
    figure,
    label_ends,
    logarithmic,
    row_styles,
    short,
    styled,
)

CURVES = {"validation_loss": ("validation", "-"), "training_loss": ("training", (0, (4, 2)))}
SPEEDS = ("training_tokens_per_second", "decoding_sentences_per_second")
ACROSS = 4
"""Panels in a row of small multiples."""


# Learning curves ------------------------------------------------------------------------------------------------------


def has_curves(rows: Sequence[TableRow]) -> bool:
    """Whether any run has losses of at least two epochs: one epoch is no curve."""
    return any(len(_known(band)) > 1 for row in rows for band in _bands(row).values())


def _bands(row: TableRow) -> dict[str, Band]:
    """Return the mean and interval of each loss over the seeds that completed."""
    bands_of = {}
    for name in CURVES:
        values = [[_finite(getattr(epoch, name)) for epoch in record.curve] for record in row.counted]
        bands_of[name] = bands([one for one in values if any(value is not None for value in one)], scale=scale_of(name))
    return bands_of


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _known(band: Band) -> dict[int, float]:
    return {epoch: value for epoch, value in enumerate(band.mean, start=1) if value is not None}


@styled
def learning_curves(rows: Sequence[TableRow], labels: Sequence[str]) -> Figure:
    """Draw training and validation loss against epochs, a panel for each row; the first row's validation in grey.

    Bands are 95 % intervals over seeds; × ends a run that did not complete.
    """
    columns = min(ACROSS, max(len(rows), 2))
    down = math.ceil(len(rows) / columns)
    picture, grid = figure(11, 0.5 + 2.5 * down, rows=down, columns=columns, sharex=True, sharey=True)
    curves = [_bands(row) for row in rows]
    for index, axes in enumerate(grid.flat):
        if index >= len(rows):
            axes.set_visible(False)
            continue
        if index:
            reference = _known(curves[0]["validation_loss"])
            axes.plot(list(reference), list(reference.values()), color="#BBBBBB", lw=1.2, zorder=1)
        _panel(axes, rows[index], curves[index], row_styles(rows)[index])
        axes.set_title(short(labels[index], width=30), fontsize=9.5)
        axes.tick_params(labelbottom=index + columns >= len(rows))
        if index + columns >= len(rows):
            axes.set_xlabel("epoch")
        if index % columns == 0:
            axes.set_ylabel("nats per target word")
    grid[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    baseline = "; grey: validation of the first panel" if len(rows) > 1 else ""
    picture.suptitle(f"Solid: validation; dashed: training{baseline}", x=0.01, ha="left", fontsize=9, color=FAINT)
    picture.draw_without_rendering()
    picture.set_layout_engine("none")
    return picture


def _panel(axes: Axes, row: TableRow, curves: Mapping[str, Band], own: Style) -> None:
    for name, (_, dashes) in CURVES.items():
        band, means = curves[name], _known(curves[name])
        if band.low is not None and band.high is not None:
            ends = [(epoch, band.low[epoch - 1], band.high[epoch - 1]) for epoch in means]
            ends = [(epoch, low, high) for epoch, low, high in ends if low is not None and high is not None]
            epochs, lows, highs = (list(side) for side in zip(*ends, strict=True)) if ends else ([], [], [])
            axes.fill_between(epochs, lows, highs, color=own.colour, alpha=0.16, lw=0)
        axes.plot(list(means), list(means.values()), color=own.colour, linestyle=dashes, lw=1.7, zorder=3)
    for record in row.records:
        value = _finite(record.curve[-1].validation_loss) if record.curve else None
        if record.status != "completed" and value is not None:
            axes.plot([len(record.curve)], [value], marker="x", ms=9, mew=2.2, color=own.colour, ls="none", zorder=4)


def curve_data(rows: Sequence[TableRow], labels: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the heads and rows of the table behind the curves: an epoch a row, two losses a variant."""
    curves = [_bands(row) for row in rows]
    epochs = max((len(band.mean) for named in curves for band in named.values()), default=0)
    heads = ("epoch", *(f"{label}, {title}" for label in labels for title, _ in CURVES.values()))
    lines = [
        (str(epoch), *(_reading(named[name], epoch) for named in curves for name in CURVES))
        for epoch in range(1, epochs + 1)
    ]
    return heads, tuple(lines)


def curve_reading(rows: Sequence[TableRow], labels: Sequence[str], drawn: Figure) -> dict[str, Any]:
    """Return where each epoch stands in each panel, in points from the left and top, and the losses there."""
    curves = [_bands(row) for row in rows]
    epochs = range(1, max(len(band.mean) for named in curves for band in named.values()) + 1)
    drawn.draw_without_rendering()
    height, scale = drawn.get_figheight() * 72, 72 / drawn.dpi
    panels = []
    for axes, label, named in zip(drawn.axes, labels, curves, strict=False):
        box = axes.get_window_extent()
        texts = ["; ".join(f"{CURVES[name][0]} {_reading(named[name], epoch)}" for name in CURVES) for epoch in epochs]
        places = [float(axes.transData.transform((epoch, axes.get_ylim()[0]))[0]) * scale for epoch in epochs]
        panel = {"name": label, "texts": texts, "x": [round(place, 1) for place in places]}
        ends = {"left": box.x0 * scale, "right": box.x1 * scale}
        ends |= {"top": height - box.y1 * scale, "bottom": height - box.y0 * scale}
        panels.append({**panel, **{name: round(float(end), 1) for name, end in ends.items()}})
    return {"labels": [f"epoch {epoch}" for epoch in epochs], "panels": panels}


def _reading(band: Band, epoch: int) -> str:
    value = _known(band).get(epoch)
    if value is None:
        return MISSING
    low, high = (side[epoch - 1] if side is not None else None for side in (band.low, band.high))
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} ({low:.3f} to {high:.3f})"


# Dots -----------------------------------------------------------------------------------------------------------------


@styled
def scores(rows: Sequence[TableRow], labels: Sequence[str], names: Sequence[str]) -> Figure:
    """Draw scores of the test set, a panel each: every seed a ring, the mean the variant's marker."""
    picture, grid = figure(11, 1.2 + 0.42 * max(len(rows), 2), columns=len(names), sharey=True)
    for axes, name in zip(grid[0], names, strict=True):
        metric = METRICS[name]
        axes.set_title(f"{metric.heading}, {'lower' if metric.less_is_better else 'higher'} is better")
        _dots(axes, rows, labels, name)
    axes = grid[0, 0]
    axes.set_yticks(range(len(rows)), [short(label, width=30) for label in labels])
    axes.set_ylim(len(rows) - 0.4, -0.7)
    several = "rings are seeds, markers their means; " if any(len(row.counted) > 1 for row in rows) else ""
    picture.suptitle(f"{several}axes do not start at 0", x=0.01, ha="left", fontsize=9, color=FAINT)
    return picture


def _dots(axes: Axes, rows: Sequence[TableRow], labels: Sequence[str], name: str) -> None:
    values = [value for row in rows for value in row.by_seed(name).values()]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = max(high - low, 0.5)
    axes.set_xlim(low - 0.25 * room, high + 0.25 * room)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    for index, (row, label, own) in enumerate(zip(rows, labels, row_styles(rows), strict=True)):
        axes.axhline(index, color="#EEEEEE", lw=0.8, zorder=0)
        seeds = list(row.by_seed(name).values())
        if not seeds:
            axes.text(0.02, index, row.status, transform=axes.get_yaxis_transform(), va="center", color=FAINT, size=8)
            continue
        if len(seeds) > 1:
            axes.plot(seeds, [index + 0.3] * len(seeds), ls="none", marker="o", ms=4, mfc="none", mec=own.colour)
        mean = float(np.mean(seeds))
        point: dict[str, Any] = {"marker": own.marker, "ms": 7.5, "mfc": own.face, "mec": own.colour, "mew": 1.2}
        axes.plot([mean], [index], ls="none", gid=f"{TIP}{label}: {METRICS[name].format(mean)}", **point)
        written = METRICS[name].format(mean)
        axes.annotate(written, (mean, index), (0, 7), textcoords="offset points", ha="center", size=8)


# Quality against speed ------------------------------------------------------------------------------------------------


def speeds(rows: Sequence[TableRow], quality: str) -> list[str]:
    """Return the speeds of which at least two rows have a value beside their quality: one point is no chart."""
    return [name for name in SPEEDS if sum(_point(row, name, quality) is not None for row in rows) > 1]


def _point(row: TableRow, speed: str, quality: str) -> tuple[float, float] | None:
    fast, good = row.by_seed(speed), row.by_seed(quality)
    seeds = [seed for seed in fast if seed in good and fast[seed] > 0]
    if not seeds:
        return None
    return float(np.mean([fast[seed] for seed in seeds])), float(np.mean([good[seed] for seed in seeds]))


@styled
def quality_against_speed(
    rows: Sequence[TableRow], labels: Sequence[str], names: Sequence[str], quality: str = "bleu_sacre"
) -> Figure:
    """Draw a score against speeds, means as labelled points; a grey line joins those that nothing beats in both."""
    picture, grid = figure(11, 4.2, columns=len(names), sharey=True)
    for axes, name in zip(grid[0], names, strict=True):
        ends = []
        for row, label, own in zip(rows, labels, row_styles(rows), strict=True):
            point = _point(row, name, quality)
            if point is None:
                continue
            tip = f"{label}: {METRICS[quality].format(point[1])}, {significant_digits(point[0])} {METRICS[name].unit}"
            marker: dict[str, Any] = {"marker": own.marker, "ms": 8, "mfc": own.face, "mec": own.colour, "mew": 1.2}
            axes.plot([point[0]], [point[1]], ls="none", gid=f"{TIP}{tip}", zorder=3, **marker)
            ends.append((*point, label, own))
        front = pareto_front([(x, y) for x, y, *_ in ends])
        axes.plot([x for x, _ in front], [y for _, y in front], color="#BBBBBB", lw=1.2, zorder=1)
        _limits(axes, ends)
        axes.set_xlabel(f"{METRICS[name].heading} (log scale)")
        axes.set_title(METRICS[name].title.capitalize())
        if axes is grid[0, -1]:
            label_ends(axes, ends, line=False)
    grid[0, 0].set_ylabel(f"{METRICS[quality].title}, test set")
    text = "Up and to the right is better; the grey line joins the Pareto front"
    picture.suptitle(text, x=0.01, ha="left", fontsize=9, color=FAINT)
    return picture


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points of which no other is at least as high in both coordinates, by their first one."""
    kept = [
        point
        for point in points
        if not any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points)
    ]
    return sorted(set(kept))


def _limits(axes: Axes, points: Sequence[tuple[float, float, str, Style]]) -> None:
    """Leave room for labels on all sides."""
    xs, ys = [x for x, *_ in points], [y for _, y, *_ in points]
    factor = max((max(xs) / min(xs)) ** 0.2, 1.3)
    room = max((max(ys) - min(ys)) * 0.15, 0.5)
    axes.set_ylim(min(ys) - room, max(ys) + room)
    axes.set_xlim(min(xs) / factor, max(xs) * factor)
    logarithmic(axes, "x")
