"""Words to ids: vocabularies as torchtext builds them, and the splits of a corpus as arrays of ids."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.experiments.serialization import canonical_json
from impls.contract import EOS, SOS, SPECIAL_TOKENS, UNK, Ids


@dataclass(frozen=True)
class Split:
    """The pairs of one split as ids.

    `left_out` pairs were longer than allowed and are not here (training); `cut` sentences were longer than allowed and
    end early (validation and test).

    Shapes: each array of `source` and `target` is [length], `<sos>` words `<eos>`.
    """

    source: list[Ids]
    target: list[Ids]
    left_out: int = 0
    cut: int = 0

    def __len__(self) -> int:
        return len(self.source)


def build(*sides: Iterable[Sequence[str]], minimum_frequency: int) -> tuple[str, ...]:
    """Return the special words and every word seen at least `minimum_frequency` times on all `sides` together.

    Ordered by count, then alphabetically. A word of the text that is spelled like a special word is no entry of its
    own: it is unknown, so that no text can end a sentence early.

    Source: torchtext 0.6.0, `Field(init_token="<sos>", eos_token="<eos>").build_vocab(min_freq=minimum_frequency)`.
    """
    counts = Counter(word for side in sides for sentence in side for word in sentence)
    for word in SPECIAL_TOKENS:
        del counts[word]
    kept = [word for word, count in counts.items() if count >= minimum_frequency]
    return SPECIAL_TOKENS + tuple(sorted(kept, key=lambda word: (-counts[word], word)))


def encode(sentences: Iterable[Sequence[str]], words: Sequence[str]) -> list[Ids]:
    """Return `<sos>` words `<eos>` of each sentence; a word that is not in `words`, or spelled like a special, is 0."""
    ids = {word: number for number, word in enumerate(words)}
    for word in SPECIAL_TOKENS:
        ids[word] = UNK
    return [np.array([SOS, *(ids.get(word, UNK) for word in one), EOS], dtype=np.int32) for one in sentences]


def leave_out(source: list[Ids], target: list[Ids], max_length: int) -> Split:
    """Return the training split without the pairs of which a side is longer than `max_length`.

    Raises: ValueError where no pair is left.
    """
    kept = [row for row in range(len(source)) if max(len(source[row]), len(target[row])) <= max_length]
    if not kept:
        shortest = min(max(len(one), len(other)) for one, other in zip(source, target, strict=True))
        raise ValueError(
            f"max_length={max_length}: no training pair is that short; expected at least {shortest}, "
            "<sos> and <eos> counted"
        )
    return Split([source[row] for row in kept], [target[row] for row in kept], left_out=len(source) - len(kept))


def cut(source: list[Ids], target: list[Ids], max_length: int) -> Split:
    """Return a split whose sentences are at most `max_length` long, `<eos>` last."""
    count = sum(len(one) > max_length for one in (*source, *target))
    return Split([_cut(one, max_length) for one in source], [_cut(one, max_length) for one in target], cut=count)


def _cut(ids: Ids, max_length: int) -> Ids:
    return ids if len(ids) <= max_length else np.append(ids[: max_length - 1], np.int32(EOS))


def digest_words(words: Sequence[str]) -> str:
    """Return the SHA-256 of a vocabulary: its words in the order of their ids."""
    return hashlib.sha256(canonical_json(list(words)).encode()).hexdigest()


def digest_ids(*splits: Split) -> str:
    """Return the SHA-256 of every id of every sentence of all splits, in order, with the lengths."""
    digest = hashlib.sha256()
    for split in splits:
        for side in (split.source, split.target):
            digest.update(np.array([len(side), *map(len, side)], dtype="<i8").tobytes())
            digest.update(np.concatenate(side).astype("<i4").tobytes() if side else b"")
    return digest.hexdigest()
