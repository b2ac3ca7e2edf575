"""The data of a page's translation explorer: the translations of every sentence, compressed, and their disagreement."""

from __future__ import annotations

import base64
import difflib
import gzip
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.experiments.specs import Case

ROOM_BYTES = 1_250_000
"""The size of the compressed translations of a page, at most."""
LARGE = 4
"""The size of the texts in units of the room from which on they may not fit when compressed."""
STATIC_EXAMPLES = 3
"""The sentences that a page shows without scripts."""


@dataclass(frozen=True)
class TranslationColumn:
    """The translations of a variant with one seed, and their chrF, by sentence number.

    `aligned` has the source word of each word of a translation, for the sentences with stored attention.
    """

    label: str
    seed: int
    sentences: Mapping[int, str]
    chrf: Sequence[float] = ()
    aligned: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A sentence that the page shows without scripts; `translations` are pairs of a label and marked words."""

    number: int
    disagreement: int
    source: str
    reference: str
    translations: list[tuple[str, list[Piece]]]


@dataclass(frozen=True)
class Piece:
    """Words with their kind in comparison with another text: "same", "added" or "removed"."""

    kind: str
    words: str


@dataclass(frozen=True)
class Explorer:
    """The explorer of one test set.

    Attributes:
        data: The input of the script.
        examples: The sentences that the page shows without scripts.
        seeds_left_out: The seeds that did not fit.
        sentences_left_out: How many sentences did not fit.
    """

    data: dict[str, Any]
    examples: list[Example]
    seeds_left_out: list[int]
    sentences_left_out: int


def explorer(
    columns: Sequence[TranslationColumn],
    *,
    source: Sequence[str] = (),
    reference: Sequence[str] = (),
    case: Case = "kept",
    room_bytes: int = ROOM_BYTES,
) -> Explorer | None:
    """Return the explorer of some translations; None if no two of them have the same seed.

    Args:
        columns: The translations.
        source: The source sentences; empty if the page may not show them.
        reference: The reference translations; empty if the page may not show them.
        case: With "lower", words that differ only in case are the same, because the models see lower case.
        room_bytes: The largest size of the compressed data. The highest seeds are left out first; with one seed left,
            the last sentences.
    """
    seeds = sorted({column.seed for column in columns})
    numbers = sorted({number for column in columns for number in column.sentences})
    included, selected, data = list(seeds), list(columns), {}
    if sum(map(text_size, columns)) > LARGE * room_bytes:
        included = seeds[: most_seeds(columns, room_bytes)]
    total = len(numbers)
    while included and numbers:
        selected = [column for column in columns if column.seed in included]
        data = _data(selected, included, numbers, source, reference)
        size = len(packed(data))
        if size <= room_bytes:
            break
        if len(included) > 1:
            included = included[: min(len(included) - 1, math.ceil(len(included) * room_bytes / size))]
        else:
            numbers = numbers[: min(len(numbers) - 1, int(0.95 * len(numbers) * room_bytes / size))]
    if not numbers or max(Counter(column.seed for column in selected).values()) < 2:
        return None
    data["disagreement"] = []
    for seed in included:
        same = [column.sentences for column in selected if column.seed == seed]
        data["disagreement"].append([_disagreement([texts.get(number) for texts in same]) for number in numbers])
    first = [column for column in selected if column.seed == included[0]]
    order = sorted(zip(data["disagreement"][0], numbers, strict=True), key=lambda pair: (-pair[0], pair[1]))
    examples = [_example(number, share, first, source, reference, case) for share, number in order[:STATIC_EXAMPLES]]
    return Explorer(data, examples, seeds[len(included) :], total - len(numbers))


def text_size(column: TranslationColumn) -> int:
    """Return the number of characters of the translations."""
    return sum(map(len, column.sentences.values()))


def most_seeds(columns: Sequence[TranslationColumn], room_bytes: int) -> int:
    """Return how many seeds may fit, estimated from the first one: compressing all seeds takes seconds."""
    first = min(column.seed for column in columns)
    numbers = sorted({number for column in columns for number in column.sentences})
    data = _data([column for column in columns if column.seed == first], [first], numbers, (), ())
    return math.ceil(1.1 * room_bytes / len(packed(data)))


def packed(data: Any) -> str:
    """Return the data as JSON, compressed with gzip, as base64; the same data give the same text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _data(
    columns: Sequence[TranslationColumn],
    seeds: Sequence[int],
    numbers: Sequence[int],
    source: Sequence[str],
    reference: Sequence[str],
) -> dict[str, Any]:
    """Return the input of the script, with the sentences in the order of `numbers`."""
    sides = [
        {
            "label": column.label,
            "seed": column.seed,
            "text": [column.sentences.get(number) for number in numbers],
            "chrf": [column.chrf[number] for number in numbers] if len(column.chrf) > max(numbers) else [],
            "aligned": {str(number): list(words) for number, words in column.aligned.items()},
        }
        for column in columns
    ]
    return {
        "numbers": list(numbers),
        "sides": sides,
        "source": [_line(source, number) for number in numbers] if source else [],
        "reference": [_line(reference, number) for number in numbers] if reference else [],
        "seeds": list(seeds),
        "attended": sorted({number for column in columns for number in column.aligned}),
    }


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


def _disagreement(texts: Sequence[str | None]) -> int:
    """Return the mean over pairs of texts of the percentage of words that they do not have in common."""
    bags = [text.split() for text in texts if text is not None]
    if len(bags) < 2:
        return 0
    places = {word: place for place, word in enumerate(dict.fromkeys(word for bag in bags for word in bag))}
    counts = np.zeros((len(bags), len(places)), np.int32)  # [texts, words]
    for row, bag in zip(counts, bags, strict=True):
        for word in bag:
            row[places[word]] += 1
    common = np.zeros((len(bags), len(bags)), np.float32)
    for times in range(1, counts.max(initial=0) + 1):  # words that both texts have at least once, at least twice, ...
        at_least = (counts >= times).astype(np.float32)
        common += at_least @ at_least.T
    totals = np.add.outer(counts.sum(axis=1), counts.sum(axis=1))
    shares = np.where(totals > 0, 1 - 2 * common / np.maximum(totals, 1), 0.0)
    return round(100 * float(shares[np.triu_indices(len(bags), 1)].mean()))


def _example(
    number: int,
    disagreement: int,
    columns: Sequence[TranslationColumn],
    source: Sequence[str],
    reference: Sequence[str],
    case: Case,
) -> Example:
    texts = [(column.label, column.sentences[number]) for column in columns if number in column.sentences]
    base = reference[number] if number < len(reference) else texts[0][1]
    pieces = [(label, marked(base, text, case=case)) for label, text in texts]
    return Example(number, disagreement, _line(source, number), _line(reference, number), pieces)


def marked(base: str, text: str, *, case: Case = "kept") -> list[Piece]:
    """Return the words of `text`, and those of `base` that it lacks, with their kinds."""
    before, after = base.split(), text.split()
    keys = [[word.lower() for word in words] if case == "lower" else words for words in (before, after)]
    pieces = []
    for kind, low, high, start, end in difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(Piece("same", " ".join(after[start:end])))
            continue
        if high > low:
            pieces.append(Piece("removed", " ".join(before[low:high])))
        if end > start:
            pieces.append(Piece("added", " ".join(after[start:end])))
    return pieces
