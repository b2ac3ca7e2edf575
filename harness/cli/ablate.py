"""`ablate`: train runs that differ from a base in one or more fields, and report the effects."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass

from harness.cli import experiment_file, options, report_writing, sweep
from harness.cli.console import say, warn
from harness.execution import rate_tuning
from harness.experiments import ablation_grids, suites
from harness.experiments.ablation_grids import Grid
from harness.experiments.specs import DataSpec, RunSpec
from harness.experiments.suites import Suite
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles
from harness.text import count
from harness.training import load, reuse

SUMMARY = "change one field of a recipe at a time, and report the effects"
EXAMPLES = (
    ("positions and norms, one change at a time", "--field positions --field norm"),
    ("every combination of positions and initial embeddings", "--field positions --field embedding_init --factorial"),
    ("with the best of three learning rates for each recipe", "--field norm --tune-rate 5e-4,1e-3,2e-3"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--field",
        type=_field,
        action="append",
        metavar="FIELD[=LEVEL,...]",
        help=f"a field to change, and its levels (default: every level); repeatable (default: all of "
        f"{', '.join(ablation_grids.FIELDS)})",
    )
    parser.add_argument(
        "--factorial",
        action="store_true",
        help=f"train every combination of the fields' levels (default {' × '.join(ablation_grids.CROSSED)})",
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
        help="choose the learning rate of every recipe among these by the validation loss of pilot runs with a "
        "seed of their own, and report the effects with and without this tuning (default: no tuning)",
    )
    parser.add_argument(
        "--pilot-epochs",
        type=options.positive,
        metavar="EPOCHS",
        help="epochs of the pilots of --tune-rate (default those of the full runs; shorter pilots favour high rates)",
    )
    sweep.add_options(parser)
    options.add_runs(parser, many=True)


def _field(text: str) -> str:
    try:
        ablation_grids.parse_field(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


@dataclass(frozen=True)
class AblationPlan:
    """The runs of the grids of an ablation, and their pilots by `rate_tuning.cell_key`: one for each learning rate."""

    suite: Suite
    specs: list[RunSpec]
    pilots: dict[RunSpec, list[RunSpec]]

    @property
    def independent_runs(self) -> list[RunSpec]:
        """The runs that depend on no result of another run: all pilots and all runs of the grids."""
        return [*(pilot for pilots in self.pilots.values() for pilot in pilots), *self.specs]

    def tuned(self, records: Sequence[RunRecord]) -> list[RunSpec]:
        """Return the runs at the chosen learning rates that are not in the grids.

        A recipe with unfinished pilots has no such run.
        """
        pilots_of = rate_tuning.finished_pilots(records)
        finished = {pilot.id for pilots in pilots_of.values() for pilot in pilots}
        tuned: dict[str, RunSpec] = {}
        for spec in self.specs:
            key = rate_tuning.cell_key(spec)
            if all(pilot.id in finished for pilot in self.pilots[key]):
                tuned_spec = rate_tuning.tuned(spec, rate_tuning.choose(pilots_of[key]))
                tuned[tuned_spec.id] = tuned_spec
        return [spec for spec in tuned.values() if spec not in self.specs]


def command(arguments: argparse.Namespace) -> int:
    """Run the grids that the options name, with `--tune-rate` also their pilots and the runs at the chosen rates.

    Returns 0, 1 if a run failed, or 128 + the number of the signal that interrupted it.
    """
    typed = copy.copy(arguments)  # the plan may change the device and the note
    with sweep.interruptible():
        plan = _plan(arguments)
        experiment_file.save(typed)
        specs = plan.independent_runs
        finished = reuse.reusable_records(arguments.results, specs, complain=warn)
        _announce(arguments, plan, finished)
        if arguments.dry_run:
            return sweep.dry_run(specs, finished, arguments)
    result = sweep.execute(specs, finished, arguments)
    if plan.pilots and result.outcome.signal is None:
        with sweep.interruptible():
            tuned = plan.tuned(result.records)
            finished = reuse.reusable_records(arguments.results, tuned, complain=warn)
            _announce_tuned(plan, tuned, finished)
        result = result.followed_by(sweep.execute(tuned, finished, arguments, earlier=specs))
        specs = [*specs, *tuned]
    return sweep.conclude(result, specs, arguments.results, lambda: _report(result.records, plan.specs[0], arguments))


def _plan(arguments: argparse.Namespace) -> AblationPlan:
    """Return the runs, each once, and prepare their data."""
    base = load.find_variant(arguments.base)
    ablation_grids.check_base(base, suites.resolve(base)[0])
    options.check_variants([base], arguments.set)
    grids = _grids(arguments)
    if arguments.pilot_epochs and not arguments.tune_rate:
        raise ValueError("--pilot-epochs without --tune-rate: give the learning rates to try, such as 5e-4,1e-3,2e-3")
    if arguments.tune_rate and rate_tuning.PILOT_SEED in (arguments.seed or ()):
        raise ValueError(
            f"--seed {rate_tuning.PILOT_SEED} with --tune-rate: the pilots have this seed; give other seeds"
        )
    suite = sweep.choose_suite(arguments, arguments.framework or "torch")

    def build(data: DataSpec) -> list[RunSpec]:
        cells: dict[str, RunSpec] = {}
        for seed in arguments.seed or max(suite.seeds, ablation_grids.SEEDS, key=len):
            spec = suites.spec(suite, base, budget="controlled", seed=seed, data=data, threads=1)
            spec = options.apply(spec, arguments)
            for grid in grids:
                cells.update({cell.id: cell for cell in ablation_grids.cells(grid, spec)})
        return list(cells.values())

    specs = options.available(arguments, build, suite=arguments.suite)
    pilots = {
        rate_tuning.cell_key(spec): rate_tuning.pilots(spec, arguments.tune_rate, arguments.pilot_epochs)
        for spec in (specs if arguments.tune_rate else ())
    }
    sweep.prepare(specs)
    return AblationPlan(suite, specs, pilots)


def _grids(arguments: argparse.Namespace) -> tuple[Grid, ...]:
    levels: dict[str, tuple[str, ...]] = {}
    for field, chosen in map(ablation_grids.parse_field, arguments.field or ()):
        levels[field] = (*levels.get(field, ()), *chosen)
    return ablation_grids.grids(levels, factorial=arguments.factorial)


def _announce(arguments: argparse.Namespace, plan: AblationPlan, finished: list[RunRecord]) -> None:
    specs = plan.specs
    fields = [" × ".join(grid.fields) for grid in _grids(arguments)]
    seeds = len({spec.seed for spec in specs})
    design = "all combinations of" if arguments.factorial else "one field at a time of"
    say(f"Ablation of {arguments.base}, {design} {', '.join(fields)}; sizes as in the suite {plan.suite.name}.")
    recipes, runs = count(len(specs) // seeds, "recipe"), count(len(specs), "run")
    say(f"{recipes}, {count(seeds, 'seed')}: {runs} on {sweep.corpus_names(specs)}.")
    if plan.pilots:
        pilot, *_ = next(iter(plan.pilots.values()))
        pilots = count(len(plan.independent_runs) - len(specs), "pilot")
        epochs = count(pilot.training.epochs, "epoch")
        length = f"at most {count(pilot.updates, 'update')}" if pilot.updates else epochs
        say(
            f"Learning rates {_rates(arguments.tune_rate)}: {pilots} of {length} with "
            f"seed {rate_tuning.PILOT_SEED} choose one for each recipe. Up to {count(len(specs), 'more run')} "
            "at the chosen rates follow; forecasts do not include them."
        )
    sweep.warn_of_size(plan.suite)
    if finished:
        say(f"{len(finished)} of them finished earlier and are not run again.")


def _announce_tuned(plan: AblationPlan, tuned: list[RunSpec], finished: list[RunRecord]) -> None:
    rates = _rates(sorted({spec.training.peak_rate for spec in plan.specs}))
    earlier = f", {len(finished)} of them finished earlier" if finished else ""
    say(f"{count(len(tuned), 'run')} at a chosen learning rate other than {rates}{earlier}.")


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _report(records: list[RunRecord], base: RunSpec, arguments: argparse.Namespace) -> None:
    """Print and write the report, without runs with a damaged file; `base` is a run of the base."""
    from harness.analysis.ablation import analyse
    from harness.reporting import ablation_report, render_text

    stored = StoredFiles(arguments.results)
    readable = report_writing.readable(records, stored)
    analysis = analyse(readable, stored.sentences, base=base)
    failures = report_writing.check_records(arguments.results, records) if analysis.studies else []
    texts = report_writing.shown_texts(readable, arguments.results)
    report = ablation_report.document(analysis, results=stored, texts=texts, failures=failures)
    # First the page: the terminal may be closed.
    page = None
    if analysis.studies:
        page = ablation_report.write(report, analysis, arguments.reports / ablation_report.FOLDER)
    say()
    say(render_text.document(report))
    if page is not None:
        report_writing.say_page("report", page)
        report_writing.warn_failures(failures)
