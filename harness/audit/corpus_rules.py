"""Rules about known corpora: the names and digests of their files, and their numbers of sentence pairs.

They need no corpus: `harness.data.multi30k` lists the files of Multi30k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from harness.audit.run_folder import NOT_STARTED, StoredRun, skip_unless, unequal
from harness.data import multi30k
from harness.storage.records import RunRecord

PAIRS = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000, "test_2017_flickr": 1_000, "test_2017_mscoco": 461}
"""The number of sentence pairs in each split of Multi30k."""


def files(stored: StoredRun) -> Iterator[str]:
    """The files belong to the corpus, direction and test split in the settings; those of Multi30k have its digests."""
    record = stored.record
    digests = skip_unless(record.fingerprints.get("files"), "no digests of files")
    expected = _expected_digests(record)
    for name in sorted(expected.keys() - digests.keys()):
        yield f"no digest of {name}, a file of its corpus"
    for name in sorted(digests.keys() - expected.keys()):
        yield f"{name} is not a file of corpus {record.spec.data.corpus} with its direction and test split"
    for name, digest in sorted(digests.items()):
        if expected.get(name):
            yield from unequal(f"digest of {name}", digest, expected[name], "Multi30k")


def _expected_digests(record: RunRecord) -> dict[str, str]:
    """Return the files of a corpus with their digests; "" if the digest is not fixed."""
    data = record.spec.data
    if data.corpus == "multi30k":
        names = multi30k.names(data.direction, data.test_split)
        return {name: multi30k.DIGESTS[name] for pair in names.values() for name in pair}
    if data.files is not None:
        return {name: "" for name, value in asdict(data.files).items() if value}
    return {f"{split}.{language}": "" for split in ("train", "val", "test") for language in ("de", "en")}


def pairs(stored: StoredRun) -> Iterator[str]:
    """The splits of Multi30k are complete; only training pairs may be left out, as too long."""
    data, sizes = stored.record.spec.data, stored.record.sizes
    skip_unless(data.corpus == "multi30k", "not Multi30k")
    skip_unless(sizes, NOT_STARTED)
    train = min(PAIRS["train"], data.training_pairs or PAIRS["train"])
    for split, expected in {"train": train, "validation": PAIRS["val"], "test": PAIRS.get(data.test_split, 0)}.items():
        recorded = sizes.get(f"{split}_pairs", 0) + (sizes.get("train_left_out", 0) if split == "train" else 0)
        yield from unequal(f"{split} pairs", recorded, expected, "Multi30k with its settings")
