"""Pictures of run records: curves, BLEU, speed, parameters, and quality against speed. Each returns a Figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from harness.analysis.grouping import TableRow
from harness.reporting.concept_plots import (
    activations,
    attention_heat_map,
    learning_rates,
    padded_masks,
    sinusoid_table,
)
from harness.reporting.plot_style import (
    FAINT,
    Style,
    figure,
    label_ends,
    logarithmic,
    quantity,
    row_styles,
    save,
    say,
    short,
    styled,
)
from harness.storage.records import RunRecord

__all__ = [
    "activations",
    "attention_heat_map",
    "bleu",
    "learning_rates",
    "loss_curves",
    "padded_masks",
    "parameters",
    "perplexity_curves",
    "quality_against_speed",
    "save",
    "sinusoid_table",
    "tokens_per_second",
]

BLEUS = {"bleu_tutorial": "Tutorial BLEU", "bleu_tokenised": "Tokenised BLEU", "bleu_sacre": "sacreBLEU"}
Series = dict[int, float]
"""epoch -> value."""


# Curves ---------------------------------------------------------------------------------------------------------------


@styled
def loss_curves(rows: Sequence[TableRow]) -> Figure:
    """Draw training and validation loss against epochs: seeds as thin lines, their mean as a thick one."""
    names = {
        "training_loss": "Training loss (what was minimised)",
        "validation_loss": "Validation loss",
    }
    return _curves(rows, names, "nats per target word", logarithm=False)


@styled
def perplexity_curves(rows: Sequence[TableRow]) -> Figure:
    """Draw training and validation perplexity against epochs on a logarithmic axis."""
    names = {
        "training_perplexity": "Training perplexity (dropout on)",
        "validation_perplexity": "Validation perplexity",
    }
    return _curves(rows, names, "perplexity per target word (log scale)", logarithm=True)


def _curves(rows: Sequence[TableRow], names: dict[str, str], unit: str, *, logarithm: bool) -> Figure:
    made, grid = figure(11, max(4.4, 0.36 * len(rows) + 2), columns=2, sharey=True, sharex=True)
    drawn = {name: _panel(axes, rows, name) for axes, name in zip(grid[0], names, strict=True)}
    everything = [x for ends in drawn.values() for x in ends]
    for axes, (name, title) in zip(grid[0], names.items(), strict=True):
        axes.set_title(title)
        axes.set_xlabel("epoch")
        if not drawn[name]:
            say(axes, "No run has these figures.")
    grid[0, 0].set_ylabel(unit)
    if everything:
        last = max(len(record.curve) for row in rows for record in row.records)
        grid[0, 0].set_xlim(0.5 if last < 3 else 0.8, last + (0.5 if last < 3 else 0.2))
        grid[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
        if logarithm:
            logarithmic(grid[0, 0], "y")
        made.suptitle(_what_lines_are(rows), x=0.01, ha="left", fontsize=9, color=FAINT)
        side = 1 if drawn[list(names)[1]] else 0
        label_ends(grid[0, side], drawn[list(names)[side]])
    return made


def _what_lines_are(rows: Sequence[TableRow]) -> str:
    seeds = [len(row.records) for row in rows]
    lines = "thin lines are seeds, thick lines their means" if max(seeds) > 1 else "one seed a variant"
    stopped = any(record.status != "completed" for row in rows for record in row.records)
    return f"Lower is better; {lines}" + ("; × ends a run that did not complete" if stopped else "")


def _panel(axes: Axes, rows: Sequence[TableRow], name: str) -> list[tuple[float, float, str, Style]]:
    """Draw one figure's curves and return where each ends."""
    ends = []
    for row, own in zip(rows, row_styles(rows), strict=True):
        found = [(record, _series(record, name)) for record in row.records]
        found = [(record, series) for record, series in found if series]
        for record, series in found:
            axes.plot(*_points(series), color=own.colour, lw=0.8, alpha=0.45, ls="-")
            if record.status != "completed":
                last = max(series)
                axes.plot([last], [series[last]], marker="x", ms=11, mew=2.4, color=own.colour, ls="none", zorder=4)
                where: dict[str, Any] = {"xytext": (7, 7), "textcoords": "offset points", "fontsize": 8}
                axes.annotate(record.status, (last, series[last]), zorder=5, **where)
        counted = [series for record, series in found if record in row.counted]
        mean = _mean(counted)
        if mean:
            axes.plot(*_points(mean), lw=1.8, ms=5, zorder=3, **own.line)
            ends.append((float(max(mean)), mean[max(mean)], row.label, own))
    return ends


def _series(record: RunRecord, name: str) -> Series:
    found = {line.epoch: getattr(line, name) for line in record.curve}
    return {epoch: value for epoch, value in found.items() if value is not None and math.isfinite(value)}


def _mean(found: Sequence[Series]) -> Series:
    """Return the mean at the epochs that every seed reached."""
    epochs = set.intersection(*(set(series) for series in found)) if found else set()
    return {epoch: float(np.mean([series[epoch] for series in found])) for epoch in sorted(epochs)}


def _points(series: Series) -> tuple[list[int], list[float]]:
    return list(series), list(series.values())


# Dots and bars --------------------------------------------------------------------------------------------------------


@styled
def bleu(rows: Sequence[TableRow]) -> Figure:
    """Draw three flavours of BLEU, one panel each: every seed a ring, the mean the variant's marker."""
    made, grid = figure(11, 1.6 + 0.5 * max(len(rows), 2), columns=len(BLEUS), sharey=True)
    for axes, (name, title) in zip(grid[0], BLEUS.items(), strict=True):
        axes.set_title(title)
        axes.set_xlabel("BLEU, test set (0 to 100)")
        _dots(axes, rows, name)
    _variants(grid[0, 0], rows)
    several = any(len(row.counted) > 1 for row in rows)
    what = "rings are seeds, markers their means" if several else "one seed a variant"
    made.suptitle(f"Higher is better; axes do not start at 0; {what}", x=0.01, ha="left", fontsize=9, color=FAINT)
    return made


def _dots(axes: Axes, rows: Sequence[TableRow], name: str) -> None:
    values = [value for row in rows for value in row.by_seed(name).values()]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = max(high - low, 1.0)
    axes.set_xlim(max(low - 0.25 * room, -1.0), high + 0.25 * room)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", visible=False)
    for place, (row, own) in enumerate(zip(rows, row_styles(rows), strict=True)):
        axes.axhline(place, color="#EEEEEE", lw=0.8, zorder=0)
        seeds = list(row.by_seed(name).values())
        if not seeds:
            axes.text(0.02, place, row.status, transform=axes.get_yaxis_transform(), va="center", color=FAINT, size=8)
            continue
        if len(seeds) > 1:
            below = [place + 0.3] * len(seeds)
            axes.plot(seeds, below, ls="none", marker="o", ms=4, mfc="none", mec=own.colour, alpha=0.9)
        mean = float(np.mean(seeds))
        axes.plot([mean], [place], ls="none", marker=own.marker, ms=7.5, mfc=own.face, mec=own.colour, mew=1.2)
        axes.annotate(f"{mean:.1f}", (mean, place), (0, 8), textcoords="offset points", ha="center", size=8)


def _variants(axes: Axes, rows: Sequence[TableRow]) -> None:
    """Name the rows on the vertical axis, the first on top."""
    axes.set_yticks(range(len(rows)), [short(row.label) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.7)
    axes.tick_params(axis="y", length=0)


@styled
def tokens_per_second(rows: Sequence[TableRow]) -> Figure:
    """Draw training speed as bars, every seed a dot."""
    return _bars(rows, "training_tokens_per_second", "Training speed", "target words per second; higher is faster")


@styled
def parameters(rows: Sequence[TableRow]) -> Figure:
    """Draw the number of trained parameters as bars."""
    return _bars(rows, "parameters", "Trained parameters", "parameters")


def _bars(rows: Sequence[TableRow], name: str, title: str, unit: str) -> Figure:
    made, grid = figure(8, 1.3 + 0.42 * max(len(rows), 2))
    axes = grid[0, 0]
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.xaxis.set_major_formatter(FuncFormatter(quantity))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.grid(axis="y", visible=False)
    highest = max((value for row in rows for value in row.by_seed(name).values()), default=1.0)
    axes.set_xlim(0, highest * 1.14 or 1.0)
    for place, (row, own) in enumerate(zip(rows, row_styles(rows), strict=True)):
        seeds = list(row.by_seed(name).values())
        if not seeds:
            axes.text(highest * 0.01, place, row.status, va="center", color=FAINT, size=8)
            continue
        mean = float(np.mean(seeds))
        face = {"facecolor": "white", "hatch": "//"} if own.hollow else {"facecolor": own.colour}
        axes.barh(place, mean, height=0.62, edgecolor=own.colour, **face)
        if len(set(seeds)) > 1:
            jitter = np.linspace(-0.15, 0.15, len(seeds))
            axes.plot(seeds, place + jitter, ls="none", marker="o", ms=4, mfc="white", mec="black", mew=0.8)
        axes.annotate(quantity(mean), (max(seeds), place), (7, 0), textcoords="offset points", va="center", size=9)
    _variants(axes, rows)
    return made


@styled
def quality_against_speed(rows: Sequence[TableRow]) -> Figure:
    """Draw sacreBLEU against training and decoding speed: means as labelled points, seeds as rings."""
    made, grid = figure(11, 4.8, columns=2, sharey=True)
    quality = next((name for name in reversed(BLEUS) if any(row.by_seed(name) for row in rows)), "bleu_sacre")
    speeds = {
        "training_tokens_per_second": "training: target words per second (log scale)",
        "decoding_sentences_per_second": "decoding: sentences per second (log scale)",
    }
    ends: list[tuple[float, float, str, Style]] = []
    for axes, (speed, unit) in zip(grid[0], speeds.items(), strict=True):
        axes.set_xlabel(unit)
        points = _scatter(axes, rows, speed, quality)
        if points:
            _limits(axes, points)
            ends = points
        else:
            say(axes, "No run has both figures.")
    grid[0, 0].set_ylabel(f"{BLEUS[quality]}, test set")
    grid[0, 0].set_title("Quality against training speed")
    grid[0, 1].set_title("Quality against decoding speed")
    several = any(len(row.counted) > 1 for row in rows)
    rings = "; rings are seeds, markers their means" if several else ""
    made.suptitle(f"Up and to the right is better{rings}", x=0.01, ha="left", fontsize=9, color=FAINT)
    drawn = [axes for axes in grid[0] if axes.has_data()]
    if drawn:
        label_ends(drawn[-1], ends, line=False)
    return made


def _scatter(axes: Axes, rows: Sequence[TableRow], speed: str, quality: str) -> list[tuple[float, float, str, Style]]:
    points = []
    for row, own in zip(rows, row_styles(rows), strict=True):
        fast, good = row.by_seed(speed), row.by_seed(quality)
        seeds = [seed for seed in fast if seed in good and fast[seed] > 0]
        if not seeds:
            continue
        xs, ys = [fast[seed] for seed in seeds], [good[seed] for seed in seeds]
        if len(seeds) > 1:
            axes.plot(xs, ys, ls="none", marker="o", ms=3.5, mfc="none", mec=own.colour, alpha=0.7)
        x, y = float(np.mean(xs)), float(np.mean(ys))
        axes.plot([x], [y], ls="none", marker=own.marker, ms=7.5, mfc=own.face, mec=own.colour, mew=1.2)
        points.append((x, y, row.label, own))
    return points


def _limits(axes: Axes, points: Sequence[tuple[float, float, str, Style]]) -> None:
    """Leave room for labels on all sides; one point alone stands in the middle."""
    xs, ys = [x for x, *_ in points], [y for _, y, *_ in points]
    factor = max((max(xs) / min(xs)) ** 0.35, 1.6)
    room = max((max(ys) - min(ys)) * 0.15, 1.0)
    axes.set_ylim(min(ys) - room, max(ys) + room)
    axes.set_xlim(min(xs) / factor, max(xs) * factor)
    logarithmic(axes, "x")


RECORD_FIGURES: dict[str, tuple[str, Callable[[Sequence[TableRow]], Figure], tuple[str, ...]]] = {
    "loss": ("Training and validation loss against epochs", loss_curves, ("validation_loss", "training_loss")),
    "perplexity": (
        "Training and validation perplexity against epochs",
        perplexity_curves,
        ("validation_perplexity", "training_perplexity"),
    ),
    "bleu": ("BLEU on the test set, three ways", bleu, tuple(BLEUS)),
    "tokens-per-second": (
        "Training speed in target words per second",
        tokens_per_second,
        ("training_tokens_per_second",),
    ),
    "parameters": ("Trained parameters", parameters, ("parameters",)),
    "quality-against-speed": (
        "Quality against speed",
        quality_against_speed,
        ("training_tokens_per_second", "decoding_sentences_per_second"),
    ),
}
"""file name -> (what is seen, the function, the figures of which a run must have one)."""
