"""How every picture is drawn: one style a variant, no colliding labels, the same bytes each time."""

from __future__ import annotations

import functools
import io
import itertools
import textwrap
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.analysis.grouping import TableRow
from harness.reporting.formatting import quantity
from harness.storage import files
from harness.text import short_line

INK, FAINT, GRID = "#222222", "#767676", "#DDDDDD"
TIP = "tip: "
"""How the id of a drawn element begins whose rest is its tooltip in the HTML page."""

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
    "figure.constrained_layout.use": True,
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
P = ParamSpec("P")
T = TypeVar("T")


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Run a drawing function under this module's settings alone, whatever the user's own matplotlib settings are."""

    @functools.wraps(draw)
    def drawn(*arguments: P.args, **named: P.kwargs) -> T:
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(SETTINGS)
            return draw(*arguments, **named)

    return drawn


# Styles ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """A variant's colour, marker and dashes, the same in every picture; hollow markers are its further rows."""

    colour: str
    marker: str
    dashes: Any
    hollow: bool = False

    @property
    def face(self) -> str:
        return "white" if self.hollow else self.colour

    @property
    def line(self) -> dict[str, Any]:
        """What `Axes.plot` takes."""
        face = {"markerfacecolor": self.face, "markeredgecolor": self.colour}
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes, **face}


# Okabe and Ito 2008, "Color universal design": eight colours told apart by the colour-blind; yellow is lost on white.
STYLES = {
    "learned_positions": Style("#0072B2", "o", "-"),
    "sinusoidal_handmade": Style("#D55E00", "s", (0, (6, 2))),
    "conv_ffn": Style("#009E73", "^", (0, (6, 2, 1, 2))),
    "paper": Style("#CC79A7", "D", (0, (2, 1))),
    "paper_base": Style("#000000", "P", (0, (4, 1, 4, 3))),
    "bahdanau_gru": Style("#E69F00", "v", (0, (10, 2))),
    "torch_reference": Style("#56B4E9", "X", (0, (3, 1, 1, 1, 1, 1))),
    "plain": Style("#7F7F7F", "d", (0, (5, 1))),
    "tuned": Style("#882255", "H", (0, (12, 2, 2, 2))),
}
EXTERNAL_COLOURS = ("#5A5A5A", "#8C6D31", "#7B4173")
EXTERNAL_MARKERS = ("*", "p", "h", "<", ">")
EXTERNAL_DASHES = ((0, (8, 2, 2, 2)), (0, (1, 2)), (0, (5, 5)))


def style(variant: str) -> Style:
    """Return the fixed style of a built-in variant; an outsider's follows from its name."""
    if variant in STYLES:
        return STYLES[variant]
    number = zlib.crc32(variant.encode("utf-8", "replace"))
    return Style(
        EXTERNAL_COLOURS[number % len(EXTERNAL_COLOURS)],
        EXTERNAL_MARKERS[number // 7 % len(EXTERNAL_MARKERS)],
        EXTERNAL_DASHES[number // 11 % len(EXTERNAL_DASHES)],
    )


def row_styles(rows: Sequence[TableRow]) -> list[Style]:
    """Return a style for each row: its variant's; further rows of a variant take other colours and hollow markers.

    No two rows share colour, marker and fill.
    """
    present = {row.variant for row in rows}
    free = [own for name, own in STYLES.items() if name not in present] or list(STYLES.values())
    spare = itertools.cycle(
        Style(own.colour, marker, own.dashes, hollow=True)
        for marker, own in itertools.product(("o", "s", "^", "D", "v", *EXTERNAL_MARKERS), free)
    )
    styles: list[Style] = []
    used: set[tuple[str, str, bool]] = set()
    for row in rows:
        own = style(row.variant)
        if (own.colour, own.marker, own.hollow) in used:
            own = next((one for one in spare if (one.colour, one.marker, True) not in used or len(used) > 99), own)
        used.add((own.colour, own.marker, own.hollow))
        styles.append(own)
    return styles


def short(label: str, *, width: int = 24) -> str:
    """Return a label on at most two lines; what is longer loses its middle."""
    line = short_line(label, longest=10_000)
    if len(line) > 2 * width:
        line = f"{line[: width - 1]}…{line[-width:]}"
    if len(line) <= width:
        return line
    fitting = range(max(len(line) - width * 5 // 4, 1), width + 1)
    for separators in (" ", ":,", "._(…"):
        spots = [index for index in fitting if line[index - 1] in separators]
        if spots:
            return f"{line[: spots[-1]].rstrip()}\n{line[spots[-1] :].lstrip()}"
    return f"{line[:width]}\n{line[width:]}"


# Axes -----------------------------------------------------------------------------------------------------------------


def figure(width: float, height: float, *, rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Figure, Any]:
    """Return a new figure of this size in inches, with a canvas of its own, and its axes as an array [rows,columns]."""
    made = Figure(figsize=(width, height))
    FigureCanvasAgg(made)
    return made, made.subplots(rows, columns, squeeze=False, **shared)


def subtitle(picture: Figure, text: str) -> None:
    """Write a line above all panels of a figure."""
    picture.suptitle(text, x=0.01, ha="left", fontsize=9, color=FAINT)


def logarithmic(axes: Axes, which: str) -> None:
    """Make an axis logarithmic, with plain numbers at 1, 2, 5 and their tenfolds."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    within_decade = high / low < 12
    axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 8) if within_decade else (1, 2, 5), numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(quantity))


def say(axes: Axes, sentence: str) -> None:
    """Write a sentence where a picture has nothing to show."""
    axes.text(0.5, 0.5, textwrap.fill(sentence, 40), ha="center", va="center", color=FAINT, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


# Labels ---------------------------------------------------------------------------------------------------------------


def spread(wanted: Iterable[float], gaps: Sequence[float], low: float, high: float) -> list[float]:
    """Return places near the `wanted` ones, in their order, each at least its gap above the one below, within bounds.

    Neighbours that are too close move together as a block around their mean. `gaps[i]` is the room that label i needs;
    where all do not fit, they overlap evenly.
    """
    targets = list(wanted)
    order = sorted(range(len(targets)), key=targets.__getitem__)
    room = sum(gaps)
    scale = min(1.0, (high - low) / room) if room else 1.0
    offsets, reached = {}, 0.0
    for index in order:
        offsets[index] = reached + gaps[index] * scale / 2
        reached += gaps[index] * scale
    blocks: list[list[float]] = []
    for index in order:
        blocks.append([targets[index] - offsets[index], 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, count = blocks.pop()
            blocks[-1] = [
                (blocks[-1][0] * blocks[-1][1] + mean * count) / (blocks[-1][1] + count),
                blocks[-1][1] + count,
            ]
    moved = [start for start, count in blocks for _ in range(int(count))]
    found = [0.0] * len(targets)
    for index, start in zip(order, moved, strict=True):
        found[index] = min(max(start, low), high - reached) + offsets[index]
    return found


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, Style]], *, line: bool = True) -> None:
    """Write each label right of the axes with its line and marker, joined to the point (x, y) by a grey hair line."""
    if not ends:
        return
    axes.get_figure().draw_without_rendering()  # type: ignore[union-attr]
    texts = [short(label) for _, _, label, _ in ends]
    to_axes = axes.transData + axes.transAxes.inverted()
    points = [to_axes.transform((x, y)) for x, y, _, _ in ends]
    inch = axes.figure.dpi / axes.bbox.height, axes.figure.dpi / axes.bbox.width
    gaps = [(13.5 * (1 + text.count("\n")) + 2.7) / 72 * inch[0] for text in texts]
    places = spread([float(y) for _, y in points], gaps, -0.06, 1.06)
    left, middle, right, words = (1 + across * inch[1] for across in (0.12, 0.32, 0.52, 0.6))
    hair: dict[str, Any] = {"color": FAINT, "lw": 0.7, "ls": (0, (1, 2)), "clip_on": False, "zorder": 1}
    for (x, y), place, text, (*_, own) in zip(points, places, texts, ends, strict=True):
        across = axes.transAxes
        axes.plot([x, left], [y, place], transform=across, **hair)
        swatch = {**own.line, "markersize": 5.5} | ({} if line else {"linestyle": "none"})
        axes.plot([left, middle, right], [place] * 3, transform=across, lw=1.6, clip_on=False, markevery=[1], **swatch)
        axes.text(words, place, text, transform=across, va="center", ha="left", fontsize=9, linespacing=1.0)


# Files ----------------------------------------------------------------------------------------------------------------


@styled
def write(drawn: Figure, path: Path) -> None:
    """Write a figure in the format that the path's ending names: png, svg or pdf.

    Raises: ValueError for another ending.
    """
    kind = path.suffix.lower().removeprefix(".")
    empty: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    if kind not in empty:
        raise ValueError(f"picture {path.name!r} must end in .png, .svg or .pdf")
    buffer = io.BytesIO()
    drawn.savefig(buffer, format=kind, metadata=empty[kind])
    files.write_bytes(path, buffer.getvalue())
