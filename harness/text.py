"""Text as a terminal may be given it: nothing in a name, a reason or a translation is obeyed or hidden by it."""

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
