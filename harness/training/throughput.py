"""Measures the throughput of a training run, without its first update and without compilation."""

from __future__ import annotations

import time

from harness.training.checkpoint import TrainingState
from impls.contract import Compiling, Seq2SeqModel


class ThroughputMeter:
    """Times the updates of one process and adds them to a `TrainingState` whenever the clock stops.

    The first update of the process ends with the device synchronised. All later updates count as steady, except those
    that compile.

    Attributes:
        updates: Number of steady updates since the last start.
        tokens: Number of target tokens in them.
    """

    def __init__(self, state: TrainingState, model: Seq2SeqModel) -> None:
        self._state, self._model = state, model
        self._warm = self._running = False
        self._began = self._steady = self._compiling = self._compiled = 0.0
        self.updates = self.tokens = 0

    def start(self) -> None:
        """Start the clock."""
        self._began = self._steady = time.perf_counter()
        self._compiling, self._compiled = 0.0, self._compilation_seconds()
        self._running, self.updates, self.tokens = True, 0, 0

    def add_update(self, tokens: int) -> None:
        """Count an update of `tokens` target tokens that was just enqueued."""
        compiled = self._compilation_seconds() - self._compiled
        self._compiled += compiled
        if not self._warm:
            self._model.synchronize()
            self._steady, self._warm = time.perf_counter(), True
            self._state.first_update_seconds = self._state.first_update_seconds or self._steady - self._began
        elif compiled:
            self._compiling += compiled
        else:
            self.updates += 1
            self.tokens += tokens

    @property
    def seconds(self) -> float:
        """Seconds since the last start or the first update, without compilation; 0 while the clock is stopped."""
        return self._seconds(time.perf_counter()) if self._running else 0.0

    def stop(self) -> None:
        """Stop the clock and add the times to the state. The device must be synchronised."""
        if not self._running:
            return
        state, now = self._state, time.perf_counter()
        state.training_seconds += now - self._began
        if self._warm:
            state.steady_updates += self.updates
            state.steady_tokens += self.tokens
            state.steady_seconds += self._seconds(now)
        self._running, self.updates, self.tokens = False, 0, 0

    def _seconds(self, now: float) -> float:
        return now - self._steady - self._compiling

    def _compilation_seconds(self) -> float:
        return self._model.compilation().seconds if isinstance(self._model, Compiling) else 0.0
