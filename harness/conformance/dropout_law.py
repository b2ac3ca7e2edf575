"""The part of law 14 on dropout: which units an update drops, at which rate, and the scaling of the others.

With one sentence of one token on each side, the gradients of a Transformer or of the GRU of this package show which
units were dropped: their gradients are 0. An evaluation whose weights are multiplied by the same masks must then give
the probabilities of the update. That checks place, rate and scaling of every mask independently of the implementation.
For other models, the losses of many updates are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harness.conformance.assertions import assert_near, require
from harness.conformance.models_under_test import ModelUnderTest, mapped
from impls.contract import (
    EOS,
    SOS,
    Arrays,
    Batch,
    GruRecipe,
    Numbers,
    Recipe,
    Seq2SeqModel,
    Training,
    TransformerRecipe,
)
from impls.weights import position_vectors

RATE = 0.3
TRAINING = Training(beta1=0.0, clip_norm=None)
"""With these settings the first moment is the gradient."""

SOURCE_TOKEN = EOS + 1
LINE = Batch(*(np.array([[token]], np.int32) for token in (SOURCE_TOKEN, SOS, EOS + 2)))
"""One token on each side, so that the only attention weight is 1, or dropped."""

ZERO = 3e-6
"""A gradient below this share of the largest belongs to a dropped unit."""

SCORES = 2e-3
"""Tolerance between centred log-probabilities of an update and of an evaluation with the same masks."""

DEVIATIONS = 5.0
"""Tolerance between a share of dropped units and its rate, in standard deviations."""

Mask = npt.NDArray[np.bool_]


def dropout(subject: ModelUnderTest) -> str:
    """Require the right rate, scaling and places of dropout, drawn independently for every unit and update."""
    if subject.dropout_is_fixed:
        return "dropout not tested: the builder has no argument `dropout`"
    _spread(subject)
    model = subject.perturbed(training=TRAINING, dropout=RATE)
    if isinstance(model.recipe, Recipe):
        _masks(subject, model)
    return ""


# Any model ------------------------------------------------------------------------------------------------------------


def _spread(subject: ModelUnderTest) -> None:
    """Require that copies of a sentence in a batch have independent dropout: the same mean loss, less variance."""
    copies, single_draws, draws = (24, 32, 8) if subject.fast else (64, 64, 12)
    length = max(2, subject.real.longest // 2)
    line = mapped(subject.realistic_batch(5), lambda ids: ids[:1, :length])
    many = mapped(line, lambda ids: np.repeat(ids, copies, 0))

    def losses(batch: Batch, updates: int, rate: float) -> npt.NDArray[np.float64]:
        model = subject.perturbed(dropout=rate)
        values = []
        for _ in range(updates):
            model.train_step(batch, 0.0)
            values.append(model.take_totals().nats / len(batch.source))
        return np.array(values)

    single, copied, undropped = losses(line, single_draws, RATE), losses(many, draws, RATE), losses(many, 2, 0.0)
    for values, where in ((single, "a sentence"), (copied, f"{copies} copies of it")):
        require(len(set(values.tolist())) == len(values), f"dropout {RATE}: two updates on {where} have the same loss")
    require(undropped[0] == undropped[1], "dropout 0: two updates at rate 0 on one batch have different losses")
    deviation = float(single.std(ddof=1))
    error = deviation * math.sqrt(1 / single_draws + 1 / (draws * copies))
    name = f"mean loss of {copies} copies of a sentence with dropout {RATE}"
    assert_near(name, float(copied.mean()), float(single.mean()), DEVIATIONS * error)
    share = float(copied.std(ddof=1)) / deviation * math.sqrt(copies)
    reason = f"the loss of {copies} copies of a sentence varies {share:.2g} times as much as with independent dropout"
    require(1 / 3 < share < 3, reason)


# Recipes of this package ----------------------------------------------------------------------------------------------


@dataclass
class Site:
    """A place of dropout: how to read its mask from gradients, and how to fold it into weights.

    Attributes:
        kind: The kind of dropout, for messages.
        rate: The dropout rate.
        units: The unit of each element of the axis; heads have several elements.
        gradient: The tensor whose gradient is 0 along `axis` for a dropped unit.
        scaled: The tensors that are multiplied by the mask.
        masks: One mask for each update.
    """

    kind: str
    rate: float
    units: npt.NDArray[np.intp]
    gradient: str
    axis: int
    scaled: tuple[str, ...]
    masks: list[Mask] = field(default_factory=list)


def sites(recipe: TransformerRecipe) -> Iterator[Site]:
    """Yield the places of dropout of all sublayers."""
    width, hidden = np.arange(recipe.width), np.arange(recipe.ffn_width)
    heads = np.repeat(np.arange(recipe.heads), recipe.key_width)

    def sublayer(kind: str, layer: str, rate: float, units: npt.NDArray[np.intp]) -> Iterator[Site]:
        kernel, bias = f"{layer}.kernel", f"{layer}.bias"
        yield Site(kind, rate, units, kernel, 0, (kernel,))
        yield Site("residual", recipe.dropout, width, bias, -1, (kernel, bias))

    for side in ("encoder", "decoder"):
        for layer in (f"{side}.{index}" for index in range(recipe.layers)):
            for part in ("self", "cross")[: 1 + (side == "decoder")]:
                yield from sublayer("attention", f"{layer}.{part}.output", recipe.attention_rate, heads)
            yield from sublayer("activation", f"{layer}.feed_forward.outer", recipe.activation_rate, hidden)


class MaskReader:
    """Reads the masks of updates from gradients, and folds them into weights.

    Attributes:
        sites: The places of dropout in sublayers, with their masks.
        embedding: The masks after the embeddings by side, one for each update.
        reached: Whether each update had a gradient in the encoder. It has none, and shows none of the encoder's masks,
            if all heads of the attention on the source are dropped.
    """

    def __init__(self, recipe: Recipe, weights: Arrays) -> None:
        self.weights = weights
        self.recipe = recipe if isinstance(recipe, GruRecipe) else recipe.as_transformer()
        self.sites = [] if isinstance(self.recipe, GruRecipe) else list(sites(self.recipe))
        self.tying = getattr(recipe, "tying", "none")
        self.embedding: dict[str, list[Mask]] = {"source": [], "target": []}
        self.reached: list[bool] = []

    def read(self, gradients: Arrays) -> None:
        """Add the masks of one update."""
        self.reached.append(any(array.any() for name, array in gradients.items() if name.startswith("encoder.")))
        for site in self.sites:
            magnitudes = np.abs(gradients[site.gradient])
            if magnitudes.ndim > 1:
                magnitudes = magnitudes.max(1 - site.axis)
            magnitudes = np.maximum.reduceat(magnitudes, np.flatnonzero(np.diff(site.units, prepend=-1)))
            site.masks.append(magnitudes > ZERO * magnitudes.max())
        for side, token in (("source", SOURCE_TOKEN), ("target", SOS)):
            row = gradients[self.table(side)][token].astype(np.float64)
            if self.tying == "all" or (self.tying == "output" and side == "target"):
                row = row - self._by_output(gradients, token)
            self.embedding[side].append(np.abs(row) > ZERO * np.abs(row).max())

    def table(self, side: str) -> str:
        """Return the name of the embedding of a side."""
        return "target.embedding" if self.tying == "all" else f"{side}.embedding"

    def _by_output(self, gradients: Arrays, token: int) -> npt.NDArray[np.float64]:
        """Return the output layer's part of the gradient of a token's tied embedding."""
        bias = gradients["output.bias"].astype(np.float64)
        unused = bias.copy()
        unused[[SOURCE_TOKEN, SOS, int(LINE.target_out[0, 0])]] = 0
        largest = int(unused.argmax())  # a token that occurs only in the output layer
        added: npt.NDArray[np.float64] = gradients["target.embedding"][largest] * (bias[token] / bias[largest])
        return added

    def folded(self, update: int) -> Arrays:
        """Return weights with which an evaluation drops the same units as an update."""
        folded = {name: value.copy() for name, value in self.weights.items()}
        for site in self.sites:
            scale = _scale(site.masks[update], site.rate)[site.units]
            for name in site.scaled:
                folded[name] *= scale[:, None] if site.axis == 0 else scale
        for side, token in (("source", SOURCE_TOKEN), ("target", SOS)):
            row = folded[self.table(side)][token]
            scale = _scale(self.embedding[side][update], self.recipe.dropout)
            if isinstance(self.recipe, GruRecipe):
                row *= scale
                continue
            vector = position_vectors(self.recipe, self.weights, side)[0]
            if self.recipe.positions == "learned":
                folded[f"{side}.positions"][0] *= scale
                row *= scale
            else:  # the vector is fixed, so the embedding compensates for it
                row += (scale - 1) * (row + vector / self.recipe.embedding_factor)
        return folded


def _scale(mask: Mask, rate: float) -> Numbers:
    return (mask / (1 - rate)).astype(np.float32)


def _masks(subject: ModelUnderTest, model: Seq2SeqModel) -> None:
    """Require that updates drop units at the recipe's rates and agree with evaluations with the same masks."""
    claimed = model.recipe.dropout
    require(claimed == RATE, f"recipe.dropout of a model that was built with {RATE} is {claimed}")
    weights = _active(model.weights())
    model.set_weights(weights)
    masks, updates, compared = MaskReader(model.recipe, weights), 12 if subject.fast else 40, 2 if subject.fast else 4
    scores: list[Numbers] = []
    for _ in range(updates):
        model.train_step(LINE, 0.0)
        state = model.training_state()
        gradients = {name: state[f"first_moment/{name}"] for name in weights}
        masks.read(gradients)
        probabilities = gradients["output.bias"].copy()
        probabilities[LINE.target_out[0, 0]] += 1
        scores.append(probabilities)
    reference = subject.model(dropout=RATE)
    allowed = np.delete(np.arange(len(scores[0])), [SOURCE_TOKEN, SOS])  # their embeddings change, and may be tied
    _rates(masks)
    least = np.full(len(scores[0]), 1e-30)
    least[LINE.target_out[0, 0]] = 1e-4  # its gradient is p - 1, in which float32 rounds a smaller probability away
    for update in range(compared):
        reference.set_weights(masks.folded(update))
        exact = allowed[scores[update][allowed] >= least[allowed]]
        expected = reference.logits(LINE.source, LINE.target_in)[0, 0, exact].astype(np.float64)
        actual = np.log(scores[update][exact].astype(np.float64))
        difference = np.abs(actual - actual.mean() - expected + expected.mean()).max()
        require(
            bool(difference <= SCORES),
            f"probabilities of an update and of an evaluation that drops the same units differ by {difference:.2g} "
            "nats: units are dropped elsewhere, or the others are not scaled by 1 / (1 - rate)",
        )


def _active(weights: Arrays) -> Arrays:
    """Return weights with which all hidden units of the feed-forward are active."""
    changed = dict(weights)
    for name in weights:
        for part in ("inner", "gate"):
            if name.endswith(f"feed_forward.{part}.bias"):
                changed[name] = weights[name] + np.float32(0.5)
            elif name.endswith(f"feed_forward.{part}.kernel"):
                changed[name] = weights[name] / np.float32(30)
    return changed


def _rates(masks: MaskReader) -> None:
    """Require that the shares of dropped units equal the rates, and that masks are independent."""
    kinds: dict[str, tuple[float, list[npt.NDArray[np.bool_]]]] = {}
    shown = np.array(masks.reached)
    require(bool(shown.any()), "no update has a gradient in the encoder, so its dropout cannot be read")
    for side, embedding_masks in masks.embedding.items():
        arrays = np.array(embedding_masks)
        kinds[f"{side} embedding"] = (masks.recipe.dropout, [arrays[shown] if side == "source" else arrays])
    for site in masks.sites:
        arrays = np.array(site.masks)
        in_encoder = site.gradient.startswith("encoder.")
        kinds.setdefault(site.kind, (site.rate, []))[1].append(arrays[shown] if in_encoder else arrays)
    for kind, (rate, places) in kinds.items():
        _share(f"share of dropped units ({kind})", np.concatenate([~mask.ravel() for mask in places]), rate)
        same = rate**2 + (1 - rate) ** 2
        renewed = np.concatenate([(mask[1:] == mask[:-1]).ravel() for mask in places])
        _share(f"share of units ({kind}) that two updates treat alike", renewed, same)
        neighbours = zip(places, places[1:], strict=False)
        pairs = [(first == second).ravel() for first, second in neighbours if first.shape == second.shape]
        if pairs:
            _share(f"share of units ({kind}) that two layers treat alike", np.concatenate(pairs), same)


def _share(name: str, flags: npt.NDArray[np.bool_], expected: float) -> None:
    deviation = math.sqrt(expected * (1 - expected) / flags.size)
    assert_near(name, float(flags.mean()), expected, DEVIATIONS * deviation + 1e-3)
