"""Updates at padded shapes equal plain updates, and capturing and replaying them changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from small_models import SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, one_thread

from harness.conformance.models_under_test import padded
from impls.contract import EOS, PAD, SOS, Arrays, Batch
from impls.pytorch import cuda_graph_training
from impls.pytorch.cuda_graph_training import LENGTH_STEP, BatchShape, GraphModel, Graphs, padded_shape
from impls.pytorch.dropout import Dropout
from impls.pytorch.torch_adapter import TorchModel

RATE = 2e-3
ROUNDING = 1e-5


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def batch(number: int, rows: int = ROWS) -> Batch:
    """Return sentences whose lengths differ between batches."""
    random = np.random.default_rng([number, 7])
    longest = 3 + number % (LONGEST - 5)

    def words(most: int) -> list[list[int]]:
        return [random.integers(EOS + 1, most, random.integers(1, longest + 1)).tolist() for _ in range(rows)]

    sources, targets = words(SOURCE_VOCABULARY_SIZE), words(TARGET_VOCABULARY_SIZE)
    return Batch(
        padded([[SOS, *one, EOS] for one in sources]),
        padded([[SOS, *one] for one in targets]),
        padded([[*one, EOS] for one in targets]),
    )


def batches(count: int = 20) -> list[Batch]:
    """Return batches of many shapes, the last of them with fewer rows."""
    return [*(batch(number) for number in range(count - 1)), batch(count, rows=2)]


def curve(found: TorchModel, given: Sequence[Batch]) -> list[tuple[float, ...]]:
    """Train and return objective, loss, gradient norm and counts of each update."""
    message = []
    for one in given:
        found.train_step(one, RATE)
        totals = found.take_totals()
        assert totals.finite
        message.append(
            (totals.objective_nats, totals.nats, totals.largest_gradient_norm, totals.tokens, totals.updates)
        )
    return message


def equal(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padded_update_equals_plain(variant: str) -> None:
    """Compare losses, norms, weights and moments over 20 updates of many shapes."""
    given, trained = batches(), training(variant)
    plain, static = (model(kind, recipe(variant), trained) for kind in (TorchModel, GraphModel))
    expected = curve(plain, given)
    np.testing.assert_allclose(curve(static, given), expected, rtol=ROUNDING)
    if variant == "paper":
        assert trained.label_smoothing > 0
        assert expected[0][0] != expected[0][1]
    assert trained.clip_norm is None or expected[0][2] > trained.clip_norm
    after = static.training_state()
    for name, array in plain.training_state().items():
        # A key's bias moves all scores of a query alike: its gradient is 0, and Adam makes steps of mere rounding.
        if not name.endswith(".key.bias"):
            np.testing.assert_allclose(after[name], array, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("changes", [{"positions": "rotary", "norm": "rms", "norm_order": "pre", "ffn": "gated"},
                                     {"positions": "alibi", "tying": "output", "activation": "silu"}])  # fmt: skip
def test_padded_update_equals_plain_for_other_recipes(changes: dict[str, Any]) -> None:
    given, trained = batches(6), training(label_smoothing=0.1)
    plain, static = (model(kind, recipe(**changes), trained) for kind in (TorchModel, GraphModel))
    np.testing.assert_allclose(curve(static, given), curve(plain, given), rtol=ROUNDING)


def test_padded_totals_equal_plain() -> None:
    plain, static = (model(kind, recipe(), training()) for kind in (TorchModel, GraphModel))
    for one in batches(5):
        plain.train_step(one, RATE)
        static.train_step(one, RATE)
    expected, actual = plain.take_totals(), static.take_totals()
    assert (actual.tokens, actual.updates, actual.finite) == (expected.tokens, expected.updates, True)
    assert actual.nats == pytest.approx(expected.nats, rel=ROUNDING)
    assert actual.largest_gradient_norm == pytest.approx(expected.largest_gradient_norm, rel=ROUNDING)
    assert static.take_totals().updates == 0


def test_padded_loss_not_finite_is_reported() -> None:
    static = model(GraphModel, recipe(), training())
    weights = static.weights()
    static.set_weights({**weights, "output.bias": np.full_like(weights["output.bias"], np.nan)})
    static.train_step(batch(1), RATE)
    assert not static.take_totals().finite


@pytest.mark.parametrize("variant", ["learned_positions", "paper"])
def test_padding_content_does_not_matter(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use twice the rows and the maximum lengths; PAD's embedding and the last positions get no gradient."""
    given = batch(3, rows=3)
    result = []
    for step, rows in ((1, 3), (LONGEST, 2 * ROWS)):
        monkeypatch.setattr(cuda_graph_training, "LENGTH_STEP", step)
        one = model(GraphModel, recipe(variant), replace(training(variant), batch_size=rows, clip_norm=None))
        one.train_step(given, RATE)
        result.append((one.training_state(), one.take_totals()))
    (bare, bare_totals), (wide, wide_totals) = result
    assert wide_totals.nats == pytest.approx(bare_totals.nats, rel=ROUNDING)
    assert wide_totals.largest_gradient_norm == pytest.approx(bare_totals.largest_gradient_norm, rel=ROUNDING)
    for name in bare:
        if name.startswith("first_moment/"):
            np.testing.assert_allclose(wide[name], bare[name], rtol=1e-4, atol=1e-7, err_msg=name)
    assert not wide["first_moment/source.embedding"][PAD].any()
    if variant == "learned_positions":
        assert not wide["first_moment/target.embedding"][PAD].any()
        assert not wide["first_moment/source.positions"][given.source.shape[1] :].any()


def test_padded_batch_of_only_padding_changes_nothing() -> None:
    static = model(GraphModel, recipe(), training())
    before = static.weights()
    nothing = np.full((2, 3), PAD, np.int32)
    static.train_step(Batch(nothing, nothing, nothing), RATE)
    totals = static.take_totals()
    assert (totals.nats, totals.tokens, totals.finite) == (0.0, 0, True)
    equal(static.weights(), before)


def test_padded_shapes_are_few_and_large_enough() -> None:
    assert padded_shape(batch(2), ROWS, LONGEST) == BatchShape(ROWS, 8, 8)
    shapes = {padded_shape(batch(number), ROWS, LONGEST) for number in range(200)}
    assert len(shapes) <= (LONGEST // LENGTH_STEP + 1) ** 2
    assert {one.rows for one in shapes} == {ROWS}
    assert padded_shape(batch(2, rows=2 * ROWS), ROWS, LONGEST).rows == 2 * ROWS
    for number in range(50):
        given, shape = batch(number), padded_shape(batch(number), ROWS, LONGEST)
        for length, whole in ((given.source.shape[1], shape.source), (given.target_in.shape[1], shape.target)):
            assert length <= whole <= LONGEST
            assert whole % LENGTH_STEP == 0 or whole == LONGEST


def test_padded_dropout_depends_on_seed_and_update_only() -> None:
    """Update 3 of a seed drops the same units, whatever was computed before."""
    trained = training()
    state = model(GraphModel, recipe(dropout=0.3), trained).training_state() | {"updates": np.array(2)}
    outcomes = []
    for before in ([], [batch(9), batch(4)]):
        one = model(GraphModel, recipe(dropout=0.3), trained)
        curve(one, before)
        one.set_training_state(state)
        outcomes.append((curve(one, [batch(5)]), one.weights()))
    assert outcomes[0][0] == outcomes[1][0]
    equal(outcomes[0][1], outcomes[1][1])
    other = model(GraphModel, recipe(dropout=0.3), trained)
    other.set_training_state({**state, "random/seed": np.array(4)})
    assert curve(other, [batch(5)]) != outcomes[0][0]


def test_graph_model_resume_in_mid_epoch_is_bit_identical() -> None:
    given = batches(8)
    straight, first = (model(GraphModel, recipe("paper", 0.2), training("paper")) for _ in range(2))
    for one in given:
        straight.train_step(one, RATE)
    for one in given[:3]:
        first.train_step(one, RATE)
    second = model(GraphModel, recipe("paper", 0.2), training("paper"))
    second.train_step(given[7], RATE)
    second.set_training_state(first.training_state())
    for one in given[3:]:
        second.train_step(one, RATE)
    equal(second.training_state(), straight.training_state())
    assert second.take_totals() == straight.take_totals()


def test_graph_and_plain_model_exchange_training_state() -> None:
    given = batches(6)
    straight, static = model(TorchModel, recipe(), training()), model(GraphModel, recipe(), training())
    expected = curve(straight, given)
    message = curve(static, given[:2])
    plain, back = model(TorchModel, recipe(), training()), model(GraphModel, recipe(), training())
    plain.set_training_state(static.training_state())
    message += curve(plain, given[2:4])
    back.set_training_state(plain.training_state())
    message += curve(back, given[4:])
    np.testing.assert_allclose(message, expected, rtol=ROUNDING)


def places(found: TorchModel) -> list[int]:
    """Return the addresses of all tensors that a captured update reads or changes."""
    state = [one for moments in found._optimiser.state.values() for one in moments.values()]
    return [one.data_ptr() for one in (*found._parameters, *state, found._sums, found._largest, found._finite)]


def test_graph_model_tensors_stay_in_place() -> None:
    static = model(GraphModel, recipe(), training())
    before = places(static)
    curve(static, batches(3))
    static.set_weights(static.weights())
    static.set_training_state(static.training_state())
    static.token_nats(batch(1))
    static.take_totals()
    assert places(static) == before
    assert all(one.grad is None for one in static._parameters)


class DrawnNowhere:
    """A dropout source on the "meta" device."""

    def keep_mask(self, shape: tuple[int, ...], rate: float) -> torch.Tensor:
        return torch.ge(torch.empty(shape, device="meta").uniform_(), rate).float()


@pytest.mark.parametrize("variant", VARIANTS)
def test_graph_update_never_waits_for_device(variant: str) -> None:
    """On torch's "meta" device, any access to a value on the host would fail or be recorded."""
    static = meta(recipe(variant, 0.1), training(variant))
    static._optimiser = torch.optim.Adam(static._parameters, fused=True)
    static._make_moments()
    for name in ("_sums", "_largest", "_finite"):
        setattr(static, name, getattr(static, name).to("meta"))
    for one in static.module.modules():
        if isinstance(one, Dropout):
            one.dropout_source = DrawnNowhere()  # type: ignore[assignment]
    inputs = cuda_graph_training.Inputs(BatchShape(ROWS, 8, 8), torch.device("meta"))
    static.module.train()
    with OperationRecorder() as operations:
        static._update(inputs)
    assert not operations.on_host
    assert "aten._fused_adam_.tensor_lr" in operations.names
    assert len(operations.names) > 500


def test_host_access_in_update_is_detected() -> None:
    with OperationRecorder() as operations, pytest.raises(RuntimeError, match="meta"):
        torch.ones(2, device="meta").sum().item()
    with OperationRecorder() as copied:
        torch.ones(2).to("meta")
    assert copied.on_host
    assert operations.names


# Capture, with a simulated GPU ----------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    return SimulatedGpu(monkeypatch, GraphModel, "_update", "update")


def captured(dropout: float = 0.3) -> GraphModel:
    result = model(GraphModel, recipe(dropout=dropout), training())
    assert isinstance(result, GraphModel)
    result._graphs = [Graphs(result._device, result._dropout_source.generator)]
    result._capture_update = result._graphs[0].capture
    return result


def shapes(given: Sequence[Batch]) -> set[BatchShape]:
    return {padded_shape(one, ROWS, LONGEST) for one in given}


def test_replayed_updates_are_bit_identical(gpu: SimulatedGpu) -> None:
    """Warm-up changes nothing, and inputs and random numbers are set before each replay."""
    given = batches(12) * 2
    static, replayed = model(GraphModel, recipe(dropout=0.3), training()), captured()
    expected = curve(static, given)
    gpu.log.clear()
    assert curve(replayed, given) == expected
    equal(replayed.training_state(), static.training_state())
    assert gpu.log.count("replay") == len(given)
    assert gpu.log.count("update") == gpu.log.count("synchronize") == len(shapes(given))
    assert gpu.log[:3] == ["synchronize", "update", "replay"]


def test_shape_is_captured_once_in_shared_memory(gpu: SimulatedGpu) -> None:
    given = batches(12) * 2
    replayed = captured()
    curve(replayed, given)
    assert len(gpu.graphs) == len(gpu.captures) == len(set(map(id, gpu.graphs))) == len(shapes(given)) > 3
    assert len(set(gpu.captures)) == 1
    assert all(graph.generators == [replayed._dropout_source.generator] for graph in gpu.graphs)
    assert all(len(graph.operations) == 1 for graph in gpu.graphs)
    message = replayed.compilation()
    assert (message.count, message.jit_compile) == (len(gpu.graphs), False)
    assert message.seconds > 0


def test_capture_restores_state(gpu: SimulatedGpu) -> None:
    replayed = captured()
    curve(replayed, [batch(1)])
    replayed.train_step(batch(1), RATE)
    before = replayed.training_state()
    inputs = cuda_graph_training.Inputs(BatchShape(ROWS, 8, 8), torch.device("cpu"))
    inputs.fill(batch(2), RATE)
    replayed._capture_update("another", lambda: replayed._update(inputs), replayed._state)
    equal(replayed.training_state(), before)


def test_replay_after_restoring_state_works(gpu: SimulatedGpu) -> None:
    """Loading a checkpoint or the best epoch's weights affects graphs that were captured before."""
    given = batches(5)
    replayed = captured()
    start = replayed.training_state()
    first = curve(replayed, given)
    replayed.set_training_state(start)
    graphs = len(gpu.graphs)
    assert curve(replayed, given) == first
    assert len(gpu.graphs) == graphs


def test_shapes_beyond_max_graphs_run_directly(gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph_training, "MAX_GRAPHS", 2)
    given = batches(12)
    static, replayed = model(GraphModel, recipe(dropout=0.3), training()), captured()
    expected = curve(static, given)
    gpu.log.clear()
    assert curve(replayed, given) == expected
    assert len(gpu.graphs) == 2
    called = gpu.log.count("update") - len(gpu.graphs)
    assert called > 0
    assert gpu.log.count("replay") + called == len(given)


# With a GPU -----------------------------------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_captured_updates_equal_plain_on_gpu(variant: str) -> None:
    given, trained = batches(), training(variant)
    plain, static = (model(kind, recipe(variant), trained, device="cuda") for kind in (TorchModel, GraphModel))
    # Convolutions multiply in TensorFloat-32 there.
    np.testing.assert_allclose(curve(static, given), curve(plain, given), rtol=1e-3)
    assert isinstance(static, GraphModel)
    assert static.compilation().count == len(shapes(given))


@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_replayed_updates_equal_direct_ones_on_gpu(precision: str) -> None:
    """With dropout: a replay draws the numbers of its seed and update, and warm-up changes no state."""
    given = batches() * 2
    settings: dict[str, Any] = {"device": "cuda", "precision": precision}
    uncaptured, replayed = (model(GraphModel, recipe(dropout=0.3), training(), **settings) for _ in range(2))
    assert isinstance(uncaptured, GraphModel)
    uncaptured._capture_update = called
    np.testing.assert_allclose(curve(replayed, given), curve(uncaptured, given), rtol=1e-4)


@needs_gpu
def test_replayed_update_never_waits_on_gpu() -> None:
    static = model(GraphModel, recipe(dropout=0.3), training(), device="cuda")
    given = batches(8)
    curve(static, given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for one in given:
            static.train_step(one, RATE)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert static.take_totals().updates == len(given)
