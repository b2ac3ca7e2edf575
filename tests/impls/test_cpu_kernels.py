"""The CPU kernels have the values and gradients of the plain formulas that run on other devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, linear

import impls
from impls import registry
from impls.contract import EOS, PAD, SOS, Batch, Recipe, Training, TransformerRecipe
from impls.pytorch import cpu_kernels
from impls.pytorch.cpu_kernels import LOSS_ROWS, add_masked, attend_packed, output_loss
from impls.pytorch.dropout import Dropout, DropoutSource
from impls.pytorch.torch_packing import pack

MASKED_SCORE = -1e9
DOUBLE = torch.float64


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that switches to the plain formulas."""
    return lambda: monkeypatch.setattr(cpu_kernels, "is_optimised", lambda x: False)


def drawn(*shape: int) -> torch.Tensor:
    """Return the same numbers at each call."""
    numbers = np.random.default_rng(len(shape)).standard_normal(shape)
    return torch.from_numpy(numbers).requires_grad_()


def packed_operands(kind: str, dropped: bool) -> tuple[Any, ...]:
    """Return arguments of `attend_packed`: three heads of width 4, and five sentences in two groups."""
    packing = pack(batch(3), heads=3, group_rows=3, to_device=torch.from_numpy)
    words, source_vocabulary_size = len(packing.target.tokens), len(packing.source.tokens)
    if kind == "cross":
        projections, groups = (drawn(words, 12), drawn(source_vocabulary_size, 24)), packing.cross_groups
    else:
        groups = packing.target_groups if kind == "target" else packing.source_groups
        projections = drawn(words if kind == "target" else source_vocabulary_size, 36), None
    biases = [torch.where(group.visible, 0.0, MASKED_SCORE) for group in groups]
    numbers = [torch.arange(math.prod(group.shape)).view(group.shape) for group in groups]
    keep_mask = [(one % 4 > 0).to(DOUBLE) / 0.75 if dropped else None for one in numbers]
    return *projections, groups, biases, keep_mask


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("kind", ["source", "target", "cross"])
def test_attend_packed_gradients_pass_gradcheck(kind: str, dropped: bool) -> None:
    *projections, groups, biases, keep_mask = packed_operands(kind, dropped)
    given = [one for one in projections if one is not None]

    def attended(projected: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        return attend_packed(projected, memory, groups, biases, keep_mask)

    assert torch.autograd.gradcheck(attended, given, fast_mode=True)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("kind", ["source", "target", "cross"])
def test_attend_packed_equals_plain_formula(kind: str, dropped: bool, plain: Callable[[], None]) -> None:
    operands = packed_operands(kind, dropped)
    fast = attend_packed(*operands)
    plain()
    torch.testing.assert_close(fast, attend_packed(*operands), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("served", [True, False])
def test_attend_packed_large_or_masked_scores_stay_finite(served: bool, plain: Callable[[], None]) -> None:
    if not served:
        plain()
    projected, memory, groups, biases, keep_mask = packed_operands("cross", dropped=False)
    assert torch.isfinite(attend_packed(1e3 * projected, 1e3 * memory, groups, biases, keep_mask)).all()
    hidden = [torch.full_like(bias, MASKED_SCORE) for bias in biases]
    assert torch.isfinite(attend_packed(projected, memory, groups, hidden, keep_mask)).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [5, 2 * LOSS_ROWS + 3])
def test_output_loss_equals_plain_formula(smoothing: float, rows: int, plain: Callable[[], None]) -> None:
    operands = [drawn(rows, 4), drawn(9, 4), drawn(9)]
    target = torch.arange(rows) % 9
    fast, nats = output_loss(*operands, target, smoothing)
    gradients = torch.autograd.grad(3 * fast, operands)
    plain()
    slow, slow_nats = output_loss(*operands, target, smoothing)
    torch.testing.assert_close((fast, nats), (slow, slow_nats), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients, torch.autograd.grad(3 * slow, operands), rtol=1e-12, atol=1e-12)
    logits = linear(operands[0], operands[1], operands[2])
    library = cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(fast, library, rtol=1e-12, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_output_loss_gradients_pass_gradcheck(smoothing: float) -> None:
    target = torch.tensor([3, 1, 8, 8, 0])
    operands = (drawn(5, 4), drawn(9, 4), drawn(9))
    assert torch.autograd.gradcheck(lambda *given: output_loss(*given, target, smoothing)[0], operands)


def test_output_loss_without_tokens_is_0() -> None:
    features = drawn(0, 4)
    objective, nats = output_loss(features, drawn(9, 4), drawn(9), torch.zeros(0, dtype=torch.long), 0.1)
    objective.backward()
    assert (objective.item(), nats.item(), features.grad.shape) == (0, 0, (0, 4))


def test_add_masked_gradients_pass_gradcheck() -> None:
    keep_mask = torch.tensor([[0, 1.25, 1.25], [1.25, 0, 0]], dtype=DOUBLE)
    assert torch.autograd.gradcheck(lambda x, added: add_masked(x, added, keep_mask), (drawn(2, 3), drawn(2, 3)))


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


def test_dropout_onto_residual_equals_separate_sum() -> None:
    noise = DropoutSource(torch.device("cpu"))
    dropout, x, residual = Dropout(0.3, noise), torch.rand(50, 7), torch.rand(50, 7)
    noise.restart(5, 2)
    alone = dropout(x)
    noise.restart(5, 2)
    torch.testing.assert_close(dropout(x, onto=residual), residual + alone)
    dropout.eval()
    assert torch.equal(dropout(x), x)
    assert torch.equal(dropout(x, onto=residual), residual + x)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_cpu_kernels_losses_equal_plain_formulas(dropout: float, plain: Callable[[], None]) -> None:
    """With dropout, the same units are dropped."""
    result = []
    for _ in range(2):
        recipe = TransformerRecipe(
            name="small", width=32, heads=4, ffn_width=48, layers=2, dropout=dropout, max_length=20
        )
        model = impls.build(recipe, 30, 40, training=Training(label_smoothing=0.1), seed=3)
        losses = []
        for update in range(100):
            model.train_step(batch(update), 1e-4)
            totals = model.take_totals()
            losses.append((totals.objective_nats / totals.tokens, totals.nats / totals.tokens))
        result.append(losses)
        plain()
    np.testing.assert_allclose(result[0], result[1], rtol=1e-5)
    assert result[0][-1][1] < result[0][0][1] - 0.2


@pytest.mark.parametrize("variant", [name for name in registry.names() if name != "paper_base"])
def test_mixed_precision_trains_and_normalises(variant: str) -> None:
    """bfloat16 uses the plain formulas with log-probabilities in float32."""
    words, curves = vocabularies(registry.recipe(variant)), []
    for precision in ("float32", "bfloat16"):
        training = Training(label_smoothing=0.1)
        model = impls.build(registry.recipe(variant), *words, training=training, seed=3, precision=precision)
        curves.append([])
        for update in range(3):
            model.train_step(batch(update), 1e-4)
            totals = model.take_totals()
            assert totals.finite
            curves[-1].append(totals.nats / totals.tokens)
        assert {str(one.dtype) for one in model.weights().values()} == {"float32"}
        step = model.begin_decoding(batch(0).source).step(np.full(6, SOS, np.int32), words[1])
        np.testing.assert_allclose(np.exp(step.log_probabilities.astype(np.float64)).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(curves[1], curves[0], rtol=0.03)


def vocabularies(recipe: Recipe) -> tuple[int, int]:
    """Return the vocabulary sizes, which are equal if both sides share an embedding."""
    return (30, 30) if getattr(recipe, "tying", "none") == "all" else (30, 40)


def batch(seed: int) -> Batch:
    """Return sentences of several lengths whose target repeats the source. Shapes: [6,9], [6,8]."""
    generator = np.random.default_rng(seed)
    source = np.full((6, 9), PAD, dtype=np.int32)
    target = np.full((6, 9), PAD, dtype=np.int32)
    for row, length in enumerate(generator.integers(1, 8, 6)):
        words = generator.integers(4, 30, length)
        source[row, : length + 2] = target[row, : length + 2] = [SOS, *words, EOS]
    target_in = np.where(target[:, :-1] == EOS, PAD, target[:, :-1]).astype(np.int32)
    return Batch(source, target_in, target[:, 1:])


def test_torch_variants_except_plain_use_output_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    loss = cpu_kernels._OutputLoss.apply
    monkeypatch.setattr(cpu_kernels._OutputLoss, "apply", lambda *given: seen.append("loss") or loss(*given))
    names = [name for name in registry.names() if name != "plain"]
    for name in names:
        recipe = registry.recipe(name)
        model = impls.build(recipe, *vocabularies(recipe), training=registry.training(name))
        model.train_step(batch(0), 1e-3)
    assert len(seen) == len(names)
