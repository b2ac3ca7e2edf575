"""Alignment of words by attention."""

from __future__ import annotations

import numpy as np
import pytest

from harness.reporting.word_alignment import align

SOURCE, SOURCE_TOKENS = "Ein Hund läuft.", ("<sos>", "ein", "hu", "nd", "läuft", ".", "<eos>")


def attention(*positions: int) -> np.ndarray:
    """Return weights [2,2,T,7], each row with most weight on one position."""
    return np.broadcast_to(0.1 + 0.3 * np.eye(7)[list(positions)], (2, 2, len(positions), 7))


PIECES = attention(6, 2, 5) + 0.2 * np.eye(7)[[0, 3, 0]]  # the pieces of a word add up, the markers do not count


@pytest.mark.parametrize(
    ("weights", "translation", "tokens", "expected"),
    [
        (attention(1, 3, 4, 4, 5, 6), "A dog is running.", ("a", "dog", "is", "running", "."), [0, 1, 2, 2]),
        (PIECES, "dogs", ("do", "gs"), [1]),
        (attention(2, 4, 6), "⁇ runs", ("<unk>", "runs"), [1, 2]),
        (attention(2, 4, 6), "a cat", ("a", "dog"), []),
        (attention(2, 4), "a dog", ("a", "dog"), []),
    ],
    ids=["most attention", "pieces", "unknown", "other spelling", "other shape"],
)
def test_words_align_to_the_source_word_with_most_attention(
    weights: np.ndarray, translation: str, tokens: tuple[str, ...], expected: list[int]
) -> None:
    assert align(weights, SOURCE, SOURCE_TOKENS, translation, tokens) == expected
    assert align(weights, "Eine Katze.", SOURCE_TOKENS, translation, tokens) == []


def test_letters_that_are_longer_in_lower_case_do_not_shift_the_words_after_them() -> None:
    source, tokens = "İki köpek çok hızlı .", ("<sos>", "i̇ki", "köpek", "çok", "hızlı", ".", "<eos>")
    assert align(attention(1, 2, 5, 6), source, tokens, "two dogs .", ("two", "dogs", ".")) == [0, 1, 4]
