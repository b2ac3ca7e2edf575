"""Warnings about values that are possible but unlikely."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from record_factory import record

from harness.audit.plausibility_rules import loss_gap
from harness.audit.run_folder import AuditContext, Skipped, StoredRun
from harness.experiments.specs import DataSpec, FileSpec

FILES = FileSpec(train_source="train.tsv", validation_source="valid.tsv", test_source="news.tsv")


def with_a_high_test_loss(data: DataSpec) -> StoredRun:
    run = record(data=data)
    run = replace(run, scores=run.scores | {"test_loss": (run.scores["test_loss"] or 0.0) + 0.5})
    return StoredRun(Path("results"), run.id, AuditContext(), parsed=run)


@pytest.mark.parametrize("data", [DataSpec(), DataSpec(corpus="captions")])
def test_loss_gap_warns_where_test_and_validation_set_are_alike(data: DataSpec) -> None:
    (warning,) = loss_gap(with_a_high_test_loss(data))
    assert warning.startswith("test_loss=")


@pytest.mark.parametrize("data", [DataSpec(test_split="test_2017_mscoco"), DataSpec(corpus="files", files=FILES)])
def test_loss_gap_is_skipped_where_the_test_set_may_be_harder(data: DataSpec) -> None:
    with pytest.raises(Skipped, match="harder"):
        list(loss_gap(with_a_high_test_loss(data)))
