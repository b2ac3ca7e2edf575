"""The command line: `python -m harness COMMAND`."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import harness
from harness import text
from harness.cli import (
    ablate,
    bench,
    check,
    clean,
    compare,
    console,
    data,
    export,
    folder_options,
    laws,
    list_runs,
    new,
    report,
    run,
    score,
    settings,
    speed,
    translate,
)
from harness.experiments import ablation_grids
from harness.processes.json_process import ProcessFailed
from harness.processes.signals import Interrupted
from harness.storage.run_store import RunFailed
from harness.text import command_line, did_you_mean
from impls import registry

COMMANDS = {
    "bench": bench,
    "ablate": ablate,
    "run": run,
    "compare": compare,
    "report": report,
    "check": check,
    "list": list_runs,
    "translate": translate,
    "export": export,
    "score": score,
    "laws": laws,
    "new": new,
    "speed": speed,
    "data": data,
    "settings": settings,
    "clean": clean,
}
"""The commands by name. In the help, a module's docstring is the description; `EXAMPLES` are purposes and options."""
EXAMPLES = (
    ("train and compare the variants on built-in sentences, in minutes", "bench --corpus captions"),
    ("the options of a command, with examples", "bench --help"),
)
"""The examples in the help of the program itself."""
BROKEN_PIPE_CODE = 141
"""The exit code of a program that SIGPIPE ends: its output is closed before everything is written."""
FOLDER_OPTIONS = ("--experiment", "--results", "--reports", "--checkpoint-folder", "--log", "--log-folder")
"""Options that choose folders and logs of this machine, which records do not contain."""
VALUE_OPTIONS = ("--variant", "--base", "--run")
"""Options whose values users tend to give without the option: variants, and ids of runs."""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps text by paragraphs, leaves indented paragraphs as they are, and shows that flags are off by default."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = [
            part if part.startswith("  ") else super(HelpFormatter, self)._fill_text(part, width, indent)
            for part in text.strip().split("\n\n")
        ]
        return "\n\n".join(paragraphs)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_flag = action.nargs == 0 and action.dest not in ("help", "version")
        return f"{action.help} (default: no)" if is_flag and "default" not in (action.help or "") else action.help


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that suggests the closest name."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing the usage and exiting."""
        see_help = f"; see {command_line(f'{self.prog} --help'.removeprefix('bakeoff '))}"
        raise ValueError(f"{message}{see_help if 'required' in message else ''}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            hint = did_you_mean(value, choices) if isinstance(value, str) else ""
            raise argparse.ArgumentError(action, f"{value!r} is not one of {', '.join(choices)}{hint}")


class _CommandParser(Parser):
    """The parser of one command: no abbreviations, and suggestions for unknown arguments."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            command = self.prog.split()[-1]
            raise ValueError(f"{command}: there is no argument {rest[0]!r}{self._suggestion(rest[0])}")
        return parsed, rest

    def _suggestion(self, argument: str) -> str:
        """Return the option that an unknown argument is close to, or whose value it looks like."""
        options = {option: action for action in self._actions for option in action.option_strings}
        if argument.startswith("-"):
            name = argument.partition("=")[0].lstrip("-")
            if any(name == action.dest for action in self._actions if not action.option_strings):
                return f"; give the {name} without it"
            fields = [field for field in settings.HELP if field.rpartition(".")[2] == name.replace("-", "_")]
            if "--set" in options and fields:
                return f"; give {' or '.join(f'--set {field}=VALUE' for field in fields)}"
            close = did_you_mean(name, [option.removeprefix("--") for option in options])  # "--" alone is no likeness
            return close.replace("mean '", "mean '--")
        if "--results" in options and Path(argument).is_dir():
            return f"; did you mean '--results {argument}'?"
        if "--config" in options and argument.endswith(".toml"):
            return f"; did you mean '--config {argument}'?"
        if "--field" in options and argument.partition("=")[0] in ablation_grids.FIELDS:
            return f"; did you mean '--field {argument}'?"
        for option, action in options.items():
            if action.choices is not None and argument in action.choices:
                return f"; did you mean '{option} {argument}'?"
        option = next((option for option in VALUE_OPTIONS if option in options), "")
        if option and (option == "--run" or argument in registry.names() or ":" in argument):
            return f"; did you mean '{option} {argument}'?"
        return ""


class _PrintCompletion(argparse.Action):
    """Prints the script that completes the options of the program `bakeoff` in a shell."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, shell: Any, _option: str | None = None
    ) -> None:
        import shtab

        console.say(shtab.complete(parser, shell))
        parser.exit()


def parser() -> Parser:
    description = "Trains, measures and compares small translation models."
    top = Parser(prog="bakeoff", description=description, formatter_class=HelpFormatter)
    top.add_argument("--version", action="version", version=f"bakeoff {harness.__version__}")
    shells = ("bash", "zsh", "tcsh")
    top.add_argument(
        "--print-completion", action=_PrintCompletion, choices=shells, help="print the shell's completion of bakeoff"
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=_CommandParser)
    for name, module in COMMANDS.items():
        description = (module.__doc__ or "").removeprefix(f"`{name}`: ")
        description = description[:1].upper() + description[1:]
        command_parser = commands.add_parser(name, help=module.SUMMARY, description=description)
        module.add_options(command_parser)
        command_parser.epilog = "\n\n".join(filter(None, [command_parser.epilog, _examples(name, module.EXAMPLES)]))
        command_parser.set_defaults(command=module.command)
    top.epilog = _examples("", EXAMPLES)
    return top


def _examples(name: str, examples: Sequence[tuple[str, str]]) -> str:
    lines = [f"  # {purpose}\n  {command_line(f'{name} {words}'.strip())}" for purpose, words in examples]
    return "\n".join(["examples:\n", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: The arguments after the name of the program; None for those of this process, in which case `run`
            may restart the process with another environment.

    Returns:
        The exit code: 0; 1 if a run failed or diverged, or a check did not pass; 2 for bad input; 128 + the number of
        the signal that interrupted it.
    """
    if arguments is not None:
        return _run(arguments)
    _reopen_closed_streams()
    _escape_unencodable_output()
    try:
        code = _run(None)
    except Exception:
        traceback.print_exc()
        code = 1
    _flush_output()
    _end_despite_threads(code)
    return code


def _end_despite_threads(code: int) -> None:
    """End this process if a thread that a model has left running would keep it alive."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(code)


def _reopen_closed_streams() -> None:
    """Open closed standard streams (`2>&-`) on the null device, so that no other file gets their descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free one, which is that of the stream
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


def _escape_unencodable_output() -> None:
    """Write characters that the encoding of a stream lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush_output() -> None:
    """Flush the output, and discard what cannot be written: Python would try again at exit and return 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    typed = _recorded_command(words)
    try:
        namespace = argparse.Namespace(is_program=arguments is None, typed=typed)
        parsed = folder_options.use_experiment(parser().parse_args(words, namespace))
        code: int = parsed.command(parsed)
    except RunFailed as error:
        cause = error.__cause__
        lines = traceback.format_exception(cause) if cause else [f"{error}\n"]
        sys.stderr.write(text.printable("".join(lines)))
        return 1
    except (ValueError, OSError, ProcessFailed) as error:
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE_CODE
        console.warn(_message(error))
        return 2
    except Interrupted as error:
        console.warn(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return code


def _recorded_command(words: Sequence[str]) -> str:
    """Return the command line for records, without `FOLDER_OPTIONS`."""
    recorded, remaining = ["python", "-m", "harness"], iter(words)
    for word in remaining:
        if word in FOLDER_OPTIONS:
            next(remaining, None)
        elif not word.startswith(tuple(f"{option}=" for option in FOLDER_OPTIONS)):
            recorded.append(word)
    return shlex.join(recorded)


def _message(error: Exception) -> str:
    """Return the error in one line; an error of the operating system with its path."""
    path, reason = getattr(error, "filename", None), getattr(error, "strerror", None)
    return f"{path}: {reason}" if path and reason else " ".join(str(error).split())
