"""A prepared corpus on its way to another machine, which then needs neither its text nor the same tokenizers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from harness.data import cache
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import DataSpec

Handed = tuple[dict[str, Any], dict[str, bytes]]
"""The description and the files of a cache entry."""


def pack(data: DataSpec, key: str) -> Handed:
    """Return the cache entry `key`, which `data` has been prepared as. Raises: ValueError where it is gone."""
    found = cache.read_entry(cache.folder() / "prepared" / key)
    if found is None:
        raise ValueError(f"the prepared corpus {data.corpus} is gone from the cache folder {cache.folder()}")
    return found


def unpack(data: DataSpec, handed: Handed) -> None:
    """Put a packed corpus where `prepare(data)` looks first. Raises: ValueError where the cache cannot be written."""
    cache.write_entry(_entry(data), *handed)


def find(data: DataSpec) -> Handed | None:
    """Return what was unpacked for `data` on this machine, or None."""
    return cache.read_entry(_entry(data))


def _entry(data: DataSpec) -> Path:
    return cache.folder() / "handed" / hashlib.sha256(canonical_json(to_json(data)).encode()).hexdigest()
