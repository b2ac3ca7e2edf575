"""How often the statistics err: a reduced simulation, the published one, and BLEU itself."""

from __future__ import annotations

import math
import re
from functools import partial

import numpy as np
import pytest
import scipy.stats
import statistics_simulation as simulation
from statistics_simulation import bleu_counts

from harness.analysis.evidence import Evidence
from harness.analysis.scales import LOGIT
from harness.analysis.statistics import compare_rows
from harness.evaluation import metrics


@pytest.fixture(scope="module")
def simulated() -> list[simulation.Cell]:
    """Return a reduced simulation: every setting, fewer tables."""
    return simulation.cells(tables=250)


def test_simulation_family_wise_error_is_at_most_5_percent(simulated: list[simulation.Cell]) -> None:
    for noise in simulation.NOISES:
        for seeds in simulation.SEEDS:
            cells = [cell for cell in simulated if (cell.noise, cell.seeds) == (noise, seeds) and cell.comparisons > 1]
            assert len(cells) == 2 * len(simulation.RATIOS)
            # 3 standard errors of a share of 5 % in 2,500 tables.
            assert np.mean([cell.family_wise for cell in cells]) < 0.05 + 3 * 0.0044, (noise, seeds)


def test_simulation_normal_noise_is_covered_in_95_percent(simulated: list[simulation.Cell]) -> None:
    for comparisons in (1, 10, 21):
        for seeds in simulation.SEEDS:
            setting = ("normal", seeds, comparisons)
            cells = [cell for cell in simulated if (cell.noise, cell.seeds, cell.comparisons) == setting]
            assert np.mean([cell.coverage for cell in cells]) == pytest.approx(0.95, abs=0.01)


def test_simulation_page_has_no_family_wise_error_and_no_coverage_of_normal_noise_out_of_bounds() -> None:
    """The page shows values out of bounds in bold."""
    page = simulation.PAGE.read_text(encoding="utf-8")
    assert simulation.COMMAND in page
    assert simulation.DRAWS >= 1000
    for title, body in re.findall(r"^## (.+?)\n(.+?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        rows = re.findall(r"^\| (normal|skewed|heavy-tailed|two-point) \| \d (.*)\|$", body, re.MULTILINE)
        assert len(rows) == (0 if title == "Unequal variances" else 4 * 3), title
        assert all(cells.count("|") == len(simulation.RATIOS) for _, cells in rows)
        assert not [cells for noise, cells in rows if "*" in cells and ("error" in title or noise == "normal")], title
    assert (simulation.MOST_FAMILY_WISE, simulation.COVERAGE) == (0.06, (0.94, 0.96))


@pytest.mark.slow
def test_simulation_page_is_the_result_of_the_simulation() -> None:
    assert simulation.PAGE.read_text(encoding="utf-8") == simulation.page(simulation.cells(), simulation.unequal())


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5, 8])
def test_compare_rows_bleu_has_its_nominal_size_and_power(n: int) -> None:
    """Counts of sentences on the logit scale."""
    bleu = partial(metrics.bleu_from_sums, smoothing="none")
    repetitions, generator = 1500, np.random.default_rng(n)
    false_positives, detected, differences = 0, [], []
    for _ in range(repetitions):
        rows = []
        for label, easier in (("base", 0.0), ("same", 0.0), ("better", 0.024)):
            sums = bleu_counts(generator, n, 300, easier)
            rows.append(Evidence(label, tuple(range(n)), tuple(bleu(sums.sum(axis=1)).tolist()), sums))
        same, better = compare_rows(rows, bleu, base="base", scale=LOGIT).differences
        false_positives += same.p < 0.05
        detected.append(better.low > 0)
        differences.append(np.subtract(rows[2].values, rows[0].values))
    standard_error = math.sqrt(0.05 * 0.95 / repetitions)
    assert false_positives / repetitions == pytest.approx(0.05, abs=3.3 * standard_error)
    measured = np.array(differences)
    assert measured.mean() == pytest.approx(1, abs=0.15)
    noncentrality = math.sqrt(n) * measured.mean() / measured.std(ddof=1)
    power = scipy.stats.nct.sf(scipy.stats.t.ppf(0.975, n - 1), n - 1, noncentrality)
    tolerance = 3.3 * math.sqrt(power * (1 - power) / repetitions) + 0.01
    assert np.mean(detected) == pytest.approx(power, abs=tolerance)
