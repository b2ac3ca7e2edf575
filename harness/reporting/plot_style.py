"""The style of all plots: the same style for a variant everywhere, no overlapping labels, reproducible files."""

from __future__ import annotations

import io
import itertools
import math
import os
import re
import textwrap
import zlib
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import matplotlib.style
import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from harness.analysis.grouping import TableRow
from harness.reporting.formatting import quantity
from harness.storage import files
from harness.text import short_line

INK, FAINT, GRID = "#222222", "#767676", "#DDDDDD"
SERIES, TIP = "series: ", "\u2028"
"""The prefix of the id of an element that names its series, and the separator before its tooltip."""

Layout = Literal["wide", "narrow"]
"""The arrangement of a figure: panels beside each other for a desk, or below each other for a phone."""

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
NARROW = 3.8
"""The width of a narrow figure in inches: its text is readable on a screen of 320 pixels."""

SETTINGS: Any = {
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "figure.dpi": 100,
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.markersize": 6,
    "savefig.dpi": 144,
    "savefig.facecolor": "white",
    "svg.hashsalt": "bakeoff",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
styled = matplotlib.style.context(SETTINGS, after_reset=True)
"""Runs a decorated function with the settings of this module, independently of the user's matplotlib settings."""


# Styles ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """The colour, marker and dashes of a variant in every plot. Further rows of a variant have hollow markers."""

    colour: str
    marker: str
    dashes: Any
    hollow: bool = False

    @property
    def face(self) -> str:
        return "white" if self.hollow else self.colour

    @property
    def line(self) -> dict[str, Any]:
        """The keyword arguments of `Axes.plot`."""
        face = {"markerfacecolor": self.face, "markeredgecolor": self.colour}
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes, **face}


# After Okabe and Ito 2008, "Color universal design", with hues and lightness such that nine colours differ under every
# colour blindness and from white; `templates/report.css` has the same for the dark theme.
STYLES = {
    "learned_positions": Style("#4D94FF", "o", "-"),
    "sinusoidal_handmade": Style("#E67300", "s", (0, (6, 2))),
    "conv_ffn": Style("#084520", "^", (0, (6, 2, 1, 2))),
    "paper": Style("#660066", "D", (0, (2, 1))),
    "paper_base": Style("#000000", "P", (0, (4, 1, 4, 3))),
    "bahdanau_gru": Style("#735E0D", "v", (0, (10, 2))),
    "torch_reference": Style("#6600FF", "X", (0, (3, 1, 1, 1, 1, 1))),
    "plain": Style("#7F7F7F", "d", (0, (5, 1))),
    "tuned": Style("#A32972", "H", (0, (12, 2, 2, 2))),
}
EXTERNAL_COLOURS = ("#5A5A5A", "#00A1B3", "#B05A5A")
EXTERNAL_MARKERS = ("*", "p", "h", "<", ">")
EXTERNAL_DASHES = ((0, (8, 2, 2, 2)), (0, (1, 2)), (0, (5, 5)))


def style(variant: str) -> Style:
    """Return the fixed style of a built-in variant; that of an external variant follows from its name."""
    if variant in STYLES:
        return STYLES[variant]
    number = zlib.crc32(variant.encode("utf-8", "replace"))
    return Style(
        EXTERNAL_COLOURS[number % len(EXTERNAL_COLOURS)],
        EXTERNAL_MARKERS[number // 7 % len(EXTERNAL_MARKERS)],
        EXTERNAL_DASHES[number // 11 % len(EXTERNAL_DASHES)],
    )


def row_styles(rows: Sequence[TableRow]) -> list[Style]:
    """Return a style for each row: that of its variant, or for further rows another colour with a hollow marker.

    Two rows only share colour, marker and fill after all combinations have been used.
    """
    present = {row.variant for row in rows}
    free = [unused for name, unused in STYLES.items() if name not in present] or list(STYLES.values())
    spare = (
        Style(unused.colour, marker, unused.dashes, hollow=True)
        for marker, unused in itertools.product(("o", "s", "^", "D", "v", *EXTERNAL_MARKERS), free)
    )
    styles: list[Style] = []
    used: set[tuple[str, str]] = set()
    for row in rows:
        variant_style = style(row.variant)
        mark = variant_style.colour, variant_style.marker
        styles.append(next(spare, variant_style) if mark in used else variant_style)
        used.add(mark)
    return styles


def short(label: str, *, width: int = 24) -> str:
    """Return a label on at most two lines; the middle of a longer label is cut."""
    line = short_line(label, longest=10_000)
    if len(line) > 2 * width:
        line = f"{line[: width - 1]}…{line[-width:]}"
    if len(line) <= width:
        return line
    fitting = range(max(len(line) - width * 5 // 4, 1), width + 1)
    for separators in (" ", ":,/", "._(…"):
        breaks = [index for index in fitting if line[index - 1] in separators]
        if breaks:
            return f"{line[: breaks[-1]].rstrip()}\n{line[breaks[-1] :].lstrip()}"
    return f"{line[:width]}\n{line[width:]}"


def shorts(labels: Sequence[str], *, width: int = 24) -> list[str]:
    """Return labels as `short` does, without the words that all begin with if their cut labels would be equal.

    Labels that would still be equal have their first word and the words that not all of them have, if there are any.
    """
    cut = [short(label, width=width) for label in labels]
    if len(set(cut)) == len(set(labels)):
        return cut
    start = os.path.commonprefix(list(labels)).rfind(" ") + 1
    cut, longest = [short(label[start:], width=width) for label in labels], width * 5 // 4
    for text in {text for text in cut if cut.count(text) > 1}:
        words = {place: labels[place].split() for place, other in enumerate(cut) if other == text}
        shared = set.intersection(*map(set, words.values()))
        for place, (first, *others) in words.items():
            if own := " ".join(word for word in others if word not in shared).rstrip(",)"):
                end = own if len(own) <= longest else f"…{own[1 - longest :]}"
                cut[place] = f"{first[: width - 2]} …\n{end}"
    return cut


# Axes and labels ------------------------------------------------------------------------------------------------------


def figure(width: float, height: float, *, rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Figure, Any]:
    """Return a new figure of this size in inches, with its own canvas, and its axes as an array [rows, columns]."""
    plot = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(plot)
    return plot, plot.subplots(rows, columns, squeeze=False, **shared)


def row_panels(layout: Layout, width: float, height: float, number: int) -> tuple[Figure, list[Axes]]:
    """Return a new figure with panels of this height, which share their vertical axis.

    They are beside each other within `width` in the wide layout, and below each other in the narrow one.
    """
    if layout == "narrow":
        plot, grid = figure(NARROW, height * number, rows=number, sharey=True)
    else:
        plot, grid = figure(width, height, columns=number, sharey=True)
    return plot, list(grid.flat)


def subtitle(plot: Figure, text: str) -> None:
    """Write a sentence above all panels of a figure."""
    lines = textwrap.fill(text, int(15 * plot.get_figwidth()))
    plot.suptitle(lines, x=0.01, ha="left", fontsize=9, color=FAINT)


def titles(axes: Axes, layout: Layout, title: str, label: str) -> None:
    """Write the title of a panel and the label of its horizontal axis, on several lines in the narrow layout."""
    longest, size = (22, 10) if layout == "narrow" else (100, 11)
    axes.set_title(_filled(title, longest), fontsize=size)
    axes.set_xlabel(_filled(label, longest))


def _filled(text: str, longest: int) -> str:
    """Break a text into lines after spaces, slashes and underscores, never inside a word."""
    lines = [""]
    for part in re.split(r"(?<=[ /_])", text):
        if lines[-1] and len(lines[-1] + part.rstrip()) > longest:
            lines.append("")
        lines[-1] += part
    return "\n".join(map(str.rstrip, lines))


def name_rows(
    drawn: Sequence[Axes],
    layout: Layout,
    names: Sequence[str],
    *,
    bold: Container[int] = (),
    widths: tuple[int, int] = (30, 21),
) -> None:
    """Write the names of rows left of panels that share their vertical axis, the first on top.

    `bold` has the indices of names that stand out, `widths` the characters of a line in the wide and narrow layout.
    """
    labels = shorts(names, width=widths[LAYOUTS.index(layout)])
    for axes in drawn:
        axes.set_yticks(range(len(names)), labels, fontsize=8.5 if layout == "narrow" else 9.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        for index, tick in enumerate(axes.get_yticklabels()):
            tick.set_fontweight("bold" if index in bold else "normal")
    drawn[0].set_ylim(len(names) - 0.4, -0.7)


def logarithmic(axes: Axes, which: Literal["x", "y"], *, ticks: int = 12) -> None:
    """Make an axis logarithmic, with plain numbers at round values and at most about `ticks` of them."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    per_decade = ticks / max(math.log10(high / low), 0.1)
    subs = (1, 2, 5) if per_decade >= 3 else (1, 3) if per_decade >= 2 else (1,)
    # Without two values of `subs` in view, which a ratio of 5 always has, the locator would mark many others.
    values = np.multiply.outer((1, 2, 5), 10.0 ** np.arange(math.floor(math.log10(low)), math.log10(high)))
    linear = high / low < 4 or (high / low < 5 and np.sum((low <= values) & (values <= high)) < 2)
    axis.set_major_locator(MaxNLocator(min(ticks, 6)) if linear else LogLocator(subs=subs, numticks=ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(quantity)


def series(label: str, tip: str = "") -> str:
    """Return the id of an element that the HTML page highlights and switches off with its series."""
    return f"{SERIES}{short_line(label)}{TIP}{short_line(tip)}"


def spread(positions: Sequence[float], gaps: Sequence[float], low: float, high: float) -> list[float]:
    """Move labels apart so that they do not overlap.

    Neighbours that are too close move together as a block around their mean: an isotonic regression.

    Args:
        positions: The preferred centre of each label, between `low` and `high`.
        gaps: The size of each label.

    Returns:
        The new centres, in the same order from low to high. Without room for all labels, they overlap evenly.
    """
    order = np.argsort(positions, kind="stable")
    sizes = np.array(gaps)[order] * min(1.0, (high - low) / sum(gaps))
    offsets = np.cumsum(sizes) - sizes / 2
    starts = scipy.optimize.isotonic_regression(np.array(positions)[order] - offsets).x
    centres = np.empty(len(order))
    centres[order] = np.clip(starts, low, high - sizes.sum()) + offsets
    return centres.tolist()


def lay_out(plot: Figure) -> None:
    """Give the panels of a figure their places for good; otherwise every drawing begins with a draft of everything."""
    engine = plot.get_layout_engine()
    if engine is not None:
        engine.execute(plot)
    plot.set_layout_engine(None)


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, Style]], *, line: bool = True) -> None:
    """Write each label right of the axes with its line and marker, joined to the point (x, y) by a dotted line."""
    if not ends:
        return
    axes.get_figure().draw_without_rendering()  # type: ignore[union-attr]
    to_axes = axes.transData + axes.transAxes.inverted()
    targets = [float(to_axes.transform((x, y))[1]) for x, y, _, _ in ends]
    vertical_inch = axes.figure.dpi / axes.bbox.height
    gaps = [(13.5 * (1 + text.count("\n")) + 2.7) / 72 * vertical_inch for _, _, text, _ in ends]
    heights = spread(targets, gaps, -0.06, 1.06)
    # Inches from the right edge, which stay when the layout makes the axes narrower.
    inches = axes.figure.dpi_scale_trans + ScaledTranslation(1, 0, axes.transAxes)  # type: ignore[arg-type]
    right = blended_transform_factory(inches, axes.transAxes)
    dotted: dict[str, Any] = {
        "arrowstyle": "-",
        "color": FAINT,
        "lw": 0.7,
        "ls": (0, (1, 2)),
        "shrinkA": 0,
        "shrinkB": 0,
    }
    for (x, y, text, line_style), height in zip(ends, heights, strict=True):
        axes.annotate("", (x, y), (0.12, height), textcoords=right, annotation_clip=False, arrowprops=dotted, zorder=1)
        swatch = {**line_style.line, "markersize": 5.5} | ({} if line else {"linestyle": "none"})
        axes.plot([0.12, 0.32, 0.52], [height] * 3, transform=right, lw=1.6, clip_on=False, markevery=[1], **swatch)
        axes.text(0.6, height, text, transform=right, va="center", ha="left", fontsize=9, linespacing=1.2)


@styled
def write(plot: Figure, path: Path) -> None:
    """Write a figure as png, svg or pdf, according to the ending of `path`.

    Raises:
        ValueError: The path has another ending.
    """
    kind = path.suffix.lower().removeprefix(".")
    metadata: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    if kind not in metadata:
        raise ValueError(f"picture {path.name!r} must end in .png, .svg or .pdf")
    buffer = io.BytesIO()
    plot.savefig(buffer, format=kind, metadata=metadata[kind])
    content = buffer.getvalue()
    files.write_bytes(path, numbered_ids(content.decode()).encode() if kind == "svg" else content)


def numbered_ids(svg: str) -> str:
    """Return an SVG of matplotlib with numbers for its hashed ids.

    Hashes of clip paths come from coordinates that are not rounded, so they differ between processors.
    """
    numbers: dict[str, int] = {}
    return re.sub(
        r'(?<=["#])([pm])[0-9a-f]{10}(?=[")])',
        lambda match: f"{match[1]}{numbers.setdefault(match[0], len(numbers))}",
        svg,
    )
