"""What `bench` and `ablate` share: options, data, the plan of runs with time and disk, execution, and the summary."""

from __future__ import annotations

import argparse
import contextlib
import functools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cli import experiment_file, folder_options, launcher_options, log_options, options
from harness.cli.console import say, warn
from harness.data import preprocess
from harness.data.dataset import Dataset, remark
from harness.data.dataset import prepare as prepare_corpus
from harness.execution import eta, launcher, local
from harness.execution.eta import Forecast
from harness.experiments import suites
from harness.experiments.run_names import names_by_id, run_names
from harness.experiments.specs import DataSpec, RunSpec
from harness.experiments.suites import Suite
from harness.processes import machine
from harness.processes.progress import duration
from harness.processes.signals import SignalGuard
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.storage.results_folders import command_on, list_command
from harness.text import count
from harness.training import checkpoint, reuse
from impls import registry, weights

WEIGHT_BYTES, RUN_BYTES = 4, 2**20
"""The size of a stored weight, and of all other files of a run."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite", choices=list(suites.SUITES), help="sizes and seeds (default quick; standard with a GPU)"
    )
    experiment_file.add_options(parser)
    parser.add_argument(
        "--seed",
        type=options.seeds,
        action="extend",
        metavar="SEEDS",
        help="seeds: 3, a list 0,1,2 or a range 0-4; repeatable (default: the suite's; in ablate at least 3)",
    )
    parser.add_argument(
        "--jobs", type=options.positive, metavar="N", help="runs at once (default cores / threads; 1 per GPU)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs with their estimated time and disk space; run nothing"
    )
    launcher_options.add_options(parser)
    _add_limits(parser)
    options.add_note(parser)
    folder_options.add_reports(parser)
    log_options.add_options(parser)
    options.add_data(parser)
    folder_options.add_results(parser)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit the time of a run and its retries."""
    parser.add_argument(
        "--timeout",
        type=options.seconds,
        default=0.0,
        metavar="SECONDS",
        help="longest time of a run's process; it then fails and keeps its checkpoint (default 0: no limit)",
    )
    parser.add_argument(
        "--silence",
        type=options.seconds,
        default=launcher.SILENCE_SECONDS,
        metavar="SECONDS",
        help="seconds without progress, compilation included, before a run is considered hung "
        f"(default {launcher.SILENCE_SECONDS:.0f}; 0: never)",
    )
    parser.add_argument(
        "--retries",
        type=options.count,
        default=1,
        metavar="N",
        help="how often a run resumes from its checkpoint after its process was killed or hung (default 1)",
    )
    options.add_checkpoints(parser)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal interrupt a block anywhere."""
    with SignalGuard() as guard, guard.interruptible():
        yield


def choose_suite(arguments: argparse.Namespace, framework: str) -> Suite:
    """Return the suite that the options name, or the default of this machine. Runs use a GPU if there is one."""
    launcher_options.check(arguments)
    log_options.check(arguments)
    computes = (arguments.backend or registry.BACKENDS[0]) if framework == "keras" else framework
    gpu = arguments.device is None and arguments.launcher == "local" and _finds_gpu(computes)
    if gpu:
        arguments.device = "cuda"
    return suites.SUITES[arguments.suite or ("standard" if gpu else "quick")]


def _finds_gpu(framework: str) -> bool:
    if not machine.gpus():
        return False
    if machine.gpu_usable(framework):
        return True
    say(f"There is a GPU, but the installed {framework} cannot use it; running on the CPU.")
    return False


def _datasets(specs: list[RunSpec]) -> dict[DataSpec, Dataset]:
    for spec in specs:
        preprocess.check_libraries(spec.data)
    return {data: prepare_corpus(data) for data in dict.fromkeys(spec.data for spec in specs)}


def prepare(specs: list[RunSpec]) -> dict[DataSpec, Dataset]:
    """Prepare and return every corpus, and check that each model is available and fits its vocabularies.

    Raises: ValueError if a model or its backend is not available, or does not fit.
    """
    for spec in specs:
        spec.check_tying()
    datasets = _datasets(specs)
    for line in dict.fromkeys(remark(data, dataset.figures) for data, dataset in datasets.items()):
        say(line)
    for spec in specs:
        if spec.recipe is not None:
            registry.find_builder(spec.recipe.family, spec.framework, spec.backend)
            weights.shapes(spec.recipe, *datasets[spec.data].vocabulary_sizes)
    return datasets


def check_devices(specs: list[RunSpec], launcher_name: str = "local") -> None:
    """Raise ValueError for a device that is not available or lacks a run's precision of products."""
    if launcher_name != "local":
        named = [spec.device for spec in specs if spec.device not in ("cpu", "cuda")]
        if named:
            hint = "use cpu or cuda; the cluster assigns the GPU"
            raise ValueError(f"device {named[0]!r} with --launcher {launcher_name}: {hint}")
        return
    for device, computes in dict.fromkeys((spec.device, spec.computes) for spec in specs):
        if not machine.device_usable(device, computes):
            raise ValueError(f"device {device!r} is not available: {computes} sees no such device; use --device cpu")
    for device, name in dict.fromkeys((spec.device, spec.matmul_precision) for spec in specs):
        if name != "highest" and not machine.matmul_precision_usable(name, device):
            raise ValueError(registry.no_effect(name, device))


def corpus_names(specs: list[RunSpec]) -> str:
    return ", ".join(dict.fromkeys(f"{spec.data.corpus} {spec.data.direction}" for spec in specs))


def warn_of_size(suite: Suite) -> None:
    """Print that the results of the suite quick are not comparable with published ones."""
    if suite.name == "quick":
        say("Its models are small: the results are comparable with each other, not with published ones.")


@dataclass(frozen=True)
class SweepResult:
    """The result of a set of runs: all records in the order of the set, and the outcome of the new runs."""

    records: list[RunRecord]
    outcome: launcher.Outcome

    @property
    def exit_code(self) -> int:
        """0; 1 if a run failed or diverged; 128 + the number of the signal that interrupted the set.

        A pilot that diverges is no failure: it rules out its learning rate.
        """
        if self.outcome.signal is not None:
            return 128 + self.outcome.signal
        ends = {(record.status, record.spec.budget) for record in self.records} - {("diverged", "pilot")}
        return int(any(status != "completed" for status, _ in ends))

    def followed_by(self, later: SweepResult) -> SweepResult:
        """Return this set of runs and a later one as one set."""
        outcome = launcher.Outcome([*self.outcome.records, *later.outcome.records], later.outcome.signal)
        return SweepResult([*self.records, *later.records], outcome)


def process_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `ProcessSettings` that the options give."""
    names = ("note", "checkpoint_seconds", "resume_anyway", "score_every")
    settings = {name: getattr(arguments, name) for name in names}
    return {"command": arguments.typed, "report_loss": bool(arguments.log), **settings}


def execute(
    specs: list[RunSpec], finished: list[RunRecord], arguments: argparse.Namespace, *, earlier: Sequence[RunSpec] = ()
) -> SweepResult:
    """Print how long the missing runs take, run them, and return all records. Finished runs need no device.

    Runs are shown with names that tell them apart from all of `specs` and `earlier`, finished ones included.
    """
    finished_ids = {record.id for record in finished}
    missing = [spec for spec in specs if spec.id not in finished_ids]
    with interruptible():
        check_devices(missing, arguments.launcher)
    outcome, names = launcher.Outcome(), names_by_id([*earlier, *specs])
    settings = launcher.RunSettings(
        **process_settings(arguments),
        timeout_seconds=arguments.timeout or None,
        silence_seconds=arguments.silence or None,
        retries=arguments.retries,
    )
    if missing and arguments.launcher != "local":
        say(f"{len(missing)} to run with {arguments.launcher}.")
        outcome = launcher_options.execute(missing, arguments, settings, names=names)
    elif missing:
        jobs, gpus = jobs_and_gpus(specs, arguments)
        forecast = forecast_runs(missing, arguments.results, jobs)
        seconds = forecast.seconds()
        time = "time unknown until the first updates" if seconds is None else f"about {duration(seconds)}"
        say(f"{len(missing)} to run, {jobs} at once: {time}.")
        warn_of_load()
        with log_options.logging_runs(arguments, missing) as listener:
            outcome = local.execute(
                missing,
                arguments.results,
                jobs=jobs,
                stream=sys.stderr,
                settings=settings,
                forecast=forecast,
                gpus=gpus,
                listener=listener,
                names=names,
            )
    order = {spec.id: position for position, spec in enumerate(specs)}
    return SweepResult(sorted([*finished, *outcome.records], key=lambda record: order[record.id]), outcome)


@functools.cache
def warn_of_load() -> None:
    """Warn, once in this process, if other processes use more than the cores of this machine."""
    load, cores = machine.load_average(), machine.cores()
    if load > cores:
        warn(
            f"the load average is {load:.1f} on {count(cores, 'core')}: other processes slow the runs. They take "
            "longer than estimated, and their times and rates are not comparable"
        )


def jobs_and_gpus(specs: list[RunSpec], arguments: argparse.Namespace) -> tuple[int, list[str]]:
    """Return how many runs to execute at once, and the GPUs to distribute them over."""
    gpus = machine.gpus() if all(spec.device == "cuda" for spec in specs) else []
    on_cpu = all(spec.device.startswith("cpu") for spec in specs)
    most = machine.cores() // max(spec.threads for spec in specs) if on_cpu else len(gpus)
    return arguments.jobs or max(1, most), gpus


def dry_run(specs: list[RunSpec], finished: list[RunRecord], arguments: argparse.Namespace) -> int:
    """Print every run with its estimated time and disk space, and the sums. Returns 0."""
    statuses = {record.id: record.status for record in finished}
    missing = [spec for spec in specs if spec.id not in statuses]
    check_devices(missing, arguments.launcher)
    jobs, _ = jobs_and_gpus(specs, arguments)
    forecast = forecast_runs(missing, arguments.results, jobs)
    sizes = disk_bytes(missing)
    names = run_names(specs)
    width = max(map(len, names))
    for spec, name in zip(specs, names, strict=True):
        estimate = forecast.estimates.get(spec.id)
        seconds = estimate.seconds(forecast.progress.get(spec.id, 0.0)) if estimate else None
        size = f"{sizes[spec.id] / 2**20:,.0f} MiB" if sizes.get(spec.id) else ""
        say(f"  {name:{width}}  {statuses.get(spec.id) or duration(seconds):>12}  {size:>9}  {spec.id}")
    total = f"{jobs} at once: {duration(forecast.seconds() if missing else 0.0)}"
    if arguments.launcher != "local":
        total = f"as many at once as {arguments.launcher} allows"
    say(
        f"{len(missing)} of {count(len(specs), 'run')} still to run, {total}, "
        f"{sum(sizes.values()) / 2**20:,.0f} MiB in {arguments.results}. Nothing was run."
    )
    return 0


def disk_bytes(specs: list[RunSpec]) -> dict[str, int]:
    """Return the estimated size of each run's folder by run id; runs of external builders have none.

    It holds the float32 weights, translations and counts; the checkpoints of unfinished runs are not included.
    """
    datasets, sizes = _datasets(specs), {}
    for spec in specs:
        if spec.recipe is not None:
            parameters = weights.count(spec.recipe, *datasets[spec.data].vocabulary_sizes)
            sizes[spec.id] = WEIGHT_BYTES * parameters + RUN_BYTES
    return sizes


def forecast_runs(specs: list[RunSpec], results: Path, jobs: int) -> Forecast:
    """Return how long runs take, less the updates in their checkpoints; unknown on other devices than the CPU."""
    if not specs or any(not spec.device.startswith("cpu") for spec in specs):
        return Forecast({}, jobs)
    try:
        rate = eta.core_rate()
    except subprocess.CalledProcessError:  # it was killed, for example for lack of memory
        return Forecast({}, jobs)
    datasets, cores = _datasets(specs), machine.cores()
    estimates, progress = {}, {}
    finished_run = functools.cache(run_store.finished)
    for spec in specs:
        dataset = datasets[spec.data]
        share = min(1.0, cores / (min(jobs, len(specs)) * spec.threads))
        estimates[spec.id] = eta.estimate(spec, dataset, rate * min(spec.threads, cores) * share)
        updates = checkpoint.updates_done(results, spec.id) / eta.all_updates(spec, dataset)
        progress[spec.id] = 1.0 if reuse.same_training(results, spec, finished=finished_run) else min(1.0, updates)
    return Forecast(estimates, jobs, progress)


def conclude(result: SweepResult, specs: list[RunSpec], results: Path, report: Callable[[], None]) -> int:
    """Report the runs if any completed, or after a signal print what is left to do. Returns the exit code."""
    if result.outcome.signal is None:
        with interruptible():
            if any(record.status == "completed" for record in result.records):
                report()
            else:  # the reason of each was printed when it ended
                say(f"No run completed; {list_command(results)}")
        return result.exit_code
    ended = sum(record.status != "interrupted" for record in result.records)
    started = len(result.records) - ended
    with contextlib.suppress(OSError):  # the terminal may be closed; the exit code matters
        say(
            f"Interrupted by {signal.Signals(result.outcome.signal).name}: {ended} of {len(specs)} runs are done, "
            f"{started} started, {len(specs) - ended - started} not started. Repeat the command to continue."
        )
    return result.exit_code


def say_next_steps(results: Path) -> None:
    """Print the commands that usually follow."""
    say("\nNext:")
    say(f"  {command_on(results, 'list')}        the runs and their BLEU")
    say(f"  {command_on(results, 'check')}       whether they are a fair comparison")
    say(f"  {command_on(results, 'compare A B')} two variants or runs in detail")
