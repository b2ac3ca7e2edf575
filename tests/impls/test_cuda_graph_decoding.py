"""Decoding in fixed memory gives the translations of plain decoding, and replays give those of direct calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from graph_models import (
    LONGEST,
    ROWS,
    VARIANTS,
    OperationRecorder,
    SimulatedGpu,
    called,
    meta,
    model,
    needs_gpu,
    recipe,
    training,
)
from small_models import SOURCE_VOCABULARY_SIZE, one_thread

from harness.conformance.models_under_test import padded
from harness.evaluation.search import SPARE_CANDIDATES, Decoded, translate
from harness.experiments.specs import DecodingSpec
from impls.contract import EOS, PAD, SOS, Batch, Candidates, Decoding, Ids, TransformerRecipe
from impls.pytorch import cuda_graph_decoding
from impls.pytorch.cuda_graph_decoding import CapturedStep, CapturedSteps, GraphDecoding
from impls.pytorch.cuda_graph_training import GraphModel, Graphs
from impls.pytorch.kv_cache import Rows
from impls.pytorch.torch_adapter import TorchModel

ROUNDING = 1e-5
OTHERS: tuple[dict[str, Any], ...] = (
    {"positions": "rotary", "norm": "rms", "norm_order": "pre", "ffn": "gated"},
    {"positions": "alibi", "activation": "silu"},
    {"positions": "none", "embedding_scale": "none"},
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use small steps, so that there are several shapes and caches outgrow their capacity."""
    monkeypatch.setattr(cuda_graph_decoding, "SOURCE_COUNT_STEP", 3)
    monkeypatch.setattr(cuda_graph_decoding, "SOURCE_LENGTH_STEP", 4)
    monkeypatch.setattr(cuda_graph_decoding, "CAPACITY_STEP", 5)
    with one_thread():
        yield


def sources(count: int = 17, seed: int = 0) -> list[Ids]:
    """Return sentences of 1 to 10 tokens."""
    random = np.random.default_rng([seed, count])
    return [
        np.array([SOS, *random.integers(EOS + 1, SOURCE_VOCABULARY_SIZE, random.integers(1, 11)), EOS], dtype=np.int32)
        for _ in range(count)
    ]


def pair(of: TransformerRecipe, **settings: Any) -> tuple[TorchModel, GraphModel]:
    """Return a plain model and one with graphs, with equal weights far from 0."""
    plain, fixed = (model(kind, of, training(), **settings) for kind in (TorchModel, GraphModel))
    random = np.random.default_rng(5)
    weights = {name: one + random.normal(0, 0.2, one.shape).astype(np.float32) for name, one in plain.weights().items()}
    for result in (plain, fixed):
        result.set_weights(weights)
    assert isinstance(fixed, GraphModel)
    return plain, fixed


@dataclass
class Ending:
    """A model whose translations are as long as their sources, because untrained ones rarely end."""

    model: TorchModel

    def begin_decoding(self, source: Ids) -> EndingDecoding:
        return EndingDecoding(self.model.begin_decoding(source), (source != PAD).sum(axis=1))


@dataclass
class EndingDecoding:
    decoding: Decoding
    left: Rows

    def step(self, last: Ids, best: int) -> Candidates:
        self.left = self.left - 1
        result = self.decoding.step(last, best)
        result.tokens[self.left < 0, 0] = EOS
        return result

    def reorder(self, rows: Rows) -> None:
        self.left = self.left[rows]
        self.decoding.reorder(rows)


def search(beam: int, batch_size: int = 7) -> DecodingSpec:
    return DecodingSpec(beam=beam, batch_size=batch_size, max_tokens=LONGEST - 1)


def same(found: Decoded, expected: Decoded, rounding: float = ROUNDING) -> None:
    assert [one.tokens for one in found.translations] == [one.tokens for one in expected.translations]
    assert [one.finished for one in found.translations] == [one.finished for one in expected.translations]
    worth = [[one.log_probability for one in decoded.translations] for decoded in (found, expected)]
    np.testing.assert_allclose(*worth, rtol=rounding)


def equal(found: Candidates, expected: Candidates) -> None:
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.log_probabilities, expected.log_probabilities, rtol=1e-4, atol=ROUNDING)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the shape of each step in fixed memory."""
    noted: list[Any] = []
    call = CapturedStep.__call__

    def __call__(self: CapturedStep, *others: Any) -> Candidates:
        noted.append(self.shape)
        return call(self, *others)

    monkeypatch.setattr(CapturedStep, "__call__", __call__)
    return noted


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(
    "of",
    [*(recipe(one) for one in VARIANTS), *(recipe(**one) for one in OTHERS)],
    ids=[*VARIANTS, "rotary", "alibi", "none"],
)
def test_graph_decoding_translations_equal_plain(of: TransformerRecipe, beam: int, steps: list[Any]) -> None:
    plain, fixed = map(Ending, pair(of))
    expected = translate(plain, sources(), search(beam))
    same(translate(fixed, sources(), search(beam)), expected)
    for name in ("positions", "rows", "capacity"):
        assert len({getattr(one, name) for one in steps}) > 1, name
    assert {one.best for one in steps} == {beam + SPARE_CANDIDATES}


def test_graph_decoding_any_reordering_equals_plain(steps: list[Any]) -> None:
    """Rows are dropped, repeated and reordered, also twice between two steps; the number of candidates varies."""
    plain, fixed = pair(recipe())
    source = padded([one.tolist() for one in sources(6)])
    random = np.random.default_rng(2)
    expected, actual = plain.begin_decoding(source), fixed.begin_decoding(source)
    rows = len(source)
    doubled, swapped = [0, 0, 2, 2, 5, 5], [1, 0, 3, 2, 5, 4]
    choices: list[tuple[int, list[list[int]]]] = [
        (4, []),
        (4, []),
        (2, []),
        (4, [doubled]),
        (4, [swapped, [1, 1, 2, 3, 4, 4]]),
        (4, [swapped]),
        (2, []),
        (4, [[3, 3, 0, 5, 1, 2], [5, 4, 3, 2, 1, 0]]),
        (4, [[0, 1, 1]]),
        (4, [[2, 2, 1, 1, 0, 0]]),
        (4, [[0, 1, 2, 3], [1, 3]]),
        (4, [[]]),
    ]
    for best, chosen in choices:
        last = random.integers(EOS + 1, SOURCE_VOCABULARY_SIZE, rows).astype(np.int32)
        equal(actual.step(last, best), expected.step(last, best))
        for one in chosen:
            for decoding in (expected, actual):
                decoding.reorder(np.array(one, dtype=np.intp))
            rows = len(one)
    assert rows == 0
    assert len(steps) == len(choices) - 1  # all but the first


def test_graph_decoding_two_at_once_are_independent(steps: list[Any]) -> None:
    """Two decodings of one shape alternate in its memory without overwriting each other's state."""
    plain, fixed = pair(recipe())
    given = [padded([one.tolist() for one in sources(4, seed)]) for seed in (1, 2)]
    width = min(one.shape[1] for one in given)
    expected = [plain.begin_decoding(one[:, :width]) for one in given]
    actual = [fixed.begin_decoding(one[:, :width]) for one in given]
    random = np.random.default_rng(3)
    for _ in range(4):
        last = [random.integers(EOS + 1, SOURCE_VOCABULARY_SIZE, 4).astype(np.int32) for _ in given]
        first, second = (one.step(words, 3) for one, words in zip(actual, last, strict=True))
        for message, one, words in zip((first, second), expected, last, strict=True):
            equal(message, one.step(words, 3))
        for one in (*expected, *actual):
            one.reorder(np.array([1, 0, 3, 2]))
    assert len(set(steps)) == 1


def test_graph_decoding_ignores_stale_memory() -> None:
    """NaN that diverged weights leave in the memory does not affect later decodings."""
    plain, fixed = pair(recipe())
    weights = fixed.weights()
    source = padded([one.tolist() for one in sources(4)])
    last = np.full(4, EOS + 1, dtype=np.int32)
    fixed.set_weights({name: np.full_like(one, np.nan) for name, one in weights.items()})
    spoilt = fixed.begin_decoding(source)
    for _ in range(4):
        assert np.isnan(spoilt.step(last, 3).log_probabilities).all()
    del spoilt
    fixed.set_weights(weights)
    expected, actual = plain.begin_decoding(source), fixed.begin_decoding(source)
    for _ in range(3):
        equal(actual.step(last, 3), expected.step(last, 3))


def test_graph_decoding_beyond_max_length_raises() -> None:
    _, fixed = pair(recipe())
    decoding, last = fixed.begin_decoding(padded([[SOS, 5, EOS]])), np.array([7], dtype=np.int32)
    for _ in range(LONGEST):
        decoding.step(last, 3)
    with pytest.raises(ValueError, match=f"{LONGEST + 1} positions exceed max_length={LONGEST}"):
        decoding.step(last, 3)


def test_graph_decoding_beyond_max_shapes_runs_plain(monkeypatch: pytest.MonkeyPatch, steps: list[Any]) -> None:
    plain, fixed = pair(recipe())
    expected = translate(plain, sources(), search(3))
    translate(fixed, sources(), search(3))
    all_steps, all_shapes = len(steps), len(set(steps))
    monkeypatch.setattr(cuda_graph_decoding, "MAX_SHAPES", 2)
    _, fixed = pair(recipe())
    steps.clear()
    same(translate(fixed, sources(), search(3)), expected)
    assert len(set(steps)) == 2 < all_shapes
    assert 0 < len(steps) < all_steps


def test_graph_decoding_sees_updated_weights() -> None:
    """Weights change in place, so earlier captures stay valid."""
    plain, fixed = pair(recipe())
    rows = padded([[SOS, 5, 6, EOS]] * ROWS)
    for _ in range(2):
        same(translate(fixed, sources(), search(1)), translate(plain, sources(), search(1)))
        for result in (plain, fixed):
            result.train_step(Batch(rows, rows[:, :-1], rows[:, 1:]), 1e-2)
    same(translate(fixed, sources(), search(1)), translate(plain, sources(), search(1)), 1e-3)


def test_graph_decoding_step_never_waits_for_device() -> None:
    """On torch's "meta" device, any access to a value on the host would fail or be recorded."""
    for of in (*(recipe(one) for one in VARIANTS), *(recipe(**one) for one in OTHERS)):
        result = meta(of, training())
        with torch.inference_mode():
            memory = result.module.prefill(torch.zeros((3, 6), dtype=torch.int32, device="meta"))
            decoding = GraphDecoding(result, memory, result._steps)
            result.module.eval()
            result.module.step(decoding._state, torch.zeros(3, dtype=torch.int32, device="meta"))
            step = result._steps.bind(decoding, decoding._state, 4)
            assert step is not None
            with OperationRecorder() as operations:
                step._run()
        assert not operations.on_host
        assert "aten.index_copy_.default" in operations.names
        assert len(operations.names) > 100


# Capture, with a GPU that is played, and with one --------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 3])
def test_graph_decoding_replay_equals_call(beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are bit-identical, a capture changes no state, and each shape is captured once."""
    _, uncaptured = pair(recipe())
    _, replayed = pair(recipe())
    expected = translate(Ending(uncaptured), sources(), search(beam))
    gpu = SimulatedGpu(monkeypatch, CapturedStep, "_run", "step")
    replayed._graphs = [Graphs(replayed._device, replayed._dropout_source.generator)]
    replayed._steps = CapturedSteps(replayed, LONGEST, replayed._graphs[0].capture)
    assert translate(Ending(replayed), sources(), search(beam)) == expected
    captures = gpu.log.count("step")
    assert captures == len(gpu.graphs) == replayed.compilation().count > 2
    assert gpu.log.count("replay") > captures
    assert translate(Ending(replayed), sources(), search(beam)) == expected
    assert gpu.log.count("step") == len(gpu.graphs) == captures


@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("beam", [1, 3])
def test_graph_decoding_replay_equals_call_on_gpu(beam: int, precision: str) -> None:
    _, uncaptured = pair(recipe(), device="cuda", precision=precision)
    _, replayed = pair(recipe(), device="cuda", precision=precision)
    uncaptured._steps = CapturedSteps(uncaptured, LONGEST, called)
    expected = translate(Ending(uncaptured), sources(), search(beam))
    for _ in range(2):
        same(translate(Ending(replayed), sources(), search(beam)), expected, 1e-4)
    assert replayed.compilation().count > 2


@needs_gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_graph_decoding_translations_equal_plain_on_gpu(variant: str) -> None:
    plain, replayed = map(Ending, pair(recipe(variant), device="cuda"))
    for beam in (1, 3):
        # Convolutions multiply in TensorFloat-32 there.
        same(translate(replayed, sources(), search(beam)), translate(plain, sources(), search(beam)), 1e-3)
