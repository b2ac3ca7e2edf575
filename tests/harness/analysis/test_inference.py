"""The one inference of all tables: its formulas, moderation, scales and power, and how often it errs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import statistics_simulation as simulation
from hypothesis import given, settings
from hypothesis import strategies as st
from record_factory import record

from harness.analysis import inference
from harness.analysis.contrasts import AblationEffect, Contrast
from harness.analysis.effects import ASSUMPTION, CLAIM_SEEDS, LEGEND, Conclusion, assumption, conclude
from harness.analysis.grouping import groups
from harness.analysis.inference import all_pairs, infer, prior
from harness.analysis.leaderboard import MetricLeaderboard, judge, stored_sentences
from harness.analysis.metric_registry import scale_of
from harness.analysis.power import DifferenceNoise, detectable, detectable_with, seeds_needed, upper_bound
from harness.analysis.scales import IDENTITY, LOG, LOGIT
from harness.analysis.statistics import METHOD, Evidence, Method, against
from harness.evaluation import metrics
from harness.reporting.ablation_tables import effect_text

Array = np.ndarray[Any, Any]
PAIR = np.array([[1.0, -1.0]])


def table(rows: int, seeds: int, seed: int = 0, scales: Array | float = 1.0) -> Array:
    draw = np.random.default_rng(seed)
    noise = draw.standard_normal((rows, seeds)) * np.reshape(scales, (-1, 1))
    return 30 + draw.standard_normal((1, seeds)) + noise


# Formulas -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_a_pair_alone_is_the_paired_t_test(seeds: int) -> None:
    first, second = table(2, seeds, 4)
    found = infer(np.stack([first, second]), PAIR)
    expected = scipy.stats.ttest_rel(first, second)
    assert (found.estimate[0], found.p[0]) == (pytest.approx((first - second).mean()), pytest.approx(expected.pvalue))
    low, high = expected.confidence_interval(0.95)
    half = found.half_width(0.95)[0]
    assert (found.estimate[0] - half, found.estimate[0] + half) == (pytest.approx(low), pytest.approx(high))
    assert found.degrees[0] == seeds - 1


def test_noise_of_sentences_adds_variance_and_degrees() -> None:
    figures = table(2, 4)
    found, with_sentences = infer(figures, PAIR), infer(figures, PAIR, np.array([0.5]))
    total = found.standard_error**2 + 0.5
    assert with_sentences.standard_error == pytest.approx(np.sqrt(total))
    assert with_sentences.degrees == pytest.approx(3 * (total / found.standard_error**2) ** 1.2)
    assert with_sentences.above_zero == pytest.approx(found.above_zero), "a new seed has the same test sentences"


def test_the_probability_of_a_new_seed_is_student_s_prediction() -> None:
    figures = table(2, 5)
    values = figures[0] - figures[1]
    expected = scipy.stats.t.cdf(values.mean() / (values.std(ddof=1) * math.sqrt(1 + 1 / 5)), 4)
    assert infer(figures, PAIR).above_zero == pytest.approx(expected)


def test_predictions_of_a_new_seed_are_right_as_often_as_they_say() -> None:
    draw = np.random.default_rng(0)
    figures = draw.standard_normal((20_000, 2, 6)) + draw.normal(0, 4.0, (20_000, 2, 1))
    said = infer(figures[..., :5], PAIR).above_zero[:, 0]
    above = figures[:, 0, 5] > figures[:, 1, 5]
    for low in (0.1, 0.3, 0.5, 0.7, 0.9):
        chosen = np.abs(said - low) < 0.1
        assert above[chosen].mean() == pytest.approx(said[chosen].mean(), abs=0.03)


def test_fewer_than_three_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="2 seeds: inference over seeds needs at least 3"):
        infer(np.zeros((2, 2)), PAIR)


def test_tables_side_by_side_are_judged_as_each_alone() -> None:
    figures = np.stack([table(5, 3, seed, [1, 1, 1, 1, 1 + 9 * (seed % 2)]) for seed in range(6)])
    whole = infer(figures, all_pairs(5))
    for place, one in enumerate(figures):
        alone = infer(one, all_pairs(5))
        for name in ("p", "degrees", "standard_error"):
            assert getattr(whole, name)[place] == pytest.approx(getattr(alone, name))


# Moderation -----------------------------------------------------------------------------------------------------------


def test_compatible_variances_are_one_with_the_degrees_of_all_rows() -> None:
    figures = np.stack([table(7, 3, seed) for seed in range(40)])
    found = prior(figures)
    shared = np.isinf(found.degrees)
    assert 0.2 < shared.mean() < 0.8
    pooled = infer(figures[shared], all_pairs(7))
    assert (pooled.seed_degrees == 12).mean() > 0.95
    residuals = figures - figures.mean(axis=1, keepdims=True)
    residuals -= residuals.mean(axis=2, keepdims=True)
    assert found.pooled == pytest.approx((residuals**2).sum(axis=(1, 2)) / 12), "the residual mean square of the table"


def test_the_prior_is_smyth_s_where_variances_differ() -> None:
    figures = table(40, 4, 1, np.exp(np.random.default_rng(2).normal(0, 1.2, 40)))
    found = prior(figures)
    assert 0 < found.degrees < 8
    pairs = inference.variances(all_pairs(40) @ figures) / 2
    mixed = infer(figures, all_pairs(40))
    moderated = (float(found.degrees) * found.variance + 3 * np.maximum(pairs, 0.335 * found.pooled)) / (
        float(found.degrees) + 3
    )
    own = mixed.seed_degrees == 3
    assert 0 < own.mean() < 0.5, "what does not fit keeps its own variance and degrees"
    assert (mixed.deviation**2 / 2)[own] == pytest.approx(pairs[own])
    assert (mixed.deviation**2 / 2)[~own] == pytest.approx(moderated[~own], rel=1e-3)
    assert mixed.seed_degrees[~own] == pytest.approx(3 + float(found.degrees))


def test_the_trigamma_function_is_inverted() -> None:
    values = np.array([1e-3, 0.1, 1.0, 5.0, 100.0])
    assert scipy.special.polygamma(1, inference._trigamma_inverse(values)) == pytest.approx(values)


def test_few_rows_are_not_moderated() -> None:
    found = infer(table(3, 4), all_pairs(3))
    assert (found.seed_degrees == 3).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(4, 8), st.integers(3, 8), st.integers(0, 10**6))
def test_the_order_of_rows_and_their_unit_do_not_matter(rows: int, seeds: int, seed: int) -> None:
    figures = table(rows, seeds, seed)
    found, turned, scaled = (infer(one, all_pairs(rows)) for one in (figures, figures[::-1], 7 * figures))
    assert np.sort(found.p) == pytest.approx(np.sort(turned.p))
    assert scaled.p == pytest.approx(found.p)
    assert scaled.standard_error == pytest.approx(7 * found.standard_error)


# Scales ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "scale"),
    [
        ("bleu_sacre", LOGIT),
        ("bleu_3_individual", LOGIT),
        ("chrf", LOGIT),
        ("test_perplexity", LOG),
        ("training_tokens_per_second", LOG),
        ("peak_memory_bytes", LOG),
        ("test_loss", IDENTITY),
        ("parameters", IDENTITY),
    ],
)
def test_every_figure_has_its_natural_scale(figure: str, scale: object) -> None:
    assert scale_of(figure) is scale


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=3, max_size=6), st.lists(st.floats(0, 100), min_size=3, max_size=6))
def test_intervals_stay_in_the_valid_range(first: list[float], second: list[float]) -> None:
    from harness.analysis.statistics import compare_all, interval

    n = min(len(first), len(second))
    rows = [Evidence(name, tuple(range(n)), tuple(one[:n])) for name, one in (("a", first), ("b", second))]
    for row in rows:
        found = interval(row, scale=LOGIT)
        assert found.low is not None
        assert found.high is not None
        assert -1e-9 <= found.low <= found.high <= 100 + 1e-9
    (one,) = compare_all(rows, scale=LOGIT).differences
    for end in (one.low, one.high):
        assert end is None or -100 <= end <= 100


def test_a_wide_interval_of_bleu_and_perplexity_is_not_cut_but_bent() -> None:
    from harness.analysis.statistics import interval

    bleu = interval(Evidence("a", (0, 1, 2), (60.0, 70.0, 90.0)), scale=LOGIT)
    perplexity = interval(Evidence("a", (0, 1, 2), (3.0, 9.0, 30.0)), scale=LOG)
    assert bleu.high is not None
    assert perplexity.low is not None
    assert 90 < bleu.high < 100
    assert 0 < perplexity.low < 3
    plain = interval(Evidence("a", (0, 1, 2), (3.0, 9.0, 30.0)))
    assert plain.low is not None
    assert plain.low < 0, "without its scale it would leave the valid range"


def test_a_difference_on_the_scale_fits_around_a_level_or_is_refused() -> None:
    for scale, level in ((LOGIT, 35.0), (LOG, 12.0), (IDENTITY, 2.0)):
        natural = scale.natural(1.5, level)
        assert float(scale.shown(natural, scale.forward(level))) == pytest.approx(1.5, rel=0.02)
    with pytest.raises(ValueError, match="a difference of 90 does not fit around a level of 35"):
        LOGIT.natural(90, 35)


# Power ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", [2, 4, 12, 200])
@pytest.mark.parametrize("comparisons", [1, 21])
def test_what_is_detectable_is_found_in_eighty_percent(degrees: int, comparisons: int) -> None:
    limit = scipy.stats.t.ppf(1 - 0.025 / comparisons, degrees)
    found = detectable(2.0, degrees, comparisons)
    assert scipy.stats.nct.sf(limit, degrees, found / 2) == pytest.approx(0.8, abs=1e-6)
    assert detectable(1.0, 1e9, 1) == pytest.approx(1.959964 + 0.841621, abs=1e-5)


def test_the_seeds_needed_detect_the_difference_and_one_fewer_do_not() -> None:
    noise = DifferenceNoise(run_variance=0.3**2, degrees=12, sentence_variance=0.1**2)
    found = seeds_needed(noise, 0.6, 7, 21)
    assert found is not None
    assert found > 3
    assert detectable_with(noise, found, 7, 21) <= 0.6 < detectable_with(noise, found - 1, 7, 21)
    more = seeds_needed(upper_bound(noise), 0.6, 7, 21)
    assert more is not None
    assert more > found
    assert seeds_needed(noise, 0.2, 7, 21) is None, "noise of sentences alone is larger"


def test_seeds_that_are_needed_find_the_difference_in_a_simulation() -> None:
    needed, rows, draw = seeds_needed(DifferenceNoise(1.0, 100, 0.0), 2.0, 5, 1), 5, np.random.default_rng(0)
    assert needed is not None
    figures = draw.standard_normal((4000, rows, needed))
    figures[:, 0] += 2.0
    p = infer(figures, all_pairs(rows)[:1]).p
    assert 0.77 < (p < 0.05).mean() < 0.9


# States and ranks -----------------------------------------------------------------------------------------------------


def test_every_state_has_its_own_symbol_and_label() -> None:
    assert len({one.symbol for one in Conclusion}) == len({one.label for one in Conclusion}) == len(Conclusion) == 5
    assert all(f"{one.symbol} {one.label}" in LEGEND for one in Conclusion)
    given = {
        (0.5, "seeds", True, False): Conclusion.BETTER,
        (0.5, "seeds", True, True): Conclusion.WORSE,
        (-0.5, "seeds", True, True): Conclusion.BETTER,
        (0.5, "seeds", False, False): Conclusion.INCONCLUSIVE,
        (0.5, "sentences", True, False): Conclusion.SENTENCES_ONLY,
        (0.5, "sentences", False, False): Conclusion.INCONCLUSIVE,
        (0.5, "nothing", False, False): Conclusion.NOT_TESTED,
        (None, "seeds", True, False): Conclusion.NOT_TESTED,
    }
    for (mean, tested, significant, less), expected in given.items():
        found = conclude(mean, tested, significant=significant, less_is_better=less)  # type: ignore[arg-type]
        assert found is expected


def test_every_effect_carries_the_symbol_of_its_conclusion() -> None:
    contrast = Contrast((("norm", "rms"),), (("norm", "layernorm"),), {}, (0, 1), 1)
    tested = AblationEffect("validation_loss", contrast, 0.5, 0.4, 0.6, significant=True, tested="seeds")
    assert effect_text(tested) == "+0.500 (+0.400 to +0.600) ▼"
    assert effect_text(replace(tested, mean=-0.5, low=-0.6, high=-0.4)) == "−0.500 (−0.600 to −0.400) ▲"
    assert effect_text(replace(tested, low=-0.4, significant=False)) == "+0.500 (−0.400 to +0.600) ~"
    assert effect_text(replace(tested, low=None, high=None, tested="sentences")) == "+0.500 †"
    assert (
        effect_text(AblationEffect("validation_loss", contrast, 0.5, values=(0.4, 0.6)))
        == "+0.500 (seeds: +0.400; +0.600) ?"
    )
    assert effect_text(AblationEffect("validation_loss", contrast)) == "–"


def test_few_seeds_carry_the_assumption() -> None:
    assert [bool(assumption(seeds)) for seeds in (3, 5, 6, 8)] == [True, True, False, False]
    assert ASSUMPTION == "assuming normally distributed seed noise"
    assert CLAIM_SEEDS == 5


def ranked(*steps: float, seeds: int = 4) -> MetricLeaderboard:
    variants = ("learned_positions", "conv_ffn", "paper", "torch_reference", "sinusoidal_handmade")
    noise, records = np.random.default_rng(5), []
    for variant, step in zip(variants, steps, strict=False):
        for seed in range(seeds):
            one = record(variant, seed)
            one.scores["bleu_sacre"] = 30 + step + 0.1 * noise.standard_normal()
            records.append(one)
    (group,) = groups(records)
    labels = [row.label for row in group.rows]
    return judge(group, labels, stored_sentences(None), method=METHOD)["bleu_sacre"]


def test_ranks_are_intervals_and_ties_with_the_best_are_named() -> None:
    found = ranked(5.0, 4.98, 4.96, 0.0, -3.0)
    intervals = [found.rank_interval(label) for label in found.ranking]
    assert intervals == [(1, 3), (1, 3), (1, 3), (4, 4), (5, 5)]
    assert [found.tied_with_best(label) for label in found.ranking] == [False, True, True, False, False]
    assert found.against_best(found.ranking[-1]) is Conclusion.WORSE
    one_seed = ranked(5.0, 0.0, seeds=1)
    assert [one_seed.rank_interval(label) for label in one_seed.ranking] == [None, None]
    assert [one_seed.tied_with_best(label) for label in one_seed.ranking] == [False, False]
    assert one_seed.against_best(one_seed.ranking[1]) is Conclusion.NOT_TESTED


def test_a_table_says_what_it_can_detect_and_how_variances_were_estimated() -> None:
    found = ranked(0.0, 0.1, 0.2, 0.3, 0.4)
    first, second = found.notes
    assert re.fullmatch(
        r"sacreBLEU: 10 comparisons over 4 seeds, assuming normally distributed seed noise; "
        r"a true difference of 0\.\d\d is found with 80 % probability\.",
        first,
    )
    assert "empirical Bayes" in second
    assert "assuming" not in ranked(0.0, 0.1, 0.2, seeds=6).notes[0]


# How often it errs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def few() -> list[simulation.Cell]:
    """A reduced simulation: every setting, fewer tables."""
    return simulation.cells(tables=250)


def test_few_tables_without_a_difference_have_an_error(few: list[simulation.Cell]) -> None:
    for noise in simulation.NOISES:
        for seeds in simulation.SEEDS:
            same = [one for one in few if (one.noise, one.seeds) == (noise, seeds) and one.comparisons > 1]
            assert len(same) == 2 * len(simulation.RATIOS)
            # 3 standard errors of a share of 5 % in 2,500 tables.
            assert np.mean([one.family_wise for one in same]) < 0.05 + 3 * 0.0044, (noise, seeds)


def test_single_intervals_cover_in_about_95_percent(few: list[simulation.Cell]) -> None:
    for comparisons in (1, 10, 21):
        for seeds in simulation.SEEDS:
            same = [
                one.coverage for one in few if (one.noise, one.seeds, one.comparisons) == ("normal", seeds, comparisons)
            ]
            assert np.mean(same) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("fault", ["seeds alone", "no pooling"])
def test_the_simulation_notices_a_wrong_method(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    true = inference.infer

    def wrong(figures: Array, matrix: Array, of_sentences: Array | None = None) -> inference.Inference:
        return true(figures, matrix, None if fault == "seeds alone" else of_sentences, moderate=fault != "no pooling")

    monkeypatch.setattr(simulation, "infer", wrong)
    if fault == "seeds alone":
        assert simulation.cell("normal", 8, 0.5, 10, tables=1000).family_wise > 0.2
    else:
        assert simulation.cell("two-point", 3, 0.0, 21, tables=1000).coverage > 0.96


def shown(page: str, title: str) -> dict[tuple[str, int], list[float]]:
    """Return the figures of one table of the committed page."""
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.split("\n") if re.match(r"\| [a-z-]+ \| \d \|", line)]
    return {(line[0], int(line[1])): [float(cell.strip("*")) for cell in line[2:]] for line in lines}


def test_the_committed_table_is_complete_and_meets_its_bounds() -> None:
    page = simulation.PAGE.read_text(encoding="utf-8")
    assert simulation.COMMAND in page
    assert simulation.DRAWS >= 1000
    settings_ = {(noise, seeds) for noise in simulation.NOISES for seeds in simulation.SEEDS}
    for comparisons in (10, 21):
        found = shown(page, f"Family-wise error, {comparisons} comparisons")
        assert set(found) == settings_
        assert all(len(one) == len(simulation.RATIOS) for one in found.values())
        assert max(value for one in found.values() for value in one) <= 6.0
    normal = [
        value
        for title in ("a single pair", "tables of 10 comparisons", "tables of 21 comparisons")
        for (noise, _), one in shown(page, f"Coverage of 95 % intervals, {title}").items()
        for value in one
        if noise == "normal"
    ]
    assert len(normal) == 3 * 3 * 5
    assert min(normal) >= 94.0
    assert max(normal) <= 96.0


@pytest.mark.slow
def test_the_committed_table_is_what_the_simulation_gives() -> None:
    assert simulation.PAGE.read_text(encoding="utf-8") == simulation.page(simulation.cells(), simulation.unequal())


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


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5, 8])
def test_bleu_itself_keeps_to_size_and_power(n: int) -> None:
    """Counts of sentences, bootstrapped as real ones are, on the logit scale."""
    bleu = partial(metrics.bleu_from_sums, smoothing="none")
    repetitions, draw = 1500, np.random.default_rng(n)
    false, values, planted = 0, [], []
    for seed in range(repetitions):
        evidence = []
        for label, easier in (("base", 0.0), ("same", 0.0), ("better", 0.024)):
            sums = counts_of(draw, n, 300, easier)
            evidence.append(Evidence(label, tuple(range(n)), tuple(bleu(sums.sum(axis=1)).tolist()), sums))
        found = against(evidence, "base", bleu, scale=LOGIT, method=Method(resamples=300, seed=seed))
        same, better = found.differences
        assert same.p is not None
        assert better.low is not None
        false += same.p < 0.05
        planted.append(better.low > 0)
        values.append([one - other for one, other in zip(evidence[2].figures, evidence[0].figures, strict=True)])  # type: ignore[operator]
    error = math.sqrt(0.05 * 0.95 / repetitions)
    assert false / repetitions == pytest.approx(0.05, abs=3.3 * error)
    apart = np.array(values)
    assert apart.mean() == pytest.approx(1, abs=0.15)
    centre = math.sqrt(n) * apart.mean() / apart.std(ddof=1)
    expected = scipy.stats.nct.sf(scipy.stats.t.ppf(0.975, n - 1), n - 1, centre)
    assert np.mean(planted) == pytest.approx(
        expected, abs=3.3 * math.sqrt(expected * (1 - expected) / repetitions) + 0.01
    )
