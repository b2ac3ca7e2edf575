"""`bench`: a whole suite, one process per run, and its report."""

from __future__ import annotations

import argparse
import signal
import sys
import typing
from pathlib import Path
from typing import Any

from harness import evidence, executor, store, suites
from harness.commands import options
from harness.forecast import Forecast
from harness.progress import duration
from harness.specs import Budget, DataSpec, RunRecord, RunSpec
from harness.suites import Suite

BUDGETS: dict[str, tuple[Budget, ...]] = {
    **{one: (one,) for one in typing.get_args(Budget)},
    "both": typing.get_args(Budget),
}


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("bench", help="train, measure and compare many variants", description=__doc__)
    parser.add_argument("--suite", choices=list(suites.SUITES), help="(quick; standard where there is a GPU)")
    parser.add_argument(
        "--variant", action="append", help="a variant, or package.module:NAME; may be given several times"
    )
    parser.add_argument("--seed", type=options.count, action="append", help="may be given several times")
    parser.add_argument("--budget", choices=list(BUDGETS), help="what the trainings are (the suite's)")
    parser.add_argument("--jobs", type=options.positive, help="runs at once (cores / threads; 1 on a GPU)")
    parser.add_argument("--note", default="", help="free text for the records")
    parser.add_argument("--reports", type=Path, default=options.REPORTS, help=f"({options.REPORTS})")
    options.add_data(parser)
    options.add_runs(parser)
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the suite that the options name. Returns 0, 1 where a run failed, 130 where it was interrupted."""
    signal.signal(signal.SIGTERM, options.interrupt)
    suite, specs = _plan(arguments)
    there, missing = _divide(specs, arguments.results)
    _announce(suite, specs, there)
    jobs = arguments.jobs or _jobs(specs)
    outcome = executor.Outcome()
    if missing:
        forecast = Forecast(_estimates(missing), jobs)
        seconds = forecast.seconds()
        options.say(
            f"{len(missing)} to run, {jobs} at once: "
            + ("the time is known after the first updates." if seconds is None else f"about {duration(seconds)}.")
        )
        outcome = executor.execute(
            missing,
            arguments.results,
            jobs=jobs,
            stream=sys.stderr,
            forecast=forecast,
            command=arguments.typed,
            note=arguments.note,
        )
    records = sorted([*there, *outcome.records], key=lambda record: [spec.id for spec in specs].index(record.id))
    _report(records, arguments.reports / suite.name)
    if outcome.interrupted:
        options.say("Interrupted. The same command goes on from here.")
        return 130
    return 1 if any(record.status in ("failed", "interrupted") for record in outcome.records) else 0


def _plan(arguments: argparse.Namespace) -> tuple[Suite, list[RunSpec]]:
    """Return the suite and all its runs, each once, and make their data ready."""
    variants = [options.find_variant(name) for name in arguments.variant or ()]
    gpu = arguments.device is None and _finds_gpu(arguments.framework or "torch")
    suite = suites.SUITES[arguments.suite or ("standard" if gpu else "quick")]
    if gpu:
        arguments.device = "cuda"

    def build(data: DataSpec) -> list[RunSpec]:
        found: dict[str, RunSpec] = {}
        for budget in BUDGETS[arguments.budget] if arguments.budget else suite.budgets:
            for seed in arguments.seed or suite.seeds:
                for variant in variants or suite.variants:
                    spec = suites.spec(suite, variant, budget=budget, seed=seed, data=data)
                    spec = options.apply(spec, arguments)
                    found[spec.id] = spec
        return list(found.values())

    specs = options.available(arguments, build)
    _prepare(specs)
    return suite, specs


def _finds_gpu(framework: str) -> bool:
    if not evidence.has_gpu():
        return False
    if executor.gpu_usable(framework):
        return True
    options.say(f"There is a GPU, but the installed {framework} cannot use it, so this runs on the processor.")
    return False


def _prepare(specs: list[RunSpec]) -> None:
    """Make every corpus ready, and see that each model and the device can be had. Raises: ValueError where not."""
    from harness.data.prepared import prepare
    from impls import registry, weights

    corpora = {data: prepare(data) for data in dict.fromkeys(spec.data for spec in specs)}
    for spec in specs:
        if spec.recipe is not None:
            registry.find_builder(spec.recipe.family, spec.framework)
            corpus = corpora[spec.data]
            weights.shapes(spec.recipe, len(corpus.source_words), len(corpus.target_words))
    device = specs[0].device
    if device != "cpu" and not (device.startswith("cuda") and executor.gpu_usable(specs[0].framework)):
        raise ValueError(f"device {device!r} cannot be had here: allowed is cpu, or cuda where there is a GPU")


def _divide(specs: list[RunSpec], results: Path) -> tuple[list[RunRecord], list[RunSpec]]:
    there = {spec.id: store.finished(results, spec.id) for spec in specs}
    return [one for one in there.values() if one is not None], [spec for spec in specs if there[spec.id] is None]


def _announce(suite: Suite, specs: list[RunSpec], there: list[RunRecord]) -> None:
    corpora = ", ".join(dict.fromkeys(f"{spec.data.corpus} {spec.data.direction}" for spec in specs))
    options.say(f"Suite {suite.name} ({suite.purpose}): {len(specs)} runs on {corpora}.")
    if suite.name == "quick":
        options.say("Its models are small and see little: its figures are not comparable with published ones.")
    for record in there:
        options.say(f"  {record.id}: is there already ({record.status}), not run again")


def _jobs(specs: list[RunSpec]) -> int:
    if any(not spec.device.startswith("cpu") for spec in specs):
        return 1
    return max(1, evidence.cores() // max(spec.threads for spec in specs))


def _estimates(specs: list[RunSpec]) -> dict[str, float]:
    """Return the seconds that each run may take; none for a device whose speed is not known here."""
    from harness import forecast
    from harness.data.prepared import prepare

    if any(not spec.device.startswith("cpu") for spec in specs):
        return {}
    corpora = {data: prepare(data) for data in dict.fromkeys(spec.data for spec in specs)}
    rate = forecast.machine_rate()
    share = {spec.id: min(1.0, spec.threads / evidence.cores()) for spec in specs}
    return {spec.id: forecast.estimate_seconds(spec, corpora[spec.data], rate * share[spec.id]) for spec in specs}


def _report(records: list[RunRecord], folder: Path) -> None:
    if not any(record.status == "completed" for record in records):
        for record in records:
            options.say(f"  {record.id}: {record.status}{': ' * bool(record.reason)}{record.reason}")
        return
    from harness.reporting import pages, tables

    options.say()
    options.say(tables.terminal(records))
    pages.write(records, folder)
    options.say(f"The report: {folder / 'index.md'}")
