"""`ablate`: recipes that differ from a base in one field, or in every combination of some, and what matters."""

from __future__ import annotations

import argparse
from typing import Any

from harness import ablations, suites
from harness.ablations import Grid
from harness.commands import many, options, reports
from harness.specs import DataSpec, RunRecord, RunSpec
from harness.suites import Suite


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "ablate", help="change a recipe one field at a time, and report what matters", description=__doc__
    )
    parser.add_argument(
        "--field", choices=ablations.FIELDS, action="append", help="may be given several times (all of them)"
    )
    parser.add_argument(
        "--factorial",
        action="store_true",
        help=f"every combination of the fields ({' × '.join(ablations.CROSSED)}), not one at a time",
    )
    parser.add_argument(
        "--base",
        default="learned_positions",
        metavar="VARIANT",
        help="what is changed: a Transformer variant, or package.module:NAME (learned_positions)",
    )
    many.add(parser)
    options.add_runs(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the grids that the options name.

    Returns 0, 1 where a run failed, 128 + the number of the signal where one broke it off.
    """
    with many.breakable():
        suite, specs = _plan(arguments)
        there = many.finished(specs, arguments.results)
        _announce(arguments, suite, specs, there)
    done = many.execute(specs, there, arguments)
    return many.tell(done, specs, lambda: _report(done.records, specs[0], arguments))


def _plan(arguments: argparse.Namespace) -> tuple[Suite, list[RunSpec]]:
    """Return the suite whose size the runs have and all runs, each once, and make their data ready."""
    base = options.find_variant(arguments.base)
    ablations.check_base(base, suites.resolve(base)[0])
    grids = _grids(arguments)
    suite = many.choose_suite(arguments, arguments.framework or "torch")

    def build(data: DataSpec) -> list[RunSpec]:
        found: dict[str, RunSpec] = {}
        for seed in arguments.seed or max(suite.seeds, ablations.SEEDS, key=len):
            spec = suites.spec(suite, base, budget="controlled", seed=seed, data=data)
            spec = options.apply(spec, arguments)
            for grid in grids:
                found.update({cell.id: cell for cell in ablations.cells(grid, spec)})
        return list(found.values())

    specs = options.available(arguments, build)
    many.prepare(specs, arguments.engine)
    return suite, specs


def _grids(arguments: argparse.Namespace) -> tuple[Grid, ...]:
    return ablations.grids(arguments.field or (), factorial=arguments.factorial)


def _announce(arguments: argparse.Namespace, suite: Suite, specs: list[RunSpec], there: list[RunRecord]) -> None:
    fields = [" × ".join(grid.fields) for grid in _grids(arguments)]
    seeds = len({spec.seed for spec in specs})
    corpora = ", ".join(dict.fromkeys(f"{spec.data.corpus} {spec.data.direction}" for spec in specs))
    how = "every combination of" if arguments.factorial else "one field at a time of"
    options.say(f"Ablation of {arguments.base}, {how} {', '.join(fields)}; sizes as in the suite {suite.name}.")
    options.say(f"{len(specs) // seeds} recipes, {seeds} seed{'s' * (seeds > 1)}: {len(specs)} runs on {corpora}.")
    if suite.name == "quick":
        options.say("Its models are small and see little: its figures are not comparable with published ones.")
    if there:
        are = "is" if len(there) == 1 else "are"
        options.say(f"{len(there)} of them {are} there already and {are} not run again.")


def _report(records: list[RunRecord], first: RunSpec, arguments: argparse.Namespace) -> None:
    """Show what the runs say, and write it; `first` is a run of the base."""
    if not any(record.status == "completed" for record in records):
        many.say_endings(records)
        return
    from harness.reporting import ablation_page, ablation_tables, ablation_words
    from harness.reporting.ablation import analyse
    from harness.reporting.judging import stored_sentences

    base = ablations.check_base(first.variant, first.recipe)
    analysis = analyse(records, stored_sentences(arguments.results), base=base)
    options.say()
    options.say(ablation_tables.terminal(analysis))
    for line in ablation_words.finding(analysis):
        options.say(f"\n{line}")
    if analysis.studies:
        folder = arguments.reports / ablation_page.FOLDER
        page = ablation_page.write(analysis, folder)
        options.say(f"\nThe report, with what this does not show: {page}")
        failures = reports.check_records(arguments.results, records)
        html = reports.write_html(records, arguments.results, folder, failures=failures)
        options.say(f"All runs, with curves and translations: {html}")
        reports.warn(failures)
