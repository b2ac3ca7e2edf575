"""Every recipe's forward pass once more, in float64, for one sentence without padding, as plainly as it can be said.

Shares nothing with the models but the canonical weights: what agrees with this follows the conventions.
Letters: S source positions, T target positions, V words, D width, H heads, K head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from impls.contract import GruRecipe, Recipe, TorchReferenceRecipe, TransformerRecipe

Reals = npt.NDArray[np.float64]
Weights = Mapping[str, npt.NDArray[Any]]


def logits(recipe: Recipe, weights: Weights, source: list[int], target_in: list[int]) -> Reals:
    """Return the logits [T,V] of the words after each position."""
    if isinstance(recipe, GruRecipe):
        return gru(recipe, weights, source, target_in)
    if isinstance(recipe, TorchReferenceRecipe):
        recipe = recipe.as_transformer()
    return transformer(recipe, weights, source, target_in)


def softmax(scores: Reals) -> Reals:
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def sigmoid(x: Reals) -> Reals:
    return 1 / (1 + np.exp(-x))


def dense(weights: Weights, name: str, x: Reals) -> Reals:
    return x @ weights[f"{name}.kernel"].astype(np.float64) + weights[f"{name}.bias"]


ACTIVATIONS: dict[str, Callable[[Reals], Reals]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
}


# Transformer ----------------------------------------------------------------------------------------------------------


def transformer(recipe: TransformerRecipe, weights: Weights, source: list[int], target_in: list[int]) -> Reals:
    """Vaswani et al. 2017, section 3, with whatever the recipe changes."""
    everything = np.ones((len(source), len(source)), bool)
    causal = np.tril(np.ones((len(target_in), len(target_in)), bool))
    memory = embed(recipe, weights, "source", source)
    for layer in range(recipe.layers):
        name = f"encoder.{layer}"
        memory = residual(
            recipe, weights, f"{name}.self", memory, lambda x, n: attend(recipe, weights, n, x, x, everything)
        )
        memory = residual(recipe, weights, f"{name}.feed_forward", memory, lambda x, n: feed(recipe, weights, n, x))
    if recipe.norm_order == "pre":
        memory = normed(recipe, weights, "encoder.norm", memory)
    x = embed(recipe, weights, "target", target_in)
    for layer in range(recipe.layers):
        name = f"decoder.{layer}"
        x = residual(recipe, weights, f"{name}.self", x, lambda x, n: attend(recipe, weights, n, x, x, causal))
        x = residual(recipe, weights, f"{name}.cross", x, lambda x, n: attend(recipe, weights, n, x, memory, None))
        x = residual(recipe, weights, f"{name}.feed_forward", x, lambda x, n: feed(recipe, weights, n, x))
    if recipe.norm_order == "pre":
        x = normed(recipe, weights, "decoder.norm", x)
    kernel = weights["output.kernel"] if recipe.tying == "none" else weights["target.embedding"].T
    return x @ kernel.astype(np.float64) + weights["output.bias"]


def residual(
    recipe: TransformerRecipe, weights: Weights, name: str, x: Reals, sublayer: Callable[[Reals, str], Reals]
) -> Reals:
    if recipe.norm_order == "pre":
        return x + sublayer(normed(recipe, weights, f"{name}.norm", x), name)
    return normed(recipe, weights, f"{name}.norm", x + sublayer(x, name))


def embed(recipe: TransformerRecipe, weights: Weights, side: str, words: list[int]) -> Reals:
    table = weights["target.embedding" if recipe.tying == "all" else f"{side}.embedding"].astype(np.float64)
    embedded = table[words]
    if recipe.embedding_scale == "sqrt_width":
        embedded = embedded * math.sqrt(recipe.width)
    for position in range(len(words)):
        if recipe.positions == "learned":
            embedded[position] += weights[f"{side}.positions"][position]
        if recipe.positions == "sinusoidal":
            for feature in range(recipe.width):
                angle = position / 10_000 ** (2 * (feature // 2) / recipe.width)
                embedded[position, feature] += math.cos(angle) if feature % 2 else math.sin(angle)
    return embedded


def normed(recipe: TransformerRecipe, weights: Weights, name: str, x: Reals) -> Reals:
    if recipe.norm == "none":
        return x
    if recipe.norm == "rms":
        return weights[f"{name}.scale"] * x / np.sqrt((x**2).mean(-1, keepdims=True) + recipe.epsilon)
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + recipe.epsilon)
    return weights[f"{name}.scale"] * centred / deviation + weights[f"{name}.shift"]


def feed(recipe: TransformerRecipe, weights: Weights, name: str, x: Reals) -> Reals:
    activation = ACTIVATIONS[recipe.activation]
    inner = dense(weights, f"{name}.inner", x)
    inner = activation(dense(weights, f"{name}.gate", x)) * inner if recipe.ffn == "gated" else activation(inner)
    return dense(weights, f"{name}.outer", inner)


def attend(
    recipe: TransformerRecipe,
    weights: Weights,
    name: str,
    x: Reals,
    memory: Reals,
    visible: npt.NDArray[np.bool_] | None,
) -> Reals:
    """Attention, one head after the other. `visible` [T,S] is None for the attention of the target on the source."""
    query, key, value = (
        dense(weights, f"{name}.{part}", seen) for part, seen in (("query", x), ("key", memory), ("value", memory))
    )
    heads, width = [], recipe.key_width
    for head in range(recipe.heads):
        own = slice(head * width, (head + 1) * width)
        asked, offered = query[:, own], key[:, own]
        if recipe.positions == "rotary" and visible is not None:
            asked, offered = rotate(asked), rotate(offered)
        scores = asked @ offered.T / math.sqrt(width)
        if visible is not None:
            for i, j in np.ndindex(scores.shape):
                if recipe.positions == "alibi":
                    scores[i, j] -= 2 ** (-8 * (head + 1) / recipe.heads) * abs(i - j)
                if not visible[i, j]:
                    scores[i, j] = -math.inf
        heads.append(softmax(scores) @ value[:, own])
    return dense(weights, f"{name}.output", np.concatenate(heads, -1))


def rotate(x: Reals) -> Reals:
    """Turn the pair of features (2i, 2i + 1) at position p by the angle p / 10000^(2i / K), as complex numbers."""
    angles = np.outer(np.arange(len(x)), 10_000 ** (-np.arange(0, x.shape[1], 2) / x.shape[1]))
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


# GRU ------------------------------------------------------------------------------------------------------------------


def gru(
    recipe: GruRecipe, weights: Weights, source: list[int], target_in: list[int], fed: list[bool] | None = None
) -> Reals:
    """Bahdanau, Cho and Bengio 2015, appendix A. Where `fed` is False the model reads its own most probable word."""
    embedded = weights["source.embedding"].astype(np.float64)[source]
    forward, backward = [], []
    state = np.zeros(recipe.width)
    for x in embedded:
        state = gru_cell(weights, "encoder.forward", x, state)
        forward.append(state)
    state = np.zeros(recipe.width)
    for x in embedded[::-1]:
        state = gru_cell(weights, "encoder.backward", x, state)
        backward.insert(0, state)
    encoded = [np.concatenate(pair) for pair in zip(forward, backward, strict=True)]
    state = np.tanh(dense(weights, "bridge", np.concatenate([forward[-1], backward[0]])))
    found: list[Reals] = []
    for position, given in enumerate(target_in):
        own = fed is not None and position > 0 and not fed[position]
        x = weights["target.embedding"].astype(np.float64)[int(found[-1].argmax()) if own else given]
        energies = [np.tanh(dense(weights, "attention.energy", np.concatenate([state, one]))) for one in encoded]
        scores = np.array([(energy @ weights["attention.score.kernel"])[0] for energy in energies])
        context = softmax(scores) @ np.array(encoded)
        state = gru_cell(weights, "decoder", np.concatenate([x, context]), state)
        found.append(dense(weights, "output", np.concatenate([state, context, x])))
    return np.array(found)


def gru_cell(weights: Weights, name: str, x: Reals, state: Reals) -> Reals:
    """Cho et al. 2014, with the reset gate applied after the product, as torch has it."""
    into = np.split(dense(weights, f"{name}.input", x), 3)
    kept = np.split(dense(weights, f"{name}.hidden", state), 3)
    reset, update = sigmoid(into[0] + kept[0]), sigmoid(into[1] + kept[1])
    return (1 - update) * np.tanh(into[2] + reset * kept[2]) + update * state


# Training -------------------------------------------------------------------------------------------------------------


def objective(found: Reals, target_out: list[int], smoothing: float) -> float:
    """Return the nats summed over the target words, with a share of the probability spread evenly over all words."""
    logs = np.log(softmax(found))
    nats = 0.0
    for position, word in enumerate(target_out):
        nats -= (1 - smoothing) * logs[position, word] + smoothing * logs[position].mean()
    return nats


def adam(
    weight: Reals,
    gradients: list[Reals],
    *,
    rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Reals:
    """Kingma and Ba 2015, algorithm 1."""
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for t, gradient in enumerate(gradients, start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        weight = weight - rate * (first / (1 - beta1**t)) / (np.sqrt(second / (1 - beta2**t)) + epsilon)
    return weight
