"""Alignment of words by attention."""

from __future__ import annotations

import numpy as np

from harness.reporting.word_alignment import align

SOURCE, SOURCE_TOKENS = "Ein Hund läuft.", ("<sos>", "ein", "hu", "nd", "läuft", ".", "<eos>")


def attention(*positions: int) -> np.ndarray:
    """Return weights [2,2,T,7], each row with most weight on one position."""
    return np.broadcast_to(0.1 + 0.3 * np.eye(7)[list(positions)], (2, 2, len(positions), 7))


def test_words_align_to_the_source_word_with_most_attention() -> None:
    weights = attention(1, 3, 4, 4, 5, 6)
    tokens = ("a", "dog", "is", "running", ".")
    assert align(weights, SOURCE, SOURCE_TOKENS, "A dog is running.", tokens) == [0, 1, 2, 2]


def test_pieces_of_a_word_add_up_and_markers_do_not_count() -> None:
    weights = attention(6, 2, 5)
    weights = weights + 0.2 * np.eye(7)[[0, 3, 0]]
    assert align(weights, SOURCE, SOURCE_TOKENS, "dogs", ("do", "gs")) == [1]


def test_unknown_tokens_have_a_letter_of_their_own() -> None:
    assert align(attention(2, 4, 6), SOURCE, SOURCE_TOKENS, "⁇ runs", ("<unk>", "runs")) == [1, 2]


def test_other_spellings_and_shapes_are_not_aligned() -> None:
    assert align(attention(2, 4, 6), SOURCE, SOURCE_TOKENS, "a cat", ("a", "dog")) == []
    assert align(attention(2, 4), SOURCE, SOURCE_TOKENS, "a dog", ("a", "dog")) == []
    assert align(attention(2, 4, 6), "Eine Katze.", SOURCE_TOKENS, "a dog", ("a", "dog")) == []


def test_letters_that_are_longer_in_lower_case_do_not_shift_the_words_after_them() -> None:
    source, tokens = "İki köpek çok hızlı .", ("<sos>", "i̇ki", "köpek", "çok", "hızlı", ".", "<eos>")
    assert align(attention(1, 2, 5, 6), source, tokens, "two dogs .", ("two", "dogs", ".")) == [0, 1, 4]
