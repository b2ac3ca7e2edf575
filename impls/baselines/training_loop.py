"""The training loop of tutorials, around any torch module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from impls.baselines.baseline_weights import check_request, in_batches, unavailable
from impls.contract import PAD, Arrays, Batch, Ids, Training, TransformerRecipe


class PlainLoop:
    """Padded batches, a loss that ignores padding, and one wait for the device per update.

    Adam has its default implementation, and dropout draws from the framework's global generator. `logits` is the
    module's output unless a subclass overrides it. A subclass has the baseline's `name`.

    Raises: ValueError for label smoothing, with which the loss would not be in nats, or an unavailable device.
    """

    name: str

    def __init__(self, recipe: TransformerRecipe, module: nn.Module, training: Training, device: str) -> None:
        if training.label_smoothing:
            raise ValueError(f"label_smoothing={training.label_smoothing!r}: baselines train without it, use 0")
        self.recipe = recipe
        try:
            self.device = torch.device(device)
            self.module: Any = module.to(self.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(unavailable(device, error)) from error
        self.clip_norm = training.clip_norm
        self.criterion = nn.CrossEntropyLoss(ignore_index=PAD)
        self.optimiser = torch.optim.Adam(
            self.module.parameters(),
            lr=training.peak_rate,
            betas=(training.beta1, training.beta2),
            eps=training.epsilon,
        )

    def train_step(self, batch: Batch, learning_rate: float) -> float:
        """Make one update and return its loss, in mean nats per target token."""
        self.module.train()
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.clip_norm)
        self.optimiser.step()
        return loss.item()

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the mean nats per target token, with gradients."""
        logits = self.logits(self.to_device(batch.source), self.to_device(batch.target_in))
        return self.criterion(logits.flatten(0, 1), self.to_device(batch.target_out).flatten())

    def logits(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the logits of all positions. Shapes: [B,S], [B,T] to [B,T,V]."""
        return self.module(source, target_in)

    def translate_batches(
        self,
        sources: Sequence[Ids],
        translate_batch: Callable[[Ids], list[list[int]]],
        *,
        batch_size: int,
        max_tokens: int,
    ) -> list[list[int]]:
        """Return the translations in the order of `sources`, from batches of sentences of similar length.

        Raises: ValueError if sources or translations need more positions than the recipe has.
        """
        check_request(self.name, self.recipe, sources, max_tokens)
        self.module.eval()
        translations: dict[int, list[int]] = {}
        with torch.inference_mode():
            for indices, source in in_batches(sources, batch_size):
                translations.update(zip(indices, translate_batch(source), strict=True))
        return [translations[index] for index in range(len(sources))]

    def to_device(self, ids: np.ndarray[Any, Any]) -> torch.Tensor:
        """Return ids on the device, as int64 for torch's loss."""
        return torch.from_numpy(ids.astype(np.int64)).to(self.device)

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def put(module: nn.Module, arrays: Arrays) -> None:
    """Set all parameters and buffers of a module. Raises: RuntimeError for a wrong name or shape."""
    module.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
