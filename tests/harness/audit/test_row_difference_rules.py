"""The rule that rows of a controlled table differ only in the variant or in ablated fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from record_factory import record

from harness.analysis.grouping import RunTable, rows
from harness.audit import row_difference_rules
from harness.audit.table_rules import ComparedRuns
from impls.recipes import RECIPES


def differences(**sizes: dict[str, Any]) -> list[str]:
    table = rows([record(name, recipe=replace(RECIPES[name], **changes)) for name, changes in sizes.items()])
    return list(row_difference_rules.differences(ComparedRuns(RunTable("controlled", "", table), (), ())))


@pytest.mark.parametrize("width", [32, 64, 128, 192])
def test_width_that_is_reduced_for_all_variants_passes(width: int) -> None:
    assert not differences(paper={"width": width, "ffn_width": 256}, conv_ffn={"width": width, "ffn_width": 512})


def test_feed_forward_width_that_is_reduced_more_than_that_of_others_fails() -> None:
    first, second = sorted(differences(paper={"width": 32, "ffn_width": 256}, conv_ffn={"width": 32, "ffn_width": 768}))
    assert first.startswith("ffn_width=256 in paper, expected 512")
    assert second.startswith("ffn_width=768 in conv_ffn, expected 1024")
