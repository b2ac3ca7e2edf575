"""A document of headings, lines and tables as text for a terminal, as Markdown and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting import markdown as markup
from harness.text import short_line

LONGEST = 4_000


@dataclass(frozen=True)
class Heading:
    """The title of what follows."""

    text: str


@dataclass(frozen=True)
class Lines:
    """Sentences or items, one a line."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads. `columns` has a letter for each: l left, r right, p running text."""

    columns: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Block = Heading | Lines | Table


def terminal(blocks: Sequence[Block]) -> str:
    """Return the document as text; no control character passes."""
    return "\n\n".join(map(_terminal, blocks)) + "\n"


def _terminal(block: Block) -> str:
    if isinstance(block, Heading):
        title = short_line(block.text, longest=LONGEST)
        return f"{title}\n{'=' * min(len(title), 100)}"
    if isinstance(block, Lines):
        return "\n".join(short_line(line, longest=LONGEST) for line in block.lines)
    rows = [tuple(short_line(cell, longest=LONGEST) for cell in row) for row in (block.heads, *block.rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    rows.insert(
        1,
        tuple(
            "─" * (len(rows[0][place]) if kind == "p" else widths[place]) for place, kind in enumerate(block.columns)
        ),
    )
    sides = [">" if kind == "r" else "<" for kind in block.columns]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown(blocks: Sequence[Block]) -> str:
    """Return the document as Markdown, every text in it as it is."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"## {markup.text(block.text)}"
    if isinstance(block, Lines):
        return "\n".join(f"- {markup.text(line)}" for line in block.lines)
    rule = ["---:" if kind == "r" else "---" for kind in block.columns]
    rows = [[markup.text(cell) for cell in row] for row in (block.heads, *block.rows)]
    rows.insert(1, [markup.Markdown(one) for one in rule])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# LaTeX ----------------------------------------------------------------------------------------------------------------

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "`": r"\textasciigrave{}",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "…": r"\ldots{}",
}
"""What stands for letters that LaTeX reads as commands or lacks; a bracket or star after a row's end is an option."""


def latex(blocks: Sequence[Block]) -> str:
    """Return the document's tables in LaTeX, each a `table` with its heading as caption and its lines below it.

    The packages booktabs and, for quotation marks, textcomp with T1 fonts are needed.
    """
    made, heading = ["% Needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}."], ""
    for place, block in enumerate(blocks):
        if isinstance(block, Heading):
            heading = block.text
        elif isinstance(block, Table):
            following = blocks[place + 1] if place + 1 < len(blocks) else None
            made.append(_latex_table(block, heading, following.lines if isinstance(following, Lines) else ()))
        elif place == 0 or not isinstance(blocks[place - 1], Table):
            made.append("\n\n".join(map(escape, block.lines)))
    return "\n\n".join(made) + "\n"


def escape(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    return re.sub(r".", lambda found: _LATEX.get(found[0], found[0]), short_line(text, longest=LONGEST))


def _latex_table(table: Table, caption: str, notes: Sequence[str]) -> str:
    columns = "".join(r"p{0.55\linewidth}" if kind == "p" else kind for kind in table.columns)
    rows = [" & ".join(map(escape, row)) + r" \\" for row in table.rows]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            *([rf"\caption{{{escape(caption)}}}"] if caption else []),
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(escape, table.heads)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *([r"\par\smallskip\footnotesize"] if notes else []),
            *(escape(line) + r"\par" for line in notes),
            r"\end{table}",
        ]
    )
