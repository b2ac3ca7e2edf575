"""Renders a document as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.document import Block, Code, Document, Heading, Items, Table, Text, join_blocks
from harness.reporting.formatting import long_line
from harness.text import short_line

LINE = 104
"""The width in characters above which a table of numbers is printed in several parts."""


def document(report: Document) -> str:
    """Return a document as text, with the headline at the end, where it stays visible in a terminal."""
    lines = [*report.warnings, report.headline.finding, report.headline.caveat]
    headline = [Text(line) for line in lines if line]
    return f"\n{blocks(report.blocks, width=LINE)}\n{blocks(headline)}"


def blocks(content: Sequence[Block], *, width: int = 0) -> str:
    """Return blocks as text without control characters; tables wider than `width` are split, 0 allows any width."""
    return join_blocks(content, lambda block: _block(block, width))


def _block(block: Block, width: int) -> str:
    if isinstance(block, Heading):
        title = long_line(block.text)
        return f"{title}\n{('=' if block.level <= 2 else '-') * min(len(title), 100)}"
    if isinstance(block, Text):
        return long_line(block.text)
    if isinstance(block, Items):
        return "\n".join(long_line(line) for line in block.lines)
    if isinstance(block, Code):
        return "\n".join(f"    {long_line(line)}" for line in block.text.split("\n"))
    if isinstance(block, Table):
        return _table(block.without_optional(), width)
    return ""


def _table(table: Table, width: int) -> str:
    rows = [tuple(long_line(cell) for cell in row) for row in (table.heads, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rules = [
        "─" * (len(head) if kind == "p" else wide)
        for head, kind, wide in zip(rows[0], table.columns, widths, strict=True)
    ]
    columns = _parts(table, widths, width)
    shared = set.intersection(*map(set, columns)) if len(columns) > 1 else set()
    parts = []
    for part in columns:  # of a triangle that is split, the later parts have empty rows
        filled = [row for row in rows[1:] if any(row[column] for column in part if column not in shared)]
        parts.append("\n".join(_line(table, row, widths, part) for row in (rows[0], tuple(rules), *filled)))
    title = f"{short_line(table.title)}:\n\n" if table.title else ""
    return title + "\n\n".join(parts)


def _line(table: Table, row: Sequence[str], widths: Sequence[int], columns: Sequence[int]) -> str:
    cells = (f"{row[column]:{'>' if table.columns[column] == 'r' else '<'}{widths[column]}}" for column in columns)
    return "  ".join(cells).rstrip()


def _parts(table: Table, widths: Sequence[int], limit: int) -> list[list[int]]:
    """Return the columns of each part of a table; every part begins with the columns left of the first number."""
    indices = list(range(len(table.columns)))
    if not limit or "p" in table.columns or sum(widths) + 2 * len(widths) <= limit:
        return [indices]
    names = [column for column in indices if "r" not in table.columns[: column + 1]]
    parts = [list(names)]
    for column in indices[len(names) :]:
        if sum(widths[index] + 2 for index in (*parts[-1], column)) > limit and len(parts[-1]) > len(names):
            parts.append(list(names))
        parts[-1].append(column)
    return parts
