"""What the translation explorer of a page holds: every sentence's translations, compressed, and where they disagree."""

from __future__ import annotations

import base64
import difflib
import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from harness.experiments.specs import Case

ROOM_BYTES = 1_250_000
"""What the compressed translations of a whole page may take; further seeds are left out and counted."""
SHOWN = 5
"""Sentences that stand in the page before any script runs."""


@dataclass(frozen=True)
class TranslationColumn:
    """One column of the explorer: a variant's translations with one seed, and their chrF, by sentence number."""

    label: str
    seed: int
    sentences: Mapping[int, str]
    chrf: Sequence[float] = ()


@dataclass(frozen=True)
class Example:
    """One sentence as the page shows it before any script runs; `translations`: label -> marked words."""

    number: int
    disagreement: int
    source: str
    reference: str
    translations: list[tuple[str, list[Piece]]]


@dataclass(frozen=True)
class Piece:
    """Words that are `same` as in the text compared with, or `added`, or `removed` from it."""

    kind: str
    words: str


@dataclass(frozen=True)
class Explorer:
    """The explorer of one test set: its data for the script, its first sentences, and what was left out of it."""

    sides: list[TranslationColumn]
    numbers: list[int]
    data: dict[str, Any]
    examples: list[Example]
    seeds_left_out: list[int]
    sentences_left_out: int


def explorer(
    sides: Sequence[TranslationColumn],
    *,
    source: Sequence[str] = (),
    reference: Sequence[str] = (),
    case: Case = "kept",
    room_bytes: int = ROOM_BYTES,
) -> Explorer | None:
    """Return the explorer of `sides`, or None where no two of them translate with the same seed.

    `source` and `reference` are the test set's own text, or nothing where the page may not hold it. With `case`
    "lower" words that differ in nothing else count as the same, for the models never saw it. What does not fit
    in `room_bytes` is left out: seeds from the highest on, and, with one seed left, sentences from the last on.
    """
    seeds = sorted({one.seed for one in sides})
    kept, chosen, data = list(seeds), list(sides), {}
    numbers = sorted({number for one in sides for number in one.sentences})
    total = len(numbers)
    while kept and numbers:
        chosen = [one for one in sides if one.seed in kept]
        data = _data(chosen, kept, numbers, source, reference)
        taken = len(packed(data))
        if taken <= room_bytes:
            break
        if len(kept) > 1:
            kept.pop()
        else:
            numbers = numbers[: min(len(numbers) - 1, int(0.95 * len(numbers) * room_bytes / taken))]
    if not numbers or max(sum(one.seed == seed for one in chosen) for seed in kept) < 2:
        return None
    first = [one for one in chosen if one.seed == kept[0]]
    order = sorted(zip(data["disagreement"][0], numbers, strict=True), key=lambda pair: (-pair[0], pair[1]))
    examples = [_example(number, share, first, source, reference, case) for share, number in order[:SHOWN]]
    return Explorer(chosen, numbers, data, examples, seeds[len(kept) :], total - len(numbers))


def packed(data: Mapping[str, Any]) -> str:
    """Return the data as JSON, compressed with gzip, as base64; the same data give the same text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _data(
    sides: Sequence[TranslationColumn],
    seeds: Sequence[int],
    numbers: Sequence[int],
    source: Sequence[str],
    reference: Sequence[str],
) -> dict[str, Any]:
    """Return what the script reads: the sentences of each side in the order of `numbers`."""
    source, reference = (
        [lines[number] if number < len(lines) else "" for number in numbers] if lines else []
        for lines in (source, reference)
    )
    return {
        "numbers": list(numbers),
        "sides": [
            {
                "label": side.label,
                "seed": side.seed,
                "text": [side.sentences.get(number) for number in numbers],
                "chrf": [side.chrf[number] for number in numbers] if len(side.chrf) > max(numbers) else [],
            }
            for side in sides
        ],
        "source": source,
        "reference": reference,
        "disagreement": [
            [_disagreement([side.sentences.get(number) for side in sides if side.seed == seed]) for number in numbers]
            for seed in seeds
        ],
        "seeds": list(seeds),
    }


def _disagreement(found: Sequence[str | None]) -> int:
    """Return how far translations differ, 0 to 100: the mean over pairs of the share of words they do not share."""
    bags = [Counter(one.split()) for one in found if one is not None]
    shares = []
    for first, second in combinations(bags, 2):
        total = first.total() + second.total()
        shares.append(1 - 2 * (first & second).total() / total if total else 0.0)
    return round(100 * sum(shares) / len(shares)) if shares else 0


def _example(
    number: int,
    disagreement: int,
    sides: Sequence[TranslationColumn],
    source: Sequence[str],
    reference: Sequence[str],
    case: Case,
) -> Example:
    there = [(one.label, one.sentences[number]) for one in sides if number in one.sentences]
    base = reference[number] if number < len(reference) else there[0][1]
    return Example(
        number=number,
        disagreement=disagreement,
        source=source[number] if number < len(source) else "",
        reference=reference[number] if number < len(reference) else "",
        translations=[(label, marked(base, text, case=case)) for label, text in there],
    )


def marked(base: str, other: str, *, case: Case = "kept") -> list[Piece]:
    """Return the words of `other` and what it lacks of `base`, as pieces that a page marks."""
    before, after = base.split(), other.split()
    pieces = []
    keys = [[word.lower() for word in words] if case == "lower" else words for words in (before, after)]
    for kind, low, high, start, end in difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(Piece("same", " ".join(after[start:end])))
            continue
        if high > low:
            pieces.append(Piece("removed", " ".join(before[low:high])))
        if end > start:
            pieces.append(Piece("added", " ".join(after[start:end])))
    return pieces
