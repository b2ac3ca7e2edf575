"""The progress of runs: a table on a terminal, rare plain lines elsewhere."""

from __future__ import annotations

import io
import sys
import time

import pytest
from small_runs import TINY, spec

from harness.processes import progress_display
from harness.processes.progress import Event
from harness.processes.progress_display import Display


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def training(**fields: object) -> Event:
    return Event(run="x", stage="training", epoch=1, epochs=2, updates=3, all_updates=10, **fields)  # type: ignore[arg-type]


def test_display_in_a_log_writes_rare_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    stream = io.StringIO()
    display = Display(stream, overall=lambda: "all of it")
    for moment in range(60):  # noqa: B007
        display(training())
    display(training(remark="epoch 1/2 done"))
    display.close()
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 6
    assert lines[0].startswith("x: epoch 1/2, update ")
    assert lines[0].endswith("all of it")
    assert lines[-1] == "x: epoch 1/2 done"
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("stream", "variable", "value"),
    [
        (io.StringIO(), "FORCE_COLOR", "1"),  # as the kernel of Jupyter sets it, also for the processes of a cell
        (Terminal(), "TERM", "dumb"),
    ],
    ids=["pipe of a notebook", "dumb terminal"],
)
def test_display_that_cannot_draw_a_table_writes_plain_lines(
    stream: io.StringIO, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.0)
    display = Display(stream)
    display(training())
    display(training(remark="epoch 1/2 done"))
    display.close()
    assert stream.getvalue() == "x: epoch 1/2, update 3/10\nx: epoch 1/2 done\n"


def test_display_on_a_terminal_redraws_its_table_and_keeps_remarks() -> None:
    stream = Terminal()
    display = Display(stream, names={"x": "norm=rms s0"}, overall=lambda: "0 of 2 runs done")
    display(training())
    display(training(remark="worth keeping"))
    display(Event(run="x", stage="ended"))
    display.close()
    output = stream.getvalue()
    assert "norm=rms s0" in output
    assert "0 of 2 runs done" in output
    assert "norm=rms s0: worth keeping\n" in output
    assert "\x1b[2K\x1b[1A" in output
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")


@pytest.mark.parametrize(("columns", "has_bar"), [("60", False), ("120", True)])
def test_display_shows_bars_only_on_wide_terminals(
    columns: str, has_bar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    stream = Terminal()
    Display(stream)(training(tokens_per_second=1403.0, remaining_seconds=100.0))
    assert ("━" in stream.getvalue()) is has_bar
    assert all(len(line) < 4 * int(columns) for line in stream.getvalue().split("\n"))


def test_display_with_a_closed_stream_does_not_raise() -> None:
    display = Display(ClosedPipe())
    display.line("nobody reads this")
    display(training(remark="nor this"))
    display.close()


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_display_of_session_shows_a_run_on_terminals_only(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = kind()
    monkeypatch.setattr(sys, "stderr", stream)
    run = spec("paper", TINY, seed=3)
    display = Display.of_session(run)
    display(Event(run=run.id, stage="training", remark="epoch 1/2 done"))
    display.close()
    assert ("paper s3: epoch 1/2 done" in stream.getvalue()) is (kind is Terminal)
    assert bool(stream.getvalue()) is (kind is Terminal)
