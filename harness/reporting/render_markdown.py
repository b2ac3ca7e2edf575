"""Renders a document as Markdown. All text is escaped: no name or path becomes a link, a tag or a formula."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.reporting.document import (
    Block,
    Cell,
    Code,
    Disclosure,
    Document,
    Figure,
    Heading,
    Items,
    Links,
    Table,
    Text,
    join_blocks,
)
from harness.reporting.formatting import long_line
from harness.text import short_line

PAGE = "index.md"


def document(report: Document) -> str:
    """Return the page of a document: headline, figures, tables and links, and a list of what only the HTML page has."""
    parts: list[Block] = [Heading(report.title, 1), Text(report.headline.finding)]
    parts += [Text(line, "warning") for line in report.warnings]
    parts += [Text(line) for line in (report.headline.caveat, report.about) if line]
    page = blocks([*parts, *report.blocks]).rstrip("\n")
    disclosed = dict.fromkeys(block.summary.lower() for block in report.blocks if isinstance(block, Disclosure))
    more = f"\n\nMore in [the HTML page](index.html): {text('; '.join(disclosed))}." if disclosed else ""
    return f"{page}{more}\n"


def blocks(content: Sequence[Block]) -> str:
    """Return blocks as Markdown, without headings that have no content."""
    return join_blocks(content, _block)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {text(block.text)}"
    if isinstance(block, Text):
        return f"**{text(block.text)}**" if block.tone == "warning" else text(block.text)
    if isinstance(block, Items):
        return "\n".join(f"- {text(line)}" for line in block.lines)
    if isinstance(block, Code):
        return "\n".join(f"    {long_line(line)}" for line in block.text.split("\n"))
    if isinstance(block, Links):
        return " · ".join(f"[{text(title)}]({address})" for title, address in block.targets)
    if isinstance(block, Table):
        return _table(block.without_optional())
    if isinstance(block, Figure):
        return f"![{text(block.alt)}](figures/{block.name}.svg)\n\n{text(block.caption)}"
    return ""


def _table(table: Table) -> str:
    rows = [list(map(text, table.heads)), ["---:" if kind == "r" else "---" for kind in table.columns]]
    rows += [[_cell(cell, kind) for cell, kind in zip(row, table.columns, strict=True)] for row in table.rows]
    title = f"**{text(table.title)}**\n\n" if table.title else ""
    return title + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(cell: str | Cell, kind: str) -> str:
    return code(cell) if kind == "c" and str(cell) else text(str(cell))


def text(value: object) -> str:
    """Return `value` as running text. Special characters become entities, also for GitHub's formulas and links."""
    line = long_line(value)
    escaped = re.sub(r"[&<>$@|`*~\[\]\\#]|(?<![^\W_])_|_(?![^\W_])", lambda match: f"&#{ord(match[0])};", line)
    escaped = re.sub(r"(?i)(?<=\b)(https?|ftp|www)(?=[:.])", lambda match: f"{match[0]}&#8203;", escaped)
    return re.sub(r"^([-+]|\d+[.)])(?=\s)", lambda match: f"{match[0][:-1]}&#{ord(match[0][-1])};", escaped)


def code(value: object) -> str:
    """Return `value` as a code span in a table, whose bars are escaped, as GitHub's tables require."""
    line = short_line(str(value), longest=2_000) or " "
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{padding}{line}{padding}{fence}".replace("|", "\\|")
