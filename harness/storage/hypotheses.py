"""Translations of test sentences as JSON lines."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass

from harness.storage import files
from harness.text import brief

LINE_BYTES = 2**20
SENTENCES_COUNT = 50_000
"""Limits: of a line in bytes, and of the number of test sentences."""

_STRING = rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_LINE = re.compile(
    rb'\{"sentence":(?:0|[1-9][0-9]{0,8}),"text":%b,"tokens":\[(?:%b(?:,%b)*+)?\]\}' % (_STRING, _STRING, _STRING)
)
"""A line of `hypotheses.jsonl`."""


@dataclass(frozen=True)
class Hypothesis:
    """The translation of a test sentence: as tokens without special words, and as text."""

    sentence: int
    tokens: tuple[str, ...]
    text: str


def parse_hypotheses(content: bytes) -> list[Hypothesis]:
    """Return the translations in the content of a file, whose lines must be canonical JSON, as they are written.

    Equal tokens are stored once, so that hundreds of runs fit in memory.

    Raises: ValueError if it has too many lines, or naming the first line that is not a translation.
    """
    lines = content.removesuffix(b"\n").split(b"\n")
    if len(lines) > SENTENCES_COUNT:
        raise ValueError(f"{len(lines):,} lines: expected at most {SENTENCES_COUNT:,}")
    for number, line in enumerate(lines, start=1):
        if len(line) > LINE_BYTES:
            raise ValueError(f"line {number} has {len(line):,} bytes: expected at most {LINE_BYTES:,}")
        if not _LINE.fullmatch(line) or files.SURROGATE.search(line):
            raise ValueError(f"line {number} is not a translation: {brief(line.decode(errors='replace'))}")
    try:
        values = json.loads((b"[" + b",".join(lines) + b"]").decode())
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    return [Hypothesis(value["sentence"], tuple(map(sys.intern, value["tokens"])), value["text"]) for value in values]
