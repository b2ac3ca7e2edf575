"""Alignment of the words of a translation to those of its source by attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from impls.contract import EOS, SOS, SPECIAL_TOKENS, UNK

UNKNOWN_LETTER = "⁇"
"""What detokenised text has for an unknown token."""


def align(
    weights: Any, source: str, source_tokens: Sequence[str], translation: str, tokens: Sequence[str]
) -> list[int]:
    """Return for each word of a translation the index of the source word that it attends to most.

    Args:
        weights: Cross attention, [layers,H,T,S]; the mean over layers and heads counts.
        source: The source sentence; its words are separated by spaces.
        source_tokens: The S tokens of the source.
        translation: The detokenised translation.
        tokens: Its tokens; the rows of `weights` are these, and `<eos>`.

    Returns:
        The indices; empty if the tokens do not spell the texts.
    """
    columns, rows = _words(source_tokens, source), _words(tokens, translation)
    mean = np.asarray(weights, np.float64).mean(axis=(0, 1))
    if not columns or not rows or mean.shape != (len(rows) + 1, len(columns)):
        return []
    sums = np.zeros((max(rows) + 1, max(columns) + 1))
    for row, word in enumerate(rows):
        for column, source_word in enumerate(columns):
            if source_word >= 0:
                sums[word, source_word] += mean[row, column]
    return [int(index) for index in sums.argmax(axis=1)]


def _words(tokens: Sequence[str], text: str) -> list[int]:
    """Return the index of the word of `text` that each token begins in, -1 for `<sos>` and `<eos>`."""
    words = text.casefold().split()  # in lower case, "İ" has two letters, so letters are counted after the change
    letters = [index for index, word in enumerate(words) for _ in word]
    special = {SPECIAL_TOKENS[SOS]: "", SPECIAL_TOKENS[EOS]: "", SPECIAL_TOKENS[UNK]: UNKNOWN_LETTER}
    spelled = [special.get(token, token).casefold() for token in tokens]
    if "".join(spelled) != "".join(words):
        return []
    starts = np.cumsum([0, *map(len, spelled)])
    return [letters[start] if part else -1 for start, part in zip(starts, spelled, strict=False)]
