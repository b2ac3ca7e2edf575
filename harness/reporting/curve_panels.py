"""The pictures of the HTML page that can be read point by point: curves with bands over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.analysis.grouping import TableRow
from harness.reporting.inline_svg import inline, theme_colour
from harness.reporting.plot_style import STYLES, Style, figure, logarithmic, row_styles, styled

WIDTH, HEIGHT = 5.4, 3.5
LEFT, RIGHT, BOTTOM, TOP = 0.145, 0.985, 0.135, 0.965
PRINTED = 3
"""Decimals of a loss or a perplexity in a read-out."""


@dataclass(frozen=True)
class Curve:
    """A variant's mean curve over seeds, epoch -> value, and where there are several seeds its interval."""

    label: str
    style: Style
    seeds: int
    means: Mapping[int, float]
    lows: Mapping[int, float]
    highs: Mapping[int, float]
    ends: Sequence[tuple[int, float, str]] = ()
    """(epoch, value, status) of each run that did not complete."""

    def text(self, epoch: int) -> str:
        """Return the value at an epoch, with its interval where there is one."""
        if epoch not in self.means:
            return "–"
        value = f"{self.means[epoch]:,.{PRINTED}f}"
        if epoch not in self.lows:
            return value
        return f"{value} ({self.lows[epoch]:,.{PRINTED}f} to {self.highs[epoch]:,.{PRINTED}f})"


@dataclass(frozen=True)
class Panel:
    """A drawn panel, its numbers as a table, and where its points stand, for the read-out.

    `points`: `top` and `bottom` of the axes, and for each epoch `x`, `label` and a line of text a variant.
    """

    title: str
    svg: Markup
    heads: list[str]
    cells: list[list[str]]
    points: dict[str, Any]


def distinct_styles(rows: Sequence[TableRow]) -> list[Style]:
    """Return a style for each row: its variant's; further rows of a variant take the palette's others, hollow."""
    found = row_styles(rows)
    free = [own for name, own in STYLES.items() if name not in {row.variant for row in rows}] or list(STYLES.values())
    turn = 0
    for place, own in enumerate(found):
        if own.hollow:
            other = free[turn % len(free)]
            found[place] = Style(other.colour, other.marker, other.dashes, hollow=True)
            turn += 1
    return found


@styled
def panel(lines: Sequence[Curve], name: str, title: str, unit: str, *, logarithm: bool) -> Panel:
    """Draw curves against epochs, each with its band; `name` is unique in the page."""
    made, grid = figure(WIDTH, HEIGHT)
    axes = grid[0, 0]
    axes.set_position((LEFT, BOTTOM, RIGHT - LEFT, TOP - BOTTOM))
    epochs = sorted({epoch for line in lines for epoch in line.means})
    for line in lines:
        own = sorted(line.means)
        banded = [epoch for epoch in own if epoch in line.lows]
        lows, highs = ([side[epoch] for epoch in banded] for side in (line.lows, line.highs))
        if banded:
            axes.fill_between(banded, lows, highs, color=line.style.colour, alpha=0.16, lw=0)
        axes.plot(own, [line.means[epoch] for epoch in own], lw=1.6, ms=4.5, zorder=3, **line.style.line)
        for epoch, value, _ in line.ends:
            axes.plot([epoch], [value], marker="x", ms=10, mew=2.2, color=line.style.colour, ls="none", zorder=4)
    axes.set_xlabel("epoch")
    axes.set_ylabel(unit)
    axes.set_xlim(epochs[0] - 0.4, epochs[-1] + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
    if logarithm:
        logarithmic(axes, "y")
    label = f"{title}, {unit}, against epochs: {', '.join(line.label for line in lines)}. The numbers are in the table."
    return Panel(
        title,
        inline(made, name, label),
        ["epoch", *(line.label for line in lines)],
        [[str(epoch), *(line.text(epoch) for line in lines)] for epoch in epochs],
        _points(made, lines, epochs),
    )


def _points(made: Figure, lines: Sequence[Curve], epochs: Sequence[int]) -> dict[str, Any]:
    """Return where each epoch stands in the drawing, in points from its left and top."""
    axes = made.axes[0]
    places = [axes.transData.transform((epoch, axes.get_ylim()[0]))[0] * 72 / made.dpi for epoch in epochs]
    height = HEIGHT * 72
    return {
        "top": round(height * (1 - TOP), 1),
        "bottom": round(height * (1 - BOTTOM), 1),
        "epochs": [
            {"x": round(float(x), 1), "label": f"epoch {epoch}", "values": [line.text(epoch) for line in lines]}
            for epoch, x in zip(epochs, places, strict=True)
        ],
        "names": [line.label for line in lines],
    }


SWATCH_MARKERS = {
    "o": '<circle cx="20" cy="7" r="4"/>',
    "s": '<path d="M16.5 3.5h7v7h-7z"/>',
    "^": '<path d="M20 2.5l4.5 8h-9z"/>',
    "v": '<path d="M20 11.5l4.5-8h-9z"/>',
    "D": '<path d="M20 2.5l4.5 4.5-4.5 4.5-4.5-4.5z"/>',
    "d": '<path d="M20 2.5l2.700 4.5-2.700 4.5-2.700-4.5z"/>',
    "P": '<path d="M18.5 2.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z"/>',
    "X": '<path d="M17 2.5l3 3 3-3 1.5 1.5-3 3 3 3-1.5 1.5-3-3-3 3-1.5-1.5 3-3-3-3z"/>',
    "*": '<path d="M20 1.5l1.5 3.700 4 .3-3 2.600.9 3.900-3.400-2.100-3.400 2.100.9-3.900-3-2.600 4-.3z"/>',
    "p": '<path d="M20 2.5l4.5 3.300-1.700 5.200h-5.600l-1.700-5.200z"/>',
    "h": '<path d="M20 2.300l4 2.300v4.800l-4 2.300-4-2.300v-4.800z"/>',
    "H": '<path d="M15.300 7l2.300-4h4.800l2.300 4-2.300 4h-4.800z"/>',
    "<": '<path d="M15.5 7l8-4.5v9z"/>',
    ">": '<path d="M24.5 7l-8-4.5v9z"/>',
}


def swatch(own: Style) -> Markup:
    """Return a legend's line and marker as a small `<svg>`."""
    colour = theme_colour(own.colour)
    dashes = "" if own.dashes == "-" else f' stroke-dasharray="{" ".join(f"{one * 1.6:g}" for one in own.dashes[1])}"'
    fill = "var(--paper)" if own.hollow else colour
    return Markup(
        '<svg class="swatch" viewBox="0 0 40 14" width="40" height="14" aria-hidden="true">'
        f'<path d="M0 7h40" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
        f'<g fill="{fill}" stroke="{colour}" stroke-width="1.3">{SWATCH_MARKERS[own.marker]}</g></svg>'
    )
