"""The interface of baselines, much smaller than `Seq2SeqModel`: what a loop around a library can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from impls.contract import Batch, Ids

LENGTH_PENALTY = 0.6
"""The exponent of the length penalty in every baseline's beam search."""


@dataclass(frozen=True)
class Search:
    """A library's beam search: its width, length limit and penalty, and ids never chosen."""

    beam: int
    max_tokens: int
    length_penalty: float
    suppressed: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A hypothesis of a library's beam search.

    Attributes:
        tokens: Its tokens without `<sos>` and `<eos>`, at most `max_tokens`.
        log_probability: The sum of natural logarithms over the tokens and `<eos>`.
        finished: Whether it ended with `<eos>`; the sum of another one is of `max_tokens` + 1 tokens.
    """

    tokens: tuple[int, ...]
    log_probability: float
    finished: bool


class Baseline(Protocol):
    """A model on a device, started from given weights."""

    @property
    def name(self) -> str:
        """The name in the registry."""

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""


@runtime_checkable
class Trains(Baseline, Protocol):
    """A baseline that can be trained."""

    def train_step(self, batch: Batch, learning_rate: float) -> float:
        """Make one update, wait for the device and return the loss.

        Units: mean nats per target token, padding excluded.
        """


@runtime_checkable
class Decodes(Baseline, Protocol):
    """A baseline that can translate."""

    def translate(
        self, sources: Sequence[Ids], *, beam: int, batch_size: int, max_tokens: int, suppressed: Sequence[int]
    ) -> list[list[int]]:
        """Return the translations in the order of `sources`, each without `<sos>` and `<eos>`.

        `sources` holds one array `<sos>` words `<eos>` per sentence. `beam` 1 is greedy. The ids in
        `suppressed` are never chosen, and `max_tokens` counts words without `<eos>`.

        Raises: ValueError for a beam size that the baseline does not support, or too many positions.
        """
