"""Rules about known corpora: the names and digests of their files, and their numbers of sentence pairs.

They need no corpus: `harness.data.multi30k` lists the files of Multi30k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from harness.audit.run_folder import Skipped, StoredRun
from harness.data import multi30k
from harness.storage.records import RunRecord

PAIRS = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000, "test_2017_flickr": 1_000, "test_2017_mscoco": 461}
"""How many sentence pairs each split of Multi30k has."""


def files(stored: StoredRun) -> Iterator[str]:
    """The files belong to the corpus, direction and test split in the settings; those of Multi30k have its digests."""
    record = stored.known
    found = record.fingerprints.get("files") or {}
    if not found:
        raise Skipped("no digests of files")
    try:
        expected = _expected(record)
    except ValueError as error:
        yield str(error)
        return
    for name in sorted(expected.keys() - found.keys()):
        yield f"no digest of {name}, a file of its settings"
    for name in sorted(found.keys() - expected.keys()):
        yield f"{name} is not a file of corpus {record.spec.data.corpus} with its direction and test split"
    for name, digest in sorted(found.items()):
        if expected.get(name) and digest != expected[name]:
            yield f"{name} begins {digest[:12]}, Multi30k's begins {expected[name][:12]}"


def _expected(record: RunRecord) -> dict[str, str]:
    """Return the files of a corpus with their digests; "" if the digest is not fixed."""
    data = record.spec.data
    if data.corpus == "multi30k":
        names = multi30k.names(data.direction, data.test_split)
        return {name: multi30k.DIGESTS[name] for pair in names.values() for name in pair}
    if data.files is not None:
        return {name: "" for name, value in asdict(data.files).items() if value}
    return {f"{split}.{language}": "" for split in ("train", "val", "test") for language in ("de", "en")}


def pairs(stored: StoredRun) -> Iterator[str]:
    """The splits of Multi30k are complete."""
    record = stored.known
    data, sizes = record.spec.data, record.sizes
    if data.corpus != "multi30k":
        raise Skipped("not Multi30k")
    if not sizes:
        raise Skipped("broke off before it began")
    train = min(PAIRS["train"], data.training_pairs or PAIRS["train"])
    for split, expected in (("train", train), ("validation", PAIRS["val"]), ("test", PAIRS.get(data.test_split, 0))):
        found = sizes.get(f"{split}_pairs", 0) + sizes.get(f"{split}_left_out", 0)
        if found != expected:
            yield f"{found:,.0f} {split} pairs, Multi30k has {expected:,} with its settings"
