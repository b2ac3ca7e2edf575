"""Plain strings for terminals and pages: no control characters, one line, counts and suggestions."""

from __future__ import annotations

import re

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for the tab and the end of a line
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # ends of lines and directions of writing
    "\ud800-\udfff\ufeff]"  # half a character, and a mark of byte order
)


def shown(text: str) -> str:
    r"""Return `text` with each character that a terminal obeys, or cannot show, as JSON writes it: \u001b.

    So what is JSON stays the same JSON. Colours of our own are put around it afterwards.
    """
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def line(text: str) -> str:
    """Return what `shown` does, on one line: no text can pass for several."""
    return shown(" ".join(text.split("\n")))


def plain(text: str, *, longest: int = 300) -> str:
    """Return `text` on one line without control characters, cut to `longest` letters."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def plain_text(line: str) -> str:
    """Return a sentence on one line, its words apart by one space, without control characters."""
    return plain(line, longest=2_000)
