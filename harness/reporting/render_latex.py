"""Renders the tables of a document in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.reporting.document import Block, Heading, Items, Table, Text
from harness.reporting.formatting import long_line

ESCAPES = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "{}&%$#_"},
        "\\": r"\textbackslash{}",
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
        "–": r"\textendash{}",
        "×": r"$\times$",
        "·": r"$\cdot$",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "…": r"\ldots{}",
        "▲": r"$\blacktriangle$",
        "▼": r"$\blacktriangledown$",
        "†": r"\dag{}",
        "⁇": "??",
    }
)
"""Replacements of characters that LaTeX lacks or interprets. A bracket or star after a row's end would be an option."""

LIGATURES = re.compile(r"([-',])(?=\1)")
"""Characters before the same character, which T1 fonts would set as one: a dash or a quotation mark."""


def blocks(content: Sequence[Block]) -> str:
    """Return each table as a `table` with the heading above it as caption and the sentences below it as notes.

    This needs the packages booktabs and amssymb and, for quotation marks, textcomp with T1 fonts.
    """
    parts, heading = ["% Needs \\usepackage{amssymb,booktabs} and \\usepackage[T1]{fontenc}."], ""
    for index, block in enumerate(content):
        if isinstance(block, Heading):
            heading = block.text
        elif isinstance(block, Table):
            parts.append(_table(block, block.title or heading, _sentences(content[index + 1 : index + 2])))
        elif index == 0 or not isinstance(content[index - 1], Table):
            parts += ["\n\n".join(map(escape, lines))] if (lines := _sentences([block])) else []
    return "\n\n".join(parts) + "\n"


def _sentences(content: Sequence[Block]) -> tuple[str, ...]:
    (block,) = content or (None,)
    return block.lines if isinstance(block, Items) else (block.text,) if isinstance(block, Text) else ()


def escape(text: str) -> str:
    """Return text with the special characters of LaTeX escaped, and without its ligatures, such as two hyphens."""
    return LIGATURES.sub(r"\1{}", long_line(text).translate(ESCAPES))


def _table(table: Table, caption: str, notes: Sequence[str]) -> str:
    columns = "".join(r"p{0.55\linewidth}" if kind == "p" else kind.replace("c", "l") for kind in table.columns)
    rows = [" & ".join(escape(str(cell)) for cell in row) + r" \\" for row in table.rows]
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
