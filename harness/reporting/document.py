"""A report as data: headings, text, tables, figures and interactive parts, which `render_*` turn into a format.

Every string is plain text; the renderers escape it. `Disclosure` and `Widget` are only shown in the HTML page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot


@dataclass(frozen=True)
class Heading:
    """The title of the blocks that follow, left out if there are none.

    One of level 2 begins a section; `slug` is its id in the HTML page.
    """

    text: str
    level: int = 2
    slug: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph; `tone` sets its emphasis."""

    text: str
    tone: Literal["plain", "aside", "note", "warning"] = "plain"


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """Preformatted lines: commands, or a BibTeX entry."""

    text: str
    label: str = "Command"


@dataclass(frozen=True)
class Links:
    """Titles with relative addresses. The terminal and LaTeX omit them."""

    targets: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cell:
    """A cell with more than its text.

    Attributes:
        mark: The symbol of a conclusion, right of the text.
        detail: An interval, shown smaller.
        value: The sort key of the cell.
        tone: The colour of the cell: "better", "worse", or "best" for the best of a column.
    """

    text: str
    mark: str = ""
    detail: str = ""
    value: float | str | None = None
    tone: Literal["", "better", "worse", "best"] = ""

    def __str__(self) -> str:
        """Return text, mark and detail on one line, for formats without markup."""
        detail = f"({self.detail})" if self.detail else ""
        return " ".join(filter(None, (self.text, self.mark, detail)))


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads.

    Attributes:
        columns: A letter for each column: l left, r right (numbers), p running text, c code.
        heads: The title of each column.
        rows: The cells; a plain string is a cell of that text.
        title: The title; empty if the heading above the table is enough.
        kind: "leaderboard" sorts and filters in HTML, "matrix" colours its cells, "facts" has names and values.
        optional: Columns that are only in the HTML page, hidden at first.
        descending: Columns that sort the largest value first on the first click.
        search: For each row of a leaderboard, the text that its search looks at.
    """

    columns: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    title: str = ""
    kind: Literal["plain", "leaderboard", "matrix", "facts"] = "plain"
    optional: frozenset[int] = frozenset()
    descending: frozenset[int] = frozenset()
    search: tuple[str, ...] = ()

    def without_optional(self) -> Table:
        """Return the table without its optional columns."""
        kept = [index for index in range(len(self.columns)) if index not in self.optional]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        heads = tuple(self.heads[index] for index in kept)
        return Table("".join(self.columns[index] for index in kept), heads, rows, self.title)


@dataclass(frozen=True)
class Figure:
    """A plot with its caption.

    Attributes:
        name: The file name without its ending.
        alt: A description of the plot for readers who cannot see it.
        draw: Draws the plot; the keyword argument `layout` is "wide" or "narrow".
        data: The plotted values.
        reading: Returns the values with their positions in the plot, which the HTML page reads out point by point.
    """

    name: str
    caption: str
    alt: str
    draw: Callable[..., Plot]
    data: Table | None = None
    reading: Callable[[Plot], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Disclosure:
    """Blocks that the HTML page shows on request."""

    summary: str
    blocks: tuple[Block, ...]
    slug: str = ""


@dataclass(frozen=True)
class Widget:
    """An interactive part of the HTML page: a macro of `widgets.html.j2` and its data."""

    name: str
    data: Any


Kind = TypeVar("Kind", bound="Block")
Block = Heading | Text | Items | Code | Links | Table | Figure | Disclosure | Widget


@dataclass(frozen=True)
class Headline:
    """The main finding of a report in a sentence with its number, and the limits of it."""

    finding: str
    caveat: str = ""


@dataclass(frozen=True)
class Document:
    """A report: its title, headline, warnings and blocks. `origin`, the last line, names the data that it shows."""

    title: str
    headline: Headline
    blocks: tuple[Block, ...]
    about: str = ""
    origin: str = "Made by Bakeoff from the run records alone: the same records give the same bytes."
    warnings: tuple[str, ...] = ()


def facts(pairs: Sequence[tuple[str, str]]) -> Table:
    """Return names and values as a table."""
    return Table("lp", ("name", "value"), tuple(pairs), kind="facts")


def find(blocks: Sequence[Block], kind: type[Kind]) -> Iterator[Kind]:
    """Yield every block of a kind, including disclosed ones."""
    for block in blocks:
        if isinstance(block, kind):
            yield block
        elif isinstance(block, Disclosure):
            yield from find(block.blocks, kind)


def join_blocks(blocks: Sequence[Block], render: Callable[[Block], str]) -> str:
    """Return blocks rendered as text, separated by empty lines, without headings that have no content."""
    parts: list[str] = []
    filled = 0  # headings of up to this level have content below them
    for block in reversed(blocks):
        text = render(block)
        if isinstance(block, Heading):
            parts += [text] if block.level <= filled else []
            filled = min(filled, block.level - 1)
        elif text:
            parts.append(text)
            filled = 6
    return "\n\n".join(reversed(parts)) + "\n"
