"""Tables of rows of runs: their laws, what they say, and what is tested with how many seeds."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from harness.analysis import significance, statistics
from harness.analysis.effects import Conclusion
from harness.analysis.scales import IDENTITY, LOG, LOGIT
from harness.analysis.statistics import Evidence, Method, against, bands, compare_all, contrasts, interval
from harness.evaluation import metrics

pytestmark = pytest.mark.filterwarnings("error")

Array = np.ndarray[Any, Any]
QUICK = Method(resamples=200)
SENTENCES = 40
bleu = partial(metrics.bleu_from_sums, smoothing="none")


def mean(sums: Array) -> Array:
    """A linear figure: what sentences score together, by their number."""
    found: Array = sums[..., 0] / sums[..., 1]
    return found


def row(label: str, scores: Array, seeds: Sequence[int] | None = None) -> Evidence:
    """A row of runs whose sentences score this, [n,N]."""
    sums = np.stack([scores, np.ones_like(scores)], axis=-1)
    chosen = tuple(range(len(scores)) if seeds is None else seeds)
    return Evidence(label, chosen, tuple(scores.mean(axis=1).tolist()), sums)


def figures(label: str, *values: float | None) -> Evidence:
    return Evidence(label, tuple(range(len(values))), values)


def rows(number: int, n: int, seed: int = 0, sentences: int = SENTENCES) -> list[Evidence]:
    draw = np.random.default_rng(seed)
    return [row(f"r{place}", draw.normal(30 + place / 2, 3, (n, sentences))) for place in range(number)]


def counts_of(draw: np.random.Generator, n: int, sentences: int, easier: float) -> Array:
    """BLEU's counts of runs whose seeds match n-grams a little more or less often, [n,N,10]."""
    words = draw.poisson(9, (n, sentences)) + 4
    total = words[..., None] - np.arange(4)
    skill = 1 + easier + draw.normal(0, 0.012, (n, 1, 1))
    matched = draw.binomial(total, np.clip(np.array([0.65, 0.45, 0.3, 0.2]) * skill, 0, 1))
    lengths = words[..., None] + np.concatenate(
        [np.zeros((n, sentences, 1), int), draw.integers(-1, 2, (n, sentences, 1))], -1
    )
    return np.concatenate([lengths, matched, total], axis=-1)


# Speed and bits -------------------------------------------------------------------------------------------------------


def eight_by_eight() -> list[Evidence]:
    draw, found = np.random.default_rng(0), []
    for place in range(8):
        sums = counts_of(draw, 8, 1000, place / 100)
        found.append(Evidence(f"v{place}", tuple(range(8)), tuple(bleu(sums.sum(axis=1)).tolist()), sums))
    return found


def test_eight_variants_of_eight_seeds_and_a_thousand_sentences_take_seconds_and_little_memory() -> None:
    evidence = eight_by_eight()
    tracemalloc.start()
    start = time.perf_counter()
    found = compare_all(evidence, bleu)
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.differences) == 28
    assert {one.basis for one in found.differences} == {"seeds and sentences"}
    assert found.method.resamples == 1000
    assert seconds < 20
    assert peak < 10**9


def test_the_same_input_gives_the_same_bits_and_another_seed_others() -> None:
    evidence = rows(3, 4)
    again = compare_all(evidence, mean, method=QUICK)
    assert compare_all(evidence, mean, method=QUICK) == again
    assert compare_all(evidence, mean, method=replace(QUICK, seed=1)).differences != again.differences


def test_draws_in_parts_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.random.default_rng(0).integers(1, 9, (2, 3, 50, 2)).astype(float)
    draw = partial(significance.draw_sentences, sums, mean, resamples=100, seed=3)
    flip = partial(significance.randomisation_p, sums[:, 0], [(0, 1)], mean, trials=1000, seed=3)
    whole = draw(), flip()
    monkeypatch.setattr(significance, "_CHUNK", 33 * 50)
    assert np.array_equal(draw(), whole[0])
    assert flip() == whole[1]


# Laws -----------------------------------------------------------------------------------------------------------------

samples = st.builds(rows, st.integers(2, 4), st.integers(1, 6), st.integers(0, 10**6), st.integers(2, 12))
EASY = Method(resamples=50, trials=100)
NUMBERS = ("mean", "low", "high", "standard_error", "degrees", "p", "p_holm", "above_zero")


def assert_same(one: statistics.Difference, other: statistics.Difference) -> None:
    assert (one.significant, one.wins, one.losses, one.n) == (other.significant, other.wins, other.losses, other.n)
    for name in NUMBERS:
        value = getattr(one, name)
        assert getattr(other, name) == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)), name


@settings(max_examples=40, deadline=None)
@given(samples)
def test_a_difference_the_other_way_round_is_its_negative(evidence: list[Evidence]) -> None:
    there, back = (compare_all(order, mean, method=EASY) for order in (evidence, evidence[::-1]))
    for one in there.differences:
        other = back.between(one.first, one.second)
        assert_same(one, other)
        turned = back.between(one.second, one.first)
        assert turned.label.split() == [one.second, "\N{MINUS SIGN}", one.first]
        assert (turned.wins, turned.losses) == (one.losses, one.wins)
        assert turned.mean == pytest.approx(-one.mean, rel=1e-6, abs=1e-9)  # type: ignore[operator]
        assert turned.values == pytest.approx([-value for value in one.values])
        if one.above_zero is not None:
            assert turned.above_zero == pytest.approx(1 - one.above_zero)


@settings(max_examples=40, deadline=None)
@given(samples, st.floats(-50, 50))
def test_a_constant_added_to_a_row_shifts_its_differences_alone(evidence: list[Evidence], shift: float) -> None:
    first = evidence[0]
    assert first.sums is not None
    moved = row(first.label, first.sums[..., 0] + shift)
    before, after = (compare_all([one, *evidence[1:]], mean, method=EASY) for one in (first, moved))
    for one, other in zip(before.differences, after.differences, strict=True):
        expected = shift if one.first == first.label else 0.0
        for name in ("mean", "low", "high"):
            there = getattr(one, name)
            moved_by = None if there is None else getattr(other, name) - there
            assert moved_by == (None if there is None else pytest.approx(expected, abs=1e-6))
        assert other.standard_error == (
            None if one.standard_error is None else pytest.approx(one.standard_error, abs=1e-6)
        )


@settings(max_examples=40, deadline=None)
@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(evidence: list[Evidence], chance: Any) -> None:
    mixed = chance.sample(evidence, len(evidence))
    there, back = (compare_all(order, mean, method=EASY) for order in (evidence, mixed))
    assert (there.seeds, there.tests) == (back.seeds, back.tests)
    assert there.detectable == (None if back.detectable is None else pytest.approx(back.detectable))
    for one in there.differences:
        assert_same(one, back.between(one.first, one.second))


@settings(max_examples=40, deadline=None)
@given(samples)
def test_identical_rows_do_not_differ(evidence: list[Evidence]) -> None:
    twin = replace(evidence[0], label="twin")
    one = compare_all([*evidence, twin], mean, method=EASY).between(evidence[0].label, "twin")
    assert one.mean == 0
    assert not one.significant
    assert one.p in (None, pytest.approx(1))
    if one.n >= 3:
        assert one.low is not None
        assert one.high is not None
        assert one.low <= 0 <= one.high
    assert (one.wins, one.losses) == (0, 0)


# Single figures against other sources ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 5, 9])
def test_without_sentences_interval_and_p_are_those_of_the_paired_t_test(n: int) -> None:
    draw = np.random.default_rng(n)
    first, second = draw.normal(31, 1, n).tolist(), draw.normal(30, 1, n).tolist()
    (one,) = compare_all([figures("first", *first), figures("second", *second)]).differences
    expected = scipy.stats.ttest_rel(first, second)
    low, high = expected.confidence_interval(0.95)
    assert one.p == pytest.approx(expected.pvalue)
    assert (one.low, one.high) == (pytest.approx(low), pytest.approx(high))
    assert one.basis == "seeds"
    assert one.standard_error == pytest.approx(np.std(np.subtract(first, second), ddof=1) / math.sqrt(n))


def test_what_sentences_add_is_the_covariance_of_seeds() -> None:
    """Noise that all seeds share widens the interval by its own variance, with as many degrees as there then are."""
    draw = np.random.default_rng(5)
    of_seed, of_sentence = draw.normal(0, 1, (4, 1)), draw.normal(0, 12, 200)
    first, second = row("first", 30 + of_seed + of_sentence), row("second", np.full((4, 200), 30.0))
    (one,) = compare_all([first, second], mean, method=Method(resamples=4000)).differences
    over_seeds, alike = of_seed.var(ddof=1) / 4, of_sentence.var() / 200
    assert one.standard_error == pytest.approx(math.sqrt(over_seeds + alike), rel=0.03)
    assert one.standard_error is not None
    assert one.mean is not None
    variance = one.standard_error**2
    degrees = 3 * (variance / over_seeds) ** 1.2
    assert one.degrees == pytest.approx(degrees, rel=1e-6)
    assert one.high == pytest.approx(one.mean + scipy.stats.t.ppf(0.975, degrees) * one.standard_error)
    assert one.p == pytest.approx(2 * scipy.stats.t.sf(abs(one.mean) / one.standard_error, degrees))


def test_with_one_seed_the_test_is_over_sentences_and_has_its_own_conclusion() -> None:
    draw = np.random.default_rng(1)
    first, second = draw.normal(40, 3, (1, 300)), draw.normal(30, 3, (1, 300))
    table = compare_all([row("first", first), row("second", second)], mean, method=Method(resamples=4000))
    (one,) = table.differences
    assert (one.basis, one.tested) == ("sentences", "sentences")
    assert one.p == pytest.approx(1 / 10_001)
    assert one.conclusion(less_is_better=False) is Conclusion.SENTENCES_ONLY
    assert (one.low, one.high, one.standard_error, one.above_zero) == (None, None, None, None)
    assert table.remarks == ("One seed: seed noise is unknown; p-values are over these test sentences alone.",)
    same = compare_all([row("first", first), row("twin", first)], mean).differences[0]
    assert (same.p, same.conclusion(less_is_better=False)) == (1.0, Conclusion.INCONCLUSIVE)
    alone = interval(row("first", first), mean, method=Method(resamples=4000))
    assert alone.high is not None
    assert alone.mean is not None
    error = (alone.high - alone.mean) / scipy.stats.t.ppf(0.975, 299)
    assert error == pytest.approx(first.std() / math.sqrt(300), rel=0.05)


def test_one_seed_without_sentences_has_a_mean_and_no_interval() -> None:
    table = compare_all([figures("first", 31.0), figures("second", 30.0)])
    (one,) = table.differences
    assert (one.mean, one.low, one.high, one.p, one.basis) == (1.0, None, None, None, "nothing")
    assert one.conclusion(less_is_better=False) is Conclusion.NOT_TESTED
    assert table.remarks[0] == "One seed: seed noise is unknown; nothing is tested."


def test_two_seeds_show_their_values_and_test_nothing() -> None:
    table = compare_all(rows(5, 2), mean, method=QUICK)
    assert "Two seeds: both values are shown; there is no interval and no test." in table.remarks
    assert (table.tests, table.detectable, table.moderation) == (0, None, "")
    for one in table.differences:
        assert (one.low, one.high, one.p, one.p_holm, one.tested) == (None, None, None, None, "nothing")
        assert len(one.values) == 2
        assert one.conclusion(less_is_better=True) is Conclusion.NOT_TESTED
    alone = interval(rows(1, 2)[0], mean, method=QUICK)
    assert (alone.low, alone.high, len(alone.values)) == (None, None, 2)


def test_randomisation_is_sacrebleu_s_own() -> None:
    draw = np.random.default_rng(7)
    words = [f"w{number}" for number in range(30)]
    references = [[str(word) for word in draw.choice(words, 12)] for _ in range(80)]
    systems = []
    for share in (0.25, 0.32):
        systems.append(
            [
                [str(draw.choice(words)) if draw.random() < share else word for word in sentence]
                for sentence in references
            ]
        )
    texts, reference_texts = (
        [[" ".join(one) for one in system] for system in systems],
        [" ".join(r) for r in references],
    )
    counts = [
        metrics.score(
            system,
            references,
            texts=text,
            reference_texts=reference_texts,
            moses=None,
            reference_moses=None,
            case="lower",
            unknown="never",
        ).statistics["bleu_sacre"]
        for system, text in zip(systems, texts, strict=True)
    ]
    metric = partial(metrics.score_from_sums, "bleu_sacre")
    ours = significance.randomisation_p(np.stack(counts), [(0, 1)], metric, trials=2000, seed=12345)
    named = list(zip(("first", "second"), texts, strict=True))
    theirs = PairedTest(named, {"BLEU": BLEU(lowercase=True)}, [reference_texts], test_type="ar", n_samples=2000)()[1]
    assert 0.01 < ours[0] < 0.9
    assert ours[0] == pytest.approx(theirs["BLEU"][1].p_value, abs=1.5 / 2001)


def test_randomisation_does_not_tell_a_run_from_itself() -> None:
    sums = np.ones((1, 30, 2)).repeat(2, axis=0)
    assert significance.randomisation_p(sums, [(0, 1)], mean, trials=99, seed=0) == [1.0]


def test_holm_is_the_worked_example() -> None:
    assert statistics.holm([0.01, None, 0.04, 0.03, 0.005]) == (
        pytest.approx(0.03),
        None,
        pytest.approx(0.06),
        pytest.approx(0.06),
        pytest.approx(0.02),
    )
    assert statistics.holm([0.9, 0.8]) == (1.0, 1.0)
    assert statistics.holm([]) == ()


# Cases that are no sample ---------------------------------------------------------------------------------------------


def test_a_difference_that_is_the_same_in_every_seed_has_no_spread_to_test() -> None:
    (one,) = compare_all([figures("first", 30.1, 31.3, 32.7), figures("second", 29.1, 30.3, 31.7)]).differences
    assert one.mean == pytest.approx(1)
    assert (one.low, one.high, one.p, one.significant) == (None, None, None, False)
    assert one.remark == "All seeds have exactly the same difference: no spread to test."
    assert (one.wins, one.losses) == (3, 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(3, 8), st.integers(0, 10**6))
def test_the_interval_leaves_zero_out_exactly_where_p_is_below_five_percent(number: int, n: int, seed: int) -> None:
    scores = np.random.default_rng(seed).uniform(1, 99, (number, n)) ** np.random.default_rng(seed).choice([0.5, 1])
    for scale in (IDENTITY, LOG, LOGIT):
        evidence = [figures(f"r{place}", *one) for place, one in enumerate(scores.tolist())]
        table = compare_all(evidence, scale=scale)
        for one in table.differences:
            assert one.p is not None
            assert one.low is not None
            assert one.high is not None
            assert (one.p < 0.05) == (one.low > 0 or one.high < 0)
            assert one.significant == (one.p_holm < 0.05)  # type: ignore[operator]
            assert (one.above_zero > 0.5) == (one.mean > 0)  # type: ignore[operator]


def test_holm_s_correction_decides_what_is_significant() -> None:
    near = [figures("base", 0.0, 0.0, 0.0), *(figures(f"r{k}", 1.0, 1.6, 1.2 + k) for k in range(2))]
    holm = against(near, "base").differences[0]
    bare = against(near, "base", method=Method(correction="none")).differences[0]
    assert holm.p is not None
    assert holm.p_holm is not None
    assert holm.p < 0.05 < holm.p_holm or holm.p_holm < 0.05
    assert bare.significant == (holm.p < 0.05)
    assert holm.significant == (holm.p_holm < 0.05)


def test_noise_of_sentences_that_all_seeds_share_counts_in_p_as_in_the_interval() -> None:
    draw = np.random.default_rng(0)
    shared = draw.normal(0, 40, 100)
    first, second = row("a", 31 + shared + draw.normal(0, 0.1, (6, 1))), row("b", np.full((6, 100), 30.0))
    seeds_alone = scipy.stats.ttest_rel(first.figures, second.figures).pvalue
    (one,) = compare_all([first, second], mean).differences
    assert one.p is not None
    assert one.low is not None
    assert one.high is not None
    assert seeds_alone < 1e-3, "the seeds alone would call this significant"
    assert one.p > 0.05
    assert one.low < 0 < one.high


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_diverged_run_empties_its_differences_and_says_so(value: float | None) -> None:
    evidence = [figures("a", 1.0, 2.0, 4.0), figures("b", 2.0, value, 3.0), figures("c", 0.0, 2.5, 1.0)]
    table = compare_all(evidence)
    whole = compare_all([evidence[0], evidence[2]]).between("a", "c")
    kept = table.between("a", "c")
    assert (kept.mean, kept.p, kept.p_holm) == (whole.mean, whole.p, whole.p_holm)
    for pair in (("a", "b"), ("b", "c")):
        one = table.between(*pair)
        assert {getattr(one, name) for name in NUMBERS} == {None}
        assert not one.significant
        assert one.remark == "b: no figure for seed 1 (diverged)."
    assert "b: no figure for seed 1 (diverged); its differences stay empty." in table.remarks
    alone = interval(evidence[1])
    assert (alone.mean, alone.n) == (2.5, 2)
    assert alone.remark.startswith("b: no figure for seed 1 (diverged); 2 of 3 runs are in the mean.")


def test_a_diverged_run_s_statistics_are_not_looked_at() -> None:
    kept = rows(2, 3)
    sums = np.full((3, SENTENCES, 2), math.nan)
    lost = Evidence("lost", (0, 1, 2), (None, None, None), sums)
    table = compare_all([*kept, lost], mean, method=QUICK)
    assert table.between("r0", "r1").basis == "seeds and sentences"
    assert interval(lost, mean).mean is None
    assert interval(lost, mean).remark == "lost: no figure for seeds 0, 1, 2 (diverged); 0 of 3 runs are in the mean."


def test_only_common_seeds_count_and_the_others_are_named() -> None:
    full, short = rows(2, 4)
    assert short.sums is not None
    short = Evidence("short", (3, 1), (short.figures[3], short.figures[1]), short.sums[[3, 1]])
    table = compare_all([full, short], mean, method=QUICK)
    (one,) = table.differences
    assert (table.seeds, one.n) == ((1, 3), 2)
    assert one.mean == pytest.approx(
        np.mean([full.figures[1] - short.figures[1], full.figures[3] - short.figures[0]])  # type: ignore[operator]
    )
    assert table.remarks[0] == "r0: seeds 0, 2 left out, because not every row has it."
    assert "Two seeds: both values are shown; there is no interval and no test." in table.remarks


def test_rows_without_a_common_seed_are_not_compared() -> None:
    table = compare_all([Evidence("a", (1,), (1.0,)), Evidence("b", (2,), (1.0,))])
    assert (table.seeds, table.tests) == ((), 0)
    assert table.remarks == ("No seed is common to all rows: nothing can be compared.",)
    assert table.differences[0].mean is None
    assert table.differences[0].remark == "No common seed."


def test_statistics_that_do_not_give_the_figures_are_not_used() -> None:
    good, bad = rows(2, 3)
    bad = replace(bad, figures=tuple(value + 1 for value in bad.figures if value is not None))
    table = compare_all([good, bad], mean, method=QUICK)
    assert table.differences[0].basis == "seeds"
    assert "The stored statistics of r1 do not give their figures and are not used." in table.remarks


def test_a_row_without_statistics_keeps_the_others_sentences() -> None:
    first, second, third = rows(3, 3)
    table = compare_all([first, second, replace(third, sums=None)], mean, method=QUICK)
    assert [one.basis for one in table.differences] == ["seeds and sentences", "seeds", "seeds"]
    assert "Intervals of r2 cover other seeds, not other test sentences." in table.remarks


# Tables ---------------------------------------------------------------------------------------------------------------


def test_a_table_against_one_row_is_corrected_for_its_own_differences_alone() -> None:
    evidence = rows(4, 5)
    every, some = compare_all(evidence, mean, method=QUICK), against(evidence, "r2", mean, method=QUICK)
    assert [(one.first, one.second) for one in some.differences] == [("r0", "r2"), ("r1", "r2"), ("r3", "r2")]
    for one in some.differences:
        same = every.between(one.first, one.second)
        assert one.p == pytest.approx(same.p)
        assert one.standard_error == pytest.approx(same.standard_error)
    assert [one.p_holm for one in some.differences] == pytest.approx(
        list(statistics.holm([one.p for one in some.differences]))  # type: ignore[arg-type]
    )
    with pytest.raises(KeyError, match="'r0' and 'r1'"):
        some.between("r0", "r1")


def test_contrasts_are_main_effects_and_interactions() -> None:
    draw = np.random.default_rng(2)
    labels = ("a b", "a B", "A b", "A B")
    cells = {
        label: draw.normal(value, 1, (4, SENTENCES)) for label, value in zip(labels, (30, 31, 33, 37), strict=True)
    }
    weights = {
        "A": dict(zip(labels, (-0.5, -0.5, 0.5, 0.5), strict=True)),
        "A with B": dict(zip(labels, (1.0, -1.0, -1.0, 1.0), strict=True)),
        "A at b": {"A b": 1.0, "a b": -1.0},
    }
    evidence = [row(label, one) for label, one in cells.items()]
    main, interaction, simple = contrasts(evidence, weights, mean, method=QUICK).effects
    assert main.mean == pytest.approx(sum(weights["A"][label] * cells[label].mean() for label in labels))
    assert interaction.mean == pytest.approx(3, abs=0.7)
    assert main.standard_error is not None
    assert interaction.standard_error is not None
    assert interaction.standard_error > main.standard_error
    same = compare_all(evidence, mean, method=QUICK).between("A b", "a b")
    assert (simple.low, simple.p) == (pytest.approx(same.low), pytest.approx(same.p))


def test_the_interval_of_a_row_is_that_of_its_mean() -> None:
    scores = np.random.default_rng(0).normal(30, 2, (5, SENTENCES))
    plain = replace(row("r", scores), sums=None)
    low, high = scipy.stats.t.interval(0.95, 4, scores.mean(axis=1).mean(), scipy.stats.sem(scores.mean(axis=1)))
    found = interval(plain)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert (found.basis, found.n) == ("seeds", 5)
    assert found.remark == "Intervals cover other seeds, not other test sentences."
    shared = row("r", scores + np.random.default_rng(1).normal(0, 30, SENTENCES))
    wide = interval(shared, mean)
    assert wide.high - wide.low > 3 * (found.high - found.low)  # type: ignore[operator]


def test_bands_of_positive_figures_stay_positive() -> None:
    found = bands([[500.0], [2.0], [30.0]], scale=LOG)
    assert found.low is not None
    assert found.low[0] is not None
    assert found.low[0] > 0


def test_bands_are_t_intervals_by_epoch() -> None:
    curves = [[5.0, 4.0, 3.0], [5.5, 4.1, 3.3], [4.0, 4.4, 2.0]]
    found = bands(curves)
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(curves, axis=0), scipy.stats.sem(curves))
    assert found.mean == pytest.approx(np.mean(curves, axis=0))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_bands_end_where_a_run_does_and_one_run_has_none() -> None:
    found = bands([[5.0, 4.0, 3.0], [6.0, math.nan], [4.0, None]])
    assert found.mean == (5.0, None, None)
    assert found.low is not None
    assert [value is None for value in found.low] == [False, True, True]
    assert bands([[5.0, 4.0]]) == statistics.Band((5.0, 4.0), None, None)
    assert bands([[5.0], [4.0]]) == statistics.Band((4.5,), None, None)
    assert bands([]) == statistics.Band((), None, None)


# What a caller can get wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resamples": 1}, "resamples=1 must be a whole number of at least 2"),
        ({"trials": 0}, "trials=0 must be a whole number of at least 1"),
        ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"confidence": 1.0}, "confidence=1.0 must be between 0 and 1"),
        ({"correction": "some"}, "correction='some' must be one of holm, none"),
    ],
)
def test_a_method_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Method(**settings)


def test_evidence_that_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a: seeds=\(1, 1\) has a seed twice"):
        Evidence("a", (1, 1), (1.0, 2.0))
    with pytest.raises(ValueError, match="a: 1 values for 2 seeds"):
        Evidence("a", (1, 2), (1.0,))
    with pytest.raises(ValueError, match=r"a: sums of shape \(2, 3\) for 2 seeds; expected seeds, sentences"):
        Evidence("a", (1, 2), (1.0, 2.0), np.ones((2, 3)))
    with pytest.raises(ValueError, match="label 'a' names several rows: give each row its own label"):
        compare_all([figures("a", 1.0), figures("a", 1.0)])
    with pytest.raises(ValueError, match="statistics differ between rows: .*compare rows of one test set"):
        compare_all([row("a", np.ones((2, 3))), row("b", np.ones((2, 4)))], mean)
    with pytest.raises(ValueError, match="base='c': the rows are a, b"):
        against([figures("a", 1.0), figures("b", 1.0)], "c")
    for weights in ({"c": 1.0}, {"a": 0.0}, {}):
        with pytest.raises(ValueError, match="contrast 'x' of .*: give weights to a, b"):
            contrasts([figures("a", 1.0), figures("b", 1.0)], {"x": weights})
