"""Words to ids: vocabularies as torchtext builds them, and the splits of a corpus as arrays of ids."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from impls.contract import EOS, SOS, SPECIAL_TOKENS, UNK, Ids


@dataclass(frozen=True)
class Split:
    """The pairs of a split as ids. Shapes: each array of `source` and `target` is [length], `<sos>` words `<eos>`.

    Attributes:
        left_out: Number of pairs that were left out because a side was too long (training).
        cut: Number of sentences that were cut because they were too long (validation and test).
    """

    source: list[Ids]
    target: list[Ids]
    left_out: int = 0
    cut: int = 0

    def __len__(self) -> int:
        return len(self.source)


def build(*sides: Iterable[Sequence[str]], minimum_frequency: int) -> tuple[str, ...]:
    """Return the special words and all words that occur at least `minimum_frequency` times on all `sides` together.

    Words are ordered by count, then alphabetically. Words of the text that are spelled like a special word are left
    out and so become unknown: no text can end a sentence early.

    Source: torchtext 0.6.0, `Field(init_token="<sos>", eos_token="<eos>").build_vocab(min_freq=minimum_frequency)`.
    """
    counts = Counter(word for side in sides for sentence in side for word in sentence)
    for word in SPECIAL_TOKENS:
        del counts[word]
    frequent = [word for word, count in counts.items() if count >= minimum_frequency]
    return SPECIAL_TOKENS + tuple(sorted(frequent, key=lambda word: (-counts[word], word)))


def encode(sentences: Iterable[Sequence[str]], words: Sequence[str]) -> list[Ids]:
    """Return `<sos>` words `<eos>` of each sentence as ids; unknown words and words spelled like special ones are 0."""
    ids = {word: number for number, word in enumerate(words)} | dict.fromkeys(SPECIAL_TOKENS, UNK)
    return [np.array([SOS, *(ids.get(word, UNK) for word in sentence), EOS], dtype=np.int32) for sentence in sentences]


def leave_out(source: list[Ids], target: list[Ids], max_length: int) -> Split:
    """Return the training split without pairs that have a side of more than `max_length` ids.

    Raises: ValueError if no pair remains.
    """
    lengths = [max(map(len, pair)) for pair in zip(source, target, strict=True)]
    rows = [row for row, length in enumerate(lengths) if length <= max_length]
    if not rows:
        raise ValueError(
            f"max_length={max_length}: no training pair is that short; expected at least {min(lengths)}, "
            "<sos> and <eos> counted"
        )
    return Split([source[row] for row in rows], [target[row] for row in rows], left_out=len(source) - len(rows))


def cut(source: list[Ids], target: list[Ids], max_length: int) -> Split:
    """Return a split whose sentences are cut to `max_length` ids, the last of them `<eos>`."""
    count = sum(len(ids) > max_length for ids in (*source, *target))
    source, target = (
        [ids if len(ids) <= max_length else np.append(ids[: max_length - 1], np.int32(EOS)) for ids in side]
        for side in (source, target)
    )
    return Split(source, target, cut=count)


def digest_ids(*splits: Split) -> str:
    """Return the SHA-256 of the lengths and ids of all sentences of all splits, in order."""
    digest = hashlib.sha256()
    for split in splits:
        for side in (split.source, split.target):
            digest.update(np.array([len(side), *map(len, side)], dtype="<i8").tobytes())
            digest.update(np.concatenate(side).astype("<i4").tobytes() if side else b"")
    return digest.hexdigest()
