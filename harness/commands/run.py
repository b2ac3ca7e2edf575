"""`run`: one run, in this process."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import typing
from pathlib import Path
from typing import Any

from harness import specs, store, suites
from harness.commands import options
from harness.specs import DataSpec, RunRecord, RunSpec, spec_from_json


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("run", help="train and measure one variant", description=__doc__)
    parser.add_argument("variant", nargs="?", help="a variant, or package.module:NAME")
    parser.add_argument("--suite", choices=list(suites.SUITES), default="standard", help="whose size (standard)")
    parser.add_argument("--budget", choices=typing.get_args(specs.Budget), default="source", help="(source)")
    parser.add_argument("--seed", type=options.count, default=0)
    parser.add_argument("--note", default="", help="free text for the record")
    parser.add_argument("--spec", choices=["-"], help="read the run as JSON from standard input, tell events as JSON")
    options.add_data(parser)
    options.add_runs(parser)
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Run what the options name. Returns 0, 1 where the run failed, 130 where it was interrupted."""
    signal.signal(signal.SIGTERM, options.interrupt)
    if arguments.spec is not None:
        return _child(arguments)
    if arguments.variant is None:
        raise ValueError("run: the variant is missing; see them with: python -m harness list")
    spec = _spec(arguments)
    _pin(spec, is_program=arguments.is_program)
    from harness import training
    from harness.progress import Display

    there = store.finished(arguments.results, spec.id)
    if there is not None:
        options.say(f"{spec.id}: is there already ({there.status}); remove its folder to run it again")
        return _show(there, arguments.results)
    display = Display(sys.stderr)
    try:
        record = training.run(spec, arguments.results, progress=display, command=arguments.typed, note=arguments.note)
    finally:
        display.close()
    return _show(record, arguments.results)


def _spec(arguments: argparse.Namespace) -> RunSpec:
    variant, suite = options.find_variant(arguments.variant), suites.SUITES[arguments.suite]

    def build(data: DataSpec) -> list[RunSpec]:
        spec = suites.spec(suite, variant, budget=arguments.budget, seed=arguments.seed, data=data)
        return [options.apply(spec, arguments)]

    (spec,) = options.available(arguments, build)
    return spec


def _child(arguments: argparse.Namespace) -> int:
    """Run what standard input says; what anything prints goes to standard error, events to standard output."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    try:
        given = json.load(sys.stdin)
        spec = spec_from_json(given["spec"])
        command, note = str(given.get("command", "")), str(given.get("note", ""))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"--spec -: not a run ({error})") from error
    os.environ.update(_environment(spec))
    from harness import progress, training

    def tell(event: progress.Event) -> None:
        if event.remark:
            sys.stderr.write(f"{event.remark}\n")
            sys.stderr.flush()
        try:
            events.write(progress.to_line(event))
        except BrokenPipeError:
            raise KeyboardInterrupt from None  # whoever started this run is gone

    record = training.run(spec, arguments.results, progress=tell, command=command, note=note)
    return _exit_code(record)


def _show(record: RunRecord, results: Path) -> int:
    for name, value in record.scores.items():
        options.say(f"  {name:24} {'-' if value is None else format(value, '.4f')}")
    options.say(f"{record.id}: {record.status}{': ' * bool(record.reason)}{record.reason}")
    options.say(f"its record: {results / record.id}")
    return _exit_code(record)


def _exit_code(record: RunRecord) -> int:
    return {"completed": 0, "diverged": 0, "interrupted": 130}.get(record.status, 1)


def _environment(spec: RunSpec) -> dict[str, str]:
    from harness.executor import worker_environment

    return worker_environment(spec)


def _pin(spec: RunSpec, *, is_program: bool) -> None:
    """Give this process the environment of a run's, starting it anew where that is the whole program's affair.

    The memory allocator and the mathematics libraries read theirs once, at the start.
    """
    wanted = _environment(spec)
    pinned = all(os.environ.get(name) == value for name, value in wanted.items())
    os.environ.update(wanted)
    if is_program and not pinned and os.name == "posix":
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
