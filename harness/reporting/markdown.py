"""Markdown that shows any text as it is: nothing in a name, a note or a path becomes a link, a tag or a formula."""

from __future__ import annotations

import re

from harness.text import short_line


class Markdown(str):
    """Text that is Markdown already; everything else is escaped before it enters a page."""

    __slots__ = ()


def text(value: object) -> Markdown:
    """Return `value` as running text. Special letters become entities, so GitHub's formulas and links stay off too."""
    if isinstance(value, Markdown):
        return value
    line = short_line(str(value), longest=2_000)
    escaped = re.sub(r"[&<>$@|`*~\[\]\\#]|(?<![^\W_])_|_(?![^\W_])", lambda found: f"&#{ord(found[0])};", line)
    escaped = re.sub(r"(?i)(?<=\b)(https?|ftp|www)(?=[:.])", lambda found: f"{found[0]}&#8203;", escaped)
    return Markdown(re.sub(r"^([-+]|\d+[.)])(?=\s)", lambda found: f"{found[0][:-1]}&#{ord(found[0][-1])};", escaped))


def code(value: object, *, in_table: bool = False) -> Markdown:
    """Return `value` as a code span; in a table its bars are escaped, as GitHub's tables want it."""
    line = short_line(str(value), longest=2_000) or " "
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    span = f"{fence}{padding}{line}{padding}{fence}"
    return Markdown(span.replace("|", "\\|") if in_table else span)
