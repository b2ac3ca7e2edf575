"""How fast a run trains: its first update and what compiles apart, and nothing but updates counted."""

from __future__ import annotations

import time

from harness.training.checkpoint import TrainingState
from impls.contract import Compiling, Seq2SeqModel


class ThroughputMeter:
    """Times the updates of one process and adds them to the run's `TrainingState` where it stops, as at a checkpoint.

    The first update of the process ends with the device synchronised; from there on updates are steady, but for those
    that compile. `updates`, `tokens` and `seconds` are of the steady ones since the last start.
    """

    def __init__(self, state: TrainingState, model: Seq2SeqModel) -> None:
        self._state, self._model = state, model
        self._warm = self._runs = False
        self._began = self._steady = self._compiling = self._compiled = 0.0
        self.updates = self.tokens = 0

    def start(self) -> None:
        """Start the clock."""
        self._began = self._steady = time.perf_counter()
        self._compiling, self._compiled = 0.0, self._compilation_seconds()
        self._runs, self.updates, self.tokens = True, 0, 0

    def note(self, tokens: int) -> None:
        """Count an update of so many target words that was just enqueued."""
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
        """The seconds since the last start, or since the first update, without those that were spent compiling."""
        return self._seconds(time.perf_counter()) if self._runs else 0.0

    def stop(self) -> None:
        """Stop the clock; the device has finished by now."""
        if not self._runs:
            return
        state, now = self._state, time.perf_counter()
        state.training_seconds += now - self._began
        if self._warm:
            state.steady_updates += self.updates
            state.steady_tokens += self.tokens
            state.steady_seconds += self._seconds(now)
        self._runs, self.updates, self.tokens = False, 0, 0

    def _seconds(self, now: float) -> float:
        return now - self._steady - self._compiling

    def _compilation_seconds(self) -> float:
        return self._model.compilation().seconds if isinstance(self._model, Compiling) else 0.0
