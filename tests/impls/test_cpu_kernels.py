"""The CPU kernels have the values and gradients of the plain formulas that run on other devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_models import BASE, subject
from torch.nn.functional import cross_entropy, linear

from harness.conformance.models_under_test import named
from impls import registry
from impls.contract import SOS, Batch, Seq2SeqModel, Training
from impls.pytorch import cpu_kernels
from impls.pytorch.cpu_kernels import LOSS_ROWS, add_masked, attend_packed, output_loss, softmax
from impls.pytorch.dropout import Dropout, DropoutSource
from impls.pytorch.matmul_precision import matmul_precision
from impls.pytorch.torch_packing import ROW_MULTIPLE, pack

pytestmark = pytest.mark.usefixtures("single_thread")

MASKED_SCORE = -1e9
DOUBLE = torch.float64


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(cpu_kernels, "is_optimised", lambda x: False)


def normal(*shape: int) -> torch.Tensor:
    """Return the same numbers at each call."""
    numbers = np.random.default_rng(len(shape)).standard_normal(shape)
    return torch.from_numpy(numbers).requires_grad_()


def packed_operands(kind: str, dropped: bool) -> tuple[Any, ...]:
    """Return arguments of `attend_packed`: three heads of width 4, and five sentences in two groups."""
    packing = pack(subject(BASE).batch(), heads=3, group_rows=3, to_device=torch.from_numpy)
    sources, targets = len(packing.source.tokens), len(packing.target.tokens)
    projections, groups = {
        "source": ((normal(sources, 36), None), packing.source_groups),
        "target": ((normal(targets, 36), None), packing.target_groups),
        "cross": ((normal(targets, 12), normal(sources, 24)), packing.cross_groups),
    }[kind]
    biases = [torch.where(group.visible, 0.0, MASKED_SCORE) for group in groups]
    numbers = [torch.arange(math.prod(group.shape)).view(group.shape) for group in groups]
    keep_mask = [(number % 4 > 0).to(DOUBLE) / 0.75 if dropped else None for number in numbers]
    return *projections, groups, biases, keep_mask


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("kind", ["source", "target", "cross"])
def test_attend_packed_equals_plain_formula_and_passes_gradcheck(
    kind: str, dropped: bool, plain: Callable[[], None]
) -> None:
    projected, memory, groups, biases, keep_mask = packed_operands(kind, dropped)

    def attended(*projections: torch.Tensor) -> torch.Tensor:
        return attend_packed(*(*projections, None)[:2], groups, biases, keep_mask)

    projections = [projection for projection in (projected, memory) if projection is not None]
    assert torch.autograd.gradcheck(attended, projections, fast_mode=True)
    fast = attended(*projections)
    plain()
    torch.testing.assert_close(fast, attended(*projections), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimised", [True, False])
def test_attend_packed_large_or_masked_scores_stay_finite(optimised: bool, plain: Callable[[], None]) -> None:
    if not optimised:
        plain()
    projected, memory, groups, biases, keep_mask = packed_operands("cross", dropped=False)
    assert torch.isfinite(attend_packed(1e3 * projected, 1e3 * memory, groups, biases, keep_mask)).all()
    hidden = [torch.full_like(bias, MASKED_SCORE) for bias in biases]
    assert torch.isfinite(attend_packed(projected, memory, groups, hidden, keep_mask)).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [5, 2 * LOSS_ROWS + 3])
def test_output_loss_equals_plain_formula(smoothing: float, rows: int, plain: Callable[[], None]) -> None:
    operands = [normal(rows, 4), normal(9, 4), normal(9)]
    target = torch.arange(rows) % (9 - SOS) + SOS  # no PAD, as in packed rows
    fast, nats = output_loss(*operands, target, smoothing)
    gradients = torch.autograd.grad(3 * fast, operands)
    plain()
    slow, slow_nats = output_loss(*operands, target, smoothing)
    torch.testing.assert_close((fast, nats), (slow, slow_nats), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients, torch.autograd.grad(3 * slow, operands), rtol=1e-12, atol=1e-12)
    logits = linear(operands[0], operands[1], operands[2])
    library = cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(fast, library, rtol=1e-12, atol=0)


def assert_same_loss(actual: Any, expected: Any, operands: tuple[torch.Tensor, ...]) -> None:
    """Compare two results of `output_loss` and their gradients."""
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    gradients = (torch.autograd.grad(loss, operands) for loss, _ in (actual, expected))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("optimised", [True, False])
def test_output_loss_ignores_rows_without_target(smoothing: float, optimised: bool, plain: Callable[[], None]) -> None:
    rows = LOSS_ROWS + 7
    features, kernel, bias = normal(rows + 9, 4), normal(9, 4), normal(9)
    target = torch.arange(rows) % (9 - SOS) + SOS
    expected = output_loss(features[:rows], kernel, bias, target, smoothing)
    if not optimised:
        plain()
    with_filling = output_loss(features, kernel, bias, target, smoothing)
    assert_same_loss(with_filling, expected, (features, kernel, bias))


@pytest.mark.parametrize(("setting", "rows"), [("highest", {LOSS_ROWS, 7}), ("medium", {LOSS_ROWS, ROW_MULTIPLE})])
def test_output_loss_fills_rows_up_for_onednn(setting: str, rows: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    features, kernel, bias = normal(LOSS_ROWS + 7, 4), normal(9, 4), normal(9)
    target = torch.arange(len(features)) % (9 - SOS) + SOS
    expected = output_loss(features, kernel, bias, target, 0.1)
    counts: set[int] = set()

    def counted(logits: torch.Tensor, dim: int) -> torch.Tensor:
        counts.add(len(logits))
        return torch.log_softmax(logits, dim)

    monkeypatch.setattr(cpu_kernels, "log_softmax", counted)
    with matmul_precision(setting):
        filled = output_loss(features, kernel, bias, target, 0.1)
    assert_same_loss(filled, expected, (features, kernel, bias))
    assert counts == rows


def test_add_masked_gradients_pass_gradcheck() -> None:
    keep_mask = torch.tensor([[0, 1.25, 1.25], [1.25, 0, 0]], dtype=DOUBLE)
    assert torch.autograd.gradcheck(lambda x, added: add_masked(x, added, keep_mask), (normal(2, 3), normal(2, 3)))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keep_mask_has_rate_and_is_independent(rate: float) -> None:
    noise = DropoutSource(torch.device("cpu"))
    noise.restart(0, 1)
    dropout = Dropout(rate, noise)
    x = torch.ones(400, 1_003)  # no multiple of the four numbers that are drawn together
    share = dropout(x).ne(0).double()
    deviation = (rate * (1 - rate)) ** 0.5
    assert abs(share.mean() - (1 - rate)) < 4 * deviation / x.numel() ** 0.5
    assert (share.mean(dim=0) - (1 - rate)).abs().max() < 5 * deviation / 400**0.5
    centred = share.flatten() - share.mean()
    for distance in (1, 2, 3, 4, 1_003):
        together = (centred[distance:] * centred[:-distance]).mean() / deviation**2
        assert abs(together) < 4 / x.numel() ** 0.5
    assert dropout(x).unique().tolist() == [0, pytest.approx(1 / (1 - rate))]


@pytest.mark.parametrize("variant", [name for name in registry.names() if name != "paper_base"])
def test_mixed_precision_trains_and_normalises(variant: str) -> None:
    """bfloat16 uses the plain formulas with log-probabilities in float32."""
    curves = []
    for precision in ("float32", "bfloat16"):
        under_test = subject(registry.recipe(variant), precision=precision)
        model = under_test.model(training=Training(label_smoothing=0.1), seed=3, dropout=0.0)  # masks differ
        batches = [under_test.batch(seed) for seed in range(3)]
        curves.append([losses(model, batch) for batch in batches])
        assert {str(value.dtype) for value in model.weights().values()} == {"float32"}
        first, words = np.full(len(batches[0].source), SOS, np.int32), under_test.target_vocabulary_size
        step = model.begin_decoding(batches[0].source).step(first, words)
        np.testing.assert_allclose(np.exp(step.log_probabilities.astype(np.float64)).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(curves[1], curves[0], rtol=0.03)


def losses(model: Seq2SeqModel, batch: Batch) -> tuple[float, float]:
    model.train_step(batch, 1e-4)
    totals = model.take_totals()
    assert totals.finite
    return totals.objective_nats / totals.tokens, totals.nats / totals.tokens


def test_torch_variants_except_plain_use_output_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    loss = cpu_kernels._OutputLoss.apply
    monkeypatch.setattr(cpu_kernels._OutputLoss, "apply", lambda *inputs: calls.append("loss") or loss(*inputs))
    names = [name for name in registry.names() if name != "plain"]
    for name in names:
        under_test = named(name)
        under_test.model(training=registry.training(name)).train_step(under_test.batch(), 1e-3)
    assert len(calls) == len(names)


@pytest.mark.parametrize("name", ["learned_positions", "paper", "bahdanau_gru", "torch_reference"])
def test_decoding_asked_for_too_many_candidates_gives_every_token_once(name: str) -> None:
    under_test = named(name)
    model, vocabulary_size = under_test.model(), under_test.target_vocabulary_size
    source = np.random.default_rng(0).integers(4, under_test.source_vocabulary_size, (32, 6), dtype=np.int32)
    last = np.full(32, SOS, np.int32)
    many = model.begin_decoding(source).step(last, best=vocabulary_size + 5)
    few = model.begin_decoding(source[:3]).step(last[:3], best=vocabulary_size + 5)
    assert many.tokens.shape == (32, vocabulary_size)
    assert np.array_equal(np.sort(many.tokens), np.tile(np.arange(vocabulary_size), (32, 1)))
    np.testing.assert_allclose(many.log_probabilities[:3], few.log_probabilities, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.exp(many.log_probabilities).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("shape", [(128, 8, 1, 1), (128, 8, 1, 7), (40, 2, 5, 15), (40, 2, 5, 16), (3, 2, 1, 5)])
def test_softmax_without_gradients_equals_torch(shape: tuple[int, ...]) -> None:
    scores = normal(*shape).detach().float() * 20
    scores[0] = MASKED_SCORE
    scores[1:, :, :, shape[-1] // 2 + 1 :] += MASKED_SCORE
    expected = torch.softmax(scores.double(), dim=-1)
    with torch.inference_mode():
        weights = softmax(scores.clone())
    assert (weights - expected).abs().max() < 1e-6
    assert not weights[1:, :, :, shape[-1] // 2 + 1 :].any()
