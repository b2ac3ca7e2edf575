"""Learning-rate schedules and early stopping."""

from __future__ import annotations

import math
from collections.abc import Iterable

from impls.contract import Training


def learning_rate(training: Training, update: int) -> float:
    """Return the learning rate of update number `update`, counted from 1.

    constant       peak_rate * min(1, update / warmup), without a warm-up peak_rate
    inverse_sqrt   peak_rate * min(update / warmup, sqrt(warmup / update)): it peaks at update = warmup

    Source: Vaswani et al. 2017, section 5.3, equation 3, whose peak is width ** -0.5 * warmup ** -0.5.
    """
    warmup = training.warmup_updates
    rising = update / warmup if warmup else 1.0
    if training.schedule == "inverse_sqrt":
        return training.peak_rate * min(rising, math.sqrt(warmup / update))
    return training.peak_rate * min(rising, 1.0)


def stopping_epoch(validation_losses: Iterable[float | None], patience: int | None) -> int | None:
    """Return the first epoch, counted from 1, that ends `patience` epochs in a row without a new lowest loss.

    None if there is no such epoch, or if `patience` is None.
    """
    best_loss, best_epoch = math.inf, 0
    for epoch, loss in enumerate(validation_losses, start=1):
        if loss is not None and loss < best_loss:
            best_loss, best_epoch = loss, epoch
        elif patience is not None and epoch - best_epoch >= patience:
            return epoch
    return None
