"""The inference of all tables: its formulas and its moderation of variances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from evidence_factory import Array
from places import ROOT

from harness.analysis import inference
from harness.analysis.inference import Prior, all_pairs, infer, prior

PAIR = np.array([[1.0, -1.0]])


def table(rows: int, seeds: int, seed: int = 0, scales: Array | float = 1.0) -> Array:
    """Return values around 30 without true differences, [rows,seeds]; `scales` are the standard deviations of rows."""
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((rows, seeds)) * np.reshape(scales, (-1, 1))
    return 30 + generator.standard_normal((1, seeds)) + noise


# Formulas -------------------------------------------------------------------------------------------------------------


def test_infer_two_seeds_raises() -> None:
    with pytest.raises(ValueError, match="2 seeds: inference over seeds needs at least 3"):
        infer(np.zeros((2, 2)), PAIR)


def test_infer_several_tables_are_inferred_independently() -> None:
    tables = np.stack([table(5, 3, seed, [1, 1, 1, 1, 1 + 9 * (seed % 2)]) for seed in range(6)])
    together = infer(tables, all_pairs(5))
    for index, values in enumerate(tables):
        single = infer(values, all_pairs(5))
        for name in ("p", "degrees", "standard_error"):
            assert getattr(together, name)[index] == pytest.approx(getattr(single, name))


# Moderation -----------------------------------------------------------------------------------------------------------


def test_prior_compatible_variances_share_one_with_the_degrees_of_all_rows() -> None:
    tables = np.stack([table(7, 3, seed) for seed in range(40)])
    priors = prior(tables)
    compatible = np.isinf(priors.degrees)
    assert 0.2 < compatible.mean() < 0.8
    pooled = infer(tables[compatible], all_pairs(7))
    assert (pooled.seed_degrees == 12).mean() > 0.95
    residuals = tables - tables.mean(axis=1, keepdims=True)
    residuals -= residuals.mean(axis=2, keepdims=True)
    assert priors.pooled == pytest.approx((residuals**2).sum(axis=(1, 2)) / 12), "the residual mean square of the table"


def test_prior_has_the_mean_and_the_variance_of_the_logarithms_of_its_variances() -> None:
    """Of 28 pairs of 8 rows, whose mean squared correlation is 1 / 9."""
    estimated = prior(values := table(8, 4, 1, np.exp(np.random.default_rng(2).normal(0, 1.2, 8))))
    variances = inference.variances(all_pairs(8) @ values) / 2
    floor, shares = scipy.stats.chi2.ppf(0.2, 3) / 3, scipy.stats.chi2.ppf((np.arange(10**5) + 0.5) / 10**5, 3) / 3
    logarithms, by_chance = np.log(np.maximum(variances, floor * variances.mean())), np.log(np.maximum(shares, floor))
    half = estimated.degrees / 2
    excess = logarithms.var(ddof=1) / (1 - 1 / 9) - by_chance.var()
    assert scipy.special.polygamma(1, half) == pytest.approx(excess, rel=1e-3)
    expected = logarithms.mean() - by_chance.mean() + scipy.special.digamma(half) - np.log(half)
    assert np.log(estimated.variance) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("prior_degrees", "degrees"), [(math.inf, 12), (4.0, 6), (30.0, 12)])
def test_moderated_variance_is_a_mean_with_the_prior_up_to_the_limit_of_the_f_test(
    prior_degrees: float, degrees: int
) -> None:
    """Of a table of 7 rows over 3 seeds whose comparisons have a mean variance of 2."""
    table_prior = Prior(np.array(2.0), np.array(prior_degrees), np.array(2.0), most_degrees=12)
    limit, floor = 2 * scipy.stats.f.ppf(0.95, 2, 12), 2 * scipy.stats.chi2.ppf(0.2, 2) / 2
    variances = np.array([0.0, 3.0, 0.999 * limit, 1.001 * limit])
    moderated, moderated_degrees = inference._moderated(variances, table_prior, 2)
    mixed = [2.0] * 3
    if prior_degrees < math.inf:
        mixed = [(prior_degrees * 2 + 2 * own) / (prior_degrees + 2) for own in (floor, 3.0, 0.999 * limit)]
    assert moderated == pytest.approx([*mixed, 1.001 * limit])
    assert moderated_degrees.tolist() == [degrees, degrees, degrees, 2]


def test_trigamma_inverse_inverts_trigamma() -> None:
    values = np.array([1e-3, 0.1, 1.0, 5.0, 100.0])
    assert scipy.special.polygamma(1, inference._trigamma_inverse(values)) == pytest.approx(values)


def test_infer_three_rows_are_not_moderated() -> None:
    assert (infer(table(3, 4), all_pairs(3)).seed_degrees == 3).all()


def test_half_of_the_detectable_difference_is_found_as_often_as_the_documentation_says() -> None:
    """Tables of 10 comparisons have 5 rows, and so 8 degrees of freedom or more."""
    shares = []
    for degrees in (8, 16, 28, 1000):
        half = inference.detectable(1.0, degrees, 10) / 2
        limit = scipy.stats.t.ppf(1 - 0.05 / 10 / 2, degrees)
        shares.append(round(100 * scipy.stats.nct.sf(limit, degrees, half)))
    text = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    assert f"half of it in {min(shares)} to {max(shares)} % of cases, with 10 comparisons" in text
