"""Plain strings for terminals and pages: no control characters, one line, plurals and suggestions."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence

SENTENCE_CHARACTERS = 2_000
"""Sentences from untrusted files are cut to this length before they are put on a page."""

_SUGGESTION_CHARACTERS = 80
_REPR_CHARACTERS = 80

_UNSAFE = re.compile(
    # Control characters other than tab and newline; line and paragraph separators.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"
    # Writing direction, zero-width characters and soft hyphens; not (non-)joiners, which Persian and Indic words need.
    "\u00ad\u034f\u061c\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    # Fillers, which look like spaces, and invisible letters.
    "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
    # Annotations, lone surrogates, tags and further default-ignorable code points.
    "\ufff0-\ufffb\ud800-\udfff\ufe00-\ufe0e\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    # Emoji variation selectors outside emoji.
    "|(?<![\u2190-\u2bff\U0001f000-\U0001faff])\ufe0f"
)


def command_line(command: str) -> str:
    """Return a command line that works where this process was started: tox has the libraries in its own environment."""
    return f"{'tox -e harness --' if 'TOX_ENV_NAME' in os.environ else 'python -m harness'} {command}"


def printable(text: str) -> str:
    r"""Return `text` with control and invisible characters escaped as in JSON, such as \u001b.

    Tabs and newlines stay. JSON text remains valid and keeps its meaning.
    """
    return _UNSAFE.sub(lambda match: _escape(match[0]), text)


def one_line(text: str) -> str:
    """Return `printable(text)` with newlines replaced by spaces."""
    return printable(text.replace("\n", " "))


def short_line(text: str, *, longest: int = 300) -> str:
    """Return `one_line(text)` with white space collapsed, cut to `longest` characters."""
    one_line = printable(" ".join(text.split()))
    return one_line if len(one_line) <= longest else one_line[: longest - 1] + "…"


def brief(value: object) -> str:
    """Return `repr(value)`, cut to 80 characters: rejected values may be of any length."""
    text = repr(value)
    return text if len(text) <= _REPR_CHARACTERS else f"{text[: _REPR_CHARACTERS - 1]}…"


def count(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural: "1 run", "2,000 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def named_seeds(seeds: Sequence[int]) -> str:
    """Return seeds with their noun: "seed 0", "seeds 0, 1, 2"."""
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def first_few(names: Sequence[object], most: int = 3) -> str:
    """Return the first names, and the number of the others if there are several: "a, b, c and 2 more"."""
    if len(names) <= most + 1:
        return ", ".join(map(str, names))
    return f"{', '.join(map(str, names[:most]))} and {len(names) - most:,} more"


def did_you_mean(value: object, words: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """Return "; did you mean 'x'?" for the word that is closest to a value, or an empty string if none is close.

    `shown` has the text to suggest for each word, if it is not the word.
    """
    matches = difflib.get_close_matches(str(value)[:_SUGGESTION_CHARACTERS], list(words), n=1)
    return f"; did you mean {(shown or {}).get(matches[0], matches[0])!r}?" if matches else ""


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index : index + 2].hex()}" for index in range(0, len(units), 2))
