"""The conditions of `compare --fail-on`; test_bad_input.py has those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_cases import FIRST, SECOND, compared, save_record

from harness.analysis.comparison import Comparison
from harness.cli import fail_on


def reasons(condition: str, comparison: Comparison) -> list[str]:
    """Return why a condition holds; nothing if it does not."""
    return fail_on.holds(fail_on.read(condition), comparison)


def test_worse_needs_a_significant_difference(tmp_path: Path) -> None:
    for seed in range(3):
        save_record(tmp_path, FIRST, seed, scores={"bleu_sacre": 30.0, "chrf": 50.0})
        save_record(tmp_path, SECOND, seed, scores={"bleu_sacre": 29.0 + 0.1 * seed, "chrf": 49.0 + 2 * (seed == 1)})
    comparison = compared(tmp_path)
    assert len(reasons("bleu_sacre:worse", comparison)) == 1
    assert not reasons("chrf:worse", comparison)
    assert not reasons("bleu_sacre:worse", compared(tmp_path, SECOND, FIRST))


def test_worse_with_too_few_seeds_fails(variant_pair: Path) -> None:
    (line,) = reasons("bleu_sacre:worse", compared(variant_pair, f"{FIRST}@seed=0", f"{SECOND}@seed=0"))
    assert "unknown for B (conv_ffn): 1 seed in common, but a test needs 3" in line


def test_worse_with_the_same_difference_in_all_seeds_fails(tmp_path: Path) -> None:
    for seed in range(3):
        save_record(tmp_path, FIRST, seed, scores={"bleu_sacre": 30.0})
        save_record(tmp_path, SECOND, seed, scores={"bleu_sacre": 20.0})
    (line,) = reasons("bleu_sacre:worse", compared(tmp_path))
    assert "unknown for B (conv_ffn): All seeds have exactly the same difference" in line
    assert line.endswith(" Use bleu_sacre<NUMBER or >NUMBER")


@pytest.mark.parametrize("metric", ["brevity_penalty", "unknown_tokens", "epoch_seconds"])
def test_worse_in_a_metric_that_is_never_tested_is_refused(metric: str) -> None:
    with pytest.raises(ValueError, match=f"{metric} is not tested for significance"):
        fail_on.read(f"{metric}:worse")


def test_unknown_difference_fails(variant_pair: Path) -> None:
    save_record(variant_pair, SECOND, 1, status="diverged", scores={"bleu_sacre": None})
    (line,) = reasons("bleu_sacre<-50", compared(variant_pair))
    assert "unknown for B (conv_ffn): B: no value for seed 1 (diverged or missing)" in line
