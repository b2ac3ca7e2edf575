"""Comparisons of rows of runs: values against other sources, few seeds, missing runs, tables and errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from evidence_factory import NUMBERS, SENTENCES, mean, plain_row, row, rows

from harness.analysis import inference
from harness.analysis.effects import Conclusion, Difference
from harness.analysis.evidence import Evidence
from harness.analysis.scales import IDENTITY, LOG, Scale
from harness.analysis.significance import holm
from harness.analysis.statistics import bands, compare_rows, contrasts, interval

pytestmark = pytest.mark.filterwarnings("error")


def only_difference(*evidence: Evidence, **options: Any) -> Difference:
    (difference,) = compare_rows(evidence, **options).differences
    return difference


# Single values against other sources ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 5, 9])
def test_compare_rows_without_sentences_is_the_paired_t_test(n: int) -> None:
    generator = np.random.default_rng(n)
    first, second = generator.normal(31, 1, n).tolist(), generator.normal(30, 1, n).tolist()
    difference = only_difference(plain_row("first", *first), plain_row("second", *second))
    expected = scipy.stats.ttest_rel(first, second)
    low, high = expected.confidence_interval(0.95)
    assert difference.p == pytest.approx(expected.pvalue)
    assert (difference.low, difference.high) == (pytest.approx(low), pytest.approx(high))
    assert difference.basis == "seeds"
    assert difference.standard_error == pytest.approx(np.std(np.subtract(first, second), ddof=1) / math.sqrt(n))
    assert difference.degrees == n - 1


def test_compare_rows_sentence_noise_shared_by_seeds_adds_its_variance() -> None:
    generator = np.random.default_rng(5)
    of_seeds, of_sentences = generator.normal(0, 1, (4, 1)), generator.normal(0, 12, 200)
    first, second = row("first", 30 + of_seeds + of_sentences), row("second", np.full((4, 200), 30.0))
    difference = only_difference(first, second, metric=mean)
    over_seeds, shared = of_seeds.var(ddof=1) / 4, of_sentences.var(ddof=1) / 200
    assert difference.standard_error == pytest.approx(math.sqrt(over_seeds + shared))
    degrees = 3 * (difference.standard_error**2 / over_seeds) ** 1.2
    assert difference.degrees == pytest.approx(degrees, rel=1e-6)
    assert difference.high == pytest.approx(
        difference.mean + scipy.stats.t.ppf(0.975, degrees) * difference.standard_error
    )
    distance = abs(difference.mean) / difference.standard_error
    assert difference.p == pytest.approx(2 * scipy.stats.t.sf(distance, degrees))
    of_new_seed = difference.mean / (np.std(difference.values, ddof=1) * math.sqrt(1 + 1 / 4))
    assert difference.above_zero == pytest.approx(scipy.stats.t.cdf(of_new_seed, 3)), "on the same test sentences"


def test_interval_of_a_row_is_the_t_interval_of_its_mean() -> None:
    scores = np.random.default_rng(0).normal(30, 2, (5, SENTENCES))
    over_seeds = interval(replace(row("r", scores), sums=None))
    low, high = scipy.stats.t.interval(0.95, 4, scores.mean(axis=1).mean(), scipy.stats.sem(scores.mean(axis=1)))
    assert (over_seeds.low, over_seeds.high) == (pytest.approx(low), pytest.approx(high))
    assert (over_seeds.basis, over_seeds.n) == ("seeds", 5)
    assert over_seeds.remark == "Intervals cover other seeds, not other test sentences."
    with_noise = interval(row("r", scores + np.random.default_rng(1).normal(0, 30, SENTENCES)), mean)
    assert with_noise.high - with_noise.low > 3 * (high - low)


def test_compare_rows_on_the_log_scale_shows_a_difference_around_the_middle_of_its_rows() -> None:
    values = {"a": (10.0, 12.0, 15.0), "b": (11.0, 15.0, 16.0), "far": (900.0, 1_000.0, 1_200.0)}
    table = compare_rows([plain_row(label, *of_seeds) for label, of_seeds in values.items()], scale=LOG)
    first, second = np.log(values["a"]), np.log(values["b"])
    ends = scipy.stats.ttest_rel(first, second).confidence_interval(0.95)
    middle, difference = (first.mean() + second.mean()) / 2, table.between("a", "b")
    shown = [math.exp(middle + d / 2) - math.exp(middle - d / 2) for d in ((first - second).mean(), *ends)]
    assert (difference.mean, difference.low, difference.high) == pytest.approx(tuple(shown))


def test_interval_on_the_log_scale_has_the_arithmetic_mean_and_the_ends_of_logarithms() -> None:
    values = (2.0, 30.0, 500.0)
    estimated = interval(plain_row("a", *values), scale=LOG)
    ends = scipy.stats.t.interval(0.95, 2, np.log(values).mean(), scipy.stats.sem(np.log(values)))
    assert (estimated.mean, estimated.low, estimated.high) == pytest.approx((np.mean(values), *np.exp(ends)))


def test_detectable_difference_is_that_of_the_median_error_at_the_median_row() -> None:
    values = [(10.0, 12.0, 15.0), (20.0, 26.0, 40.0), (300.0, 900.0, 1_000.0)]
    table = compare_rows([plain_row(f"r{k}", *of_seeds) for k, of_seeds in enumerate(values)], base="r0", scale=LOG)
    largest = max(difference.standard_error or 0.0 for difference in table.differences)
    half, level = inference.detectable(largest, 2, 2) / 2, np.log(values[1]).mean()
    assert table.detectable == pytest.approx(math.exp(level + half) - math.exp(level - half))


# Few seeds ------------------------------------------------------------------------------------------------------------


def test_compare_rows_one_seed_is_tested_over_sentences() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.normal(40, 3, (1, 300)), generator.normal(30, 3, (1, 300))
    table = compare_rows([row("first", first), row("second", second)], mean)
    (difference,) = table.differences
    assert (difference.basis, difference.tested) == ("sentences", "sentences")
    assert difference.p == pytest.approx(1 / 10_001)
    assert difference.conclude(less_is_better=False) is Conclusion.SENTENCES_ONLY
    assert {getattr(difference, name) for name in ("low", "high", "standard_error", "above_zero")} == {None}
    assert table.remarks == ("One seed: seed noise is unknown; p-values are over these test sentences alone.",)
    same = only_difference(row("first", first), row("twin", first), metric=mean)
    assert (same.p, same.conclude(less_is_better=False)) == (1.0, Conclusion.INCONCLUSIVE)
    single = interval(row("first", first), mean)
    standard_error = (single.high - single.mean) / scipy.stats.t.ppf(0.975, 299)
    assert standard_error == pytest.approx(first.std(ddof=1) / math.sqrt(300))


def test_compare_rows_one_seed_without_sentences_is_not_tested() -> None:
    table = compare_rows([plain_row("first", 31.0), plain_row("second", 30.0)])
    (difference,) = table.differences
    assert (difference.mean, difference.low, difference.high) == (1.0, None, None)
    assert (difference.p, difference.basis) == (None, "nothing")
    assert difference.conclude(less_is_better=False) is Conclusion.NOT_TESTED
    assert table.remarks[0] == "One seed: seed noise is unknown; nothing is tested."


def test_compare_rows_two_seeds_have_values_and_no_test() -> None:
    table = compare_rows(rows(5, 2), mean)
    assert "Two seeds: both values are shown; there is no interval and no test." in table.remarks
    assert (table.tests, table.detectable, table.moderation) == (0, None, "")
    for difference in table.differences:
        assert {getattr(difference, name) for name in ("low", "high", "p", "p_holm")} == {None}
        assert (difference.tested, len(difference.values)) == ("nothing", 2)
        assert difference.conclude(less_is_better=True) is Conclusion.NOT_TESTED
    single = interval(rows(1, 2)[0], mean)
    assert (single.low, single.high, len(single.values)) == (None, None, 2)


def test_compare_rows_seeds_that_differ_alike_have_no_spread_to_test() -> None:
    difference = only_difference(plain_row("first", 30.1, 31.3, 32.7), plain_row("second", 29.1, 30.3, 31.7))
    assert difference.mean == pytest.approx(1)
    assert (difference.low, difference.high, difference.p, difference.significant) == (None, None, None, False)
    assert difference.remark == "All seeds have exactly the same difference: no spread to test."


# Missing runs and statistics ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_compare_rows_diverged_run_leaves_the_differences_of_its_row_empty(value: float | None) -> None:
    a, b, c = plain_row("a", 1.0, 2.0, 4.0), plain_row("b", 2.0, value, 3.0), plain_row("c", 0.0, 2.5, 1.0)
    table = compare_rows([a, b, c])
    without_b = only_difference(a, c)
    difference = table.between("a", "c")
    assert (difference.mean, difference.p, difference.p_holm) == (without_b.mean, without_b.p, without_b.p_holm)
    assert table.detectable == compare_rows([a, c]).detectable
    for pair in (("a", "b"), ("b", "c")):
        empty = table.between(*pair)
        assert {getattr(empty, name) for name in NUMBERS} == {None}
        assert not empty.significant
        assert empty.remark == "b: no value for seed 1 (diverged or missing)."
    assert "b: no value for seed 1 (diverged or missing); its differences stay empty." in table.remarks
    remaining = interval(b)
    assert (remaining.mean, remaining.n) == (2.5, 2)
    assert remaining.remark.startswith("b: no value for seed 1 (diverged or missing); 2 of 3 runs are in the mean.")


def test_compare_rows_statistics_of_a_diverged_run_are_not_read() -> None:
    diverged = Evidence("lost", (0, 1, 2), (None, None, None), np.full((3, SENTENCES, 2), math.nan))
    table = compare_rows([*rows(2, 3), diverged], mean)
    assert table.between("r0", "r1").basis == "seeds and sentences"
    estimated = interval(diverged, mean)
    assert estimated.mean is None
    assert estimated.remark == "lost: no value for seeds 0, 1, 2 (diverged or missing); 0 of 3 runs are in the mean."


def test_interval_of_a_single_sentence_does_not_cover_other_sentences() -> None:
    estimated = interval(Evidence("a", (0,), (1.5,), np.array([[[3.0, 2.0]]])), mean)
    assert (estimated.mean, estimated.low, estimated.basis) == (1.5, None, "nothing")


def test_compare_rows_only_common_seeds_count_and_unused_ones_are_named() -> None:
    full, shorter = rows(2, 4)
    shorter = replace(shorter.at((3, 1)), label="short")
    table = compare_rows([full, shorter], mean)
    (difference,) = table.differences
    assert (table.seeds, difference.n) == ((1, 3), 2)
    expected = [full.values[1] - shorter.values[1], full.values[3] - shorter.values[0]]
    assert difference.mean == pytest.approx(np.mean(expected))
    assert table.remarks[0] == "r0: seeds 0, 2 left out of the differences: not present in every row."
    assert "Two seeds: both values are shown; there is no interval and no test." in table.remarks


def test_compare_rows_without_common_seed_compares_nothing() -> None:
    table = compare_rows([Evidence("a", (1,), (1.0,)), Evidence("b", (2,), (1.0,))])
    assert (table.seeds, table.tests) == ((), 0)
    assert table.remarks == ("No seed is common to all rows: nothing can be compared.",)
    assert table.differences[0].mean is None
    assert table.differences[0].remark == "No common seed."


def test_compare_rows_statistics_that_do_not_give_the_metric_are_not_used() -> None:
    good, bad = rows(2, 3)
    bad = replace(bad, values=tuple(value + 1 for value in bad.values if value is not None))
    table = compare_rows([good, bad], mean)
    assert table.differences[0].basis == "seeds"
    assert "The stored statistics of r1 do not give their scores and are not used." in table.remarks


def test_compare_rows_row_without_statistics_leaves_those_of_other_rows_in_use() -> None:
    generator = np.random.default_rng(0)
    first, second, third = (
        row(label, generator.normal(30, 1, (3, SENTENCES)) + generator.normal(0, 9, SENTENCES))
        for label in ("r0", "r1", "r2")
    )
    table = compare_rows([first, second, replace(third, sums=None)], mean)
    assert [difference.basis for difference in table.differences] == ["seeds and sentences", "seeds", "seeds"]
    assert "Intervals of r2 cover other seeds, not other test sentences." in table.remarks
    over_seeds = only_difference(first, third)
    assert table.between("r0", "r2").standard_error == pytest.approx(over_seeds.standard_error)
    assert over_seeds.standard_error < only_difference(first, third, metric=mean).standard_error


# Tables ---------------------------------------------------------------------------------------------------------------


def test_compare_rows_against_a_base_corrects_for_its_own_differences_alone() -> None:
    evidence = rows(4, 5)
    all_pairs, against = (compare_rows(evidence, mean, base=base) for base in (None, "r2"))
    pairs = [(difference.first, difference.second) for difference in against.differences]
    assert pairs == [("r0", "r2"), ("r1", "r2"), ("r3", "r2")]
    for difference in against.differences:
        same = all_pairs.between(difference.first, difference.second)
        assert difference.p == pytest.approx(same.p)
        assert difference.standard_error == pytest.approx(same.standard_error)
    p_values, corrected = zip(*((difference.p, difference.p_holm) for difference in against.differences), strict=True)
    assert corrected == holm(p_values)
    with pytest.raises(KeyError, match="'r0' and 'r1'"):
        against.between("r0", "r1")


def test_contrasts_are_main_effects_and_interactions() -> None:
    generator = np.random.default_rng(2)
    labels = ("a b", "a B", "A b", "A B")
    levels = zip(labels, (30, 31, 33, 37), strict=True)
    cells = {label: generator.normal(level, 1, (4, SENTENCES)) for label, level in levels}
    weights = {
        "A": dict(zip(labels, (-0.5, -0.5, 0.5, 0.5), strict=True)),
        "A with B": dict(zip(labels, (1.0, -1.0, -1.0, 1.0), strict=True)),
        "A at b": {"A b": 1.0, "a b": -1.0},
    }
    evidence = [row(label, scores) for label, scores in cells.items()]
    main, interaction, simple = contrasts(evidence, weights, mean)
    assert main.mean == pytest.approx(sum(weights["A"][label] * cells[label].mean() for label in labels))
    assert interaction.mean == pytest.approx(3, abs=0.7)
    assert interaction.standard_error > main.standard_error
    same = compare_rows(evidence, mean).between("A b", "a b")
    assert (simple.low, simple.p) == (pytest.approx(same.low), pytest.approx(same.p))


@pytest.mark.parametrize("order", [1, -1])
def test_compare_rows_of_the_same_weights_count_as_one_in_the_moderation(order: int) -> None:
    """The same weights with beam 1 and with beam 5 are one model; so are they with the same perplexity."""
    generator = np.random.default_rng(0)
    beam_1, paper, conv, gru = (plain_row(name, *generator.normal(30, 1, 5)) for name in ("beam 1", "paper", "c", "g"))
    beam_1 = replace(beam_1, weights=frozenset({"0" * 64}))
    beam_5 = replace(beam_1, label="beam 5", values=tuple((value or 0) + 1 for value in beam_1.values))
    copy = replace(beam_1, label="copy")

    table = compare_rows([beam_1, beam_5, copy, paper][::order])
    assert "its own variance" in table.moderation, "there are two models, and four rows"
    of_two = compare_rows([beam_5, paper]).between("beam 5", "paper")
    for name in ("low", "high", "p", "degrees"):
        assert getattr(table.between("beam 5", "paper"), name) == pytest.approx(getattr(of_two, name))

    table = compare_rows([beam_1, beam_5, paper, conv, gru][::order])
    distinct = compare_rows([beam_5, paper, conv, gru])
    assert table.moderation == distinct.moderation
    assert table.between("paper", "c").p == pytest.approx(distinct.between("paper", "c").p)


# Bands ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [IDENTITY, LOG], ids=lambda scale: scale.name)
def test_bands_are_t_intervals_by_epoch_on_the_scale(scale: Scale) -> None:
    curves = [[5.0, 4.0, 500.0], [5.5, 4.1, 2.0], [4.0, 4.4, 30.0]]
    mean_by_epoch, *ends = bands(curves, scale=scale)
    natural = scale.forward(curves)
    low, high = scipy.stats.t.interval(0.95, 2, natural.mean(axis=0), scipy.stats.sem(natural))
    assert mean_by_epoch == pytest.approx(np.mean(curves, axis=0))
    assert ends == [pytest.approx(scale.inverse(low)), pytest.approx(scale.inverse(high))]


def test_bands_end_where_a_run_ends_and_need_three_runs() -> None:
    band = bands([[5.0, 4.0, 3.0], [6.0, math.nan], [4.0, None]])
    assert band[0, 0] == 5
    assert np.isnan(band).tolist() == [[False, True, True]] * 3
    for curves, means in (([[5.0, 4.0]], [5.0, 4.0]), ([[5.0], [4.0]], [4.5]), ([], [])):
        mean_by_epoch, *ends = bands(curves)
        assert mean_by_epoch.tolist() == means
        assert np.isnan(ends).all()


# Errors ---------------------------------------------------------------------------------------------------------------


def test_compare_rows_that_do_not_fit_together_raises() -> None:
    with pytest.raises(ValueError, match="statistics differ between rows: .*compare rows of one test set"):
        compare_rows([row("a", np.ones((2, 3))), row("b", np.ones((2, 4)))], mean)
    with pytest.raises(ValueError, match="base='c': the rows are a, b"):
        compare_rows([plain_row("a", 1.0), plain_row("b", 1.0)], base="c")
