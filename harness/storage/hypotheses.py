"""Translations of test sentences as JSON lines."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from harness.experiments.serialization import from_json
from harness.storage import files

LINE_BYTES = 2**20
SENTENCES_COUNT = 50_000
"""Limits: of a line in bytes, and of the number of test sentences."""

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_LINE = re.compile(
    rb'\{"sentence":(?:0|[1-9][0-9]{0,8}),"text":%b,"tokens":\[(?:%b(?:,%b)*+)?\]\}' % (_STRING, _STRING, _STRING)
)
"""A line of `hypotheses.jsonl` as this version writes it."""


@dataclass(frozen=True)
class Hypothesis:
    """The translation of a test sentence: as tokens without special words, and as text."""

    sentence: Annotated[int, Ge(0)]
    tokens: tuple[str, ...]
    text: str


def parse_hypotheses(content: bytes) -> list[Hypothesis]:
    """Return the translations in the content of a file. Raises: ValueError naming the first line that is not one."""
    if (lines := content.count(b"\n")) > SENTENCES_COUNT:
        raise ValueError(f"{lines:,} lines: expected at most {SENTENCES_COUNT:,}")
    translations = _as_written(content)
    for number, line in enumerate([] if translations else io.BytesIO(content or b"\n"), start=1):
        if len(line) > LINE_BYTES:
            raise ValueError(f"line {number} has {len(line):,} bytes: expected at most {LINE_BYTES:,}")
        try:
            translations.append(from_json(Hypothesis, files.parse_json(line), ""))
        except ValueError as error:
            raise ValueError(f"line {number} is not a translation ({error})") from error
    return translations


def _as_written(content: bytes) -> list[Hypothesis]:
    """Return the translations of a file as this version writes it; empty for any other, which is read line by line.

    Equal tokens are stored once, so that hundreds of runs fit in memory.
    """
    lines = content.removesuffix(b"\n").split(b"\n")
    is_written = len(max(lines, key=len)) < LINE_BYTES and all(map(_LINE.fullmatch, lines))
    if not is_written or files.SURROGATE.search(content):
        return []
    try:
        values = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return []
    return [Hypothesis(value["sentence"], tuple(map(sys.intern, value["tokens"])), value["text"]) for value in values]
