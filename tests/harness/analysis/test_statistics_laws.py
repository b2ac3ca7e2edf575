"""Laws that every comparison of rows obeys, on random rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from evidence_factory import NUMBERS, mean, plain_row, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.evidence import Evidence
from harness.analysis.scales import IDENTITY, LOG, LOGIT
from harness.analysis.statistics import compare_rows

pytestmark = pytest.mark.filterwarnings("error")

tables = st.builds(rows, st.integers(2, 4), st.integers(1, 6), st.integers(0, 10**6), st.integers(2, 12))


def close(value: float | None) -> Any:
    """Return what equals a value within rounding; None equals None."""
    return None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(tables, st.randoms(use_true_random=False))
def test_compare_rows_order_of_rows_changes_at_most_signs(evidence: list[Evidence], random: Any) -> None:
    shuffled = random.sample(evidence, len(evidence))
    ordered, unordered = (compare_rows(order, mean) for order in (evidence, shuffled))
    assert (ordered.seeds, ordered.tests) == (unordered.seeds, unordered.tests)
    assert ordered.detectable == close(unordered.detectable)
    for difference in ordered.differences:
        same = unordered.between(difference.first, difference.second)
        assert (same.significant, same.n) == (difference.significant, difference.n)
        assert [getattr(same, name) for name in NUMBERS] == [close(getattr(difference, name)) for name in NUMBERS]
        opposite = unordered.between(difference.second, difference.first)
        assert opposite.label.split() == [difference.second, "\N{MINUS SIGN}", difference.first]
        assert opposite.mean == close(-difference.mean)
        assert opposite.values == pytest.approx([-value for value in difference.values])
        if difference.above_zero is not None:
            assert opposite.above_zero == pytest.approx(1 - difference.above_zero)


@settings(max_examples=40, deadline=None)
@given(tables)
def test_compare_rows_identical_rows_do_not_differ(evidence: list[Evidence]) -> None:
    twin = replace(evidence[0], label="twin")
    difference = compare_rows([*evidence, twin], mean).between(evidence[0].label, "twin")
    assert difference.mean == 0
    assert not difference.significant
    assert difference.p in (None, pytest.approx(1))
    if difference.n >= 3:
        assert difference.low <= 0 <= difference.high


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(3, 8), st.integers(0, 10**6))
def test_compare_rows_interval_excludes_zero_exactly_if_p_is_below_5_percent(number: int, n: int, seed: int) -> None:
    scores = np.random.default_rng(seed).uniform(1, 99, (number, n)) ** np.random.default_rng(seed).choice([0.5, 1])
    evidence = [plain_row(f"r{index}", *values) for index, values in enumerate(scores.tolist())]
    for scale in (IDENTITY, LOG, LOGIT):
        for difference in compare_rows(evidence, scale=scale).differences:
            assert (difference.p < 0.05) == (difference.low > 0 or difference.high < 0)
            assert difference.significant == (difference.p_holm < 0.05)
            assert (difference.above_zero > 0.5) == (difference.mean > 0)
