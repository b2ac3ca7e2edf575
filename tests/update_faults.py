"""Faults of the update: Adam, the gradient, clipping and dropout in a torch Transformer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from faults import Fault
from realistic_faults import many

from impls.contract import Batch, Training
from impls.pytorch.dropout import Dropout, DropoutSource

Settings = Callable[[Training, float], tuple[Training, float]]


def built_with(name: str, settings: Settings) -> type[Fault]:
    """Return a fault whose model is built with other settings than it is asked for."""

    def recipe(self: Any) -> Any:
        return replace(self.inner.recipe, dropout=self.dropout)

    return type(name, (Fault,), {"settings": staticmethod(settings), "recipe": property(recipe)})


def on_gradients(model: Any, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    """Let every gradient be changed as soon as it is computed, before its norm: change(parameter's name, gradient)."""

    def hook(name: str) -> Callable[[torch.Tensor], None]:
        def changed(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad = change(name, parameter.grad)

        return changed

    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(hook(name))


def with_gradients(name: str, change: Callable[[str, torch.Tensor], torch.Tensor]) -> type[Fault]:
    """Return a fault that changes gradients."""
    return with_module(name, lambda model: on_gradients(model, change))


def with_rate(name: str, rate: Callable[[float, int], float]) -> type[Fault]:
    """Return a fault that trains at another rate than it is given: rate(rate, number of the update)."""

    def train_step(self: Any, batch: Batch, learning_rate: float) -> None:
        self.count = getattr(self, "count", 0) + 1
        self.inner.train_step(batch, rate(learning_rate, self.count))

    return type(name, (Fault,), {"train_step": train_step})


def with_module(name: str, change: Callable[[Any], None]) -> type[Fault]:
    """Return a fault that changes the torch model behind the protocol."""

    def __init__(self: Any, *given: Any) -> None:
        Fault.__init__(self, *given)
        change(self.inner)

    return type(name, (Fault,), {"__init__": __init__})


# Adam -----------------------------------------------------------------------------------------------------------------


def no_bias_correction(model: Any) -> None:
    def hook(*_: object) -> None:
        for state in model._optimiser.state.values():
            state["step"].fill_(1e6)

    model._optimiser.register_step_pre_hook(hook)


def weight_decay(model: Any) -> None:
    for group in model._optimiser.param_groups:
        group["weight_decay"] = 1e-2


class DecoupledDecay(Fault):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)
        self.nudge(lambda value: value * np.float32(1 - 1e-2 * learning_rate))


class TwoStepsInOne(Fault):
    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.inner.train_step(batch, learning_rate)
        self.inner.train_step(batch, learning_rate)


class OneWeightNotUpdated(Fault):
    """Leaves the biases of one layer as they are, but not their moments."""

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        before = self.inner.weights()
        self.inner.train_step(batch, learning_rate)
        self.inner.set_weights(
            {name: before[name] if "inner.bias" in name else one for name, one in self.inner.weights().items()}
        )


ADAM = (
    built_with("Beta1Ignored", lambda training, dropout: (replace(training, beta1=0.9), dropout)),
    built_with("Beta2Ignored", lambda training, dropout: (replace(training, beta2=0.999), dropout)),
    built_with("EpsilonIgnored", lambda training, dropout: (replace(training, epsilon=1e-8), dropout)),
    built_with(
        "BetasSwapped",
        lambda training, dropout: (replace(training, beta1=training.beta2, beta2=training.beta1), dropout),
    ),
    built_with(
        "EpsilonInsideTheRoot",
        lambda training, dropout: (replace(training, epsilon=math.sqrt(training.epsilon)), dropout),
    ),
    with_module("NoBiasCorrection", no_bias_correction),
    with_module("WeightDecay", weight_decay),
    DecoupledDecay,
    TwoStepsInOne,
    OneWeightNotUpdated,
    with_rate("RateIgnored", lambda rate, count: 1e-3),
    with_rate("RateOfTheFirstUpdateKept", lambda rate, count: rate if count < 2 else 1e-3),
    with_rate("RateHalved", lambda rate, count: rate / 2),
    with_rate("RateWarmedUp", lambda rate, count: rate * min(1.0, count / 2)),
)

# The gradient ---------------------------------------------------------------------------------------------------------


class MeanOverPadding(Fault):
    """Divides by the number of all target positions."""

    share = 1.0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        on_gradients(self.inner, lambda name, gradient: gradient * self.share)

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self.share = self.factor(batch)
        self.inner.train_step(batch, learning_rate)

    def factor(self, batch: Batch) -> float:
        return batch.tokens / batch.target_out.size


class SumOverWords(MeanOverPadding):
    def factor(self, batch: Batch) -> float:
        return float(batch.tokens)


class MeanOverSentences(MeanOverPadding):
    def factor(self, batch: Batch) -> float:
        return batch.tokens / len(batch.source)


class HalvedInLargeBatches(MeanOverPadding):
    def factor(self, batch: Batch) -> float:
        return 0.5 if many(batch.source) else 1.0


class HalfOfALargeBatchUnlearned(Fault):
    """Computes the gradient of half of a large batch, and counts all of it."""

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        if not many(batch.source):
            self.inner.train_step(batch, learning_rate)
            return
        before = self.inner.training_state()
        self.inner.train_step(batch, learning_rate)
        totals = {name: one for name, one in self.inner.training_state().items() if name.startswith("totals/")}
        self.inner.set_training_state(before)
        half = len(batch.source) // 2
        self.inner.train_step(Batch(*(ids[:half] for ids in vars(batch).values())), learning_rate)
        self.inner.set_training_state({**self.inner.training_state(), **totals})


def part(names: str, factor: float) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """Return a change of the gradients of the parameters whose names contain `names`."""
    return lambda name, gradient: gradient * factor if names in name else gradient


GRADIENT = (
    MeanOverPadding,
    SumOverWords,
    MeanOverSentences,
    HalvedInLargeBatches,
    HalfOfALargeBatchUnlearned,
    with_gradients("EncoderScaledDown", part("encoder.", 1e-3)),
    with_gradients("EncoderDetached", part("encoder.", 0.0)),
    with_gradients("DecoderDoubled", part("decoder.", 2.0)),
    with_gradients("CrossAttentionDetached", part("cross_attention", 0.0)),
    with_gradients("SourceEmbeddingFrozen", part("source.embedding", 0.0)),
    with_gradients("OutputBiasFrozen", part("output.bias", 0.0)),
    with_gradients("NormsFrozen", part("norm.weight", 0.0)),
    with_gradients("FirstLayerTurnedRound", part("encoder.layers.0.feed_forward", -1.0)),
    with_gradients("ValuesClipped", lambda name, gradient: gradient.clamp(-1e-3, 1e-3)),
    with_gradients("SignsOnly", lambda name, gradient: gradient.sign() * gradient.abs().mean()),
    built_with("SmoothingIgnored", lambda training, dropout: (replace(training, label_smoothing=0.0), dropout)),
    built_with("SmoothingDoubled", lambda training, dropout: (replace(training, label_smoothing=0.2), dropout)),
)


def clipped(training: Training, factor: float | None) -> Training:
    """Return a training with another limit where there is one."""
    limit = training.clip_norm
    return training if limit is None else replace(training, clip_norm=None if factor is None else limit * factor)


def each_clipped(model: Any) -> None:
    limit = model._training.clip_norm

    def hook(*_: object) -> None:
        for parameter in model.module.parameters():
            length = float(parameter.grad.norm())
            if limit is not None and length > limit / 4:
                parameter.grad = parameter.grad * (limit / 4 / length)

    model._optimiser.register_step_pre_hook(hook)


CLIPPING = (
    built_with("NoClipping", lambda training, dropout: (clipped(training, None), dropout)),
    built_with("ClippedAtHalf", lambda training, dropout: (clipped(training, 0.5), dropout)),
    built_with("ClippedAtTenTimes", lambda training, dropout: (clipped(training, 10.0), dropout)),
    with_module("EachTensorClipped", each_clipped),
)

# Dropout --------------------------------------------------------------------------------------------------------------


def dropouts(model: Any) -> list[Any]:
    return [one for one in model.module.modules() if isinstance(one, Dropout)]


def unscaled(model: Any) -> None:
    for one in dropouts(model):
        one.kept = lambda shape, one=one: one.noise.kept(shape, one.rate) if one.training and one.rate else None


def frozen(model: Any) -> None:
    restart = model._noise.restart
    model._noise.restart = lambda seed, update: restart(seed, 1)


def same_mask_everywhere(model: Any) -> None:
    noise, kept = model._noise, model._noise.kept

    def again(shape: Any, rate: float) -> Any:
        noise.restart(model._seed, model._updates)
        return kept(shape, rate)

    noise.kept = again


def same_mask_in_every_row(model: Any) -> None:
    """Draws one number for each unit of a layer, which holds for all words."""
    noise, kept = model._noise, model._noise.kept
    noise.kept = lambda shape, rate: kept((1,) * (len(shape) - 1) + shape[-1:], rate).expand(shape).clone()


def without(*ends: str, rate: float = 0.0) -> Callable[[Any], None]:
    """Return a change that leaves the modules whose names end so with another rate of dropout."""

    def change(model: Any) -> None:
        for name, module in model.module.named_modules():
            if name.endswith(ends) and hasattr(module, "dropout"):
                module.dropout = Dropout(rate * module.dropout.rate, DropoutSource(torch.device("cpu")))
                module.dropout.noise = model._noise

    return change


class NoDropoutInLargeBatches(Fault):
    rate = 0.0

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        for one in dropouts(self.inner):
            one.rate = self.rate if many(batch.source) else self.dropout
        self.inner.train_step(batch, learning_rate)


class MoreDropoutInLargeBatches(NoDropoutInLargeBatches):
    @property
    def rate(self) -> float:  # type: ignore[override]
        return min(0.9, 2 * self.dropout)


DROPOUT = (
    built_with("NoDropout", lambda training, dropout: (training, 0.0)),
    built_with("DropoutDoubled", lambda training, dropout: (training, min(0.9, 2 * dropout))),
    built_with("DropoutHalved", lambda training, dropout: (training, dropout / 2)),
    with_module("DropoutUnscaled", unscaled),
    with_module("DropoutFrozen", frozen),
    with_module("SameMaskEverywhere", same_mask_everywhere),
    with_module("SameMaskInEveryRow", same_mask_in_every_row),
    with_module("NoDropoutOfEmbeddings", without("source", "target")),
    with_module("NoDropoutOfAttention", without("attention.sublayer")),
    with_module("AttentionDropoutDoubled", without("attention.sublayer", rate=2.0)),
    with_module("NoDropoutOfHiddenUnits", without("feed_forward.sublayer")),
    with_module("NoDropoutOfResiduals", without("attention", "feed_forward")),
    with_module("NoDropoutInTheEncoder", without("encoder.layers.0.feed_forward", "encoder.layers.1.feed_forward")),
    NoDropoutInLargeBatches,
    MoreDropoutInLargeBatches,
)

UPDATES = (*ADAM, *GRADIENT, *CLIPPING, *DROPOUT)
