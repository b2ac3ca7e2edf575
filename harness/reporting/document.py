"""A report as data: headings, text, tables, figures and interactive parts, which `render_*` turn into a format.

Every string is plain text; the renderers escape it. `Disclosure` and `Widget` are for the HTML page: the other formats
leave them out, or show the blocks that stand in for a widget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

Tone = Literal["plain", "aside", "note", "warning"]
TableKind = Literal["plain", "leaderboard", "matrix", "facts"]


@dataclass(frozen=True)
class Heading:
    """The title of the blocks that follow. One of level 2 begins a section; `slug` is its id in the HTML page."""

    text: str
    level: int = 2
    slug: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph; `tone` says how much it stands out."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """Lines that are shown as they are: commands, or a BibTeX entry."""

    text: str
    label: str = "Command"


@dataclass(frozen=True)
class Links:
    """Titles with the relative address that each leads to. The terminal and LaTeX leave them out."""

    targets: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cell:
    """A cell with more than its text.

    Args:
        mark: The symbol of a conclusion, right of the text.
        detail: An interval or a deviation, shown smaller.
        value: What the column sorts by.
        tone: How the cell is coloured: "better", "worse", or "best" for the best of a column.
    """

    text: str
    mark: str = ""
    detail: str = ""
    value: float | str | None = None
    tone: Literal["", "better", "worse", "best"] = ""

    def __str__(self) -> str:
        """Return everything on one line, as formats without markup show it."""
        detail = self.detail if self.detail.startswith("±") or not self.detail else f"({self.detail})"
        return " ".join(filter(None, (self.text, self.mark, detail)))


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads.

    Args:
        columns: A letter for each column: l left, r right (numbers), p running text, c code.
        heads: The title of each column.
        rows: The cells; a plain string is a cell of that text.
        title: What the table shows; empty where the heading above it says so.
        kind: "leaderboard" sorts and filters in HTML, "matrix" colours its cells, "facts" has names and values.
        optional: Columns that only the HTML page has, and shows on request.
        descending: Columns whose first click sorts the largest value first.
        filters: For each row, the values that a leaderboard's filters compare.
    """

    columns: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    title: str = ""
    kind: TableKind = "plain"
    optional: frozenset[int] = frozenset()
    descending: frozenset[int] = frozenset()
    filters: tuple[Mapping[str, str], ...] = ()

    def without_optional(self) -> Table:
        """Return the table without its optional columns."""
        kept = [index for index in range(len(self.columns)) if index not in self.optional]
        return Table(
            "".join(self.columns[index] for index in kept),
            tuple(self.heads[index] for index in kept),
            tuple(tuple(row[index] for index in kept) for row in self.rows),
            self.title,
        )


@dataclass(frozen=True)
class Figure:
    """A picture: its file name without the ending, its caption, what can be seen in it, and how it is drawn.

    `data` is the table behind it. `reading` makes the HTML page read the chart out point by point.
    """

    name: str
    caption: str
    alt: str
    draw: Callable[[], Drawn]
    data: Table | None = None
    reading: Callable[[Drawn], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Disclosure:
    """Blocks that the HTML page shows when asked."""

    summary: str
    blocks: tuple[Block, ...]
    slug: str = ""


@dataclass(frozen=True)
class Widget:
    """An interactive part of the HTML page: a macro of `widgets.html.j2` and its data."""

    name: str
    data: Any
    instead: tuple[Block, ...] = ()


Block = Heading | Text | Items | Code | Links | Table | Figure | Disclosure | Widget


@dataclass(frozen=True)
class Headline:
    """What a report found, in a sentence with its number, and what limits it."""

    finding: str
    caveat: str = ""


@dataclass(frozen=True)
class Document:
    """A report: its title, its headline, what must stand above everything else, and its blocks.

    `made` says what the pages were made from, in their last line.
    """

    title: str
    headline: Headline
    blocks: tuple[Block, ...]
    about: str = ""
    made: str = "Made by Bakeoff from the run records alone: the same records give the same bytes."
    warnings: tuple[str, ...] = field(default=())


def facts(pairs: Sequence[tuple[str, str]], title: str = "") -> Table:
    """Return names and values as a table."""
    return Table("lp", ("name", "value"), tuple(pairs), title, "facts")


def figures(blocks: Sequence[Block]) -> Iterator[Figure]:
    """Yield every figure, also of what is disclosed."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Disclosure):
            yield from figures(block.blocks)


def tables(blocks: Sequence[Block]) -> Iterator[Table]:
    """Yield every table, also of what is disclosed."""
    for block in blocks:
        if isinstance(block, Table):
            yield block
        elif isinstance(block, Disclosure):
            yield from tables(block.blocks)


def without_empty(shown: Sequence[tuple[Block, str]]) -> Iterator[str]:
    """Yield rendered blocks, without headings that nothing rendered follows."""
    for index, (block, rendered) in enumerate(shown):
        if rendered and not (isinstance(block, Heading) and _is_empty(block, shown[index + 1 :])):
            yield rendered


def _is_empty(heading: Heading, following: Sequence[tuple[Block, str]]) -> bool:
    for block, rendered in following:
        if isinstance(block, Heading) and block.level <= heading.level:
            return True
        if rendered and not isinstance(block, Heading):
            return False
    return True
