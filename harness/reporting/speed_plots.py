"""Plots of a speed document: throughput, MFU, ratios to baselines, breakdown of an update, growth of the cost."""

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
    subtitle,
)
from harness.reporting.speed_tables import (
    AXES,
    decoding_name,
    decoding_named,
    exponent,
    ordered_ratios,
    same_variant,
    work_name,
)
from harness.speed.speed_document import Scaling, SpeedDocument, SpeedRatio
from harness.speed.timed_model import Breakdown, Group, TimedModel
from harness.speed.timing import Samples
from harness.text import short_line

MOST = 60
"""The largest number of lines or panels in a plot; the tables have all."""

COLOUR, BASELINE_COLOUR = STYLES["learned_positions"].colour, EXTERNAL_COLOURS[0]
GROUPS: dict[Group, str] = {
    "matrix products": STYLES["learned_positions"].colour,
    "attention": EXTERNAL_COLOURS[1],
    "softmax and loss": STYLES["conv_ffn"].colour,
    "norm and activation": STYLES["bahdanau_gru"].colour,
    "dropout": STYLES["sinusoidal_handmade"].colour,
    "optimiser": STYLES["paper"].colour,
    "clipping": STYLES["tuned"].colour,
    "embedding": STYLES["torch_reference"].colour,
    "copies and other": EXTERNAL_COLOURS[0],
    "interpreter": INK,
    "data": "#6F7B88",
    "harness": "#8A78B8",
    "compute": STYLES["learned_positions"].colour,
}
WIDE = 10.0
"""The ratio of the largest to the smallest value above which narrow panels have few ticks."""

LABELLED = 0.045
"""The smallest share of a bar that is labelled with its value."""

Dot = tuple[float, float, float, str]
"""Median, quartiles and colour."""


def _colour(subject: TimedModel) -> str:
    return BASELINE_COLOUR if subject.kind == "peer" else COLOUR


def _dot(samples: Samples, colour: str, scale: float = 1.0) -> Dot:
    return scale * samples.median, scale * samples.lower, scale * samples.upper, colour


# Training and decoding ------------------------------------------------------------------------------------------------


@styled
def training(document: SpeedDocument) -> Figure | None:
    """Plot target tokens per second and MFU, a line a subject; None if nothing was trained."""
    timed = [(subject, subject.training) for subject in document.subjects if subject.training is not None][:MOST]
    if not timed:
        return None
    rates: list[Dot | None] = []
    shares: list[Dot | None] = []
    for subject, times in timed:
        slowest, fastest = times.target / times.seconds.upper, times.target / times.seconds.lower
        rates.append((times.target_per_second, slowest, fastest, _colour(subject)))
        shares.append(None if times.limit_share is None else _dot(times.limit_share, _colour(subject), 100))
    panels = [("Target tokens per second, higher is better", "tokens/s", rates)]
    if any(shares):
        panels.append(("MFU, higher is better", "% of the matmul peak", shares))
    plot, grid = figure(11, 1.3 + 0.34 * len(timed), columns=len(panels), sharey=True)
    for axes, (title, unit, dots) in zip(grid[0], panels, strict=True):
        for line, dot in enumerate(dots):
            if dot is None:
                axes.text(0, line, "  not known", va="center", color=FAINT, fontsize=8)
            else:
                axes.plot([0, dot[0]], [line, line], color=GRID, lw=7, solid_capstyle="butt", zorder=1.5)
        _dots(axes, dots, beside=True)
        axes.set_title(title)
        axes.set_xlabel(f"{unit}; lines are quartiles")
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(quantity))
    _names(grid[0, 0], [subject.name for subject, _ in timed])
    if any(shares):
        grid[0, 1].set_xlim(0, max(100, *(1.05 * share[2] for share in shares if share)))
    return plot


@styled
def decoding(document: SpeedDocument) -> Figure | None:
    """Plot the seconds of 1,000 translations on one logarithmic axis, a panel a way; None without translations."""
    subjects = [subject for subject in document.subjects if subject.decoding][:MOST]
    if not subjects:
        return None
    names = list(dict.fromkeys(times.name for subject in subjects for times in subject.decoding))[:4]
    plot, grid = figure(11.5, 1.3 + 0.34 * len(subjects), columns=len(names), sharey=True, sharex=True)
    for axes, name in zip(grid[0], names, strict=True):
        timed = [(subject, decoding_named(subject, name)) for subject in subjects]
        dots = [
            _dot(times.seconds, _colour(model), 1_000 / times.sentences) if times else None for model, times in timed
        ]
        _dots(axes, dots)
        axes.set_title(next(decoding_name(times) for _, times in timed if times).capitalize())
        axes.set_xlabel("s for 1,000, log scale")
    _log_limits(grid[0], [end for axes in grid[0] for end in axes.dataLim.intervalx if math.isfinite(end)])
    _names(grid[0, 0], [subject.name for subject in subjects])
    if {subject.kind for subject in subjects} == {"variant", "peer"}:
        subtitle(plot, "Blue: variants. Grey: baselines. Lines are quartiles; lower is better.")
    return plot


@styled
def ratios(document: SpeedDocument) -> Figure | None:
    """Plot how many times as fast a variant is as each baseline, a line a comparison; None without comparisons.

    Comparisons with baselines of another variant are only drawn if there are no others.
    """
    pairs = ordered_ratios(document)
    pairs = ([pair for pair in pairs if same_variant(document, pair)] or pairs)[:MOST]
    if not pairs:
        return None
    plot, grid = figure(11, 1.2 + 0.34 * len(pairs))
    axes = grid[0, 0]
    _dots(axes, [_dot(pair.ratio, COLOUR) for pair in pairs], beside=True)
    axes.axvline(1, color=INK, lw=1.0, zorder=1)
    _log_limits([axes], [1.0, *(end for pair in pairs for end in (pair.ratio.lower, pair.ratio.upper))])
    axes.set_xlabel("times as fast as the baseline (1: equally fast), log scale; lines are quartiles")
    single = len({pair.subject for pair in pairs}) == 1
    axes.set_yticks(
        range(len(pairs)), [_pair_label(document, pair, with_subject=not single) for pair in pairs], fontsize=9
    )
    if single:
        axes.set_title(f"{_label(pairs[0].subject, 48)} compared with")
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    return plot


def _pair_label(document: SpeedDocument, pair: SpeedRatio, *, with_subject: bool) -> str:
    work = work_name(document, pair.subject, pair.what)
    baseline_work = work_name(document, pair.baseline, pair.baseline_what)
    if work != baseline_work:
        work = f"{work} ÷ {baseline_work}"
    subject = f"{_label(pair.subject)} : " if with_subject else ""
    return f"{subject}{_label(pair.baseline)}, {_label(work, 48)}"


def _label(text: str, width: int = 28) -> str:
    return short(text, width=width).replace("\n", " ")


def _dots(axes: Axes, dots: Sequence[Dot | None], *, beside: bool = False) -> None:
    """Plot medians and quartiles with the values above the dots, or beside them."""
    for line, dot in enumerate(dots):
        if dot is None:
            continue
        value, low, high, colour = dot
        axes.plot([low, high], [line, line], color=colour, lw=2.2, solid_capstyle="butt", zorder=2)
        axes.plot([value], [line], marker="o", ms=6.5, color=colour, ls="none", zorder=3)
        axes.annotate(
            significant_digits(value),
            (high if beside else value, line),
            (7, 0) if beside else (0, 5),
            textcoords="offset points",
            va="center" if beside else "bottom",
            ha="left" if beside else "center",
            fontsize=8,
        )
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _names(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [short(name) for name in names], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _log_limits(panels: Sequence[Axes], ends: Sequence[float]) -> None:
    """Make axes logarithmic with a margin on both sides of `ends`, at least a third of a decade wide."""
    low, high = min(ends), max(ends)
    margin = max(1.35, math.sqrt(2.2 / (high / low)))
    for axes in panels:
        axes.set_xlim(low / margin, high * margin)
        logarithmic(axes, "x")
        if len(panels) > 1 and high / low > WIDE:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=8))


# Breakdown ------------------------------------------------------------------------------------------------------------


@styled
def breakdown(document: SpeedDocument) -> Figure | None:
    """Plot how an update spends its time as a stacked bar a subject, in percent; None without breakdowns."""
    profiled = [(subject.name, subject.breakdown) for subject in document.subjects if subject.breakdown][:MOST]
    if not profiled:
        return None
    plot, grid = figure(11, 1.7 + 0.46 * len(profiled))
    axes = grid[0, 0]
    starts = [0.0] * len(profiled)
    for group, colour in GROUPS.items():
        widths = [100 * _share(parts, group) for _, parts in profiled]
        if not any(widths):
            continue
        axes.barh(range(len(profiled)), widths, left=starts, height=0.66, color=colour, edgecolor="white",
                  linewidth=0.8, label=group, zorder=2)  # fmt: skip
        for line, (start, width) in enumerate(zip(starts, widths, strict=True)):
            if width >= 100 * LABELLED:
                axes.text(start + width / 2, line, f"{width:.0f}", ha="center", va="center", color="white", fontsize=8,
                          zorder=3)  # fmt: skip
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of an update's time")
    axes.grid(axis="y", visible=False)
    _names(axes, [name for name, _ in profiled])
    plot.legend(loc="outside upper left", ncols=6, frameon=False, fontsize=8.5, handlelength=1.1)
    return plot


def _share(parts: Breakdown, group: Group) -> float:
    return math.fsum(part.share for part in parts.shares if part.group == group)


# Scaling --------------------------------------------------------------------------------------------------------------


@styled
def scaling(document: SpeedDocument) -> Figure | None:
    """Plot milliseconds against size on logarithmic axes, with the fitted power; None without points."""
    lines = document.scaling[:MOST]
    if not any(line.points for line in lines):
        return None
    columns = 3
    rows = -(-len(lines) // columns)
    plot, grid = figure(11, 3.1 * rows, rows=rows, columns=columns)
    for axes, line in zip(grid.flat, lines, strict=False):
        _growth(axes, line)
    for axes in grid.flat[len(lines) :]:
        axes.set_visible(False)
    return plot


def _growth(axes: Axes, scaling: Scaling) -> None:
    axes.set_title(AXES[scaling.axis].capitalize())
    if not scaling.points:
        say(axes, short_line(scaling.reason, longest=160) or "not measured")
        return
    points = sorted(scaling.points, key=lambda point: point.size)
    sizes, costs = [point.size for point in points], [1_000 * point.seconds.median for point in points]
    quartiles = [(1_000 * point.seconds.lower, 1_000 * point.seconds.upper) for point in points]
    for size, ends in zip(sizes, quartiles, strict=True):
        axes.plot([size] * 2, ends, color=COLOUR, lw=2.2, solid_capstyle="butt", zorder=2)
    axes.plot(sizes, costs, marker="o", ms=6, color=COLOUR, ls="none", zorder=3)
    if scaling.exponent is not None:
        size, cost = (math.exp(math.fsum(map(math.log, values)) / len(values)) for values in (sizes, costs))
        fit = [cost * (end / size) ** scaling.exponent for end in (sizes[0], sizes[-1])]
        axes.plot([sizes[0], sizes[-1]], fit, color=FAINT, lw=1.3, ls=(0, (5, 2)), zorder=1)
        text = f"time ~ size^{exponent(scaling)}"
        axes.text(0.04, 0.95, text, transform=axes.transAxes, va="top", fontsize=9, color=INK)
    axes.set_xlim(min(sizes) / 1.4, max(sizes) * 1.4)
    axes.set_ylim(min(low for low, _ in quartiles) / 1.5, max(high for _, high in quartiles) * 2.2)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [quantity(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    logarithmic(axes, "y")
    axes.set_xlabel(AXES[scaling.axis])
    axes.set_ylabel("ms")
