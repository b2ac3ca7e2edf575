"""The stored attention of a run: what is stored, what is refused, and that it is the model's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from small_runs import TINY, spec

from harness.data.dataset import prepare
from harness.evaluation.evaluate import ATTENDED
from harness.evaluation.evaluate import test_attention as attention_of
from harness.processes.environment_variables import worker_environment
from harness.storage import run_store
from harness.training import train
from harness.training.train import build_model
from impls.contract import SOS

RUN = "a-run"


def maps(*numbers: int) -> dict[int, np.ndarray]:
    noise = np.random.default_rng(0)
    return {number: noise.random((2, 5, 3, 4)).astype(np.float16) for number in numbers}


def test_load_attention_maps_are_in_order_of_sentences(tmp_path: Path) -> None:
    assert run_store.load_attention(tmp_path, RUN) == {}
    assert not run_store.has(tmp_path, RUN, run_store.ATTENTION)
    saved = maps(10, 2, 0)
    digest = run_store.save_attention(tmp_path, RUN, saved)
    loaded = run_store.load_attention(tmp_path, RUN, digest)
    assert list(loaded) == [0, 2, 10]
    for number, weights in loaded.items():
        np.testing.assert_array_equal(weights, saved[number])
    assert run_store.has(tmp_path, RUN, run_store.ATTENTION)


def test_save_attention_leaves_out_maps_that_could_not_be_read(tmp_path: Path) -> None:
    """A run on long sentences does not fail after its training."""
    long = {0: (3, 8, 400, 400), 1: (1, 1, 5, run_store.MAP_POSITIONS + 1), 2: (3, 8, 250, 250)}
    saved = maps(3) | {number: np.zeros(shape, np.float16) for number, shape in long.items()}
    digest = run_store.save_attention(tmp_path, RUN, saved)
    assert list(run_store.load_attention(tmp_path, RUN, digest)) == [2, 3]


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 3, 4), np.float32), np.zeros((3, 4), np.float16), np.zeros((1, 2, 0, 4), np.float16)]
)
def test_save_attention_other_types_and_shapes_are_refused(tmp_path: Path, wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match=re.escape("expected a sentence number, float16 [layers,H,T,S]")):
        run_store.save_attention(tmp_path, RUN, {0: wrong})
    assert list(tmp_path.iterdir()) == []


def test_early_mean_over_heads_is_read_as_one_head(tmp_path: Path) -> None:
    (weights,) = maps(0).values()
    mean = weights.mean(axis=1).astype(np.float16)
    digest = run_store.save_attention(tmp_path, RUN, {0: mean})
    np.testing.assert_array_equal(run_store.load_attention(tmp_path, RUN, digest)[0], mean[:, None])


@pytest.mark.usefixtures("own_cache")
def test_run_stores_every_head_of_first_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = spec("learned_positions", TINY, updates=2)
    record = train.run(chosen, tmp_path)
    attention = run_store.load_attention(tmp_path, record.id, record.fingerprints["attention"])
    assert list(attention) == list(range(ATTENDED))
    prepared = prepare(chosen.data)
    for name, value in worker_environment(chosen).items():
        monkeypatch.setenv(name, value)
    model = build_model(chosen, prepared)
    model.set_weights(run_store.load_weights(tmp_path, record.id))
    hypotheses = run_store.load_hypotheses(tmp_path, record.id)
    ids = {word: number for number, word in enumerate(prepared.target_words)}
    for number, stored in attention.items():
        tokens = [ids[token] for token in hypotheses[number].tokens]
        target = np.array([[SOS, *tokens]], dtype=np.int32)
        heads = model.cross_attention(prepared.test.source[number][None], target)[0]
        assert stored.shape == (*heads.shape[:2], len(tokens) + 1, len(prepared.test.source[number]))
        np.testing.assert_allclose(stored, heads, atol=2e-3)
        np.testing.assert_allclose(stored.astype(np.float64).sum(axis=-1), 1.0, atol=1e-2)
    recomputed = attention_of(
        model, prepared, [[ids[token] for token in hypothesis.tokens] for hypothesis in hypotheses[:1]]
    )
    np.testing.assert_array_equal(recomputed[0], attention[0])
