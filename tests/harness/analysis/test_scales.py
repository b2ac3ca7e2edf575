"""The natural scales of metrics, and intervals on them."""

from __future__ import annotations

import math

import pytest
from evidence_factory import plain_row

from harness.analysis.metric_registry import METRICS
from harness.analysis.scales import IDENTITY, LOG, LOGIT, SCORE, Scale
from harness.analysis.statistics import compare_rows, interval


def test_scale_of_metric_is_its_natural_scale() -> None:
    assert {METRICS[name].scale for name in ("bleu_sacre", "bleu_3_individual", "chrf")} == {LOGIT}
    assert {METRICS[name].scale for name in ("test_perplexity", "epoch_seconds", "peak_memory_bytes")} == {LOG}
    assert {METRICS[name].scale for name in ("test_loss", "parameters")} == {IDENTITY}


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ((97.0, 96.0, 0.0), (97.0, 97.0, 97.0), -32.67),
        ((0.0, 7.34, 0.0), (0.23, 0.11, 0.06), 2.31),
        ((100.0, 100.0, 99.0), (99.0, 98.0, 97.0), 1.67),
    ],
)
def test_scores_at_an_end_of_the_range_are_not_analysed_as_logits(
    first: tuple[float, ...], second: tuple[float, ...], difference: float
) -> None:
    table = compare_rows([plain_row("a", *first), plain_row("b", *second)], scale=LOGIT)
    assert table.differences[0].mean == pytest.approx(difference, abs=0.01)
    assert table.remarks[-1].startswith("A score of the table lies within 0.1 of 0 or 100")
    estimated = interval(plain_row("a", *first), scale=LOGIT)
    assert 0 <= estimated.low <= estimated.high <= 100
    assert -100 <= table.differences[0].low <= table.differences[0].high <= 100


def test_interval_of_a_difference_from_zero_is_not_cut_on_one_side() -> None:
    rows = [plain_row("a", 30.0, 31.0, 32.5), plain_row("b", 0.0, 0.0, 0.0)]
    (on_scale,), (plain,) = (compare_rows(rows, scale=scale).differences for scale in (LOGIT, IDENTITY))
    assert (on_scale.mean, on_scale.low, on_scale.high) == pytest.approx((plain.mean, plain.low, plain.high))


@pytest.mark.parametrize(("worst", "scale"), [(0.09, SCORE), (0.11, LOGIT), (99.89, LOGIT), (99.91, SCORE)])
def test_logits_are_used_from_a_tenth_of_a_point_on(worst: float, scale: Scale) -> None:
    assert LOGIT.suited_to([50.0, worst]) is scale
    assert LOGIT.suited_to([math.nan, 50.0]) is LOGIT
    assert LOG.suited_to([worst]) is LOG


def test_interval_wider_than_the_range_is_transformed_and_not_clipped() -> None:
    row = plain_row("a", 60.0, 70.0, 90.0)
    on_scale, plain = interval(row, scale=LOGIT), interval(row)
    assert 0 < on_scale.low < 60 < 90 < on_scale.high < 100 < plain.high


@pytest.mark.parametrize(("scale", "level"), [(LOGIT, 35.0), (LOG, 12.0), (IDENTITY, 2.0)])
def test_natural_difference_is_shown_as_itself(scale: Scale, level: float) -> None:
    natural = scale.natural(1.5, level)
    assert float(scale.shown(natural, scale.forward(level))) == pytest.approx(1.5, rel=0.02)


def test_natural_difference_outside_the_range_raises() -> None:
    with pytest.raises(ValueError, match="a difference of 90 does not fit around a level of 35"):
        LOGIT.natural(90, 35)
