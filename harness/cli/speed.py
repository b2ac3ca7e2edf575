"""`speed`: measure training, translation and memory of variants and baselines in turns.

The speed of training is also compared with the peak rate that the machine reaches on matrix products.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.cli import chosen_models, folder_options, options, report_writing, sweep
from harness.cli.chosen_models import ChosenModel
from harness.cli.console import say, warn
from harness.data.dataset import Dataset
from harness.experiments import suites
from harness.experiments.specs import DataSpec, RunSpec, execution
from harness.processes import machine
from harness.processes.progress_display import Display
from harness.processes.signals import Interrupted, SignalGuard
from harness.speed import speed_document
from harness.speed.measurement import Measurement
from harness.speed.plan import PARTS, SIZES, USING_WEIGHTS, Amounts, MeasurementPlan, ModelJob, weights_key
from harness.speed.speed_document import SpeedDocument
from harness.speed.timed_model import LONGEST_TEXT, TimedModel
from harness.storage import run_store
from harness.text import count
from harness.training import load
from impls import registry
from impls.contract import Arrays, Recipe, TorchReferenceRecipe, TransformerRecipe

DEFAULT_BASE = "learned_positions"
NO_BASELINE = "none"
TIMEOUT_SECONDS = 3600.0
OPTION_OF = {"framework": "--framework", "backend": "--backend", "decoding.beam": "--beam"}
"""Settings that `speed` takes from an option, not from `--set`."""

MISSING = partial(TimedModel, ending="missing")
"""A model that cannot be measured on this machine."""

SUMMARY = "measure speed and memory"
EXAMPLES = (
    ("measure every variant and baseline at the tutorials' size", ""),
    ("only training of one variant, with few samples", "--size quick --variant paper --part training"),
    ("see that everything works, in seconds", "--size toy --corpus captions --baseline none"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_measurement(parser)
    options.add_models(parser.add_argument_group("models"), repeatable=("framework", "backend"))
    options.add_data(parser)
    folder_options.add_results(parser)
    defaults = vars(parser.parse_args([]))
    measurement = {name: value for name, value in defaults.items() if name not in ("reports", "document")}
    parser.set_defaults(measurement_defaults=measurement)


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variant", action="append", help="a variant, or package.module:NAME; repeatable (default: the size's)"
    )
    parser.add_argument(
        "--baseline",
        action="append",
        choices=[*registry.baseline_names(), NO_BASELINE],
        help="a baseline to measure too; repeatable (default: all that are installed)",
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="a part to measure; repeatable (default: all)")
    purposes = "; ".join(f"{size.name}: {size.purpose}" for size in SIZES.values())
    parser.add_argument("--size", choices=list(SIZES), default="tutorial", help=f"{purposes} (default tutorial)")
    parser.add_argument(
        "--rounds", type=options.positive, metavar="N", help="samples of each measure (default: the size's)"
    )
    parser.add_argument(
        "--weights",
        action="append",
        metavar="RUN",
        default=[],
        help="translate with the weights of a completed run: its folder, or the beginning of its id; repeatable "
        "(default: each recipe is first trained briefly)",
    )
    parser.add_argument(
        "--beam",
        type=options.positive,
        default=5,
        metavar="WIDTH",
        help="beam width to time, in addition to greedy search (default 5)",
    )
    parser.add_argument(
        "--silence",
        type=options.seconds,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"seconds without an answer before a model is given up (default {TIMEOUT_SECONDS:.0f}; 0: never)",
    )
    options.add_note(parser)
    folder_options.add_reports(parser)
    parser.add_argument(
        "--from",
        type=Path,
        dest="document",
        metavar="DOCUMENT",
        help="write the page of a stored document, measure nothing (default: measure)",
    )


def command(arguments: argparse.Namespace) -> int:
    """Measure what the options name, store the document, print its table and write its page.

    Returns 0, 1 if a model failed, or 128 + the number of the signal that interrupted it.
    """
    if arguments.document is not None:
        return _render_stored(arguments)
    with SignalGuard() as guard:
        with guard.interruptible():
            plan, dataset = _plan(arguments)
            _check_writable(arguments.results)
            _announce(plan)
        with tempfile.TemporaryDirectory(prefix="bakeoff-speed-") as folder:
            return _measure(plan, dataset, Path(folder), arguments, guard)


def _check_writable(results: Path) -> None:
    """Raise ValueError if a folder cannot be written to, which would be noticed only after the measurement."""
    existing = next(path for path in (results, *results.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{existing}: cannot be written to, and the document is stored there; use another --results")


def _render_stored(arguments: argparse.Namespace) -> int:
    """Write the page of a stored document. Raises: ValueError if an option of the measurement is given, too."""
    for name, default in arguments.measurement_defaults.items():
        if getattr(arguments, name) != default:
            raise ValueError(f"{options.flag(name)} with --from: --from measures nothing, so give one or the other")
    _write_page(speed_document.load(arguments.document), arguments.reports)
    return 0


def _write_page(document: SpeedDocument, reports: Path) -> None:
    from harness.reporting import speed_report

    report_writing.say_page("page", speed_report.write(document, reports / speed_report.FOLDER))


def _measure(
    plan: MeasurementPlan, dataset: Dataset, folder: Path, arguments: argparse.Namespace, guard: SignalGuard
) -> int:
    display = Display(sys.stderr)
    measurement = Measurement(plan, dataset, folder, say=display.line, check=guard.check)
    code, reason = 0, ""
    with contextlib.closing(display):
        try:
            measurement.run()
        except Interrupted as error:
            code, reason = error.exit_code, str(error)
    if reason and not measurement.has_samples:
        warn(f"{reason}; its processes are ended; nothing is stored")
        return code
    from harness.reporting import speed_report
    from harness.speed.assemble import assemble

    document = assemble(measurement, reason=reason)
    say(speed_report.terminal(document))  # first: the disk may be full
    path = speed_document.save(arguments.results, document)
    if reason:
        warn(f"{reason}; its processes are ended; what was measured so far: {path}")
    else:
        say(f"stored: {path}")
    try:
        _write_page(document, arguments.reports)
    except ValueError as error:
        warn(str(error))
    return code or int(bool(measurement.scheduler.lost))


def _plan(arguments: argparse.Namespace) -> tuple[MeasurementPlan, Dataset]:
    size = SIZES[arguments.size]
    if arguments.rounds:
        size = replace(size, rounds=arguments.rounds, decoding_rounds=arguments.rounds)
    _chosen_baselines(arguments)
    models, left_out = chosen_models.choose(
        suites.SUITES[size.suite], arguments.variant, arguments.framework, arguments.backend, arguments.device
    )
    unavailable = [
        MISSING(name=model.name, kind="variant", variant=model.variant, framework=model.framework, reason=reason)
        for model, reason in left_out.items()
    ]
    _check_settings(models, arguments.set)
    specs = options.available(arguments, lambda data: [_spec(arguments, size, data, model) for model in models])
    for name, text in (("--note", arguments.note), ("the command line", arguments.typed)):
        if len(text) > LONGEST_TEXT:
            raise ValueError(
                f"{name} has {len(text):,} characters; the document of a measurement holds {LONGEST_TEXT:,}"
            )
    dataset = sweep.prepare(specs)[specs[0].data]
    sweep.check_devices(specs)
    jobs = [
        ModelJob(name=model.name, spec=spec, amounts=size, beam=arguments.beam, library=spec.framework)
        for model, spec in zip(models, specs, strict=True)
    ]
    base = next((job for job in jobs if job.spec.variant == DEFAULT_BASE), jobs[0])
    plan = MeasurementPlan(
        amounts=size,
        parts=tuple(part for part in PARTS if part in (arguments.part or PARTS)),
        jobs=(*jobs, *_baselines(arguments, base, unavailable)),
        absent=tuple(unavailable),
        trained=_stored_weights(arguments, jobs, dataset),
        base=base,
        command=arguments.typed,
        note=arguments.note,
        timeout_seconds=arguments.silence or None,
    )
    return plan, dataset


def _check_settings(models: list[ChosenModel], settings: list[str]) -> None:
    """Raise ValueError for a `--set` argument that has an option of its own, or may not differ between variants."""
    options.check_variants((model.variant for model in models), settings)
    for setting in settings:
        variant, field, _ = options.parts_of(setting)
        if field in OPTION_OF:
            raise ValueError(f"--set {setting}: give {OPTION_OF[field]} instead")
        if variant and not field.startswith("recipe."):
            raise ValueError(f"--set {setting}: only recipes may differ; give {field} for all variants")


def _spec(arguments: argparse.Namespace, size: Amounts, data: DataSpec, model: ChosenModel) -> RunSpec:
    """Return the run of a model, with the training settings that all models share."""
    spec = suites.spec(suites.SUITES["standard"], model.variant, budget="controlled", seed=0, data=data)
    values = {
        "framework": model.framework,
        "backend": model.backend,
        "training.batch_size": size.batch_size,
        "decoding.batch_size": size.batch_size,
        "decoding.max_tokens": size.max_tokens,
        **{name: getattr(arguments, name) for name in options.MODEL_SETTINGS},
    }
    if size.width is not None and spec.recipe is not None:
        spec = replace(spec, recipe=suites.reduced(spec.recipe, size.width))
    spec = options.changed(spec, values, arguments.set)
    replace(spec.decoding, beam=arguments.beam)  # fails for a beam that is too wide
    return spec


def _baselines(arguments: argparse.Namespace, base: ModelJob, unavailable: list[TimedModel]) -> list[ModelJob]:
    """Return the baselines with the recipe of the base; those that are not installed are left out."""
    spec, jobs = base.spec, []
    for name in _chosen_baselines(arguments):
        packages = registry.BASELINES[name].packages
        library = packages[-1]
        reason = registry.missing_baseline(name, spec.device)
        if not reason and spec.precision != "float32":
            reason = f"it computes in float32, and this is {spec.precision}"
        if not reason and spec.matmul_precision != "highest" and "torch" not in packages:
            reason = f"matmul_precision={spec.matmul_precision!r} applies to torch only"
        if not reason and not isinstance(spec.recipe, TransformerRecipe | TorchReferenceRecipe):
            reason = f"it is a Transformer, and only {spec.variant} is measured"
        if reason:
            unavailable.append(MISSING(name=name, kind="peer", variant=spec.variant, framework=library, reason=reason))
        else:
            baseline_spec = replace(spec, framework="torch", backend=None, cuda_graphs="off")
            jobs.append(replace(base, name=name, spec=baseline_spec, library=library, baseline=name))
    return jobs


def _chosen_baselines(arguments: argparse.Namespace) -> list[str]:
    """Return the baselines that the options name. Raises: ValueError if they also name "none"."""
    names = list(dict.fromkeys(arguments.baseline or registry.baseline_names()))
    if NO_BASELINE not in names:
        return names
    if len(names) > 1:
        baseline = next(name for name in names if name != NO_BASELINE)
        raise ValueError(f"--baseline {NO_BASELINE} with --baseline {baseline}: give one or the other")
    return []


def _stored_weights(
    arguments: argparse.Namespace, jobs: list[ModelJob], dataset: Dataset
) -> dict[Recipe | str, tuple[Arrays, str]]:
    """Return the weights of the runs of --weights, by recipe, with their source. Raises: ValueError if they misfit."""
    weights: dict[Recipe | str, tuple[Arrays, str]] = {}
    if arguments.weights and not USING_WEIGHTS & set(arguments.part or PARTS):
        raise ValueError(f"--weights with --part {arguments.part[0]}, which uses no weights")
    keys = {weights_key(job.spec) for job in jobs}
    for name in arguments.weights:
        path = Path(name)
        results, prefix = (path.parent, path.name) if (path / run_store.RECORD).is_file() else (arguments.results, name)
        record = run_store.find(results, prefix)
        key = weights_key(record.spec)
        if key not in keys:
            raise ValueError(f"--weights {name}: run {record.id} has a recipe that is not measured here")
        if key in weights:
            raise ValueError(f"--weights {name}: {weights[key][1]} has the same recipe; give one run per recipe")
        weights[key] = load.stored_weights(record, results, dataset), f"run {record.id}"
    return weights


def _announce(plan: MeasurementPlan) -> None:
    spec = plan.base.spec
    say(
        f"Size {plan.amounts.name} ({plan.amounts.purpose}): {count(len(plan.jobs), 'model')}, "
        f"{count(plan.amounts.rounds, 'round')}, {count(spec.threads, 'thread')}, {execution(spec)}."
    )
    needed, available = plan.amounts.gigabytes * len(plan.jobs), machine.memory_bytes() / 1e9
    if needed > available:
        warn(
            f"{len(plan.jobs)} models in memory at once need about {needed:.0f} GB of memory and this machine has "
            f"{available:.0f}: some may fail; to use less, give fewer of --variant, --framework or --baseline"
        )
    for absent in plan.absent:
        say(f"Left out: {absent.name}: {absent.reason}")
    recipes = {weights_key(job.spec) for job in plan.jobs}
    if recipes - set(plan.trained) and USING_WEIGHTS & set(plan.parts) and set(plan.parts) != {"scaling"}:
        say(
            f"Each recipe without --weights is first trained for {plan.amounts.learning_updates} updates, so that "
            "translations end by themselves; --weights uses those of a run instead."
        )
