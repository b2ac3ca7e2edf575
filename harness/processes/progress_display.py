"""Shows the progress of runs: a live table on a terminal, plain lines in a pipe or log file."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.experiments.run_names import run_names
from harness.experiments.specs import RunSpec
from harness.processes.progress import Event, describe
from harness.text import one_line

LINE_SECONDS = 12.0
"""The time between two lines about one run if the output is no terminal."""
UPDATE_SECONDS = 0.5
BAR_WIDTH = 16
BAR_TERMINAL_WIDTH = 90
"""Narrower terminals show no bars."""


class _Console(Console):
    """A console that reports a closed pipe as an exception; rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Display:
    """Shows the runs in progress: a live table on a terminal, occasional plain lines elsewhere.

    Colors follow NO_COLOR, and a terminal with TERM=dumb gets plain lines. If the stream is closed, nothing more is
    shown.

    Args:
        names: A short name for each run id; other runs are shown by their ids.
        overall: Returns the progress of all runs together, which is the last line of the table.
    """

    def __init__(
        self, stream: TextIO, *, names: Mapping[str, str] | None = None, overall: Callable[[], str] | None = None
    ) -> None:
        # Otherwise rich takes any stream for a terminal if FORCE_COLOR is set, as the kernel of Jupyter sets it.
        is_terminal = stream.isatty()
        self._console = _Console(
            file=stream, force_terminal=is_terminal, markup=False, highlight=False, emoji=False, soft_wrap=True
        )
        self._names, self._overall = names or {}, overall
        self._live: Live | None = None
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._events: dict[str, Event] = {}
        self._shown: dict[str, float] = {}
        self._closed = False

    @classmethod
    def of_session(cls, spec: RunSpec) -> Display:
        """Return the display of a run on standard error. It shows nothing outside terminals and notebooks."""
        display = cls(sys.stderr, names={spec.id: run_names([spec])[0]})
        display._closed = not (display._console.is_terminal or display._console.is_jupyter)
        return display

    def __call__(self, event: Event) -> None:
        """Show an event, unless the run was shown a moment ago."""
        if event.remark:
            self.line(f"{self._name(event.run)}: {event.remark}")
        if event.stage == "ended":
            self._events.pop(event.run, None)
            self._refresh()
            return
        self._events[event.run] = event
        now = time.monotonic()
        if self._is_live:
            if now - self._shown.get("", -math.inf) >= UPDATE_SECONDS:
                self._shown[""] = now
                self._refresh()
        elif event.remark:
            self._shown[event.run] = now
        elif now - self._shown.setdefault(event.run, now) >= LINE_SECONDS:
            self._shown[event.run] = now
            overall = f"; {self._overall()}" if self._overall else ""
            self.line(f"{self._name(event.run)}: {describe(event)}{overall}")

    def line(self, text: str) -> None:
        """Write a line above the table."""
        self._write(lambda: self._console.print(Text(one_line(text)), soft_wrap=True))

    def close(self) -> None:
        """Remove the table."""
        self._events.clear()
        if self._live is not None:
            self._write(self._live.stop)
            self._live = None

    def _name(self, run: str) -> str:
        return self._names.get(run, run)

    def _refresh(self) -> None:
        if self._is_live:
            self._write(self._draw)

    def _draw(self) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(self._table(), refresh=True)

    def _table(self) -> Group:
        with_bars = self._console.width >= BAR_TERMINAL_WIDTH
        table = Table.grid(padding=(0, 1))
        names = [one_line(self._name(run)) for run in self._events]
        widest = min(max(map(len, names), default=0), max(12, self._console.width // 2))
        table.add_column(no_wrap=True, overflow="ellipsis", width=widest)
        if with_bars:
            table.add_column(width=BAR_WIDTH)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, event in zip(names, self._events.values(), strict=True):
            bar = ProgressBar(total=max(1, event.all_updates), completed=event.updates, width=BAR_WIDTH)
            cells = [bar] if with_bars else []
            table.add_row(Text(name, style="bold"), *cells, Text(one_line(describe(event))))
        rows = [table] if self._events else []
        overall = [Text(self._overall(), style="dim", no_wrap=True)] if self._events and self._overall else []
        return Group(*rows, *overall)

    def _write(self, write: Callable[[], object]) -> None:
        if self._closed:
            return
        try:
            write()
        except OSError:
            self._closed = True
