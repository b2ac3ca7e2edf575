"""The command line: `python -m harness COMMAND`."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from harness import text
from harness.cli import (
    ablate,
    bench,
    check,
    compare,
    data,
    laws,
    list_runs,
    options,
    report,
    run,
    score,
    speed,
    translate,
)
from harness.processes.signals import Interrupted
from harness.storage.run_store import RunFailed

COMMANDS = (bench, ablate, run, speed, data, translate, laws, list_runs, score, check, compare, report)
BROKEN_PIPE_CODE = 141
"""What SIGPIPE, 13, ends other programs with: whoever read the output is gone, and not all was done."""


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses in one line, with the nearest name."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing the usage."""
        raise ValueError(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(one) for one in action.choices]
            raise argparse.ArgumentError(
                action, f"{value!r}: allowed is {', '.join(known)}{text.did_you_mean(value, known)}"
            )


def parser() -> Parser:
    """Return the parser of the whole command line."""
    found = Parser(prog="bakeoff", description="Trains, measures and compares small translation models.")
    commands = found.add_subparsers(metavar="COMMAND", required=True, parser_class=_SubParser)
    for one in COMMANDS:
        one.add(commands)
    return found


class _SubParser(Parser):
    """The parser of one command: without abbreviations, and knowing its options when it meets a wrong one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            known = [option for action in self._actions for option in action.option_strings]
            name = rest[0].partition("=")[0]
            raise ValueError(
                f"{self.prog.split()[-1]}: there is no argument {rest[0]!r}{text.did_you_mean(name, known)}"
            )
        return found, rest


def _told(error: ValueError | OSError) -> str:
    """Return in a line what is wrong; with the path, and in words, where the system refused something."""
    path, reason = getattr(error, "filename", None), getattr(error, "strerror", None)
    return f"{path}: {reason}" if path and reason else " ".join(str(error).split())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    It is 0, 1 where a run failed or diverged, 2 for bad input, 128 + the number of a signal that interrupted it.

    `arguments` None are this process's own; `run` may then start the process anew with another environment.
    """
    if arguments is None:
        _let_everything_be_written()
    code = _run(arguments)
    if arguments is None:
        _let_go_of_output()
    return code


def _let_everything_be_written() -> None:
    """Write as an escape what the encoding of a stream has not, as that of a terminal or a pipe that is not UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _let_go_of_output() -> None:
    """Drop what cannot be written any more, as to a closed terminal: Python would try again and end with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        typed = shlex.join(["python", "-m", "harness", *words])
        given = parser().parse_args(words, argparse.Namespace(is_program=arguments is None, typed=typed))
        code: int = given.command(given)
    except RunFailed as error:
        sys.stderr.write(text.printable("".join(traceback.format_exception(error.__cause__ or error))))
        return 1
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE_CODE
        options.warn(_told(error))
        return 2
    except Interrupted as error:
        options.warn(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return code
