"""Prepared corpora for other machines, which then need neither the text nor the same tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.data import cache
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import DataSpec

PackedCorpus = tuple[dict[str, Any], dict[str, bytes]]
"""The description and the files of a cache entry."""


def pack(data: DataSpec, key: str) -> PackedCorpus:
    """Return the cache entry `key` of a prepared corpus. Raises: ValueError if the cache no longer has it."""
    entry = cache.read_entry(cache.folder() / "prepared" / key)
    if entry is None:
        raise ValueError(
            f"the prepared corpus {data.corpus} is no longer in the cache folder {cache.folder()}: start again"
        )
    return entry


def unpack(data: DataSpec, packed: PackedCorpus) -> None:
    """Write a packed corpus into the cache, where `dataset.prepare` looks for it first. Raises: ValueError."""
    cache.write_entry(_entry(data), *packed)


def find(data: DataSpec) -> PackedCorpus | None:
    """Return the corpus that was unpacked for `data` on this machine, or None."""
    return cache.read_entry(_entry(data))


def _entry(data: DataSpec) -> Path:
    return cache.folder() / "handed" / cache.digest(canonical_json(to_json(data)).encode())
