"""Renders a document as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.document import Block, Code, Document, Heading, Items, Table, Text, Widget, without_empty
from harness.text import short_line

LONGEST = 4_000
LINE = 104
"""Letters a terminal's line should hold: a wider table of numbers is printed in several parts."""


def document(report: Document) -> str:
    """Return a document as text, its headline last, where a terminal shows it."""
    lines = [*report.warnings, report.headline.finding, report.headline.caveat]
    parts = [blocks([Heading(report.title)]), blocks(report.blocks, width=LINE)]
    return "\n".join([*parts, blocks([Text(line) for line in lines if line])])


def blocks(content: Sequence[Block], *, width: int = 0) -> str:
    """Return blocks as text without control characters; tables wider than `width` are split, 0 allows any width."""
    return "\n\n".join(without_empty([(block, _block(block, width)) for block in content])) + "\n"


def _block(block: Block, width: int) -> str:
    if isinstance(block, Heading):
        title = short_line(block.text, longest=LONGEST)
        return f"{title}\n{('=' if block.level <= 2 else '-') * min(len(title), 100)}"
    if isinstance(block, Text):
        return short_line(block.text, longest=LONGEST)
    if isinstance(block, Items):
        return "\n".join(short_line(line, longest=LONGEST) for line in block.lines)
    if isinstance(block, Code):
        return "\n".join(f"    {short_line(line, longest=LONGEST)}" for line in block.text.split("\n"))
    if isinstance(block, Table):
        return _table(block.without_optional() if block.optional else block, width)
    if isinstance(block, Widget) and block.instead:
        return blocks(block.instead, width=width).rstrip("\n")
    return ""


def _table(table: Table, width: int) -> str:
    rows = [tuple(short_line(str(cell), longest=LONGEST) for cell in row) for row in (table.heads, *table.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
    rules = [
        "─" * (len(rows[0][column]) if kind == "p" else widths[column]) for column, kind in enumerate(table.columns)
    ]
    rows.insert(1, tuple(rules))
    title = [f"{short_line(table.title)}:\n"] if table.title else []
    parts = _parts(table, widths, width)
    return "\n".join(
        [*title, "\n\n".join("\n".join(_line(table, row, widths, part) for row in rows) for part in parts)]
    )


def _line(table: Table, row: Sequence[str], widths: Sequence[int], columns: Sequence[int]) -> str:
    cells = (f"{row[column]:{'>' if table.columns[column] == 'r' else '<'}{widths[column]}}" for column in columns)
    return "  ".join(cells).rstrip()


def _parts(table: Table, widths: Sequence[int], limit: int) -> list[list[int]]:
    """Return the columns of each part of a table; every part begins with the columns left of the first number."""
    everything = list(range(len(table.columns)))
    if not limit or "p" in table.columns or sum(widths) + 2 * len(widths) <= limit:
        return [everything]
    names = [column for column in everything if "r" not in table.columns[: column + 1]]
    parts, room = [list(names)], limit - sum(widths[column] + 2 for column in names)
    left = room
    for column in everything[len(names) :]:
        if widths[column] + 2 > left and len(parts[-1]) > len(names):
            parts.append(list(names))
            left = room
        parts[-1].append(column)
        left -= widths[column] + 2
    return parts
