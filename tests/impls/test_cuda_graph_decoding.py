"""Decoding in fixed memory gives the translations of plain decoding, and replays give those of direct calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import graph_models as graphs
import numpy as np
import pytest
import torch
from small_models import SOURCE_VOCABULARY_SIZE

from harness.data.batches import pad
from harness.evaluation.search import SPARE_CANDIDATES, Decoded, translate
from harness.experiments.specs import DecodingSpec
from impls.contract import EOS, PAD, SOS, Candidates, Decoding, Ids, TransformerRecipe
from impls.pytorch import cuda_graph_decoding
from impls.pytorch.cuda_graph_decoding import CapturedStep, CapturedSteps, GraphDecoding
from impls.pytorch.cuda_graph_training import GraphModel, Graphs
from impls.pytorch.kv_cache import Rows
from impls.pytorch.torch_adapter import TorchModel

pytestmark = pytest.mark.usefixtures("single_thread")

ROUNDING = 1e-5


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small steps, so that there are several shapes and caches outgrow their capacity."""
    monkeypatch.setattr(cuda_graph_decoding, "SOURCE_COUNT_STEP", 3)
    monkeypatch.setattr(cuda_graph_decoding, "SOURCE_LENGTH_STEP", 4)
    monkeypatch.setattr(cuda_graph_decoding, "CAPACITY_STEP", 5)


def random_sources(count: int = 17, seed: int = 0) -> list[Ids]:
    random = np.random.default_rng([seed, count])
    return [
        np.array([SOS, *random.integers(EOS + 1, SOURCE_VOCABULARY_SIZE, random.integers(1, 11)), EOS], dtype=np.int32)
        for _ in range(count)
    ]


def source_batch(count: int, seed: int = 0) -> Ids:
    return pad([source.tolist() for source in random_sources(count, seed)])


def random_tokens(random: np.random.Generator, rows: int) -> Ids:
    return random.integers(EOS + 1, SOURCE_VOCABULARY_SIZE, rows).astype(np.int32)


def pair(recipe: TransformerRecipe, **settings: Any) -> tuple[TorchModel, GraphModel]:
    """Return a plain model and one with graphs, with equal weights far from 0."""
    plain, static = (graphs.model(kind, recipe, graphs.training(), **settings) for kind in (TorchModel, GraphModel))
    random = np.random.default_rng(5)
    weights = {
        name: value + random.normal(0, 0.2, value.shape).astype(np.float32) for name, value in plain.weights().items()
    }
    for result in (plain, static):
        result.set_weights(weights)
    return plain, static


@dataclass
class Ending:
    """A model whose translations are as long as their sources, because untrained ones rarely end."""

    model: TorchModel

    def begin_decoding(self, source: Ids) -> EndingDecoding:
        return EndingDecoding(self.model.begin_decoding(source), (source != PAD).sum(axis=1))


@dataclass
class EndingDecoding:
    decoding: Decoding
    remaining: Rows

    def step(self, last: Ids, best: int) -> Candidates:
        self.remaining = self.remaining - 1
        candidates = self.decoding.step(last, best)
        candidates.tokens[self.remaining < 0, 0] = EOS
        return candidates

    def reorder(self, rows: Rows) -> None:
        self.remaining = self.remaining[rows]
        self.decoding.reorder(rows)


def translated(model: Any, beam: int) -> Decoded:
    return translate(model, random_sources(), DecodingSpec(beam=beam, batch_size=7, max_tokens=graphs.LONGEST - 1))


def assert_same(actual: Decoded, expected: Decoded, rounding: float = ROUNDING) -> None:
    sides = [[(line.tokens, line.finished) for line in decoded.translations] for decoded in (actual, expected)]
    assert sides[0] == sides[1]
    scores = [[line.log_probability for line in decoded.translations] for decoded in (actual, expected)]
    np.testing.assert_allclose(*scores, rtol=rounding)


def assert_equal(actual: Candidates, expected: Candidates) -> None:
    np.testing.assert_array_equal(actual.tokens, expected.tokens)
    np.testing.assert_allclose(actual.log_probabilities, expected.log_probabilities, rtol=1e-4, atol=ROUNDING)


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    recorded: list[Any] = []
    call = CapturedStep.__call__

    def __call__(self: CapturedStep, *arguments: Any) -> Candidates:
        recorded.append(self.shape)
        return call(self, *arguments)

    monkeypatch.setattr(CapturedStep, "__call__", __call__)
    return recorded


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", graphs.RECIPES)
def test_graph_decoding_translations_equal_plain(name: str, beam: int, shapes: list[Any]) -> None:
    plain, static = map(Ending, pair(graphs.RECIPES[name]))
    assert_same(translated(static, beam), translated(plain, beam))
    for dimension in ("positions", "rows", "capacity"):
        assert len({getattr(shape, dimension) for shape in shapes}) > 1, dimension
    assert {shape.best for shape in shapes} == {beam + SPARE_CANDIDATES}


def test_graph_decoding_any_reordering_equals_plain(shapes: list[Any]) -> None:
    """Rows are dropped, repeated and reordered up to twice between two steps; the number of candidates varies."""
    source, random = source_batch(6), np.random.default_rng(2)
    decodings = [model.begin_decoding(source) for model in pair(graphs.recipe())]
    rows, lengths = len(source), [[], [6], [6, 6], [], [6], [3], [6], [4, 2], [0]]
    for step, selections in enumerate(lengths):
        last, best = random_tokens(random, rows), 2 + 2 * (step % 3)
        expected, actual = (decoding.step(last, best) for decoding in decodings)
        assert_equal(actual, expected)
        for length in selections:
            selection = random.integers(rows, size=length).astype(np.intp)
            for decoding in decodings:
                decoding.reorder(selection)
            rows = length
    assert len(shapes) == len(lengths) - 1  # all but the first


def test_graph_decodings_in_parallel_are_independent(shapes: list[Any]) -> None:
    """Two decodings of one shape alternate in its memory without overwriting each other's state."""
    sources = [source_batch(4, seed) for seed in (1, 2)]
    width = min(source.shape[1] for source in sources)
    expected, actual = (
        [model.begin_decoding(source[:, :width]) for source in sources] for model in pair(graphs.recipe())
    )
    random = np.random.default_rng(3)
    for _ in range(4):
        tokens = [random_tokens(random, 4) for _ in sources]
        candidates = [decoding.step(last, 3) for decoding, last in zip(actual, tokens, strict=True)]
        for result, decoding, last in zip(candidates, expected, tokens, strict=True):
            assert_equal(result, decoding.step(last, 3))
        for decoding in (*expected, *actual):
            decoding.reorder(np.array([1, 0, 3, 2]))
    assert len(set(shapes)) == 1


def test_graph_decoding_ignores_stale_memory() -> None:
    """NaN that diverged weights leave in the memory does not affect later decodings."""
    plain, static = pair(graphs.recipe())
    weights, source = static.weights(), source_batch(4)
    last = np.full(4, EOS + 1, dtype=np.int32)
    static.set_weights({name: np.full_like(value, np.nan) for name, value in weights.items()})
    diverged = static.begin_decoding(source)
    for _ in range(4):
        assert np.isnan(diverged.step(last, 3).log_probabilities).all()
    del diverged
    static.set_weights(weights)
    expected, actual = plain.begin_decoding(source), static.begin_decoding(source)
    for _ in range(3):
        assert_equal(actual.step(last, 3), expected.step(last, 3))


def test_graph_decoding_beyond_max_length_raises() -> None:
    _, static = pair(graphs.recipe())
    decoding, last = static.begin_decoding(pad([[SOS, 5, EOS]])), np.array([7], dtype=np.int32)
    for _ in range(graphs.LONGEST):
        decoding.step(last, 3)
    with pytest.raises(ValueError, match=f"{graphs.LONGEST + 1} positions exceed max_length={graphs.LONGEST}"):
        decoding.step(last, 3)


def test_graph_decoding_beyond_max_shapes_runs_plain(monkeypatch: pytest.MonkeyPatch, shapes: list[Any]) -> None:
    plain, static = pair(graphs.recipe())
    translated(static, 3)
    all_steps, all_shapes = len(shapes), len(set(shapes))
    monkeypatch.setattr(cuda_graph_decoding, "MAX_SHAPES", 2)
    _, static = pair(graphs.recipe())
    shapes.clear()
    assert_same(translated(static, 3), translated(plain, 3))
    assert len(set(shapes)) == 2 < all_shapes
    assert 0 < len(shapes) < all_steps


@pytest.mark.parametrize("name", graphs.RECIPES)
def test_graph_decoding_step_never_waits_for_device(name: str) -> None:
    """On torch's "meta" device, any access to a value on the host would fail or be recorded."""
    static = graphs.meta(graphs.RECIPES[name], graphs.training())
    with torch.inference_mode():
        memory = static.module.prefill(torch.zeros((3, 6), dtype=torch.int32, device="meta"))
        decoding = GraphDecoding(static, memory, static._steps)
        static.module.eval()
        static.module.step(decoding._state, torch.zeros(3, dtype=torch.int32, device="meta"))
        step = static._steps.bind(decoding, decoding._state, 4)
        with graphs.OperationRecorder() as operations:
            step._run()
    assert not operations.on_host
    assert "aten.index_copy_.default" in operations.names
    assert len(operations.names) > 100


# Capture, with a simulated GPU and with a real one --------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 3])
def test_graph_decoding_replay_equals_call(beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are bit-identical, a capture changes no state, and each shape is captured once."""
    (_, direct), (_, replayed) = pair(graphs.recipe()), pair(graphs.recipe())
    expected = translated(Ending(direct), beam)
    gpu = graphs.SimulatedGpu(monkeypatch, CapturedStep, "_run", "step")
    replayed._graphs = [Graphs(replayed._device, replayed._dropout_source.generator)]
    replayed._steps = CapturedSteps(replayed, graphs.LONGEST, replayed._graphs[0].capture)
    assert translated(Ending(replayed), beam) == expected
    captures = gpu.log.count("step")
    assert captures == len(gpu.graphs) == replayed.compilation().count > 2
    assert gpu.log.count("replay") > captures
    assert translated(Ending(replayed), beam) == expected
    assert gpu.log.count("step") == len(gpu.graphs) == captures


@graphs.needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("beam", [1, 3])
def test_graph_decoding_replay_equals_call_on_gpu(beam: int, precision: str) -> None:
    (_, direct), (_, replayed) = (pair(graphs.recipe(), device="cuda", precision=precision) for _ in range(2))
    direct._steps = CapturedSteps(direct, graphs.LONGEST, graphs.uncaptured)
    expected = translated(Ending(direct), beam)
    for _ in range(2):
        assert_same(translated(Ending(replayed), beam), expected, 1e-4)
    assert replayed.compilation().count > 2


@graphs.needs_gpu
@pytest.mark.parametrize("variant", graphs.VARIANTS)
def test_graph_decoding_translations_equal_plain_on_gpu(variant: str) -> None:
    plain, replayed = map(Ending, pair(graphs.recipe(variant), device="cuda"))
    for beam in (1, 3):
        # Convolutions multiply in TensorFloat-32 there.
        assert_same(translated(replayed, beam), translated(plain, beam), 1e-3)
