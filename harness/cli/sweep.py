"""What commands that train many runs share: their options, their data, how long they take, and what is missing."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cli import engine_options, options
from harness.execution import eta, local
from harness.execution.eta import Forecast
from harness.experiments import suites
from harness.experiments.specs import RunSpec
from harness.experiments.suites import Suite
from harness.processes import machine, workers
from harness.processes.progress import duration
from harness.processes.signals import SignalGuard
from harness.storage.records import RunRecord
from harness.training import checkpoint, reuse
from impls import registry


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that trains many runs."""
    parser.add_argument("--suite", choices=list(suites.SUITES), help="(quick; standard where there is a GPU)")
    parser.add_argument("--seed", type=options.count, action="append", help="may be given several times")
    parser.add_argument("--jobs", type=options.positive, help="runs at once (cores / threads; 1 a GPU)")
    engine_options.add(parser)
    add_terms(parser)
    parser.add_argument("--note", default="", help="free text for the records")
    parser.add_argument("--reports", type=Path, default=options.REPORTS, help=f"({options.REPORTS})")
    options.add_data(parser)
    options.add_results(parser)


def add_terms(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how long a run may take, and what is done where its process is lost."""
    silence = local.SILENCE_SECONDS
    parser.add_argument(
        "--timeout",
        type=options.seconds,
        default=0.0,
        metavar="SECONDS",
        help="the most that the process of a run may take; it fails then, with a checkpoint (0: any time)",
    )
    parser.add_argument(
        "--silence",
        type=options.seconds,
        default=silence,
        metavar="SECONDS",
        help=f"without a sign of life for so long, which compiling may take, it is lost ({silence:.0f}; 0: never)",
    )
    parser.add_argument(
        "--retries",
        type=options.count,
        default=1,
        help="how often a run whose process was lost, killed from outside or hung, goes on from its checkpoint (1)",
    )
    options.add_checkpoints(parser)


@contextlib.contextmanager
def breakable() -> Iterator[None]:
    """Let a signal break off the block, which makes runs ready or tells of them, wherever it finds it."""
    with SignalGuard() as watch, watch.at_once():
        yield


def choose_suite(arguments: argparse.Namespace, framework: str) -> Suite:
    """Return the suite that the options name, or that fits this machine; with a GPU the runs are to use it.

    Raises: ValueError where the options name an engine that does not fit the others.
    """
    engine_options.check(arguments)
    computes = (arguments.backend or registry.BACKENDS[0]) if framework == "keras" else framework
    gpu = arguments.device is None and arguments.engine == "local" and _finds_gpu(computes)
    if gpu:
        arguments.device = "cuda"
    return suites.SUITES[arguments.suite or ("standard" if gpu else "quick")]


def _finds_gpu(framework: str) -> bool:
    if not machine.gpus():
        return False
    if workers.gpu_usable(framework):
        return True
    options.say(f"There is a GPU, but the installed {framework} cannot use it, so this runs on the processor.")
    return False


def prepare(specs: list[RunSpec], engine: str = "local") -> None:
    """Make every corpus ready, and see that each model and the device can be had. Raises: ValueError where not."""
    from harness.data.dataset import prepare, remark
    from impls import weights

    corpora = {data: prepare(data) for data in dict.fromkeys(spec.data for spec in specs)}
    for line in dict.fromkeys(remark(data, found.figures) for data, found in corpora.items()):
        options.say(line)
    for spec in specs:
        if spec.recipe is not None:
            registry.find_builder(spec.recipe.family, spec.framework, spec.backend)
            corpus = corpora[spec.data]
            weights.shapes(spec.recipe, len(corpus.source_words), len(corpus.target_words))
    if engine != "local":
        engine_options.check_devices(specs, engine)
        return
    for device, computes in dict.fromkeys((spec.device, spec.computes) for spec in specs):
        if device != "cpu" and not (device.startswith("cuda") and workers.gpu_usable(computes)):
            allowed = f"cpu, or cuda where there is a GPU that {computes} can use"
            raise ValueError(f"device {device!r} cannot be had here: allowed is {allowed}")


def finished(specs: list[RunSpec], results: Path) -> list[RunRecord]:
    """Return the records of the runs that are there already and need not be run again. Raises: as `standing` does."""
    return reuse.finished(results, specs, complain=options.warn)


@dataclass(frozen=True)
class Done:
    """What is there after a set of runs: the records in the order of the set, and how the new ones ended."""

    records: list[RunRecord]
    outcome: local.Outcome

    @property
    def code(self) -> int:
        """The exit code: 0, 1 where a run failed or diverged, 128 + the number of the signal that broke the set off.

        A pilot that diverged has done its work: it rules out its learning rate.
        """
        if self.outcome.signal is not None:
            return 128 + self.outcome.signal
        ends = {(record.status, record.spec.budget) for record in self.outcome.records} - {("diverged", "pilot")}
        return 1 if any(status != "completed" for status, _ in ends) else 0

    def followed_by(self, later: Done) -> Done:
        """Return both sets of runs as one, the later after this."""
        outcome = local.Outcome([*self.outcome.records, *later.outcome.records], later.outcome.signal)
        return Done([*self.records, *later.records], outcome)


def execute(specs: list[RunSpec], there: list[RunRecord], arguments: argparse.Namespace) -> Done:
    """Say how long the missing runs take, run them, and return all records."""
    known = {record.id for record in there}
    missing = [spec for spec in specs if spec.id not in known]
    outcome = local.Outcome()
    terms = local.RunLimits(
        timeout_seconds=arguments.timeout or None,
        silence_seconds=arguments.silence or None,
        retries=arguments.retries,
        checkpoint_seconds=arguments.checkpoint_seconds,
    )
    settings: dict[str, Any] = {"command": arguments.typed, "note": arguments.note, "terms": terms}
    if missing and arguments.engine != "local":
        options.say(f"{len(missing)} to run, by {arguments.engine}.")
        outcome = engine_options.execute(missing, arguments, settings)
    elif missing:
        gpus = machine.gpus() if all(spec.device == "cuda" for spec in specs) else []
        jobs = arguments.jobs or jobs_at_once(specs, gpus)
        left = forecast_runs(missing, arguments.results, jobs)
        seconds = left.seconds()
        options.say(
            f"{len(missing)} to run, {jobs} at once: "
            + ("the time is known after the first updates." if seconds is None else f"about {duration(seconds)}.")
        )
        outcome = local.execute(
            missing,
            arguments.results,
            jobs=jobs,
            stream=sys.stderr,
            forecast=left,
            gpus=gpus,
            **settings,
        )
    order = [spec.id for spec in specs]
    return Done(sorted([*there, *outcome.records], key=lambda record: order.index(record.id)), outcome)


def jobs_at_once(specs: list[RunSpec], gpus: list[str]) -> int:
    """Return how many runs go at once where no option says it."""
    if any(not spec.device.startswith("cpu") for spec in specs):
        return max(1, len(gpus))
    return max(1, machine.cores() // max(spec.threads for spec in specs))


def forecast_runs(specs: list[RunSpec], results: Path, jobs: int) -> Forecast:
    """Return how long the runs may take, of each what is left of it; nothing for a device whose speed is not known."""
    from harness.data.dataset import prepare

    if any(not spec.device.startswith("cpu") for spec in specs):
        return Forecast({}, jobs)
    corpora = {data: prepare(data) for data in dict.fromkeys(spec.data for spec in specs)}
    rate = eta.machine_rate()
    share = {spec.id: min(1.0, spec.threads / machine.cores()) for spec in specs}
    estimates = {spec.id: eta.estimate(spec, corpora[spec.data], rate * share[spec.id]) for spec in specs}
    updates = {spec.id: eta.all_updates(spec, corpora[spec.data]) for spec in specs}
    done = {run: min(1.0, checkpoint.updates_done(results, run) / count) for run, count in updates.items()}
    return Forecast(estimates, jobs, done)


def tell(done: Done, specs: list[RunSpec], report: Callable[[], None]) -> int:
    """Report what runs gave; where a signal broke them off, say what is left instead. Returns the exit code."""
    if done.outcome.signal is None:
        with breakable():
            report()
        return done.code
    ended = sum(record.status != "interrupted" for record in done.records)
    begun = len(done.records) - ended
    with contextlib.suppress(OSError):  # the terminal may be gone, and the exit code is to say so
        options.say(
            f"Interrupted by {signal.Signals(done.outcome.signal).name}: {ended} of {len(specs)} runs are done, "
            f"{begun} begun, {len(specs) - ended - begun} not. The same command goes on from here."
        )
    return done.code


def say_endings(records: list[RunRecord]) -> None:
    """Say how each run ended, where there is nothing else to say."""
    for record in records:
        options.say(f"  {record.id}: {record.status}{': ' * bool(record.reason)}{record.reason}")
