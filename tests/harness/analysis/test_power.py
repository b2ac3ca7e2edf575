"""Detectable differences and the seeds that a table needs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from record_factory import record, with_digests

from harness.analysis.inference import all_pairs, detectable, infer
from harness.analysis.power import DifferenceNoise, detectable_with, estimate_noise, seeds_needed, upper_bound
from harness.storage.records import RunRecord


@pytest.mark.parametrize("degrees", [2, 4, 12, 200, 1e9])
@pytest.mark.parametrize("comparisons", [1, 21])
def test_detectable_difference_has_a_power_of_80_percent(degrees: float, comparisons: int) -> None:
    limit = scipy.stats.t.ppf(1 - 0.025 / comparisons, degrees)
    difference = detectable(2.0, degrees, comparisons)
    assert scipy.stats.nct.sf(limit, degrees, difference / 2) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(("rows", "seed_degrees"), [(3, 3), (7, 6 * 3)])
def test_detectable_with_combines_the_variances_of_four_seeds_and_of_sentences(rows: int, seed_degrees: int) -> None:
    noise = DifferenceNoise(run_variance=0.3**2, degrees=12, sentence_variance=0.1**2)
    from_seeds = 2 * 0.3**2 / 4
    total = from_seeds + 0.1**2
    degrees = seed_degrees * (total / from_seeds) ** 1.2
    assert detectable_with(noise, 4, rows, 21) == pytest.approx(detectable(math.sqrt(total), degrees, 21))


def test_seeds_needed_is_the_smallest_number_that_detects_the_difference() -> None:
    noise = DifferenceNoise(run_variance=0.3**2, degrees=12, sentence_variance=0.1**2)
    seeds = seeds_needed(noise, 0.6, 7, 21)
    assert seeds > 3
    assert detectable_with(noise, seeds, 7, 21) <= 0.6 < detectable_with(noise, seeds - 1, 7, 21)
    more = seeds_needed(upper_bound(noise), 0.6, 7, 21)
    assert more > seeds
    assert seeds_needed(noise, 0.2, 7, 21) is None, "the sentence variance alone is too large"


def test_noise_of_perplexities_leaves_out_a_row_with_another_vocabulary() -> None:
    def runs(variant: str, words: str, spread: float) -> list[RunRecord]:
        of_seeds = [record(variant, seed, budget="source", final=1.6 + spread * seed) for seed in range(3)]
        return [with_digests(run, target_vocabulary=words * 64) for run in of_seeds]

    alike = runs("learned_positions", "0", 0.01) + runs("conv_ffn", "0", 0.012)
    other = runs("paper", "1", 0.4)
    expected, actual = (estimate_noise(records, "test_perplexity", no_sentences) for records in (alike, alike + other))
    assert expected is not None
    assert actual == expected
    with_all = estimate_noise(alike + other, "bleu_sacre", no_sentences)
    assert with_all.rows == 3


def of_seeds(variant: str, *seeds: int) -> list[RunRecord]:
    return [record(variant, seed) for seed in seeds]


LEARNED, PAPER = of_seeds("learned_positions", 0, 1, 2, 3), of_seeds("paper", 0, 1, 2, 3)


@pytest.mark.parametrize(
    ("used", "others", "rows", "seeds"),
    [
        ([*LEARNED[:3], *PAPER[:3]], [LEARNED[3], replace(PAPER[3], status="diverged", scores={})], 2, 3),
        ([*LEARNED, *PAPER], of_seeds("conv_ffn", 0), 2, 4),
        (LEARNED, of_seeds("paper", 3, 4), 1, 4),
    ],
    ids=["a diverged run", "a row of one seed", "rows that share one seed: that with most seeds"],
)
def test_noise_is_that_of_common_seeds(used: list[RunRecord], others: list[RunRecord], rows: int, seeds: int) -> None:
    estimate = estimate_noise([*used, *others], "bleu_sacre", no_sentences)
    assert (estimate.rows, estimate.seeds) == (rows, seeds)
    assert estimate == estimate_noise(used, "bleu_sacre", no_sentences)


def test_noise_of_sentences_is_that_of_the_pairs_with_stored_sentences() -> None:
    """The sentences are as hard for every seed of a row; of the third row they are not stored."""
    generator, names = np.random.default_rng(0), ("learned_positions", "paper", "conv_ffn")
    of_sentences = {name: generator.normal(0, 0.5, 100) for name in names}
    of_sentences = {name: noise - noise.mean() for name, noise in of_sentences.items()}
    runs = [record(name, seed) for name in names for seed in range(3)]

    def sentences(run: RunRecord) -> dict[str, np.ndarray]:
        nats = float(run.scores["test_loss"] or 0.0) + of_sentences[run.spec.variant]
        return {} if run.spec.variant == names[2] else {"nats": 10 * nats, "tokens": np.full(100, 10)}

    estimate = estimate_noise(runs, "test_loss", sentences)
    assert (estimate.rows, estimate.with_sentences) == (3, True)
    expected = (of_sentences[names[0]] - of_sentences[names[1]]).var() / 100
    assert estimate.noise.sentence_variance == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("larger", ["controlled", "source"])
def test_noise_is_that_of_the_table_with_most_degrees_of_freedom(larger: str) -> None:
    records = [
        record(variant, seed, budget=budget)
        for budget in ("controlled", "source")
        for variant in ("learned_positions", "paper")
        for seed in range(5 if budget == larger else 2)
    ]
    estimate = estimate_noise(records, "bleu_sacre", no_sentences)
    assert (estimate.seeds, estimate.noise.degrees) == (5, 4)


def test_upper_bound_is_that_of_a_one_sided_chi_square_interval() -> None:
    noise = upper_bound(DifferenceNoise(run_variance=0.3, degrees=12, sentence_variance=0.1))
    assert noise.run_variance == pytest.approx(0.3 * 12 / scipy.stats.chi2.ppf(0.2, 12))
    assert (noise.degrees, noise.sentence_variance) == (12, 0.1)


def no_sentences(run: RunRecord) -> dict[str, np.ndarray]:
    return {}


def test_seeds_needed_find_the_difference_in_a_simulation() -> None:
    rows, generator = 5, np.random.default_rng(0)
    seeds = seeds_needed(DifferenceNoise(1.0, 100, 0.0), 2.0, rows, 1)
    values = generator.standard_normal((4000, rows, seeds))
    values[:, 0] += 2.0
    p = infer(values, all_pairs(rows)[:1]).p
    assert 0.77 < (p < 0.05).mean() < 0.9
