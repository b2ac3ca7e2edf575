"""`ablate`: train runs that differ from a base in one or more fields, and report the effects."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.cli import options, report_options, sweep
from harness.cli.console import say
from harness.execution import rate_tuning
from harness.experiments import ablation_grids, suites
from harness.experiments.ablation_grids import Grid
from harness.experiments.specs import DataSpec, RunSpec
from harness.experiments.suites import Suite
from harness.storage.records import RunRecord
from harness.text import count
from harness.training import load


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "ablate", help="change one field of a recipe at a time, and report the effects", description=__doc__
    )
    parser.add_argument(
        "--field", choices=ablation_grids.FIELDS, action="append", help="a field to change; repeatable (default: all)"
    )
    parser.add_argument(
        "--factorial",
        action="store_true",
        help=f"combine all values of the fields (default {' × '.join(ablation_grids.CROSSED)}), not one at a time",
    )
    parser.add_argument(
        "--base",
        default="learned_positions",
        metavar="VARIANT",
        help="the Transformer variant to change, or package.module:NAME (default learned_positions)",
    )
    parser.add_argument(
        "--tune-rate",
        type=options.learning_rates,
        metavar="RATE,RATE,...",
        help="choose the learning rate of every recipe among these by the validation loss of short pilot runs, and "
        "report the effects with and without this tuning (default: no tuning)",
    )
    parser.add_argument(
        "--pilot-epochs",
        type=options.positive,
        metavar="EPOCHS",
        help="epochs of the pilots of --tune-rate (default a third of --epochs, rounded up)",
    )
    sweep.add(parser)
    options.add_runs(parser)
    parser.set_defaults(command=command)


@dataclass(frozen=True)
class AblationPlan:
    """The runs of an ablation: those of its grids, and for each recipe the pilots that choose its learning rate."""

    suite: Suite
    specs: list[RunSpec]
    pilots: dict[str, list[RunSpec]]
    """`tuning.cell_key` -> one pilot for each rate; empty without `--tune-rate`."""

    @property
    def first(self) -> list[RunSpec]:
        """The runs that depend on no other run's result: all pilots and all runs of the grids."""
        return [*(pilot for same in self.pilots.values() for pilot in same), *self.specs]

    def tuned(self, records: Sequence[RunRecord]) -> list[RunSpec]:
        """Return the runs at the rates that the pilots chose, without those that are in the grids already.

        A recipe with unfinished pilots has none yet.
        """
        finished = rate_tuning.finished_pilots(records)
        found: dict[str, RunSpec] = {}
        for spec in self.specs:
            key = rate_tuning.cell_key(spec)
            if key in self.pilots and rate_tuning.complete(self.pilots[key], records):
                wanted = rate_tuning.tuned(spec, rate_tuning.choose(finished[key]))
                found[wanted.id] = wanted
        known = {spec.id for spec in self.specs}
        return [spec for run, spec in found.items() if run not in known]

    def candidates(self) -> list[RunSpec]:
        """Return every run that this ablation can include, whatever the pilots choose."""
        rates = dict.fromkeys(pilot.training.peak_rate for same in self.pilots.values() for pilot in same)
        possible = [rate_tuning.at_rate(spec, rate) for spec in self.specs for rate in rates]
        return list({spec.id: spec for spec in (*self.first, *possible)}.values())


def command(arguments: argparse.Namespace) -> int:
    """Run the grids that the options name, and with `--tune-rate` also their pilots and the runs at the chosen rates.

    Returns 0, 1 if a run failed, or 128 + the number of the signal that interrupted it.
    """
    with sweep.breakable():
        plan = _plan(arguments)
        there = sweep.finished(plan.first, arguments.results)
        _announce(arguments, plan, there)
        if arguments.dry_run:
            return sweep.dry_run(plan.first, there, arguments)
    done, specs = sweep.execute(plan.first, there, arguments), plan.first
    if plan.pilots and done.outcome.signal is None:
        with sweep.breakable():
            tuned = plan.tuned(done.records)
            there = sweep.finished(tuned, arguments.results)
            _announce_tuned(plan, tuned, there)
        done, specs = done.followed_by(sweep.execute(tuned, there, arguments)), [*specs, *tuned]
    return sweep.tell(done, specs, lambda: _report(done.records, plan.specs[0], arguments))


def _plan(arguments: argparse.Namespace) -> AblationPlan:
    """Return the suite whose size the runs have and all runs, each once, and make their data ready."""
    base = load.find_variant(arguments.base)
    ablation_grids.check_base(base, suites.resolve(base)[0])
    grids = _grids(arguments)
    if arguments.pilot_epochs and not arguments.tune_rate:
        raise ValueError("--pilot-epochs without --tune-rate: give the learning rates to try, such as 5e-4,1e-3,2e-3")
    suite = sweep.choose_suite(arguments, arguments.framework or "torch")

    def build(data: DataSpec) -> list[RunSpec]:
        found: dict[str, RunSpec] = {}
        for seed in arguments.seed or max(suite.seeds, ablation_grids.SEEDS, key=len):
            spec = suites.spec(suite, base, budget="controlled", seed=seed, data=data)
            spec = options.apply(spec, arguments)
            for grid in grids:
                found.update({cell.id: cell for cell in ablation_grids.cells(grid, spec)})
        return list(found.values())

    specs = options.available(arguments, build)
    pilots = {
        rate_tuning.cell_key(spec): rate_tuning.pilots(spec, arguments.tune_rate, arguments.pilot_epochs)
        for spec in (specs if arguments.tune_rate else ())
    }
    sweep.prepare(specs, arguments.engine)
    return AblationPlan(suite, specs, pilots)


def _grids(arguments: argparse.Namespace) -> tuple[Grid, ...]:
    return ablation_grids.grids(arguments.field or (), factorial=arguments.factorial)


def _announce(arguments: argparse.Namespace, plan: AblationPlan, there: list[RunRecord]) -> None:
    specs, suite = plan.specs, plan.suite
    fields = [" × ".join(grid.fields) for grid in _grids(arguments)]
    seeds = len({spec.seed for spec in specs})
    corpora = ", ".join(dict.fromkeys(f"{spec.data.corpus} {spec.data.direction}" for spec in specs))
    how = "all combinations of" if arguments.factorial else "one field at a time of"
    say(f"Ablation of {arguments.base}, {how} {', '.join(fields)}; sizes as in the suite {suite.name}.")
    say(f"{len(specs) // seeds} recipes, {count(seeds, 'seed')}: {len(specs)} runs on {corpora}.")
    if plan.pilots:
        pilot, *_ = next(iter(plan.pilots.values()))
        length = count(pilot.training.epochs, "epoch")
        say(
            f"Learning rates {_rates(arguments.tune_rate)}: {len(plan.first) - len(specs)} pilots of {length} with "
            f"seed {rate_tuning.PILOT_SEED} choose one for each recipe. The runs at the chosen rates come after them."
        )
    if suite.name == "quick":
        say("Its models are small: the results are comparable with each other, not with published ones.")
    if there:
        say(f"{len(there)} of them finished earlier and are not run again.")


def _announce_tuned(plan: AblationPlan, tuned: list[RunSpec], there: list[RunRecord]) -> None:
    own = _rates(sorted({spec.training.peak_rate for spec in plan.specs}))
    done = f", {len(there)} of them finished earlier" if there else ""
    say(f"{len(tuned)} runs at a chosen learning rate other than {own}{done}.")


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _report(records: list[RunRecord], first: RunSpec, arguments: argparse.Namespace) -> None:
    """Show what the runs say, and write it; `first` is a run of the base."""
    if not any(record.status == "completed" for record in records):
        sweep.say_endings(records)
        return
    from harness.analysis.ablation import analyse
    from harness.analysis.evidence import stored_sentences
    from harness.reporting import ablation_report, render_text

    analysis = analyse(records, stored_sentences(arguments.results), base=first)
    failures = report_options.check_records(arguments.results, records) if analysis.studies else []
    texts = report_options.shown_texts(records, arguments.results)
    report = ablation_report.document(analysis, results=arguments.results, texts=texts, failures=failures)
    say()
    say(render_text.document(report))
    if analysis.studies:
        page = ablation_report.write(report, analysis, arguments.reports / ablation_report.FOLDER)
        say(f"The report: {page} (as Markdown: {page.with_suffix('.md')})")
        report_options.warn_failures(failures)
