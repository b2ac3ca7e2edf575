"""Records survive JSON, records of version 1 are completed, and published ids do not change."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT
from small_runs import spec, through_json

from harness.experiments.specs import RunSpec
from harness.storage import files
from harness.storage.records import EpochRecord, RunRecord, epochs_from_json, record_from_json, record_schema
from impls import registry

PUBLISHED = sorted((ROOT / "results" / "published").rglob("record.json"))
EPOCH = EpochRecord(
    epoch=1,
    updates=7,
    tokens=100,
    learning_rate=0.1,
    training_loss=2.0,
    training_perplexity=None,
    validation_loss=2.5,
    validation_perplexity=12.0,
    largest_gradient_norm=1.0,
    training_seconds=3.0,
    validation_seconds=0.5,
)
SPEC = RunSpec(variant="paper", recipe=registry.recipe("paper"), training=registry.training("paper"))


def test_record_survives_json() -> None:
    record = RunRecord(id="x", spec=SPEC, status="completed", curve=(EPOCH,), scores={"a": 1.5, "b": None})
    assert record_from_json(through_json(record)) == record
    assert epochs_from_json(through_json([EPOCH, EPOCH])) == [EPOCH, EPOCH]


def test_record_of_another_schema_is_refused() -> None:
    value = through_json(RunRecord(id="x", spec=SPEC, status="completed"))
    for schema in (0, 1, None, "2"):
        with pytest.raises(ValueError, match="schema="):
            record_from_json({**value, "schema": schema})


def test_published_records_load_and_keep_their_ids() -> None:
    assert PUBLISHED
    for path in PUBLISHED:
        record = record_from_json(files.read_sealed(path))
        assert record.id == record.spec.id == path.parent.name


def test_record_schema_names_every_field_of_a_stored_record(tmp_path: Path) -> None:
    stored = through_json(RunRecord(id="x", spec=spec(), status="completed", curve=(EPOCH,)))
    assert set(record_schema()["properties"]) == {*stored, "seal"}
