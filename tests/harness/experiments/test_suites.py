"""The suites run on the real corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.data.dataset import prepare
from harness.experiments import suites
from harness.experiments.specs import DataSpec


@pytest.mark.parametrize("variant", ["conv_ffn", "tuned"])
def test_source_budget_multi30k_has_a_vocabulary_of_the_chosen_size(
    variant: str, multi30k_folder: Path, own_cache: None
) -> None:
    spec = suites.spec(suites.SUITES["standard"], variant, budget="source", seed=0, data=DataSpec())
    data = prepare(spec.data)
    assert min(len(data.source_words), len(data.target_words)) > 4
    if "vocabulary_size" in " ".join(suites.AS_SOURCE[variant]):
        assert {len(data.source_words), len(data.target_words)} == {spec.data.vocabulary_size}
