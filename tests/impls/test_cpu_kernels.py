"""The CPU kernels have the values and gradients of the plain formulas that run on other devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import batch_of
from torch.nn.functional import cross_entropy, linear

import impls
from harness.conformance.models_under_test import SIZES
from impls import registry
from impls.contract import SOS, Batch, Recipe, Seq2SeqModel, Training, TransformerRecipe
from impls.pytorch import cpu_kernels
from impls.pytorch.cpu_kernels import LOSS_ROWS, add_masked, attend_packed, output_loss, softmax
from impls.pytorch.dropout import Dropout, DropoutSource
from impls.pytorch.torch_packing import pack

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
    packing = pack(random_batch(3), heads=3, group_rows=3, to_device=torch.from_numpy)
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


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_output_loss_gradients_pass_gradcheck(smoothing: float) -> None:
    target = torch.tensor([3, 1, 8, 8, 0])
    operands = (normal(5, 4), normal(9, 4), normal(9))
    assert torch.autograd.gradcheck(lambda *inputs: output_loss(*inputs, target, smoothing)[0], operands)


def test_output_loss_without_tokens_is_0() -> None:
    features = normal(0, 4)
    objective, nats = output_loss(features, normal(9, 4), normal(9), torch.zeros(0, dtype=torch.long), 0.1)
    objective.backward()
    assert (objective.item(), nats.item(), features.grad.shape) == (0, 0, (0, 4))


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


def test_dropout_onto_residual_equals_separate_sum() -> None:
    noise = DropoutSource(torch.device("cpu"))
    dropout, x, residual = Dropout(0.3, noise), torch.rand(50, 7), torch.rand(50, 7)
    noise.restart(5, 2)
    dropped = dropout(x)
    noise.restart(5, 2)
    torch.testing.assert_close(dropout(x, onto=residual), residual + dropped)
    dropout.eval()
    assert torch.equal(dropout(x), x)
    assert torch.equal(dropout(x, onto=residual), residual + x)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_cpu_kernels_losses_equal_plain_formulas(dropout: float, plain: Callable[[], None]) -> None:
    recipe = TransformerRecipe(width=32, heads=4, ffn_width=48, layers=2, dropout=dropout, max_length=20)
    settings: dict[str, Any] = {"training": Training(label_smoothing=0.1), "seed": 3}
    fast = losses(impls.build(recipe, 30, 40, **settings), 100)
    plain()
    np.testing.assert_allclose(fast, losses(impls.build(recipe, 30, 40, **settings), 100), rtol=1e-5)
    assert fast[-1][1] < fast[0][1] - 0.2


@pytest.mark.parametrize("variant", [name for name in registry.names() if name != "paper_base"])
def test_mixed_precision_trains_and_normalises(variant: str) -> None:
    """bfloat16 uses the plain formulas with log-probabilities in float32."""
    recipe, curves = registry.recipe(variant), []
    sizes, training = vocabularies(recipe), Training(label_smoothing=0.1)
    for precision in ("float32", "bfloat16"):
        model = impls.build(recipe, *sizes, training=training, seed=3, precision=precision)
        curves.append(losses(model, 3))
        assert {str(value.dtype) for value in model.weights().values()} == {"float32"}
        step = model.begin_decoding(random_batch(0).source).step(np.full(6, SOS, np.int32), sizes[1])
        np.testing.assert_allclose(np.exp(step.log_probabilities.astype(np.float64)).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(curves[1], curves[0], rtol=0.03)


def losses(model: Seq2SeqModel, updates: int) -> list[tuple[float, float]]:
    rows = []
    for update in range(updates):
        model.train_step(random_batch(update), 1e-4)
        totals = model.take_totals()
        assert totals.finite
        rows.append((totals.objective_nats / totals.tokens, totals.nats / totals.tokens))
    return rows


def vocabularies(recipe: Recipe) -> tuple[int, int]:
    """Return the vocabulary sizes, which are equal if both sides share an embedding."""
    return (30, 30) if getattr(recipe, "tying", "none") == "all" else (30, 40)


def random_batch(seed: int) -> Batch:
    """Return 6 sentences of 1 to 7 words whose target repeats the source."""
    generator = np.random.default_rng(seed)
    sentences = [generator.integers(4, 30, length) for length in generator.integers(1, 8, 6)]
    return batch_of(sentences, sentences)


def test_torch_variants_except_plain_use_output_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    loss = cpu_kernels._OutputLoss.apply
    monkeypatch.setattr(cpu_kernels._OutputLoss, "apply", lambda *inputs: calls.append("loss") or loss(*inputs))
    names = [name for name in registry.names() if name != "plain"]
    for name in names:
        recipe = registry.recipe(name)
        small: dict[str, Any] = SIZES[recipe.family]
        model = impls.build(replace(recipe, **small), *vocabularies(recipe), training=registry.training(name))
        model.train_step(random_batch(0), 1e-3)
    assert len(calls) == len(names)


@pytest.mark.parametrize("name", ["learned_positions", "paper", "bahdanau_gru", "torch_reference"])
def test_decoding_asked_for_too_many_candidates_gives_every_token_once(name: str) -> None:
    recipe = registry.recipe(name)
    small: dict[str, Any] = SIZES[recipe.family]
    source_vocabulary_size, vocabulary_size = vocabularies(recipe)
    model = impls.build(replace(recipe, **small), source_vocabulary_size, vocabulary_size)
    source = np.random.default_rng(0).integers(4, source_vocabulary_size, (32, 6), dtype=np.int32)
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


@pytest.mark.parametrize("gradients", [False, True])
def test_softmax_overwrites_scores_only_without_gradients(gradients: bool) -> None:
    scores = normal(128, 8, 1, 7).detach().float()
    before = scores.clone()
    with torch.set_grad_enabled(gradients):
        softmax(scores)
    assert torch.equal(scores, before) == gradients
