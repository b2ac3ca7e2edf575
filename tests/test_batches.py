"""Batches: every pair once, reproducible from (seed, epoch), padded right, grouped as the tutorials' test set is."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data import batches
from harness.data.vocabulary import Split
from impls.contract import EOS, PAD, SOS, Batch


def split_of(lengths: list[tuple[int, int]]) -> Split:
    """Return a split of these numbers of words, each pair recognisable by its first words."""

    def sentence(number: int, words: int) -> np.ndarray:
        return np.array([SOS, *([4 + number] * words), EOS], dtype=np.int32)

    return Split(
        [sentence(number, source) for number, (source, _) in enumerate(lengths)],
        [sentence(number, target) for number, (_, target) in enumerate(lengths)],
    )


def random_split(pairs: int, seed: int = 0) -> Split:
    random = np.random.default_rng(seed)
    source = random.integers(1, 30, pairs)
    target = np.clip(source + random.integers(-4, 5, pairs), 1, None)
    return split_of(list(zip(source.tolist(), target.tolist(), strict=True)))


def pairs_of(batch: Batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the pairs of a batch without padding, after checking how it is laid out."""
    assert batch.source.dtype == batch.target_in.dtype == batch.target_out.dtype == np.int32
    assert batch.target_in.shape == batch.target_out.shape
    found = []
    for source, given_words, wanted in zip(batch.source, batch.target_in, batch.target_out, strict=True):
        length, words = int((source != PAD).sum()), int((wanted != PAD).sum())
        assert (source[length:] == PAD).all()
        assert (wanted[words:] == PAD).all()
        assert (given_words[words:] == PAD).all()
        assert source[0] == given_words[0] == SOS
        assert source[length - 1] == wanted[words - 1] == EOS
        assert (given_words[1:words] == wanted[: words - 1]).all()
        found.append((tuple(source[:length].tolist()), (SOS, *wanted[:words].tolist())))
    for ids in (batch.source, batch.target_out):
        assert (ids != PAD).any(axis=0).all(), "a column of nothing but padding"
    return found


def all_pairs(split: Split) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    return Counter(
        (tuple(source.tolist()), tuple(target.tolist()))
        for source, target in zip(split.source, split.target, strict=True)
    )


lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(1, 9), st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_has_every_pair_once(sizes: list[tuple[int, int]], batch_size: int, seed: int, epoch: int) -> None:
    split = split_of(sizes)
    found = list(batches.training_batches(split, batch_size=batch_size, seed=seed, epoch=epoch))
    assert Counter(pair for batch in found for pair in pairs_of(batch)) == all_pairs(split)
    assert len(found) == batches.updates_per_epoch(split, batch_size)
    assert sorted(len(batch.source) for batch in found)[1:] == [batch_size] * (len(found) - 1)


@settings(max_examples=40, deadline=None)
@given(lengths, st.integers(1, 9))
def test_evaluation_has_every_pair_once_at_its_index(sizes: list[tuple[int, int]], batch_size: int) -> None:
    split = split_of(sizes)
    places: list[int] = []
    for batch, rows in batches.evaluation_batches(split, batch_size):
        for (source, target), row in zip(pairs_of(batch), rows, strict=True):
            assert source == tuple(split.source[row].tolist())
            assert target == tuple(split.target[row].tolist())
        places += rows.tolist()
    assert sorted(places) == list(range(len(split)))


def test_a_resumed_epoch_goes_on_where_it_stopped() -> None:
    split = random_split(100)
    whole = list(batches.training_batches(split, batch_size=8, seed=3, epoch=2))
    for done in (0, 1, 12, 13):
        rest = list(batches.training_batches(split, batch_size=8, seed=3, epoch=2, skip=done))
        assert [pairs_of(batch) for batch in rest] == [pairs_of(batch) for batch in whole[done:]]


def test_seed_and_epoch_each_change_the_batches() -> None:
    split = random_split(200)
    orders = {
        (seed, epoch): [pairs_of(b) for b in batches.training_batches(split, batch_size=8, seed=seed, epoch=epoch)]
        for seed, epoch in itertools.product(range(3), range(3))
    }
    for one, other in itertools.combinations(orders, 2):
        assert orders[one] != orders[other], (one, other)
        assert {frozenset(b) for b in orders[one]} != {frozenset(b) for b in orders[other]}, (one, other)


def test_pairs_are_sorted_in_pools_and_batches_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger pools pad less and batch more of the same pairs together each epoch; lengths come in any order."""
    split = random_split(4000)
    assert batches.POOL_BATCHES == 100
    found = list(batches.training_batches(split, batch_size=16, seed=0, epoch=0))
    widths = [batch.source.shape[1] for batch in found]
    rises = sum(one < other for one, other in itertools.pairwise(widths))
    assert 0.35 < rises / len(widths) < 0.65
    padding = {}
    for pool in (1, 10, 100, 1000):
        monkeypatch.setattr(batches, "POOL_BATCHES", pool)
        padding[pool] = sum(batches.padding_share(split, batch_size=16))
    assert padding[1] > 2 * padding[10] > 3 * padding[100] > 3 * padding[1000]


def test_little_is_padding() -> None:
    source, target = batches.padding_share(random_split(5000), batch_size=32)
    assert source < 0.12
    assert target < 0.08


def test_the_stream_is_the_same_on_every_machine() -> None:
    assert batches.stream_digest(random_stream(), batch_size=8, seed=1, updates=20) == STREAM


def random_stream() -> Split:
    """Return a split that no version of NumPy draws differently."""
    return split_of([(1 + number * 7 % 23, 1 + number * 5 % 19) for number in range(75)])


STREAM = "478614544d1fea2c825614f1a1b983da88d1f3d3fde313cd1adf6b30e989e4ee"


def test_stream_digest_is_that_of_the_batches_in_order() -> None:
    split = random_split(50)
    digest = hashlib.sha256()
    stream = itertools.chain.from_iterable(
        batches.training_batches(split, batch_size=8, seed=4, epoch=epoch) for epoch in range(3)
    )
    for batch in itertools.islice(stream, 17):
        for ids in (batch.source, batch.target_in, batch.target_out):
            digest.update(np.array(ids.shape, dtype="<i8").tobytes() + ids.astype("<i4").tobytes())
    assert batches.stream_digest(split, batch_size=8, seed=4, updates=17) == digest.hexdigest()


def test_stream_digest_sees_every_change() -> None:
    split = random_split(50)
    settings = {"batch_size": 8, "seed": 0, "updates": 14}
    digests = {batches.stream_digest(split, **settings)}
    for change in ({"seed": 1}, {"batch_size": 7}, {"updates": 13}):
        digests.add(batches.stream_digest(split, **{**settings, **change}))
    for side in (split.source, split.target):
        side[49][1] += 1
        digests.add(batches.stream_digest(split, **settings))
    assert len(digests) == 6


def test_evaluation_batches_are_the_tutorials() -> None:
    """torchtext's own test iterator puts the same pairs into the same batches."""
    data = pytest.importorskip("torchtext.data", reason="needs torchtext 0.6.0")
    datasets = pytest.importorskip("torchtext.datasets")
    split = random_split(700)
    fields = [(name, data.RawField()) for name in ("number", "src", "trg")]
    examples = [
        data.Example.fromlist([number, list(source[1:-1]), list(target[1:-1])], fields)
        for number, (source, target) in enumerate(zip(split.source, split.target, strict=True))
    ]
    dataset = data.Dataset(examples, fields)
    dataset.sort_key = datasets.TranslationDataset.sort_key
    iterator = data.BucketIterator(dataset, batch_size=128, train=False)
    iterator.create_batches()
    theirs = [sorted(example.number for example in batch) for batch in iterator.batches]
    assert [sorted(rows.tolist()) for _, rows in batches.evaluation_batches(split, 128)] == theirs


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("seed", -1), ("epoch", -1), ("skip", -1)])
def test_numbers_out_of_range_are_refused(name: str, value: int) -> None:
    numbers = {"batch_size": 8, "seed": 0, "epoch": 0, name: value}
    with pytest.raises(ValueError, match=f"{name}={value}: allowed is a whole number of at least"):
        next(batches.training_batches(random_split(9), **numbers))


def test_an_empty_split_has_no_stream() -> None:
    with pytest.raises(ValueError, match="pairs=0"):
        batches.stream_digest(Split([], []), batch_size=8, seed=0, updates=1)
