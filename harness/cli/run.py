"""`run`: train and measure one variant in this process."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path

from harness.cli import folder_options, log_options, options, sweep
from harness.cli.console import say, warn
from harness.data.dataset import remark
from harness.experiments import suites
from harness.experiments.run_names import run_names
from harness.experiments.specs import DataSpec, RunSpec, spec_from_json
from harness.processes.environment_variables import worker_environment
from harness.processes.progress import Event, Progress, to_line
from harness.processes.progress_display import Display
from harness.processes.signals import Interrupted, SignalGuard, exit_with_parent
from harness.processes.workers import ProcessSettings
from harness.storage import locks, results_folders, run_store
from harness.storage.records import RunRecord
from harness.text import command_line
from harness.training import load, model_card, reuse

SUMMARY = "train and measure one variant"
EXAMPLES = (
    ("train one variant as its source does", "paper"),
    ("a small model on the built-in captions, in minutes", "paper --suite quick --corpus captions"),
    ("another dropout rate, seed and framework", "paper --set recipe.dropout=0.3 --seed 1 --framework keras"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("variant", nargs="?", help="a variant, or package.module:NAME")
    options.add_suite_and_budget(parser)
    parser.add_argument(
        "--seed", type=options.count, default=0, help="seed of initial weights, batches and dropout (default 0)"
    )
    options.add_note(parser)
    parser.add_argument(
        "--spec",
        choices=["-"],
        help=argparse.SUPPRESS,  # how other processes start a run: JSON on standard input, events on standard output
    )
    options.add_checkpoints(parser)
    log_options.add_options(parser)
    options.add_data(parser)
    options.add_runs(parser)
    folder_options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Return 0, 1 if the run failed or diverged, or 128 + the number of the signal that interrupted it.

    With `--spec` diverged runs return 0, and a run that another process holds returns 75.
    """
    if arguments.spec is None and arguments.variant is None:
        raise ValueError(f"run: the variant is missing; list variants with: {command_line('list')}")
    with SignalGuard() as guard:
        return _execute_options(arguments, guard) if arguments.spec is None else _execute_spec(arguments, guard)


def _execute_options(arguments: argparse.Namespace, guard: SignalGuard) -> int:
    with guard.interruptible():
        log_options.check(arguments)
        spec = _spec(arguments)
        records = reuse.reusable_records(arguments.results, [spec], complain=warn)
    if records:
        say(f"{spec.id}: already {records[0].status}; remove its folder to run it again")
        return _report(records[0], arguments.results, guard)
    with guard.interruptible():
        sweep.check_devices([spec])
    display = Display(sys.stderr, names={spec.id: run_names([spec])[0]})
    settings = ProcessSettings(**sweep.process_settings(arguments))
    with log_options.logging_runs(arguments, [spec]) as listener, contextlib.closing(display):

        def report(event: Event) -> None:
            display(event)
            listener(event)

        record = _run(spec, arguments.results, report, guard, settings)
    return _report(record, arguments.results, guard)


def _run(spec: RunSpec, results: Path, progress: Progress, guard: SignalGuard, settings: ProcessSettings) -> RunRecord:
    """Train and measure a run while its lock is held."""
    with locks.hold(results, spec.id):
        try:
            with guard.interruptible():
                from harness.training import train
            return train.run(spec, results, settings, progress=progress, guard=guard)
        except Interrupted as error:
            record = settings.new_record(spec, "interrupted", f"{error} before its training")
            run_store.save_record(results, record)
            return record


def _spec(arguments: argparse.Namespace) -> RunSpec:
    """Return the run that the options name, in a process with its environment."""
    variant, suite = load.find_variant(arguments.variant), suites.SUITES[arguments.suite]
    options.check_variants([variant], arguments.set)

    def build(data: DataSpec) -> list[RunSpec]:
        spec = suites.spec(suite, variant, budget=arguments.budget, seed=arguments.seed, data=data)
        return [options.apply(spec, arguments)]

    # A restart of this process comes first: what follows may print, and download the corpus.
    _set_environment(*build(options.data_spec(arguments)), is_program=arguments.is_program)
    (spec,) = options.available(arguments, build)
    return spec


def _execute_spec(arguments: argparse.Namespace, guard: SignalGuard) -> int:
    """Execute the spec in a line of standard input. Events go to standard output, everything else to standard error.

    The line is that of `ProcessSettings.payload`. The end of standard input interrupts the run.
    """
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    with guard.interruptible():
        try:
            payload = json.loads(sys.stdin.buffer.readline())  # UTF-8 in every locale
            spec = spec_from_json(payload.pop("spec"))
            settings = ProcessSettings(**payload)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"--spec -: standard input holds no run: {error}") from error
    exit_with_parent()
    os.environ.update(worker_environment(spec))

    def report(event: Event) -> None:
        if event.remark:
            sys.stderr.write(f"{event.remark}\n")
            sys.stderr.flush()
        try:
            events.write(to_line(event))
        except BrokenPipeError:
            guard.receive(signal.SIGTERM)  # the parent process is gone

    try:
        record = _run(spec, arguments.results, report, guard, settings)
        return 0 if record.status in run_store.FINISHED else _exit_code(record, guard)
    except locks.Locked as error:
        report(Event(run=spec.id, stage="elsewhere", remark=str(error)))
        return locks.LOCKED_CODE


def _report(record: RunRecord, results: Path, guard: SignalGuard) -> int:
    """Print the scores of a run and how it ended, and return the exit code."""
    # A closed terminal sends SIGHUP and cannot be written to; the exit code still has to report the signal.
    ignored = (OSError,) if record.status == "interrupted" else ()
    with contextlib.suppress(*ignored):
        if "test_pairs_in_train" in record.sizes:
            say(remark(record.spec.data, record.sizes))
        for name, value in record.scores.items():
            say(f"  {name:24} {'-' if value is None else format(value, '.4f')}")
        say(f"{record.id}: {record.ending}")
        say(f"Record: {results / record.id}")
        if record.status == "completed":
            sweep.say_next_steps(results)
            say(f"  {_translate_command(record, results)}")
    return _exit_code(record, guard)


def _translate_command(record: RunRecord, results: Path) -> str:
    """Return a command line that translates a sentence with a run."""
    sentence = model_card.SENTENCES.get(record.spec.data.source_language, "SENTENCE")
    external = "" if record.spec.recipe is not None else " --import-builder"
    folder = results_folders.results_option(results)
    return command_line(f"translate --run {record.id}{folder}{external} {shlex.quote(sentence)}")


def _exit_code(record: RunRecord, guard: SignalGuard) -> int:
    if record.status == "interrupted":
        return 128 + (guard.received or signal.SIGINT)
    return 0 if record.status == "completed" else 1


def _set_environment(spec: RunSpec, *, is_program: bool) -> None:
    """Set the environment variables of a run, and restart this process if it is the whole program.

    The memory allocator and the mathematics libraries read their variables only at start.
    """
    variables = worker_environment(spec)
    is_set = all(os.environ.get(name) == value for name, value in variables.items())
    os.environ.update(variables)
    if is_program and not is_set and os.name == "posix":
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
