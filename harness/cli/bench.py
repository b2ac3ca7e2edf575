"""`bench`: train and measure a suite of runs, one process per run, and write their report."""

from __future__ import annotations

import argparse
import copy
import itertools

from harness.cli import chosen_models, experiment_file, options, report_writing, seed_plan, sweep
from harness.cli.chosen_models import ChosenModel
from harness.cli.console import say, warn
from harness.experiments import suites
from harness.experiments.specs import Budget, DataSpec, RunSpec
from harness.experiments.suites import Suite
from harness.storage.records import RunRecord
from harness.text import count
from harness.training import reuse

SUMMARY = "train, measure and compare many variants"
EXAMPLES = (
    ("train and compare the suite's variants at small size", ""),
    ("two variants, three seeds each, five epochs", "--variant paper --variant conv_ffn --seed 0-2 --epochs 5"),
    ("the tutorials' size: list the runs with their time and disk space, train nothing", "--suite standard --dry-run"),
    ("an experiment in a file", "--config dropout.toml"),
)
BUDGETS: dict[str, tuple[Budget, ...]] = {
    "controlled": ("controlled",),
    "source": ("source",),
    "both": ("controlled", "source"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
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
    sweep.add_options(parser)
    options.add_runs(parser, many=True, repeatable=("framework",))


def command(arguments: argparse.Namespace) -> int:
    """Run the suite that the options name; with `--plan` or `--dry-run` run nothing.

    Returns 0, 1 if a run failed, or 128 + the number of the signal that interrupted it.
    """
    typed = copy.copy(arguments)  # the plan may change the device and the note
    with sweep.interruptible():
        suite, specs = _plan(arguments)
        experiment_file.save(typed)
        if arguments.plan is not None:
            return seed_plan.report(arguments.plan, specs, arguments)
        finished = reuse.reusable_records(arguments.results, specs, complain=warn)
        _announce(suite, specs, finished)
        if arguments.dry_run:
            return sweep.dry_run(specs, finished, arguments)
    result = sweep.execute(specs, finished, arguments)
    return sweep.conclude(result, specs, arguments.results, lambda: _report(result.records, suite, arguments))


def _plan(arguments: argparse.Namespace) -> tuple[Suite, list[RunSpec]]:
    """Return the suite and all its runs, each once, and prepare their data."""
    suite = sweep.choose_suite(arguments, (arguments.framework or ["torch"])[0])
    models = _models(suite, arguments)
    options.check_variants((model.variant for model in models), arguments.set)

    def build(data: DataSpec) -> list[RunSpec]:
        specs = (
            options.apply(
                suites.spec(suite, model.variant, budget=budget, seed=seed, data=data, threads=1),
                arguments,
                model.framework,
            )
            for budget in (BUDGETS[arguments.budget] if arguments.budget else suite.budgets)
            for seed in arguments.seed or suite.seeds
            for model in models
        )
        return list({spec.id: spec for spec in specs}.values())

    specs = options.available(arguments, build, suite=arguments.suite)
    sweep.prepare(specs)
    return suite, specs


def _models(suite: Suite, arguments: argparse.Namespace) -> list[ChosenModel]:
    """Return the models to train; a message says which ones of the suite are left out."""
    device = arguments.device if arguments.launcher == "local" else None  # that of a cluster cannot be checked here
    models, left_out = chosen_models.choose(
        suite, arguments.variant, arguments.framework, arguments.backend and [arguments.backend], device
    )
    for (framework, reason), group in itertools.groupby(
        left_out.items(), key=lambda item: (item[0].framework, item[1])
    ):
        say(f"Left out: {', '.join(model.variant for model, _ in group)} in {framework}. {reason}")
    return models


def _announce(suite: Suite, specs: list[RunSpec], finished: list[RunRecord]) -> None:
    say(f"Suite {suite.name} ({suite.purpose}): {count(len(specs), 'run')} on {sweep.corpus_names(specs)}.")
    sweep.warn_of_size(suite)
    for line in _not_comparable(specs):
        warn(line)
    for record in finished:
        say(f"  {record.id}: already {record.status}, not run again")


def _not_comparable(specs: list[RunSpec]) -> list[str]:
    """Return a line for each table that the report would not show, because settings of its runs differ."""
    from harness.analysis.fairness import find_mismatches
    from harness.analysis.grouping import groups

    lines = []
    for table in groups(RunRecord(id=spec.id, spec=spec, status="interrupted") for spec in specs):
        mismatches = [str(each) for each in find_mismatches(table.records, table.budget) if each.kind != "seeds"]
        if mismatches:
            lines.append(
                f"the report will not compare these runs ({table.heading}), because they differ in "
                f"{'; '.join(mismatches)}. To compare them, give all the same with --set"
            )
    return lines


def _report(records: list[RunRecord], suite: Suite, arguments: argparse.Namespace) -> None:
    results, folder = arguments.results, arguments.reports / suite.name
    say()
    report_writing.write(records, results, folder, failures=report_writing.check_records(results, records))
    sweep.say_next_steps(results)
