"""Resampling of test sentences and Holm's correction, against sacreBLEU and worked examples."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from evidence_factory import mean
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from harness.analysis import significance
from harness.analysis.significance import holm
from harness.evaluation import metrics

pytestmark = pytest.mark.filterwarnings("error")


def test_random_draws_in_chunks_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.random.default_rng(0).integers(1, 9, (2, 3, 50, 2)).astype(float)
    randomise = partial(significance.randomisation_p, sums[:, 0], [(0, 1)], mean)
    p_values = randomise()
    monkeypatch.setattr(significance, "_CHUNK", 33 * 50)
    assert randomise() == p_values


def test_without_each_sentence_has_the_metric_of_the_others() -> None:
    rows = list(np.random.default_rng(0).integers(1, 9, (3, 2, 50, 2)))
    left_out = significance.without_each_sentence(rows, mean)
    assert left_out.shape == (50, 3, 2)
    for sentence, row, seed in ((0, 0, 0), (49, 2, 1), (7, 1, 0)):
        others = np.delete(rows[row][seed], sentence, axis=0)
        assert left_out[sentence, row, seed] == pytest.approx(mean(others.sum(axis=0)))


def test_shared_covariance_of_means_is_that_of_sentences_divided_by_their_number() -> None:
    scores = np.random.default_rng(0).normal(30, 5, (4, 60))
    sums = [np.stack([row, np.ones(60)], axis=-1)[None] for row in scores]
    covariance = significance.shared_covariance(significance.without_each_sentence(sums, mean))
    assert covariance == pytest.approx(np.cov(scores) / 60)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_shared_covariance_is_the_mean_of_all_pairs_of_different_seeds(seeds: int) -> None:
    values = np.random.default_rng(seeds).standard_normal((40, 3, seeds)) + np.arange(3)[:, None]
    pairs = [(first, second) for first in range(seeds) for second in range(seeds) if first != second]
    products = [np.cov(values[..., first].T, values[..., second].T, ddof=0)[:3, 3:] * 40 for first, second in pairs]
    assert significance.shared_covariance(values) == pytest.approx(np.mean(products, axis=0) * 39 / 40)


def test_randomisation_p_is_that_of_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "TRIALS", 2000)
    monkeypatch.setattr(significance, "SEED", 12345)
    generator = np.random.default_rng(7)
    words = [f"w{number}" for number in range(30)]
    references = [[str(word) for word in generator.choice(words, 12)] for _ in range(80)]
    systems = [
        [
            [str(generator.choice(words)) if generator.random() < share else word for word in sentence]
            for sentence in references
        ]
        for share in (0.25, 0.32)
    ]
    *texts, reference_texts = ([" ".join(tokens) for tokens in sentences] for sentences in (*systems, references))
    sides: dict[str, Any] = {"reference_texts": reference_texts, "reference_moses": references}
    scores = [
        metrics.score(system, references, texts=text, moses=system, **sides, case="lower", unknown="never")
        for system, text in zip(systems, texts, strict=True)
    ]
    counts = [result.statistics["bleu_sacre"] for result in scores]
    metric = partial(metrics.score_from_sums, "bleu_sacre")
    (p,) = significance.randomisation_p(np.stack(counts), [(0, 1)], metric)
    systems_by_name, bleu = list(zip("AB", texts, strict=True)), BLEU(lowercase=True)
    paired = PairedTest(systems_by_name, {"BLEU": bleu}, [reference_texts], test_type="ar", n_samples=2000)
    assert 0.01 < p < 0.9
    assert p == pytest.approx(paired()[1]["BLEU"][1].p_value, abs=1.5 / 2001)


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01, None, 0.04, 0.03, 0.005], (0.03, None, 0.06, 0.06, 0.02)),
        ([0.9, 0.8], (1.0, 1.0)),
        ([], ()),
    ],
)
def test_holm_p_values_are_multiplied_by_the_number_of_larger_ones(
    p_values: list[float | None], corrected: tuple[float | None, ...]
) -> None:
    assert holm(p_values) == tuple(None if p is None else pytest.approx(p) for p in corrected)
