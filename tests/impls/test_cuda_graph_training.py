"""Updates at padded shapes equal plain ones, capturing and replaying them changes nothing; where graphs are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import graph_models as graphs
import numpy as np
import pytest
import torch
from small_models import SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, assert_obeys, batch_of

import impls
from harness.conformance.models_under_test import ModelUnderTest, with_dropout
from harness.experiments.specs import RunSpec
from impls import registry
from impls.contract import EOS, Arrays, Batch, Training
from impls.pytorch import cuda_graph_training
from impls.pytorch.cuda_graph_training import LENGTH_STEP, BatchShape, GraphModel, Graphs, padded_shape
from impls.pytorch.dropout import Dropout
from impls.pytorch.torch_adapter import TorchModel
from impls.recipes import RECIPES

pytestmark = pytest.mark.usefixtures("single_thread")

RATE = 2e-3
ROUNDING = 1e-5


def random_batch(number: int, rows: int = graphs.ROWS) -> Batch:
    random = np.random.default_rng([number, 7])
    longest = 3 + number % (graphs.LONGEST - 5)

    def sentences(vocabulary_size: int) -> list[list[int]]:
        lengths = (random.integers(1, longest + 1) for _ in range(rows))
        return [random.integers(EOS + 1, vocabulary_size, length).tolist() for length in lengths]

    return batch_of(sentences(SOURCE_VOCABULARY_SIZE), sentences(TARGET_VOCABULARY_SIZE))


def random_batches(count: int = 20) -> list[Batch]:
    """Return batches of many shapes, the last of them with fewer rows."""
    return [*(random_batch(number) for number in range(count - 1)), random_batch(count, rows=2)]


def curve(trained: TorchModel, batches: Sequence[Batch]) -> list[tuple[float, ...]]:
    rows = []
    for batch in batches:
        trained.train_step(batch, RATE)
        totals = trained.take_totals()
        assert totals.finite
        rows.append((totals.objective_nats, totals.nats, totals.largest_gradient_norm, totals.tokens, totals.updates))
    return rows


def assert_equal(actual: Arrays, expected: Arrays) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


def graph_model(dropout: float = 0.0, **settings: Any) -> GraphModel:
    return graphs.model(GraphModel, graphs.recipe(dropout=dropout), graphs.training(), **settings)


def test_graph_model_obeys_every_law() -> None:
    """Covers totals, padding, dropout, resumption and reproducibility."""

    def build(settings: Training, seed: int, dropout: float) -> TorchModel:
        recipe = with_dropout(graphs.recipe(), dropout)
        return graphs.model(GraphModel, recipe, replace(settings, batch_size=graphs.ROWS), seed=seed)

    assert_obeys(
        ModelUnderTest(build, SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, max_length=graphs.LONGEST, fast=True)
    )


@pytest.mark.parametrize("name", graphs.RECIPES)
def test_padded_update_equals_plain(name: str) -> None:
    batches, settings = random_batches(), graphs.training(name if name in graphs.VARIANTS else "paper")
    plain, static = (graphs.model(kind, graphs.RECIPES[name], settings) for kind in (TorchModel, GraphModel))
    expected = curve(plain, batches)
    np.testing.assert_allclose(curve(static, batches), expected, rtol=ROUNDING)
    if settings.label_smoothing:
        assert expected[0][0] != expected[0][1]
    assert settings.clip_norm is None or expected[0][2] > settings.clip_norm
    after = static.training_state()
    for tensor, array in plain.training_state().items():
        # A key's bias moves all scores of a query alike: its gradient is 0, and Adam makes steps of mere rounding.
        if not tensor.endswith(".key.bias"):
            np.testing.assert_allclose(after[tensor], array, rtol=1e-3, atol=2e-5, err_msg=tensor)


def test_padded_shapes_are_few_and_large_enough() -> None:
    assert padded_shape(random_batch(2), graphs.ROWS, graphs.LONGEST) == BatchShape(graphs.ROWS, 8, 8)
    assert padded_shape(random_batch(2, rows=2 * graphs.ROWS), graphs.ROWS, graphs.LONGEST).rows == 2 * graphs.ROWS
    shapes = set()
    for number in range(200):
        batch = random_batch(number)
        shape = padded_shape(batch, graphs.ROWS, graphs.LONGEST)
        shapes.add(shape)
        for length, padded_length in ((batch.source.shape[1], shape.source), (batch.target_in.shape[1], shape.target)):
            assert length <= padded_length <= graphs.LONGEST
            assert padded_length % LENGTH_STEP == 0 or padded_length == graphs.LONGEST
    assert len(shapes) <= (graphs.LONGEST // LENGTH_STEP + 1) ** 2
    assert {shape.rows for shape in shapes} == {graphs.ROWS}


def addresses(static: TorchModel) -> list[int]:
    """Return the addresses of all tensors that a captured update reads or changes."""
    moments = [tensor for state in static._optimiser.state.values() for tensor in state.values()]
    tensors = (*static._parameters, *moments, static._sums, static._largest, static._finite)
    return [tensor.data_ptr() for tensor in tensors]


def test_graph_model_tensors_stay_in_place() -> None:
    static = graph_model()
    before = addresses(static)
    curve(static, random_batches(3))
    static.set_weights(static.weights())
    static.set_training_state(static.training_state())
    static.token_nats(random_batch(1))
    static.take_totals()
    assert addresses(static) == before
    assert all(parameter.grad is None for parameter in static._parameters)


class MetaDropoutSource:
    """A dropout source on the "meta" device."""

    def keep_mask(self, shape: tuple[int, ...], rate: float) -> torch.Tensor:
        return torch.ge(torch.empty(shape, device="meta").uniform_(), rate).float()


@pytest.mark.parametrize("variant", graphs.VARIANTS)
def test_graph_update_never_waits_for_device(variant: str) -> None:
    """On torch's "meta" device, any access to a value on the host would fail or be recorded."""
    static = graphs.meta(graphs.recipe(variant, 0.1), graphs.training(variant))
    static._optimiser = torch.optim.Adam(static._parameters, fused=True)
    static._make_moments()
    for name in ("_sums", "_largest", "_finite"):
        setattr(static, name, getattr(static, name).to("meta"))
    for module in static.module.modules():
        if isinstance(module, Dropout):
            module.dropout_source = MetaDropoutSource()  # type: ignore[assignment]
    inputs = cuda_graph_training.Inputs(BatchShape(graphs.ROWS, 8, 8), torch.device("meta"))
    static.module.train()
    with graphs.OperationRecorder() as operations:
        static._update(inputs)
    assert not operations.on_host
    assert "aten._fused_adam_.tensor_lr" in operations.names
    assert len(operations.names) > 500


def test_host_access_in_update_is_detected() -> None:
    with graphs.OperationRecorder() as operations, pytest.raises(RuntimeError, match="meta"):
        torch.ones(2, device="meta").sum().item()
    with graphs.OperationRecorder() as copied:
        torch.ones(2).to("meta")
    assert copied.on_host
    assert operations.names


# Capture, with a simulated GPU ----------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> graphs.SimulatedGpu:
    return graphs.SimulatedGpu(monkeypatch, GraphModel, "_update", "update")


@pytest.fixture
def replayed(gpu: graphs.SimulatedGpu) -> GraphModel:
    static = graph_model(dropout=0.3)
    static._graphs = [Graphs(static._device, static._dropout_source.generator)]
    static._capture_update = static._graphs[0].capture
    return static


def padded_shapes(batches: Sequence[Batch]) -> set[BatchShape]:
    return {padded_shape(batch, graphs.ROWS, graphs.LONGEST) for batch in batches}


def test_replayed_updates_are_bit_identical(gpu: graphs.SimulatedGpu, replayed: GraphModel) -> None:
    """Warm-up changes nothing, and inputs and random numbers are set before each replay."""
    batches = random_batches(12) * 2
    static = graph_model(dropout=0.3)
    expected = curve(static, batches)
    gpu.log.clear()
    assert curve(replayed, batches) == expected
    assert_equal(replayed.training_state(), static.training_state())
    assert gpu.log.count("replay") == len(batches)
    assert gpu.log.count("update") == gpu.log.count("synchronize") == len(padded_shapes(batches))
    assert gpu.log[:3] == ["synchronize", "update", "replay"]


def test_shape_is_captured_once_in_shared_memory(gpu: graphs.SimulatedGpu, replayed: GraphModel) -> None:
    batches = random_batches(12) * 2
    curve(replayed, batches)
    assert len(gpu.graphs) == len(gpu.captures) == len(set(map(id, gpu.graphs))) == len(padded_shapes(batches)) > 3
    assert len(set(gpu.captures)) == 1
    assert all(graph.generators == [replayed._dropout_source.generator] for graph in gpu.graphs)
    assert all(len(graph.operations) == 1 for graph in gpu.graphs)
    compilation = replayed.compilation()
    assert (compilation.count, compilation.jit_compile) == (len(gpu.graphs), False)
    assert compilation.seconds > 0


def test_shapes_beyond_max_graphs_run_directly(
    gpu: graphs.SimulatedGpu, replayed: GraphModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph_training, "MAX_GRAPHS", 2)
    batches = random_batches(12)
    expected = curve(graph_model(dropout=0.3), batches)
    gpu.log.clear()
    assert curve(replayed, batches) == expected
    assert len(gpu.graphs) == 2
    direct = gpu.log.count("update") - len(gpu.graphs)
    assert direct > 0
    assert gpu.log.count("replay") + direct == len(batches)


# With a GPU -----------------------------------------------------------------------------------------------------------


@graphs.needs_gpu
@pytest.mark.parametrize("variant", graphs.VARIANTS)
def test_captured_updates_equal_plain_on_gpu(variant: str) -> None:
    batches, settings = random_batches(), graphs.training(variant)
    plain, static = (
        graphs.model(kind, graphs.recipe(variant), settings, device="cuda") for kind in (TorchModel, GraphModel)
    )
    # Convolutions multiply in TensorFloat-32 there.
    np.testing.assert_allclose(curve(static, batches), curve(plain, batches), rtol=1e-3)
    assert static.compilation().count == len(padded_shapes(batches))


@graphs.needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_replayed_updates_equal_direct_ones_on_gpu(precision: str) -> None:
    """With dropout: a replay draws the numbers of its seed and update, and warm-up changes no state."""
    batches = random_batches() * 2
    direct, captured = (graph_model(dropout=0.3, device="cuda", precision=precision) for _ in range(2))
    direct._capture_update = graphs.uncaptured
    np.testing.assert_allclose(curve(captured, batches), curve(direct, batches), rtol=1e-4)


@graphs.needs_gpu
def test_replayed_update_never_waits_on_gpu() -> None:
    static, batches = graph_model(dropout=0.3, device="cuda"), random_batches(8)
    curve(static, batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            static.train_step(batch, RATE)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert static.take_totals().updates == len(batches)


# Where the setting is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "changes", "unsupported"),
    [
        ("learned_positions", {}, "device='cpu'"),
        ("learned_positions", {"framework": "keras", "device": "cuda"}, "framework='keras'"),
        ("bahdanau_gru", {"device": "cuda"}, "variant='bahdanau_gru'"),
        ("torch_reference", {"device": "cuda:1"}, "variant='torch_reference'"),
        ("plain", {"device": "cuda"}, "variant='plain'"),
        ("bahdanau_gru", {"device": "mps"}, "device='mps' and variant='bahdanau_gru'"),
        ("mine:NAME", {"device": "cuda"}, "variant='mine:NAME'"),
    ],
)
def test_cuda_graphs_unsupported_run_raises(variant: str, changes: dict[str, Any], unsupported: str) -> None:
    with pytest.raises(ValueError, match=f"cuda_graphs='on' with {unsupported}: CUDA graphs need framework='torch'"):
        RunSpec(variant=variant, recipe=RECIPES.get(variant), cuda_graphs="on", **changes)


@pytest.mark.parametrize(("variant", "reason"), [("learned_positions", "needs a CUDA device"), ("torch_reference", "")])
def test_cuda_graphs_unsupported_model_is_not_built(variant: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"cuda_graphs=True .*{reason}"):
        impls.build(registry.recipe(variant), SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, cuda_graphs=True)
    with pytest.raises(ValueError, match="backend 'jax' needs framework 'keras', not 'torch'"):
        registry.builder("transformer", "torch", "jax", cuda_graphs=True)
