"""Plots of a speed document: throughput, MFU, ratios to baselines, breakdown of an update, growth of the cost."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from harness.reporting import plot_style
from harness.reporting.formatting import quantity, significant_digits
from harness.reporting.plot_style import EXTERNAL_COLOURS, FAINT, GRID, INK, NARROW, STYLES, Layout, styled
from harness.reporting.speed_findings import main_ratios
from harness.reporting.speed_tables import AXES, decoding_name, decoding_named, exponent, interval, measure_name
from harness.speed.speed_document import Scaling, SpeedDocument
from harness.speed.timed_model import Group, TimedModel
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
    "compute": EXTERNAL_COLOURS[2],
}
COLOURS = "Blue: variants; grey: baselines; lines are quartiles"
LABELLED_INCHES = 0.3
"""The smallest width of a part of a bar that is labelled with its value."""

Dot = tuple[float, float, float, str]
"""Median, ends of a line and colour."""


def _colour(subject: TimedModel) -> str:
    return BASELINE_COLOUR if subject.kind == "peer" else COLOUR


def _dot(samples: Samples, colour: str, scale: float = 1.0) -> Dot:
    return scale * samples.median, scale * samples.lower, scale * samples.upper, colour


@styled
def training(document: SpeedDocument, *, layout: Layout = "wide") -> Figure:
    """Plot target tokens per second and, where it is known, MFU, with a row for each subject."""
    timed = [(subject, subject.training) for subject in document.subjects if subject.training is not None][:MOST]
    rates: list[Dot | None] = []
    shares: list[Dot | None] = []
    for subject, times in timed:
        slowest, fastest = times.target / times.seconds.upper, times.target / times.seconds.lower
        rates.append((times.target_per_second, slowest, fastest, _colour(subject)))
        share = document.mfu(subject)
        shares.append(None if share is None else _dot(share, _colour(subject), 100))
    shown = [("Target tokens per second, higher is better", "tokens/s", rates)]
    if any(shares):
        shown.append(("MFU, higher is better", "% of the matmul peak", shares))
    plot, drawn = plot_style.row_panels(layout, 11, 1.5 + 0.34 * len(timed), len(shown))
    for axes, (title, unit, dots) in zip(drawn, shown, strict=True):
        for line, dot in enumerate(dots):
            if dot is not None:
                axes.plot([0, dot[0]], [line, line], color=GRID, lw=7, solid_capstyle="butt", zorder=1.5)
        _dots(axes, dots, beside=True)
        plot_style.titles(axes, layout, title, unit)
        axes.margins(x=0.12 if layout == "wide" else 0.3)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6 if layout == "wide" else 4))
        axes.xaxis.set_major_formatter(quantity)
    plot_style.name_rows(drawn, layout, [subject.name for subject, _ in timed])
    if any(shares):
        drawn[1].set_xlim(0, max(100, *(1.05 * share[2] for share in shares if share)))
    plot_style.subtitle(plot, COLOURS)
    return plot


@styled
def decoding(document: SpeedDocument, *, layout: Layout = "wide") -> Figure:
    """Plot the seconds of 1,000 translations on equal logarithmic axes, a panel for each way of decoding."""
    subjects = [subject for subject in document.subjects if subject.decoding][:MOST]
    names = list(dict.fromkeys(times.name for subject in subjects for times in subject.decoding))[:4]
    plot, drawn = plot_style.row_panels(layout, 11, 1.5 + 0.34 * len(subjects), len(names))
    for axes, name in zip(drawn, names, strict=True):
        timed = [(subject, decoding_named(subject, name)) for subject in subjects]
        dots = [
            _dot(times.seconds, _colour(model), 1_000 / times.sentences) if times else None for model, times in timed
        ]
        _dots(axes, dots)
        title = next(decoding_name(times) for _, times in timed if times).capitalize()
        plot_style.titles(axes, layout, title, "s for 1,000, log scale")
    _log_limits(drawn, [end for axes in drawn for end in axes.dataLim.intervalx if math.isfinite(end)], ticks=6)
    plot_style.name_rows(drawn, layout, [subject.name for subject in subjects])
    plot_style.subtitle(plot, f"{COLOURS}; lower is better")
    return plot


@styled
def ratios(document: SpeedDocument, *, layout: Layout = "wide") -> Figure:
    """Plot how many times as fast a variant is as each baseline, with a row for each of `main_ratios`."""
    pairs = main_ratios(document)[:MOST]
    plot, drawn = plot_style.row_panels(layout, 11, 1.5 + 0.34 * len(pairs), 1)
    axes = drawn[0]
    dots: list[Dot | None] = []
    ends = [1.0]
    for pair in pairs:  # one round has no interval
        middle = pair.ratio.median
        low, high = interval(pair.ratio) if len(pair.ratio) > 1 else (middle, middle)
        dots.append((middle, low, high, COLOUR))
        ends += [low, high]
    _dots(axes, dots, beside=True)
    axes.axvline(1, color=INK, lw=1.0, zorder=1)
    _log_limits(drawn, ends, ticks=12 if layout == "wide" else 5)
    single = len({pair.subject for pair in pairs}) == 1
    title = f"{short_line(pairs[0].subject, longest=48)} compared with" if single else ""
    plot_style.titles(axes, layout, title, "times as fast as the baseline, log scale")
    names = []
    for pair in pairs:
        subject = "" if single else f"{short_line(pair.subject, longest=28)} : "
        work = measure_name(pair.work, document.settings.beam)
        names.append(f"{subject}{short_line(pair.baseline, longest=28)}, {work}")
    plot_style.name_rows(drawn, layout, names, widths=(48, 23))
    plot_style.subtitle(plot, "Right of 1 the variant is faster; lines are 95 % intervals")
    return plot


def _dots(axes: Axes, dots: Sequence[Dot | None], *, beside: bool = False) -> None:
    for line, dot in enumerate(dots):
        if dot is None:
            where = axes.get_yaxis_transform()
            axes.text(0.02, line, "not measured", va="center", color=FAINT, fontsize=8, transform=where)
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
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5} if beside else None,
        )


def _log_limits(drawn: Sequence[Axes], ends: Sequence[float], *, ticks: int) -> None:
    """Make axes logarithmic, at least a third of a decade wide, with margins that hold half of a value's label."""
    low, high = min(ends), max(ends)
    margin = max(1.35, math.sqrt(2.2 / (high / low)), (high / low) ** 0.11)
    for axes in drawn:
        axes.set_xlim(low / margin, high * margin)
        plot_style.logarithmic(axes, "x", ticks=ticks)


@styled
def breakdown(document: SpeedDocument, *, layout: Layout = "wide") -> Figure:
    """Plot how an update spends its time, in percent, with a stacked bar for each subject."""
    profiled = [(subject.name, subject.breakdown) for subject in document.subjects if subject.breakdown][:MOST]
    plot, drawn = plot_style.row_panels(layout, 11, (1.7 if layout == "wide" else 2.6) + 0.46 * len(profiled), 1)
    axes, least = drawn[0], LABELLED_INCHES / plot.get_figwidth()
    starts = [0.0] * len(profiled)
    for group, colour in GROUPS.items():
        widths = [100 * math.fsum(part.share for part in parts.shares if part.group == group) for _, parts in profiled]
        if not any(widths):
            continue
        axes.barh(range(len(profiled)), widths, left=starts, height=0.66, color=colour, edgecolor="white",
                  linewidth=0.8, label=group, zorder=2)  # fmt: skip
        for line, (start, width) in enumerate(zip(starts, widths, strict=True)):
            if width >= 160 * least:
                axes.text(start + width / 2, line, f"{width:.0f}", ha="center", va="center", color=_readable_on(colour),
                          fontsize=8, zorder=3)  # fmt: skip
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of an update's time")
    plot_style.name_rows(drawn, layout, [name for name, _ in profiled])
    columns = 6 if layout == "wide" else 2
    plot.legend(loc="outside upper left", ncols=columns, frameon=False, fontsize=8.5, handlelength=1.1)
    return plot


def _readable_on(colour: str) -> str:
    """Return a dark or a light colour of text, whichever has the higher contrast; both themes keep the choice."""
    red, green, blue = (part**2.2 for part in to_rgb(colour))
    return "#111111" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "white"


@styled
def scaling(document: SpeedDocument, *, layout: Layout = "wide") -> Figure:
    """Plot milliseconds against size on logarithmic axes, with the fitted power, a panel for each size that grows."""
    lines = document.scaling[:MOST]
    columns, width, height = (3, 11, 3.1) if layout == "wide" else (1, NARROW, 2.6)
    rows = math.ceil(len(lines) / columns)
    plot, grid = plot_style.figure(width, height * rows, rows=rows, columns=columns)
    for axes, line in zip(grid.flat, lines, strict=False):
        _growth(axes, line)
    for axes in grid.flat[len(lines) :]:
        axes.set_visible(False)
    return plot


def _growth(axes: Axes, scaling: Scaling) -> None:
    axes.set_title(AXES[scaling.axis].capitalize())
    if not scaling.points:
        reason = textwrap.fill(short_line(scaling.reason, longest=160) or "not measured", 40)
        axes.text(0.5, 0.5, reason, ha="center", va="center", color=FAINT, transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
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
    plot_style.logarithmic(axes, "y", ticks=6)
    axes.set_xlabel(AXES[scaling.axis])
    axes.set_ylabel("ms")
