"""Records survive JSON, records of other versions are refused, and published ids do not change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from places import ROOT
from record_factory import record
from small_runs import through_json

from harness.storage import files
from harness.storage.records import record_from_json

PUBLISHED = sorted((ROOT / "results" / "published").rglob("record.json"))
RECORD = replace(record(), scores={"a": 1.5, "b": None}, curve=(replace(record().curve[0], training_perplexity=None),))


def test_record_survives_json() -> None:
    assert record_from_json(through_json(RECORD)) == RECORD


def test_record_of_another_schema_is_refused() -> None:
    value = through_json(RECORD)
    for schema in (0, 1, None, "2"):
        with pytest.raises(ValueError, match="schema="):
            record_from_json({**value, "schema": schema})


def test_published_records_load_and_keep_their_ids() -> None:
    assert PUBLISHED
    for path in PUBLISHED:
        published = record_from_json(files.read_sealed(path))
        assert published.id == published.spec.id == path.parent.name
