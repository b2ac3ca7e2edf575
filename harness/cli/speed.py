"""`speed`: measure training, translation and memory of variants and baselines in turns, against the machine's peak."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import options, speed_options, sweep
from harness.cli.console import say, warn
from harness.cli.speed_options import NO_BASELINE
from harness.experiments import suites
from harness.experiments.overrides import overridden
from harness.experiments.specs import DataSpec, RunSpec
from harness.processes import machine
from harness.processes.progress_display import Display
from harness.processes.signals import Interrupted, SignalGuard
from harness.speed import plan as plans
from harness.speed.measurement import Measurement, MeasurementPlan, Unavailable
from harness.speed.plan import PARTS, SIZES, USING_WEIGHTS, Amounts, ModelJob
from harness.storage import run_store
from harness.training import load
from impls import registry
from impls.contract import Arrays, Recipe, TorchReferenceRecipe, TransformerRecipe

if TYPE_CHECKING:
    from harness.data.dataset import Dataset
    from harness.speed.speed_document import SpeedDocument

DEFAULT_BASE = "learned_positions"


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("speed", help="measure speed and memory", description=__doc__)
    speed_options.add(parser)
    parser.set_defaults(measuring=speed_options.defaults(parser), command=command)


def command(arguments: argparse.Namespace) -> int:
    """Measure what the options name, store the document, print its table and write its page.

    Returns 0, 1 if a model failed, or 128 + the number of the signal that interrupted it.
    """
    if arguments.document is not None:
        return _again(arguments)
    with SignalGuard() as watch:
        with watch.interruptible():
            plan, prepared = _plan(arguments)
            _announce(plan)
        with tempfile.TemporaryDirectory(prefix="bakeoff-speed-") as folder:
            return _measure(plan, prepared, Path(folder), arguments, watch)


def _again(arguments: argparse.Namespace) -> int:
    """Make the page of a stored document.

    Raises:
        ValueError: with an option that says what to measure.
    """
    from harness.speed import document_store

    for name, default in arguments.measuring.items():
        if getattr(arguments, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} with --from: --from measures nothing, so give one or the other")
    _write_page(document_store.load(arguments.document), arguments.reports)
    return 0


def _write_page(document: SpeedDocument, reports: Path) -> None:
    from harness.reporting import speed_report

    page = speed_report.write(document, reports / speed_report.FOLDER)
    say(f"The page: {page} (as Markdown: {page.with_suffix('.md')})")


def _show_page(document: SpeedDocument, reports: Path) -> None:
    """Make the page of what was just measured; why there is none is said in a line."""
    try:
        _write_page(document, reports)
    except ValueError as error:
        warn(str(error))


def _measure(
    plan: MeasurementPlan, prepared: Dataset, folder: Path, arguments: argparse.Namespace, watch: SignalGuard
) -> int:
    display = Display(sys.stderr)
    measurement = Measurement(plan, prepared, folder, say=display.line, check=watch.check)
    try:
        measurement.run()
    except Interrupted as error:
        kept = _stored(measurement, arguments.results, str(error)) if measurement.has_samples else None
        told = f"what was measured so far: {kept[1]}" if kept else "nothing is stored"
        warn(f"{error}; its processes are ended; {told}")
        if kept:
            _show_page(kept[0], arguments.reports)
        return error.exit_code
    finally:
        display.close()
    document, path = _stored(measurement, arguments.results)
    say(f"stored: {path}")
    _show_page(document, arguments.reports)
    return 1 if measurement.scheduler.lost else 0


def _stored(measurement: Measurement, results: Path, reason: str = "") -> tuple[SpeedDocument, Path]:
    """Show and store what was measured; `reason` is why it ended early."""
    from harness.speed import document_store, terminal_table
    from harness.speed.assemble import assemble

    document = assemble(measurement, status="incomplete" if reason else "complete", reason=reason)
    say(terminal_table.terminal(document))
    return document, document_store.save(results, document)


# The plan -------------------------------------------------------------------------------------------------------------


def _plan(arguments: argparse.Namespace) -> tuple[MeasurementPlan, Dataset]:
    """Return what is to be measured, and its data."""
    from harness.data.dataset import prepare, remark
    from impls import weights

    size = SIZES[arguments.size]
    absent: list[Unavailable] = []
    _chosen_baselines(arguments)
    places = _places(arguments, size, absent)
    found = options.available(arguments, lambda data: [_spec(arguments, size, data, place) for place in places])
    prepared = prepare(found[0].data)
    say(remark(found[0].data, prepared.figures))
    for spec in found:
        if spec.recipe is not None:
            registry.find_builder(spec.recipe.family, spec.framework, spec.backend)
            weights.shapes(spec.recipe, len(prepared.source_words), len(prepared.target_words))
    sweep.check_devices(found)
    jobs = [_job(arguments, size, spec, place.name, spec.framework) for place, spec in zip(places, found, strict=True)]
    base = next((job for job in jobs if job.spec.variant == DEFAULT_BASE), jobs[0])
    plan = MeasurementPlan(
        size=size,
        rounds=arguments.rounds or size.rounds,
        decoding_rounds=arguments.rounds or size.decoding_rounds,
        parts=tuple(part for part in PARTS if part in (arguments.part or PARTS)),
        jobs=(*jobs, *_baselines(arguments, size, base, absent)),
        absent=tuple(absent),
        given=_given(arguments, jobs, prepared),
        base=base,
        command=arguments.typed,
        note=arguments.note,
        timeout_seconds=arguments.timeout or None,
    )
    return plan, prepared


@dataclass(frozen=True)
class Place:
    """A variant in a framework, and what Keras runs on there."""

    variant: str
    framework: str
    backend: str | None = None

    @property
    def name(self) -> str:
        """How it is called in the document."""
        return f"{self.variant}/{self.framework}" + f"-{self.backend}" * (self.backend is not None)


def _places(arguments: argparse.Namespace, size: Amounts, absent: list[Unavailable]) -> list[Place]:
    """Return which variants are measured in which frameworks; what is not installed and not asked for is left out."""
    variants = [load.find_variant(name) for name in arguments.variant or ()]
    suite, asked = suites.SUITES[size.suite], arguments.framework or variants
    frameworks = tuple(dict.fromkeys(arguments.framework or (["torch"] if asked else ["torch", "keras"])))
    backends = tuple(dict.fromkeys(arguments.backend or registry.BACKENDS[:1]))
    if arguments.backend and "keras" not in frameworks:
        options.framework_settings(None, arguments.backend[0])
    found = []
    for framework in frameworks:
        chosen = variants or (suite.in_keras if framework == "keras" and not asked else suite.variants)
        for variant in chosen:
            nowhere = not any(suites.has(variant, one) for one in frameworks)
            for backend in backends if framework == "keras" else (None,):
                place, reason = Place(variant, framework, backend), registry.missing(framework, backend)
                if reason and not asked:
                    absent.append(Unavailable(name=place.name, variant=variant, framework=framework, reason=reason))
                # A variant that none of them has is refused where its model is looked for, with those that have it.
                elif suites.has(variant, framework) or (nowhere and framework == frameworks[0]):
                    found.append(place)
    if not found:
        raise ValueError(f"no framework is available: {absent[0].reason}")
    return found


def _spec(arguments: argparse.Namespace, size: Amounts, data: DataSpec, place: Place) -> RunSpec:
    """Return the run that a subject would be, in the training that all share."""
    spec = suites.spec(suites.SUITES["standard"], place.variant, budget="controlled", seed=0, data=data)
    changes = {
        "framework": place.framework,
        "backend": place.backend,
        "training.batch_size": size.batch_size,
        "decoding.batch_size": size.batch_size,
        "decoding.max_tokens": size.max_tokens,
        "threads": arguments.threads,
        "device": arguments.device,
        "precision": arguments.precision,
        "cuda_graphs": arguments.cuda_graphs,
    }
    if size.width is not None and spec.recipe is not None:
        spec = replace(spec, recipe=suites.reduced(spec.recipe, size.width))
    settings, beam = [f"{name}={value}" for name, value in changes.items() if value is not None], spec.decoding.beam
    spec = overridden(spec, [*settings, *arguments.set])
    if spec.decoding.beam != beam:
        raise ValueError(f"decoding.beam={spec.decoding.beam}: use --beam for the beam width")
    spec.id  # noqa: B018  a number that JSON cannot hold shows here
    replace(spec.decoding, beam=arguments.beam)  # one that is too large is refused before anything is started
    return spec


def _job(
    arguments: argparse.Namespace, size: Amounts, spec: RunSpec, name: str, library: str, baseline: str = ""
) -> ModelJob:
    return ModelJob(
        name=name,
        spec=spec,
        library=library,
        baseline=baseline,
        updates=size.updates,
        validation_batches=size.validation_batches,
        sentences=size.sentences,
        single_sentences=size.single_sentences,
        beam=arguments.beam,
        profiled_updates=size.profiled_updates,
    )


def _baselines(
    arguments: argparse.Namespace, size: Amounts, base: ModelJob, absent: list[Unavailable]
) -> list[ModelJob]:
    """Return the baselines of the base's recipe; one that is not installed is left out."""
    from impls import registry

    found = []
    for name in _chosen_baselines(arguments):
        library = registry.BASELINES[name].packages[-1]
        reason = registry.missing_baseline(name)
        if not reason and base.spec.precision != "float32":
            reason = f"it computes in float32, and this is {base.spec.precision}"
        if not reason and not isinstance(base.spec.recipe, TransformerRecipe | TorchReferenceRecipe):
            reason = f"no Transformer is measured that it could have the recipe of, only {base.spec.variant}"
        if reason:
            absent.append(
                Unavailable(name=name, variant=base.spec.variant, framework=library, reason=reason, is_baseline=True)
            )
            continue
        spec = replace(base.spec, framework="torch", backend=None, cuda_graphs="off")
        found.append(_job(arguments, size, spec, name, library, name))
    return found


def _chosen_baselines(arguments: argparse.Namespace) -> list[str]:
    """Return the baselines that the options name.

    Raises:
        ValueError: they name some and none.
    """
    from impls import registry

    chosen = list(dict.fromkeys(arguments.baseline or registry.baseline_names()))
    if NO_BASELINE not in chosen:
        return chosen
    if len(chosen) > 1:
        named = next(one for one in chosen if one != NO_BASELINE)
        raise ValueError(f"--baseline {NO_BASELINE} with --baseline {named}: give one or the other")
    return []


def _given(
    arguments: argparse.Namespace, jobs: list[ModelJob], prepared: Dataset
) -> dict[Recipe | str, tuple[Arrays, str]]:
    """Return the weights of the runs that --weights names.

    Raises:
        ValueError: they fit no model measured here.
    """
    found: dict[Recipe | str, tuple[Arrays, str]] = {}
    if arguments.weights and not USING_WEIGHTS & set(arguments.part or PARTS):
        raise ValueError(f"--weights with --part {arguments.part[0]}, which uses no weights")
    keys = {plans.same_weights(job.spec.recipe, job.spec.variant) for job in jobs}
    for name in arguments.weights:
        path = Path(name)
        results, prefix = (path.parent, path.name) if (path / run_store.RECORD).is_file() else (arguments.results, name)
        record = run_store.find(results, prefix)
        key = plans.same_weights(record.spec.recipe, record.spec.variant)
        if key not in keys:
            raise ValueError(f"--weights {name}: run {record.id} has a recipe that is not measured here")
        if key in found:
            raise ValueError(f"--weights {name}: {found[key][1]} has the same recipe; give one run per recipe")
        for side in ("source_vocabulary", "target_vocabulary"):
            if record.fingerprints.get(side) != prepared.digests[side]:
                raise ValueError(f"--weights {name}: run {record.id} has another {side.replace('_', ' ')}")
        arrays = run_store.load_weights(results, record.id, record.fingerprints.get("trained_weights"))
        found[key] = arrays, f"run {record.id}"
    return found


def _announce(plan: MeasurementPlan) -> None:
    spec = plan.base.spec
    say(
        f"Size {plan.size.name} ({plan.size.purpose}): {len(plan.jobs)} subjects, {plan.rounds} rounds, "
        f"{spec.threads} threads, {spec.device}, {spec.precision}{', CUDA graphs' * (spec.cuda_graphs == 'on')}."
    )
    needed, there = plan.size.gigabytes * len(plan.jobs), machine.memory_bytes() / 1e9
    if needed > there:
        warn(
            f"{len(plan.jobs)} subjects at once need about {needed:.0f} GB of memory and this machine has "
            f"{there:.0f}: some may be lost; fewer of --variant, --framework or --baseline need less"
        )
    for one in plan.absent:
        say(f"Left out: {one.name}. {one.reason}")
    recipes = {plans.same_weights(job.spec.recipe, job.spec.variant) for job in plan.jobs}
    if recipes - set(plan.given) and USING_WEIGHTS & set(plan.parts):
        say(
            f"Each recipe without --weights is first trained for {plan.size.learning_updates} updates, so that "
            "translations end by themselves; --weights takes those of a run instead."
        )
