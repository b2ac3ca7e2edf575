"""Faster operations on a CPU that would take longer than the matrix products around them.

Each operation has a plain formula, used on a GPU, in mixed precision and mostly without gradients. For training with
float32 and float64 on a CPU, a `torch.autograd.Function` has the same values and gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function
from torch.nn.functional import linear, log_softmax, nll_loss, pad

from impls.contract import PAD
from impls.pytorch.matmul_precision import matmul_precision
from impls.pytorch.torch_packing import ROW_MULTIPLE, Group

LOSS_ROWS = 512
"""The number of target tokens whose logits are computed at once; they should fit into the processor's cache."""

VOCABULARY_MULTIPLE = 16
"""Matrix products are up to 1.7 times as fast if the number of logits is a multiple of this (measured with MKL)."""

SIMD_WIDTH = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
"""The float32 numbers that one instruction processes. `torch.softmax` is slow for rows of fewer."""

FEW_SCORES = 1_000
"""For fewer scores, the additional operations of `softmax` take longer than `torch.softmax`."""


def is_optimised(x: torch.Tensor) -> bool:
    """Return whether to use this module's autograd functions: in training on a CPU without mixed precision."""
    exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return x.device.type == "cpu" and exact and torch.is_grad_enabled()


def is_exact_inference(x: torch.Tensor) -> bool:
    """Return whether to use the faster operations without gradients: in float32 on a CPU without lower precision."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch.get_float32_matmul_precision() == "highest"
    )


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """Return the sums over the last dimension, which stays with size 1, as a product with ones."""
    return x @ x.new_ones(x.shape[-1], 1)


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax over the last dimension. Without gradients, `scores` may be overwritten."""
    keys = scores.shape[-1]
    if keys >= SIMD_WIDTH or scores.numel() < FEW_SCORES or not is_exact_inference(scores):
        return torch.softmax(scores, dim=-1)
    weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    return weights.div_(row_sums(weights))


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, keep_mask: torch.Tensor | None
) -> torch.Tensor:
    """Return scaled dot-product attention with an additive bias; `keep_mask` multiplies the weights if given.

    Shapes: query [B,H,T,K], key and value [B,H,S,K], bias broadcast to [B,H,T,S], keep_mask [B,H,T,S]; to [B,H,T,K].
    Source: Vaswani et al. 2017, equation 1.
    """
    weights = softmax((query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2) + bias)
    return (weights if keep_mask is None else weights * keep_mask.to(weights.dtype)) @ value


def attend_packed(
    projected: torch.Tensor,
    memory: torch.Tensor | None,
    groups: Sequence[Group],
    biases: Sequence[torch.Tensor],
    keep_masks: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """Return `attend` of packed rows, one group of sentences at a time, each with its bias and its keep mask.

    Shapes: projected [N,3*H*K] (queries, keys and values) if memory is None; otherwise projected [N,H*K] (queries)
    and memory [M,2*H*K] (keys and values) of M packed rows. To [N,H*K].
    """
    if is_optimised(projected):
        return _AttendPacked.apply(projected, memory, groups, biases, keep_masks)
    outputs = []
    for group, bias, keep_mask in zip(groups, biases, keep_masks, strict=True):
        query, key, value = (heads.view(*group.shape[:2], *heads.shape[1:]) for heads in group.heads(projected, memory))
        outputs.append(group.packed(attend(query, key, value, bias, keep_mask)))
    return torch.cat(outputs)


class _AttendPacked(Function):
    """`attend_packed` with each operand copied once into the layout that makes the small products fastest.

    They stay in float32: rounding such small operands to bfloat16 takes longer than multiplying them does.
    """

    @staticmethod
    @matmul_precision("highest")
    def forward(
        ctx: Any,
        projected: torch.Tensor,
        memory: torch.Tensor | None,
        groups: Sequence[Group],
        biases: Sequence[torch.Tensor],
        keep_masks: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:
        mixed: list[torch.Tensor] = []
        saved: list[torch.Tensor] = []
        for group, bias, keep_mask in zip(groups, biases, keep_masks, strict=True):
            query, key, value = group.heads(projected, memory)
            weights = (query @ key.transpose(-1, -2)).view(group.shape)
            torch.add(bias, weights, alpha=query.shape[-1] ** -0.5, out=weights)
            weights.sub_(weights.amax(dim=-1, keepdim=True)).exp_()
            # Padding queries get weights of 0, so they do not contribute to the gradients of keys and values.
            weights.mul_(group.real / row_sums(weights))
            mixed.append(group.packed((weights if keep_mask is None else weights * keep_mask).flatten(0, 1) @ value))
            saved += [query, key, value, weights]
        ctx.save_for_backward(*saved)
        ctx.groups, ctx.keep_masks = groups, keep_masks
        ctx.shapes = projected.shape, None if memory is None else memory.shape
        return torch.cat(mixed)

    @staticmethod
    @matmul_precision("highest")
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        shape, memory_shape = ctx.shapes
        of_projected = gradients[0].new_empty(shape)
        of_memory = of_projected if memory_shape is None else gradients[0].new_empty(memory_shape)
        saved = iter(ctx.saved_tensors)
        for group, keep_mask in zip(ctx.groups, ctx.keep_masks, strict=True):
            query, key, value, weights = (next(saved) for _ in range(4))
            gradient = group.outputs(gradients[0])
            of_weights = (gradient @ value.transpose(-1, -2)).view(group.shape)
            used = weights
            if keep_mask is not None:
                of_weights, used = of_weights.mul_(keep_mask), weights * keep_mask
            of_value = used.flatten(0, 1).transpose(-1, -2) @ gradient
            of_scores = weights * of_weights
            of_scores.addcmul_(weights, row_sums(of_scores), value=-1)
            of_scores = of_scores.mul_(query.shape[-1] ** -0.5).flatten(0, 1)
            group.add_gradients(of_projected, of_memory, of_scores @ key, of_scores.transpose(-1, -2) @ query, of_value)
        return of_projected, None if memory_shape is None else of_memory, None, None, None


def add_masked(x: torch.Tensor, added: torch.Tensor, keep_mask: torch.Tensor) -> torch.Tensor:
    """Return x + added * keep_mask, without a gradient for `keep_mask`. Shapes: all the same."""
    if is_optimised(x) and added.dtype == x.dtype:
        return _AddMasked.apply(x, added, keep_mask)
    return x + added * keep_mask.to(added.dtype)


class _AddMasked(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, added: torch.Tensor, keep_mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(keep_mask)
        return torch.addcmul(x, added, keep_mask)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (keep_mask,) = ctx.saved_tensors
        return gradients[0], gradients[0] * keep_mask, None


def pad_vocabulary(kernel: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return copies with additional tokens of probability 0, up to the next multiple of VOCABULARY_MULTIPLE.

    Shapes: kernel [V,D], bias [V]; V grows.
    """
    additional = -len(kernel) % VOCABULARY_MULTIPLE
    return pad(kernel, (0, 0, 0, additional)), pad(bias, (0, additional), value=-torch.inf)


def output_loss(
    features: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor, target: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed objective and unsmoothed negative log-likelihood of a linear output layer.

    The second has no gradient unless `smoothing` is 0. Rows of features without a target have no effect.

    Shapes: features [N or more,D], kernel [V,D], bias [V], target [N] without PAD.
    Source: Szegedy et al. 2016, section 7: the smoothed share is spread evenly over the vocabulary.
    """
    if is_optimised(features):
        return _OutputLoss.apply(features, kernel, bias, target, smoothing)
    target = pad(target, (0, len(features) - len(target)), value=PAD)
    return padded_loss(features, kernel, bias, target, smoothing)


def padded_loss(
    features: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor, target: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `output_loss` by its plain formula, without the rows whose target is PAD."""
    exact = torch.promote_types(features.dtype, torch.float32)
    log_probabilities = log_softmax(linear(features, kernel, bias), dim=-1, dtype=exact)
    nats = nll_loss(log_probabilities, target, ignore_index=PAD, reduction="sum")
    if smoothing == 0:
        return nats, nats
    even = log_probabilities.mean(dim=-1).masked_fill(target == PAD, 0).sum()
    return (1 - smoothing) * nats - smoothing * even, nats


class _OutputLoss(Function):
    """`output_loss` and its gradients, some rows at a time, so that logits stay in the processor's cache."""

    @staticmethod
    def forward(
        ctx: Any,
        features: torch.Tensor,
        kernel: torch.Tensor,
        bias: torch.Tensor,
        target: torch.Tensor,
        smoothing: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, vocabulary_size = len(features), len(kernel)
        if torch.get_float32_matmul_precision() != "highest":
            features = pad(features, (0, 0, 0, -count % ROW_MULTIPLE))
        kernel, bias = pad_vocabulary(kernel, bias)
        of_features, of_kernel = torch.empty_like(features), torch.zeros_like(kernel)
        of_bias, sums = torch.zeros_like(bias), features.new_zeros(2)
        for first in range(0, len(features), LOSS_ROWS):
            rows = slice(first, first + LOSS_ROWS)
            inputs, labels = features[rows], target[rows, None]
            real = len(labels)
            logits = log_softmax(torch.addmm(bias, inputs, kernel.T), dim=-1)
            nats = -logits.gather(1, labels).sum()
            even = -logits[:real, :vocabulary_size].sum() / vocabulary_size if smoothing else nats
            sums += torch.stack([(1 - smoothing) * nats + smoothing * even, nats])
            # From here on, `logits` holds the gradient of the objective with respect to the logits.
            logits.exp_()
            if smoothing:
                logits.sub_(smoothing / vocabulary_size)
            logits.scatter_add_(1, labels, logits.new_full(labels.shape, smoothing - 1))
            logits[real:] = 0
            torch.mm(logits, kernel, out=of_features[rows])
            of_kernel.addmm_(logits.T, inputs)
            of_bias += logits.sum(dim=0)
        ctx.save_for_backward(of_features[:count], of_kernel[:vocabulary_size], of_bias[:vocabulary_size])
        objective, nats = sums.unbind()
        ctx.mark_non_differentiable(nats)
        return objective, nats

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *(gradient * gradients[0] for gradient in ctx.saved_tensors), None, None
