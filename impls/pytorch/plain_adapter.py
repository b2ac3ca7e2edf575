"""Turns the plain Transformer into a `Seq2SeqModel` that is trained as tutorials train it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from impls.contract import PAD, Batch, PlainRecipe
from impls.plain import PlainTransformer
from impls.pytorch.dropout import DropoutSource
from impls.pytorch.torch_adapter import TorchDropoutModel, device_of
from impls.weights import initial


class PlainModel(TorchDropoutModel):
    """The plain Transformer with logits of all positions, torch's cross entropy and torch's default Adam.

    Dropout draws from torch's global generator, which is seeded for each update and restored.
    """

    fused_adam = None  # the constructor's default

    def _train(self, batch: Batch, learning_rate: float) -> None:
        self._optimiser.zero_grad()
        target = self.to_device(batch.target_out.astype(np.int64)).flatten()
        with self._mixed(), self._seeded_dropout():
            features = self.module(self.to_device(batch.source), self.to_device(batch.target_in))
            logits = self.module.output(features).flatten(0, 1).float()
            settings: dict[str, Any] = {"ignore_index": PAD, "reduction": "sum"}
            objective = cross_entropy(logits, target, label_smoothing=self._training.label_smoothing, **settings)
            nats = cross_entropy(logits.detach(), target, **settings) if self._training.label_smoothing else objective
        self._descend(objective, nats, max(batch.tokens, 1), learning_rate)
        self._count(batch.tokens)


def build(
    recipe: PlainRecipe, source_vocabulary_size: int, target_vocabulary_size: int, *, device: str, **settings: Any
) -> PlainModel:
    """Build any `PlainRecipe` with the settings of `impls.build`."""
    dropout_source = DropoutSource(device_of(device))
    with torch.random.fork_rng(devices=[]):
        module = PlainTransformer(recipe.as_transformer(), source_vocabulary_size, target_vocabulary_size)
    weights = initial(recipe, source_vocabulary_size, target_vocabulary_size, seed=settings["seed"])
    return PlainModel(recipe, module, weights, dropout_source=dropout_source, **settings)
