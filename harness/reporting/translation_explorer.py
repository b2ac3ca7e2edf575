"""The data of a page's translation explorer: the translations of every sentence, compressed, and their disagreement."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROOM_BYTES = 1_250_000
"""The size of the compressed translations of a page, at most."""
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
class Explorer:
    """The explorer of one test set.

    Attributes:
        data: The input of the script.
        examples: The sentences that the page shows without scripts.
        seeds_left_out: Whether seeds after those of `data` did not fit.
        sentences_left_out: How many sentences did not fit.
    """

    data: dict[str, Any]
    examples: list[dict[str, Any]]
    seeds_left_out: bool
    sentences_left_out: int


def explorer(
    by_seed: Iterable[Sequence[TranslationColumn]],
    *,
    source: Sequence[str] = (),
    reference: Sequence[str] = (),
    room_bytes: int = ROOM_BYTES,
) -> Explorer | None:
    """Return the explorer of some translations; None if no two of them have the same seed.

    Args:
        by_seed: The translations of each seed. When the room is used up, the following ones are not read.
        source: The source sentences; empty if the page may not show them.
        reference: The reference translations; empty if the page may not show them.
        room_bytes: The largest size of the compressed data. If the first seed is larger, the last sentences are left
            out.
    """
    columns, used, seeds_left_out = list[TranslationColumn](), 0, False
    for same in by_seed:
        texts = ((), ()) if columns else (source, reference)
        used += len(packed(_data(same, _numbers(same), *texts)))
        if columns and used > room_bytes:
            seeds_left_out = True
            break
        columns += same
    numbers = _numbers(columns)
    total, data = len(numbers), _data(columns, numbers, source, reference)
    while numbers and (size := len(packed(data))) > room_bytes:
        numbers = numbers[: min(len(numbers) - 1, int(0.95 * len(numbers) * room_bytes / size))]
        data = _data(columns, numbers, source, reference)
    if not numbers or max(Counter(column.seed for column in columns).values()) < 2:
        return None
    data["disagreement"] = []
    for seed in data["seeds"]:
        translations = [side["text"] for side in data["sides"] if side["seed"] == seed]
        data["disagreement"].append([_disagreement(of_sentence) for of_sentence in zip(*translations, strict=True)])
    return Explorer(data, _examples(data), seeds_left_out, total - len(numbers))


def _examples(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    shares = data["disagreement"][0]
    sides = [side for side in data["sides"] if side["seed"] == data["seeds"][0]]
    return [
        {
            "number": data["numbers"][index],
            "disagreement": shares[index],
            "source": data["source"][index] if data["source"] else "",
            "reference": data["reference"][index] if data["reference"] else "",
            "translations": [(side["label"], side["text"][index]) for side in sides if side["text"][index] is not None],
        }
        for index in sorted(range(len(shares)), key=lambda index: -shares[index])[:STATIC_EXAMPLES]
    ]


def packed(data: Any) -> str:
    """Return the data as JSON, compressed with gzip, as base64; the same data give the same text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _numbers(columns: Sequence[TranslationColumn]) -> list[int]:
    return sorted({number for column in columns for number in column.sentences})


def _data(
    columns: Sequence[TranslationColumn], numbers: Sequence[int], source: Sequence[str], reference: Sequence[str]
) -> dict[str, Any]:
    """Return the input of the script, with the sentences in the order of `numbers`."""
    sides = [
        {
            "label": column.label,
            "seed": column.seed,
            "text": [column.sentences.get(number) for number in numbers],
            "chrf": [column.chrf[number] for number in numbers] if len(column.chrf) > max(numbers, default=0) else [],
            "aligned": {str(number): list(words) for number, words in column.aligned.items()},
        }
        for column in columns
    ]
    return {
        "numbers": list(numbers),
        "sides": sides,
        "source": [_line(source, number) for number in numbers] if source else [],
        "reference": [_line(reference, number) for number in numbers] if reference else [],
        "seeds": sorted({column.seed for column in columns}),
        "attended": sorted({number for column in columns for number in column.aligned}),
    }


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


def _disagreement(texts: Sequence[str | None]) -> int:
    """Return the mean over pairs of texts of the percentage of words that they do not have in common.

    A word includes the punctuation after it, also after a space.
    """
    lines = [" ".join(text.split()) for text in texts if text is not None]
    bags = [re.sub(r" (?=[.,!?;:]+( |$))", "", line).split() for line in lines]
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
