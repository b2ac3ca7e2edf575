"""The statistics of each test sentence: stored without text, and sufficient for every score."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_factory import with_digests
from small_runs import TINY, spec
from test_metrics import scores

from harness.cli.main import main
from harness.data.batches import evaluation_batches
from harness.data.dataset import prepare
from harness.evaluation.evaluate import test_nats as nats_of
from harness.evaluation.metrics import SMOOTHING, bleu_from_sums, chrf_from_sums, perplexity_from_sums, score_from_sums
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import train
from impls.contract import PAD, Batch, Numbers

pytestmark = pytest.mark.usefixtures("cache")
RUN = spec("learned_positions", TINY)
WORDS = st.lists(st.sampled_from(["a", "b", "c", "dd", "<unk>"]), max_size=9)
CORPORA = st.lists(st.tuples(WORDS, WORDS.filter(bool)), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def trained(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    results = tmp_path_factory.mktemp("results")
    return results, train.run(RUN, results)


def score(results: Path) -> int:
    return main(["score", "--results", str(results), "--run", RUN.id])


# Scores of sums -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(CORPORA)
def test_sums_over_sentences_give_the_corpus_scores(pairs: list[tuple[list[str], list[str]]]) -> None:
    result = scores(*zip(*pairs, strict=True))
    assert set(result.statistics) == {*SMOOTHING, "chrf"}
    for name, counts in result.statistics.items():
        assert (str(counts.dtype), len(counts)) == ("int32", len(pairs))
        many = np.stack([counts.sum(axis=0), 2 * counts.sum(axis=0)])
        doubled = scores(*zip(*pairs, *pairs, strict=True)).values[name]
        assert score_from_sums(name, many) == pytest.approx([result.values[name], doubled], rel=0, abs=1e-9)


def test_perplexity_from_sums_is_elementwise() -> None:
    values = perplexity_from_sums(np.array([math.log(8) * 5, 1e6]), np.array([5, 1]))
    assert values.tolist() == [pytest.approx(8), math.inf]


def test_sums_of_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens=0: expected a number of at least 1"):
        perplexity_from_sums(np.ones(2), np.array([3, 0]))
    with pytest.raises(ValueError, match=r"shape \(2, 18\): expected 10 columns"):
        bleu_from_sums(np.zeros((2, 18)), "exp")
    with pytest.raises(ValueError, match=r"shape \(\): expected 18 columns"):
        chrf_from_sums(np.array(1))
    with pytest.raises(ValueError, match="score 'bleu_2_cumulative': expected one of bleu_tutorial, .*, chrf"):
        score_from_sums("bleu_2_cumulative", np.zeros(10))


def test_nats_keep_the_order_of_the_test_set() -> None:
    class IdsAsNats:
        def token_nats(self, batch: Batch) -> Numbers:
            return np.where(batch.target_out == PAD, np.float32(np.nan), batch.target_out / np.float32(7))

    prepared = prepare(RUN.data)
    order = np.concatenate([rows for _, rows in evaluation_batches(prepared.test)])
    assert not np.array_equal(order, np.sort(order))
    scored, sentences = nats_of(IdsAsNats(), prepared)
    expected = [float(ids[1:].sum() / 7) for ids in prepared.test.target]
    np.testing.assert_allclose(sentences["nats"], expected, rtol=1e-6)
    assert sentences["tokens"].tolist() == [len(ids) - 1 for ids in prepared.test.target]
    assert (sentences["nats"].sum(), sentences["tokens"].sum()) == (pytest.approx(scored.nats), scored.tokens)


# The command ----------------------------------------------------------------------------------------------------------


def test_score_command_checks_the_sentences(trained: tuple[Path, RunRecord], tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    record = trained[1]
    assert score(tmp_path) == 0
    arrays = run_store.load_sentences(tmp_path, RUN.id)
    for name in ("bleu_sacre", "nats"):
        wrong = {key: array.copy() for key, array in arrays.items()}
        wrong[name][:2] += np.array(50, wrong[name].dtype)
        digest = run_store.save_sentences(tmp_path, RUN.id, wrong)
        run_store.save_record(tmp_path, with_digests(record, sentences=digest))
        capsys.readouterr()
        assert score(tmp_path) == 1
        output = capsys.readouterr().out
        assert f"wrong for {'test_perplexity' if name == 'nats' else name}\n" in output
        assert "  1 score differs" in output
    run_store.save_sentences(tmp_path, RUN.id, arrays)
    assert score(tmp_path) == 2
    assert "damaged" in capsys.readouterr().err
