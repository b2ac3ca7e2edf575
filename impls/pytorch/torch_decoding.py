"""Incremental decoding of a torch model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from impls.contract import Candidates, Ids

if TYPE_CHECKING:
    from impls.pytorch.torch_adapter import TorchModel


def most_probable(logits: torch.Tensor, best: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and ids of the `best` tokens. `logits` is overwritten. Shapes: [R,V] to [R,best]."""
    scores, tokens = logits.topk(best, dim=-1)
    # logsumexp, in fewer passes than torch's because the maximum is already known.
    scores = scores - scores[:, :1] - logits.sub_(scores[:, :1]).exp_().sum(dim=-1, keepdim=True).log_()
    return scores, tokens


class TorchDecoding:
    """Incremental decoding of a batch."""

    def __init__(self, model: TorchModel, state: Any) -> None:
        self._model = model
        self._state = state

    def step(self, last: Ids, best: int) -> Candidates:
        """Feed the newest token of each row, [B], and return the `best` most probable next tokens."""
        with self._model.evaluation():
            features = self._model.module.step(self._state, self._model.to_device(last))
            logits = self._model.module.output(features).float()
            if logits is features:  # of a user's module, which may still need it
                logits = logits.clone()
            scores, tokens = most_probable(logits, min(best, logits.shape[-1]))
        return Candidates(scores.cpu().numpy(), tokens.to(torch.int32).cpu().numpy())

    def reorder(self, rows: np.ndarray[Any, np.dtype[np.intp]]) -> None:
        """Keep, drop, repeat or reorder rows."""
        with self._model.without_gradients():
            self._state.reorder(rows)
