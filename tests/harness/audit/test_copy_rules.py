"""The rule against copies reports equal results, but not those of settings that amount to the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgeries import take
from record_folders import folder_spec, write_run
from small_runs import TINY

from harness.audit.copy_rules import copies
from harness.audit.run_folder import AuditContext, StoredRun, read, run_names
from harness.audit.table_rules import comparisons
from harness.data.dataset import Dataset, prepare
from harness.data.vocabulary import Split
from harness.storage.run_store import Hypothesis

pytestmark = pytest.mark.usefixtures("cache")


def faults(results: Path) -> list[str]:
    context = AuditContext()
    runs: list[StoredRun] = [read(results, name, context) for name in run_names(results)]
    (table,) = comparisons(runs, per_budget=True)
    return list(copies(table))


@pytest.mark.parametrize(
    ("changes", "are_copies"),
    [
        ({"norm": "none", "norm_order": "pre"}, False),
        ({"norm": "none", "norm_epsilon": 1e-3}, False),
        ({"norm": "none", "attention_dropout": TINY.dropout}, False),
        ({"norm": "none", "activation_dropout": TINY.dropout}, False),
        ({"norm": "none", "head_width": TINY.width // TINY.heads}, False),
        ({"norm": "none", "attention_dropout": 0.5}, True),
        ({"norm": "layernorm", "norm_order": "pre"}, True),
    ],
)
def test_copies_equal_runs_are_reported_unless_their_settings_amount_to_the_same(
    tmp_path: Path, changes: dict[str, Any], are_copies: bool
) -> None:
    base = replace(TINY, norm=changes["norm"])
    for recipe in (base, replace(base, **changes)):
        write_run(tmp_path, replace(folder_spec("learned_positions", 0), recipe=recipe))
    assert bool(faults(tmp_path)) == are_copies


def first_sentences(prepared: Dataset, count: int) -> Dataset:
    """Return a dataset with the first sentences of the test set only."""
    tests = ("test_source_text", "test_target_text", "test_target_tokens", "test_target_moses")
    return replace(
        prepared,
        test=Split(prepared.test.source[:count], prepared.test.target[:count]),
        **{name: getattr(prepared, name)[:count] for name in tests},
    )


@pytest.mark.parametrize(("equal", "are_copies"), [(2, False), (3, True)])
def test_copies_few_equal_losses_of_a_small_test_set_are_chance(tmp_path: Path, equal: int, are_copies: bool) -> None:
    specs = [folder_spec("learned_positions", seed) for seed in (0, 1)]
    for spec in specs:
        write_run(tmp_path, spec, first_sentences(prepare(spec.data), 40))
    take("nats", share=equal / 40)(tmp_path)
    assert any(f"losses in {equal} of 40 sentences" in fault for fault in faults(tmp_path)) == are_copies


@pytest.mark.parametrize(
    ("sentences", "repeated", "are_copies"),
    [(40, 0, True), (4, 0, False), (40, 30, False)],
    ids=["copied", "few sentences", "the same translation of most sentences"],
)
def test_copies_translations_are_reported_if_many_that_occur_once_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: int, repeated: int, are_copies: bool
) -> None:
    def translations(prepared: Dataset, noise: np.random.Generator, right: float) -> list[Hypothesis]:
        own = int(noise.integers(10**6)) if repeated else 0
        words = ["x"] * repeated + [f"x{own + number}" for number in range(repeated, sentences)]
        return [Hypothesis(number, (word,), word) for number, word in enumerate(words)]

    monkeypatch.setattr("record_folders.translations", translations)
    specs = [folder_spec("learned_positions", seed) for seed in (0, 1)]
    prepared = first_sentences(prepare(specs[0].data), sentences)
    for spec in specs:
        write_run(tmp_path, spec, prepared)
    assert any("translations" in fault for fault in faults(tmp_path)) == are_copies
