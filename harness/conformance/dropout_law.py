"""Dropout, seen from outside: which units an update dropped, at what rate, and that the others were scaled up.

With one sentence of one word on each side, the gradients of a Transformer or of the GRU of this package show which
units were dropped: theirs are 0. An evaluation whose weights are multiplied by the same masks must then give the same
probabilities as the update did. That checks the place, the rate and the scaling of every mask without knowing how a
model computes it. What holds for every model is checked by the losses of many updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harness.conformance.assertions import hold, near
from harness.conformance.evaluation_laws import embedding_scale, position_vectors
from harness.conformance.models_under_test import ModelUnderTest
from impls.contract import (
    EOS,
    SOS,
    Arrays,
    Batch,
    GruRecipe,
    Numbers,
    Recipe,
    Seq2SeqModel,
    TorchReferenceRecipe,
    Training,
    TransformerRecipe,
)

RATE = 0.3
TRAINING = Training(beta1=0.0, clip_norm=None)
"""The first moment is then the gradient."""

SOURCE_WORD = EOS + 1
LINE = Batch(*(np.array([[word]], np.int32) for word in (SOURCE_WORD, SOS, EOS + 2)))
"""One word on each side: attention has nothing to choose from, so its weight is 1, or dropped."""

ZERO = 3e-6
"""A gradient below this share of the largest is that of a dropped unit, but for rounding."""

SCORES = 2e-3
"""How far centred log-probabilities of an update may be from those of an evaluation with the same masks."""

DEVIATIONS = 5.0
"""How many standard deviations a share of dropped units may be from its rate."""

Mask = npt.NDArray[np.bool_]


def dropout(subject: ModelUnderTest) -> str:
    """Hold that dropout has its rate, its scaling and its places, and is drawn anew for every unit and update."""
    if subject.dropout_is_fixed:
        return "dropout not tested: the builder has no argument `dropout`"
    _spread(subject)
    model = subject.perturbed(training=TRAINING, dropout=RATE)
    if isinstance(model.recipe, Recipe):
        _masks(subject, model)
    return ""


# Any model ------------------------------------------------------------------------------------------------------------


def _spread(subject: ModelUnderTest) -> None:
    """Hold that a batch of one sentence many times loses what that sentence does, drawn anew for every row."""
    copies, single_draws, draws = (24, 32, 8) if subject.fast else (64, 64, 12)
    row = subject.realistic_batch(5)
    length = max(2, subject.real.longest // 2)
    line = Batch(row.source[:1, :length], row.target_in[:1, :length], row.target_out[:1, :length])
    many = Batch(*(np.repeat(ids, copies, 0) for ids in vars(line).values()))

    def losses(batch: Batch, updates: int, rate: float) -> npt.NDArray[np.float64]:
        model = subject.perturbed(dropout=rate)
        found = []
        for _ in range(updates):
            model.train_step(batch, 0.0)
            found.append(model.take_totals().nats / len(batch.source))
        return np.array(found)

    one, all_rows, off = losses(line, single_draws, RATE), losses(many, draws, RATE), losses(many, 2, 0.0)
    for found, where in ((one, "a sentence"), (all_rows, f"{copies} copies of it")):
        hold(len(set(found.tolist())) == len(found), f"dropout {RATE}: two updates on {where} have the same loss")
    hold(off[0] == off[1], "dropout 0: two updates at rate 0 on one batch have different losses")
    deviation = float(one.std(ddof=1))
    error = deviation * math.sqrt(1 / single_draws + 1 / (draws * copies))
    what = f"mean loss of {copies} copies of a sentence with dropout {RATE}"
    near(what, float(all_rows.mean()), float(one.mean()), DEVIATIONS * error)
    share = float(all_rows.std(ddof=1)) / deviation * math.sqrt(copies)
    told = f"the loss of {copies} copies of a sentence varies {share:.2g} times as much as with independent dropout"
    hold(1 / 3 < share < 3, told)


# Recipes of this package ----------------------------------------------------------------------------------------------


@dataclass
class Site:
    """A place where units are dropped: how masks show in the gradients, and how they are put into the weights.

    `units` says for each element of the axis which unit it belongs to (heads have several). `gradient` names the
    tensor whose gradient is 0, along `axis`, where a unit was dropped; `scaled` are multiplied by the mask.
    """

    kind: str
    name: str
    rate: float
    units: npt.NDArray[np.intp]
    gradient: str
    axis: int
    scaled: tuple[str, ...]
    masks: list[Mask] = field(default_factory=list)


def sites(recipe: TransformerRecipe) -> Iterator[Site]:
    """Yield the sublayers' places of dropout."""
    width, hidden = np.arange(recipe.width), np.arange(recipe.ffn_width)
    heads = np.repeat(np.arange(recipe.heads), recipe.key_width)
    for side in ("encoder", "decoder"):
        for index in range(recipe.layers):
            layer = f"{side}.{index}"
            for part in ("self", "cross")[: 1 + (side == "decoder")]:
                last = f"{layer}.{part}.output"
                yield Site("attention", last, recipe.attention_rate, heads, f"{last}.kernel", 0, (f"{last}.kernel",))
                both = (f"{last}.kernel", f"{last}.bias")
                yield Site("residual", last, recipe.dropout, width, f"{last}.bias", -1, both)
            last = f"{layer}.feed_forward.outer"
            yield Site("activation", last, recipe.activation_rate, hidden, f"{last}.kernel", 0, (f"{last}.kernel",))
            both = (f"{last}.kernel", f"{last}.bias")
            yield Site("residual", last, recipe.dropout, width, f"{last}.bias", -1, both)


class MaskReader:
    """Reads the masks of updates off the gradients, and puts them into weights.

    `embedding` [side] are the masks after the embeddings, one for each update.
    """

    def __init__(self, recipe: Recipe, own: Arrays) -> None:
        self.own = own
        self.gru = recipe if isinstance(recipe, GruRecipe) else None
        if isinstance(recipe, TorchReferenceRecipe):
            recipe = recipe.as_transformer()
        self.recipe = recipe
        self.sites = list(sites(recipe)) if isinstance(recipe, TransformerRecipe) else []
        self.tying = getattr(recipe, "tying", "none")
        self.embedding: dict[str, list[Mask]] = {"source": [], "target": []}

    def read(self, gradients: Arrays) -> None:
        """Add the masks of one update."""
        for site in self.sites:
            found = np.abs(gradients[site.gradient])
            if found.ndim > 1:
                found = found.max(1 - site.axis)
            found = np.maximum.reduceat(found, np.flatnonzero(np.diff(site.units, prepend=-1)))
            site.masks.append(found > ZERO * found.max())
        for side, word in (("source", SOURCE_WORD), ("target", SOS)):
            row = gradients[self.table(side)][word].astype(np.float64)
            if self.tying == "all" or (self.tying == "output" and side == "target"):
                row = row - self._by_output(gradients, word)
            self.embedding[side].append(np.abs(row) > ZERO * np.abs(row).max())

    def table(self, side: str) -> str:
        """Return the name of the embedding of a side."""
        return "target.embedding" if self.tying == "all" else f"{side}.embedding"

    def _by_output(self, gradients: Arrays, word: int) -> npt.NDArray[np.float64]:
        """Return what the output layer adds to the gradient of a word's tied embedding."""
        bias = gradients["output.bias"].astype(np.float64)
        others = bias.copy()
        others[[SOURCE_WORD, SOS, int(LINE.target_out[0, 0])]] = 0
        largest = int(others.argmax())  # a word that is only in the output layer
        added: npt.NDArray[np.float64] = gradients["target.embedding"][largest] * (bias[word] / bias[largest])
        return added

    def folded(self, update: int) -> Arrays:
        """Return weights with which an evaluation drops what an update dropped."""
        found = {name: value.copy() for name, value in self.own.items()}
        for site in self.sites:
            scale = _scale(site.masks[update], site.rate)[site.units]
            for name in site.scaled:
                found[name] *= scale[:, None] if site.axis == 0 else scale
        assert isinstance(self.recipe, TransformerRecipe | GruRecipe)
        for side, word in (("source", SOURCE_WORD), ("target", SOS)):
            row = found[self.table(side)][word]
            scale = _scale(self.embedding[side][update], self.recipe.dropout)
            if isinstance(self.recipe, GruRecipe):
                row *= scale
                continue
            vector = position_vectors(self.recipe, self.own, side, 1)[0]
            if self.recipe.positions == "learned":
                found[f"{side}.positions"][0] *= scale
                row *= scale
            else:  # the vector stays as it is, so the embedding makes up for it
                row += (scale - 1) * (row + vector / embedding_scale(self.recipe))
        return found


def _scale(kept: Mask, rate: float) -> Numbers:
    return (kept / (1 - rate)).astype(np.float32)


def _masks(subject: ModelUnderTest, model: Seq2SeqModel) -> None:
    """Hold that updates drop units at the recipe's rates, and compute what evaluations with the same masks do."""
    claimed = model.recipe.dropout
    hold(claimed == RATE, f"recipe.dropout of a model that was built with {RATE} is {claimed}")
    own = _active(model.weights())
    model.set_weights(own)
    masks, updates, compared = MaskReader(model.recipe, own), 12 if subject.fast else 40, 2 if subject.fast else 4
    scores: list[Numbers] = []
    for _ in range(updates):
        model.train_step(LINE, 0.0)
        state = model.training_state()
        gradients = {name: state[f"first_moment/{name}"] for name in own}
        masks.read(gradients)
        probabilities = gradients["output.bias"].copy()
        probabilities[LINE.target_out[0, 0]] += 1
        scores.append(probabilities)
    judge = subject.model(dropout=RATE)
    allowed = np.delete(np.arange(len(scores[0])), [SOURCE_WORD, SOS])  # their embeddings change, and may be tied
    _rates(masks)
    for update in range(compared):
        judge.set_weights(masks.folded(update))
        expected = judge.logits(LINE.source, LINE.target_in)[0, 0, allowed].astype(np.float64)
        found = np.log(np.maximum(scores[update][allowed].astype(np.float64), 1e-30))
        apart = np.abs(found - found.mean() - expected + expected.mean()).max()
        told = f"probabilities of an update are {apart:.2g} nats from those of an evaluation that drops the same units"
        hold(
            bool(apart <= SCORES),
            f"{told}: units are dropped elsewhere, or the others are not scaled by 1 / (1 - rate)",
        )


def _active(own: Arrays) -> Arrays:
    """Return weights with which every hidden unit of a feed-forward is active."""
    found = dict(own)
    for name in own:
        for part in ("inner", "gate"):
            if name.endswith(f"feed_forward.{part}.bias"):
                found[name] = own[name] + np.float32(0.5)
            elif name.endswith(f"feed_forward.{part}.kernel"):
                found[name] = own[name] / np.float32(30)
    return found


def _rates(masks: MaskReader) -> None:
    """Hold that the shares of dropped units are the rates, and that no mask is another one's copy."""
    assert isinstance(masks.recipe, TransformerRecipe | GruRecipe)
    kinds: dict[str, tuple[float, list[npt.NDArray[np.bool_]]]] = {}
    for side, found in masks.embedding.items():
        kinds[f"{side} embedding"] = (masks.recipe.dropout, [np.array(found)])
    for site in masks.sites:
        kinds.setdefault(site.kind, (site.rate, []))[1].append(np.array(site.masks))
    for kind, (rate, found) in kinds.items():
        _share(f"share of dropped units ({kind})", np.concatenate([~one.ravel() for one in found]), rate)
        same = rate**2 + (1 - rate) ** 2
        renewed = np.concatenate([(one[1:] == one[:-1]).ravel() for one in found])
        _share(f"share of units ({kind}) that two updates treat alike", renewed, same)
        pairs = [(one == two).ravel() for one, two in zip(found, found[1:], strict=False) if one.shape == two.shape]
        if pairs:
            _share(f"share of units ({kind}) that two layers treat alike", np.concatenate(pairs), same)


def _share(what: str, found: npt.NDArray[np.bool_], expected: float) -> None:
    deviation = math.sqrt(expected * (1 - expected) / found.size)
    near(what, float(found.mean()), expected, DEVIATIONS * deviation + 1e-3)
