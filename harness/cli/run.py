"""`run`: train and measure one variant in this process."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from harness.cli import options, sweep
from harness.cli.console import say, warn
from harness.experiments import suites
from harness.experiments.run_names import run_names
from harness.experiments.specs import DataSpec, RunSpec, spec_from_json
from harness.processes import parent_watchdog
from harness.processes.progress import Event, Progress, to_line
from harness.processes.progress_display import Display
from harness.processes.signals import Interrupted, SignalGuard
from harness.storage import locks, run_store
from harness.storage.records import RunRecord
from harness.training import load, reuse


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("run", help="train and measure one variant", description=__doc__)
    parser.add_argument("variant", nargs="?", help="a variant, or package.module:NAME")
    parser.add_argument(
        "--suite", choices=list(suites.SUITES), default="standard", help="sizes of the run (default standard)"
    )
    parser.add_argument(
        "--budget", choices=("controlled", "source"), default="source", help="training settings (default source)"
    )
    parser.add_argument("--seed", type=options.count, default=0, help="(default 0)")
    options.add_note(parser)
    parser.add_argument(
        "--spec",
        choices=["-"],
        help="read the run as JSON from standard input and write events as JSON (default: use the options)",
    )
    options.add_checkpoints(parser)
    options.add_data(parser)
    options.add_runs(parser)
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Run what the options name.

    Returns 0, 1 if the run failed or diverged, or 128 + the number of the signal that interrupted it. With `--spec`
    diverged runs return 0, and a run that another process holds returns 75.
    """
    if arguments.spec is None and arguments.variant is None:
        raise ValueError("run: the variant is missing; see them with: python -m harness list")
    with SignalGuard() as watch:
        return _by_hand(arguments, watch) if arguments.spec is None else _child(arguments, watch)


def _by_hand(arguments: argparse.Namespace, watch: SignalGuard) -> int:
    with watch.interruptible():
        spec = _spec(arguments)
        _pin(spec, is_program=arguments.is_program)
    with watch.interruptible():
        there = reuse.reusable_records(arguments.results, [spec], complain=warn)
    if there:
        say(f"{spec.id}: already {there[0].status}; remove its folder to run it again")
        return _show(there[0], arguments.results)
    display = Display(sys.stderr, names={spec.id: run_names([spec])[0]})
    origin = {
        "command": arguments.typed,
        "note": arguments.note,
        "checkpoint_seconds": arguments.checkpoint_seconds,
        "resume_anyway": arguments.resume_anyway,
        "score_every": arguments.score_every,
    }
    try:
        record = _run(spec, arguments.results, display, watch, origin)
    finally:
        display.close()
    return _show(record, arguments.results, watch)


def _run(spec: RunSpec, results: Path, progress: Progress, watch: SignalGuard, origin: dict[str, Any]) -> RunRecord:
    """Train and measure with the lock of the run held; `origin` are further arguments of `train.run`."""
    with locks.hold(results, spec.id):
        try:
            with watch.interruptible():
                from harness.training import train
            return train.run(spec, results, progress=progress, guard=watch, **origin)
        except Interrupted as error:
            known = {"note": origin["note"], "command": origin["command"]}
            reason = f"{error} before its training"
            record = RunRecord(id=spec.id, spec=spec, status="interrupted", reason=reason, **known)
            run_store.save_record(results, record)
            return record


def _spec(arguments: argparse.Namespace) -> RunSpec:
    variant, suite = load.find_variant(arguments.variant), suites.SUITES[arguments.suite]

    def build(data: DataSpec) -> list[RunSpec]:
        spec = suites.spec(suite, variant, budget=arguments.budget, seed=arguments.seed, data=data)
        return [options.apply(spec, arguments)]

    (spec,) = options.available(arguments, build)
    return spec


def _child(arguments: argparse.Namespace, watch: SignalGuard) -> int:
    """Run the spec in a line of standard input; events go to standard output, everything else to standard error.

    The line is JSON: `spec`; `command`, `note`, `checkpoint_seconds`, `resume_anyway` and `score_every` as the options
    of those names; and `follow`, true if the run ends when its standard input is closed.
    """
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    with watch.interruptible():
        try:
            given = json.loads(sys.stdin.readline())
            spec = spec_from_json(given["spec"])
            origin: dict[str, Any] = {"command": str(given.get("command", "")), "note": str(given.get("note", ""))}
            origin["resume_anyway"] = given.get("resume_anyway") is True
            origin["score_every"] = int(given.get("score_every", 0))
            origin["checkpoint_seconds"] = float(given.get("checkpoint_seconds", arguments.checkpoint_seconds))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"--spec -: standard input holds no run: {error}") from error
    if given.get("follow"):
        parent_watchdog.exit_with_parent()
    os.environ.update(_environment(spec))

    def report(event: Event) -> None:
        if event.remark:
            sys.stderr.write(f"{event.remark}\n")
            sys.stderr.flush()
        try:
            events.write(to_line(event))
        except BrokenPipeError:
            watch.receive(signal.SIGTERM)  # the parent process is gone

    try:
        record = _run(spec, arguments.results, report, watch, origin)
        return 0 if record.status in run_store.FINISHED else _exit_code(record, watch)
    except locks.Locked as error:
        report(Event(run=spec.id, stage="elsewhere", remark=str(error)))
        return locks.LOCKED_CODE


def _show(record: RunRecord, results: Path, watch: SignalGuard | None = None) -> int:
    from harness.data.dataset import remark

    # A closed terminal sends SIGHUP and cannot be written: the exit code still has to report the signal.
    ignored = (OSError,) if record.status == "interrupted" else ()
    with contextlib.suppress(*ignored):
        if "test_pairs_in_train" in record.sizes:
            say(remark(record.spec.data, record.sizes))
        for name, value in record.scores.items():
            say(f"  {name:24} {'-' if value is None else format(value, '.4f')}")
        say(f"{record.id}: {record.status}{': ' * bool(record.reason)}{record.reason}")
        say(f"Record: {results / record.id}")
        if record.status == "completed":
            sweep.say_next_steps(results)
            say(f"  python -m harness translate --run {record.id} 'Ein Hund läuft .'")
    return _exit_code(record, watch)


def _exit_code(record: RunRecord, watch: SignalGuard | None) -> int:
    if record.status == "interrupted":
        return 128 + (signal.SIGINT if watch is None or watch.received is None else watch.received)
    return 0 if record.status == "completed" else 1


def _environment(spec: RunSpec) -> dict[str, str]:
    from harness.processes.environment_variables import worker_environment

    return worker_environment(spec)


def _pin(spec: RunSpec, *, is_program: bool) -> None:
    """Set the environment variables of a run in this process, and restart the process if it is the whole program.

    The memory allocator and the mathematics libraries read their variables only at start.
    """
    wanted = _environment(spec)
    pinned = all(os.environ.get(name) == value for name, value in wanted.items())
    os.environ.update(wanted)
    if is_program and not pinned and os.name == "posix":
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
