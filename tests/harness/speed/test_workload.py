"""The sentences that are timed."""

from __future__ import annotations

import numpy as np

from harness.data.vocabulary import Split
from harness.speed.workload import spread_sentences
from impls.contract import EOS, SOS, Ids


def test_spread_sentences_cover_the_whole_split() -> None:
    ids: list[Ids] = [np.array([SOS, number, EOS], np.int32) for number in range(10, 20)]
    split = Split(ids, ids)
    assert [int(sentence[1]) for sentence in spread_sentences(split, 3)] == [10, 13, 16]
    assert len(spread_sentences(split, None)) == len(spread_sentences(split, 99)) == 10
