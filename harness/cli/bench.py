"""`bench`: train and measure a suite of runs, one process per run, and write their report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.cli import options, report_options, seed_plan, sweep
from harness.cli.console import say
from harness.experiments import suites
from harness.experiments.specs import Budget, DataSpec, RunSpec
from harness.experiments.suites import Suite
from harness.processes import machine
from harness.storage.records import RunRecord
from harness.training import load
from impls import registry

BUDGETS: dict[str, tuple[Budget, ...]] = {
    "controlled": ("controlled",),
    "source": ("source",),
    "both": ("controlled", "source"),
}


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("bench", help="train, measure and compare many variants", description=__doc__)
    parser.add_argument(
        "--variant", action="append", help="a variant, or package.module:NAME; repeatable (default: the suite's)"
    )
    parser.add_argument("--budget", choices=list(BUDGETS), help="training settings (default: the suite's)")
    parser.add_argument(
        "--plan",
        type=seed_plan.goal,
        metavar="detect=NUMBER[,METRIC]",
        help="run nothing; print how many seeds detect a true difference of NUMBER in METRIC (default bleu_sacre) with "
        "80 %% probability, and how long they take, based on the noise of existing or published runs",
    )
    sweep.add(parser)
    options.add_runs(parser, several=True)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the suite that the options name; with `--plan` or `--dry-run` run nothing.

    Returns 0, 1 if a run failed, or 128 + the number of the signal that interrupted it.
    """
    with sweep.breakable():
        suite, specs = _plan(arguments)
        if arguments.plan is not None:
            return seed_plan.report(arguments.plan, specs, arguments)
        there = sweep.finished(specs, arguments.results)
        _announce(suite, specs, there)
        if arguments.dry_run:
            return sweep.dry_run(specs, there, arguments)
    done = sweep.execute(specs, there, arguments)
    return sweep.tell(done, specs, lambda: _report(done.records, arguments.results, arguments.reports / suite.name))


def _plan(arguments: argparse.Namespace) -> tuple[Suite, list[RunSpec]]:
    """Return the suite and all its runs, each once, and prepare their data."""
    variants = [load.find_variant(name) for name in arguments.variant or ()]
    suite = sweep.choose_suite(arguments, (arguments.framework or ["torch"])[0])
    pairs = _pairs(variants, suite, arguments)

    def build(data: DataSpec) -> list[RunSpec]:
        found: dict[str, RunSpec] = {}
        for budget in BUDGETS[arguments.budget] if arguments.budget else suite.budgets:
            for seed in arguments.seed or suite.seeds:
                for variant, framework in pairs:
                    spec = suites.spec(suite, variant, budget=budget, seed=seed, data=data)
                    spec = options.apply(spec, arguments, framework)
                    found[spec.id] = spec
        return list(found.values())

    specs = options.available(arguments, build)
    sweep.prepare(specs, arguments.engine)
    return suite, specs


def _pairs(variants: list[str], suite: Suite, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return which variants are run in which frameworks.

    Frameworks of the suite that are not available are left out with a message; those of the options must be available.
    """
    backend = arguments.backend
    if arguments.framework or variants:
        frameworks = dict.fromkeys(arguments.framework or ["torch"])
        if "keras" not in frameworks:
            options.framework_settings(None, backend)
        chosen = variants or suite.variants
        pairs = [(variant, one) for one in frameworks for variant in chosen if suites.has(variant, one)]
        # A variant that none of them has is refused later, by the look-up of its model, which names its frameworks.
        alone = [one for one in chosen if not any(suites.has(one, framework) for framework in frameworks)]
        return pairs + [(one, next(iter(frameworks))) for one in alone]
    device = arguments.device if arguments.engine == "local" else None  # a cluster's is not here
    planned = {"torch": suite.variants, "keras": suite.in_keras}
    absent = {
        "torch": _unusable("torch", None, device),
        "keras": _unusable("keras", backend or registry.BACKENDS[0], device),
    }
    for framework, reason in absent.items():
        if reason:
            say(f"Left out: {', '.join(planned[framework])} in {framework}. {reason}")
    if all(absent.values()):
        raise ValueError(f"no framework is available: {absent['torch']}")
    return [(variant, one) for one in planned for variant in planned[one] if not absent[one]]


def _unusable(framework: str, backend: str | None, device: str | None) -> str:
    """Return why a framework is not available: it is not installed or cannot use the GPU; empty if it is."""
    reason = registry.missing(framework, backend)
    if not reason and (device or "").startswith("cuda") and not machine.gpu_usable(backend or framework):
        return f"{backend or framework!r} cannot use the GPU here"
    return reason


def _announce(suite: Suite, specs: list[RunSpec], there: list[RunRecord]) -> None:
    corpora = ", ".join(dict.fromkeys(f"{spec.data.corpus} {spec.data.direction}" for spec in specs))
    say(f"Suite {suite.name} ({suite.purpose}): {len(specs)} runs on {corpora}.")
    if suite.name == "quick":
        say("Its models are small: the results are comparable with each other, not with published ones.")
    for record in there:
        say(f"  {record.id}: already {record.status}, not run again")


def _report(records: list[RunRecord], results: Path, folder: Path) -> None:
    if not any(record.status == "completed" for record in records):
        sweep.say_endings(records)
        return
    say()
    report_options.write(records, results, folder, failures=report_options.check_records(results, records))
    sweep.say_next_steps(results)
