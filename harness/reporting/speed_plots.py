"""Plots of a speed document: throughput, MFU, ratios to baselines, what an update is spent on, how the cost grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.reporting.formatting import quantity, significant_digits
from harness.reporting.plot_style import (
    EXTERNAL_COLOURS,
    FAINT,
    GRID,
    INK,
    STYLES,
    figure,
    logarithmic,
    say,
    short,
    styled,
)
from harness.reporting.speed_tables import AXES, decoding_name, exponent, ordered_ratios, same_variant, work_name
from harness.speed.speed_document import Breakdown, DecodingTimes, Group, Scaling, SpeedDocument, SpeedRatio, TimedModel
from harness.speed.timing import Samples
from harness.text import short_line

MOST = 60
"""The most lines, or panels, that a picture has; the tables have all."""

COLOUR, BASELINE_COLOUR = STYLES["learned_positions"].colour, EXTERNAL_COLOURS[0]
GROUPS: dict[Group, str] = {
    "matrix products": STYLES["learned_positions"].colour,
    "attention": EXTERNAL_COLOURS[1],
    "softmax and loss": STYLES["conv_ffn"].colour,
    "norm and activation": STYLES["bahdanau_gru"].colour,
    "dropout": STYLES["sinusoidal_handmade"].colour,
    "optimiser": STYLES["paper"].colour,
    "clipping": EXTERNAL_COLOURS[2],
    "embedding": STYLES["torch_reference"].colour,
    "copies and other": EXTERNAL_COLOURS[0],
    "interpreter": INK,
    "data": "#6F7B88",
    "harness": "#8A78B8",
    "compute": STYLES["learned_positions"].colour,
}
WIDE = 10.0
"""How many times the least the most is from which on narrow panels have ticks at powers of ten alone."""

LABELLED = 0.045
"""The share from which on a part of a bar has its number in it."""

Dot = tuple[float, float, float, str]
"""Median, quartiles and colour."""


def _colour(subject: TimedModel) -> str:
    return BASELINE_COLOUR if subject.kind == "peer" else COLOUR


def _dot(samples: Samples, colour: str, scale: float = 1.0) -> Dot:
    return scale * samples.median, scale * samples.lower, scale * samples.upper, colour


# Training and translating ---------------------------------------------------------------------------------------------


@styled
def training(document: SpeedDocument) -> Figure | None:
    """Draw target tokens per second and shares of the limit, a line a subject; None where nothing was trained."""
    there = [(one, one.training) for one in document.subjects if one.training is not None][:MOST]
    if not there:
        return None
    rates: list[Dot | None] = []
    shares: list[Dot | None] = []
    for subject, one in there:
        fastest, slowest = one.target / one.seconds.lower, one.target / one.seconds.upper
        rates.append((one.target_per_second, slowest, fastest, _colour(subject)))
        shares.append(None if one.limit_share is None else _dot(one.limit_share, _colour(subject), 100))
    panels = [("Target tokens per second, higher is better", "tokens/s", rates)]
    if any(shares):
        panels.append(("MFU, higher is better", "% of the matmul peak", shares))
    made = _lines([one.name for one, _ in there], panels)
    if any(shares):
        made.axes[1].set_xlim(0, max(100, *(1.05 * one[2] for one in shares if one)))
    return made


@styled
def decoding(document: SpeedDocument) -> Figure | None:
    """Draw the seconds that 1,000 translations take, a panel a way, on one logarithmic axis; None without any."""
    there = [one for one in document.subjects if one.decoding][:MOST]
    ways: dict[str, DecodingTimes] = {}
    for subject in there:
        for one in subject.decoding:
            ways.setdefault(one.name, one)
    if not there:
        return None
    names = list(ways)[:4]
    made, grid = figure(11.5, 1.3 + 0.34 * len(there), columns=len(names), sharey=True, sharex=True)
    for axes, name in zip(grid[0], names, strict=True):
        found = [next((one for one in subject.decoding if one.name == name), None) for subject in there]
        dots = [
            None if one is None else _dot(one.seconds, _colour(subject), 1_000 / one.sentences)
            for subject, one in zip(there, found, strict=True)
        ]
        _dots(axes, dots)
        axes.set_title(decoding_name(ways[name]).capitalize())
        axes.set_xlabel("s for 1,000, log scale")
    _log_reach(grid[0], [found for axes in grid[0] for found in axes.dataLim.intervalx if math.isfinite(found)])
    _names(grid[0, 0], [one.name for one in there])
    _legend(made, there)
    return made


@styled
def ratios(document: SpeedDocument) -> Figure | None:
    """Draw how many times as fast a variant is as each baseline, a line a comparison; None where there is none.

    Where there are any, only comparisons of a variant with baselines of its own recipe are drawn.
    """
    found = ordered_ratios(document)
    found = ([one for one in found if same_variant(document, one)] or found)[:MOST]
    if not found:
        return None
    made, grid = figure(11, 1.2 + 0.34 * len(found))
    axes = grid[0, 0]
    _dots(axes, [_dot(one.ratio, COLOUR) for one in found], written=True)
    axes.axvline(1, color=INK, lw=1.0, zorder=1)
    _log_reach([axes], [1.0, *(end for one in found for end in (one.ratio.lower, one.ratio.upper))])
    axes.set_xlabel("times as fast as the baseline (1: equally fast), log scale; lines are quartiles")
    subjects = {one.subject for one in found}
    axes.set_yticks(range(len(found)), [_compared(document, one, name=len(subjects) > 1) for one in found], fontsize=9)
    if len(subjects) == 1:
        axes.set_title(f"{_line(found[0].subject, 48)} compared with")
    axes.set_ylim(len(found) - 0.4, -0.6)
    return made


def _compared(document: SpeedDocument, one: SpeedRatio, *, name: bool) -> str:
    own, theirs = work_name(document, one.subject, one.what), work_name(document, one.baseline, one.baseline_what)
    what = own if own == theirs else f"{own} ÷ {theirs}"
    subject = f"{_line(one.subject)} : " if name else ""
    return f"{subject}{_line(one.baseline)}, {_line(what, 48)}"


def _line(label: str, width: int = 28) -> str:
    return short(label, width=width).replace("\n", " ")


def _lines(names: Sequence[str], panels: Sequence[tuple[str, str, Sequence[Dot | None]]]) -> Figure:
    made, grid = figure(11, 1.3 + 0.34 * len(names), columns=len(panels), sharey=True)
    for axes, (title, unit, dots) in zip(grid[0], panels, strict=True):
        for place, one in enumerate(dots):
            if one is None:
                axes.text(0, place, "  not known", va="center", color=FAINT, fontsize=8)
            else:
                axes.plot([0, one[0]], [place, place], color=GRID, lw=7, solid_capstyle="butt", zorder=1.5)
        _dots(axes, dots, written=True)
        axes.set_title(title)
        axes.set_xlabel(f"{unit}; lines are quartiles")
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(quantity))
    _names(grid[0, 0], names)
    return made


def _dots(axes: Axes, dots: Sequence[Dot | None], *, written: bool = False) -> None:
    for place, one in enumerate(dots):
        if one is None:
            continue
        value, low, high, colour = one
        axes.plot([low, high], [place, place], color=colour, lw=2.2, solid_capstyle="butt", zorder=2)
        axes.plot([value], [place], marker="o", ms=6.5, color=colour, ls="none", zorder=3)
        spot = (high, place) if written else (value, place)
        shift, side = ((7, 0), "center") if written else ((0, 5), "bottom")
        across = "left" if written else "center"
        axes.annotate(
            significant_digits(value), spot, shift, textcoords="offset points", va=side, ha=across, fontsize=8
        )
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _names(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [short(name) for name in names], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _legend(made: Figure, there: Sequence[TimedModel]) -> None:
    if {one.kind for one in there} == {"variant", "peer"}:
        made.suptitle("Blue: variants. Grey: baselines. Lines are quartiles; lower is better.", x=0.01, ha="left",
                      fontsize=9, color=FAINT)  # fmt: skip


def _log_reach(panels: Sequence[Axes], ends: Sequence[float]) -> None:
    """Give logarithmic axes room on both sides of all that is drawn, at least a third of a decade in all."""
    low, high = min(ends), max(ends)
    room = max(1.35, math.sqrt(2.2 / (high / low)) if high / low < 2.2 else 1.35)
    for axes in panels:
        axes.set_xlim(low / room, high * room)
        logarithmic(axes, "x")
        if len(panels) > 1 and high / low > WIDE:
            axes.xaxis.set_major_locator(LogLocator(subs=(1,), numticks=8))


# The breakdown --------------------------------------------------------------------------------------------------------


@styled
def breakdown(document: SpeedDocument) -> Figure | None:
    """Draw what an update is spent on as a stacked bar a subject, in percent; None where it was not taken apart."""
    there = [(one.name, one.breakdown) for one in document.subjects if one.breakdown is not None][:MOST]
    if not there:
        return None
    made, grid = figure(11, 1.7 + 0.46 * len(there))
    axes = grid[0, 0]
    groups = [group for group in GROUPS if any(_share(one, group) > 0 for _, one in there)]
    starts = [0.0] * len(there)
    for group in groups:
        widths = [100 * _share(one, group) for _, one in there]
        axes.barh(range(len(there)), widths, left=starts, height=0.66, color=GROUPS[group], edgecolor="white",
                  linewidth=0.8, label=group, zorder=2)  # fmt: skip
        for place, (start, width) in enumerate(zip(starts, widths, strict=True)):
            if width >= 100 * LABELLED:
                axes.text(start + width / 2, place, f"{width:.0f}", ha="center", va="center", color="white", fontsize=8,
                          zorder=3)  # fmt: skip
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of an update's time")
    axes.grid(axis="y", visible=False)
    _names(axes, [name for name, _ in there])
    made.legend(loc="outside upper left", ncols=6, frameon=False, fontsize=8.5, handlelength=1.1)
    return made


def _share(one: Breakdown, group: Group) -> float:
    return math.fsum(each.share for each in one.shares if each.group == group)


# Scaling --------------------------------------------------------------------------------------------------------------


@styled
def scaling(document: SpeedDocument) -> Figure | None:
    """Draw milliseconds against size on logarithmic axes, a panel an axis, with the fitted power; None without any."""
    found = document.scaling[:MOST]
    if not any(one.points for one in found):
        return None
    columns = 3
    rows = -(-len(found) // columns)
    made, grid = figure(11, 3.1 * rows, rows=rows, columns=columns)
    for axes, one in zip(grid.flat, found, strict=False):
        _growth(axes, one)
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    return made


def _growth(axes: Axes, one: Scaling) -> None:
    axes.set_title(AXES[one.axis].capitalize())
    if not one.points:
        say(axes, short_line(one.reason, longest=160) or "not measured")
        return
    points = sorted(one.points, key=lambda point: point.size)
    sizes, costs = [point.size for point in points], [1_000 * point.seconds.median for point in points]
    for point in points:
        ends = [1_000 * point.seconds.lower, 1_000 * point.seconds.upper]
        axes.plot([point.size] * 2, ends, color=COLOUR, lw=2.2, solid_capstyle="butt", zorder=2)
    axes.plot(sizes, costs, marker="o", ms=6, color=COLOUR, ls="none", zorder=3)
    drawable = min(sizes) > 0
    if one.exponent is not None and drawable:
        middle = [math.exp(math.fsum(map(math.log, some)) / len(some)) for some in (sizes, costs)]
        line = [middle[1] * (end / middle[0]) ** one.exponent for end in (sizes[0], sizes[-1])]
        axes.plot([sizes[0], sizes[-1]], line, color=FAINT, lw=1.3, ls=(0, (5, 2)), zorder=1)
        axes.text(0.04, 0.95, f"time ~ size^{exponent(one)}", transform=axes.transAxes, va="top", fontsize=9, color=INK)
    if drawable:
        axes.set_xlim(min(sizes) / 1.4, max(sizes) * 1.4)
        low = min(1_000 * point.seconds.lower for point in points)
        high = max(1_000 * point.seconds.upper for point in points)
        axes.set_ylim(low / 1.5, high * 2.2)
        axes.set_xscale("log")
        axes.set_xticks(sizes, [quantity(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        logarithmic(axes, "y")
    axes.set_xlabel(AXES[one.axis])
    axes.set_ylabel("ms")
