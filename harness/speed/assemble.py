"""Assembles the document of a measurement from its samples and counts."""

from __future__ import annotations

import math
import operator
import platform
from dataclasses import asdict
from typing import Any

from harness.data.batches import updates_per_epoch
from harness.processes import machine
from harness.speed import speed_document as doc
from harness.speed import timed_model as model
from harness.speed.measurement import PRODUCTS, Measurement, now
from harness.speed.plan import BEAM, DECODINGS, SINGLE, Measure, ModelJob, weights_key
from harness.speed.scheduler import TimedTask
from harness.speed.speed_document import SpeedDocument
from harness.speed.timing import Samples
from harness.speed.workload import build_workload, digest
from impls import flops

BASELINE_PACKAGES = ("transformers", "ctranslate2")
MEMORY = ("peak_memory_bytes", "device_memory_bytes")


def assemble(measurement: Measurement, *, reason: str = "") -> SpeedDocument:
    """Return the document of what has been measured so far; `reason` says why that is not all."""
    plan = measurement.plan
    assembly = _Assembly(measurement)
    lost = measurement.scheduler.lost.get(PRODUCTS, "")
    return SpeedDocument(
        started=measurement.started,
        ended=now(),
        command=plan.command,
        note=plan.note,
        status="incomplete" if reason else "complete",
        reason=reason or (f"{PRODUCTS}: {lost}" if lost else ""),
        settings=assembly.settings(),
        machine=_machine(measurement),
        data=assembly.data(),
        subjects=(*map(assembly.subject, plan.jobs), *plan.absent),
        rates=assembly.rates(),
        scaling=tuple(measurement.scaling),
    )


def _machine(measurement: Measurement) -> doc.Machine:
    facts, commit = machine.machine(measurement.plan.base.spec.device), machine.commit() or {}
    return doc.Machine(
        **{"gpu": None, **facts},
        python=platform.python_version(),
        versions=machine.versions((*machine.PACKAGES, *BASELINE_PACKAGES)),
        commit=commit.get("digest"),
        dirty=commit.get("dirty"),
        load_before=measurement.load_before,
        load_after=machine.load_average(),
    )


class _Assembly:
    """Builds the parts of a document from a measurement."""

    def __init__(self, measurement: Measurement) -> None:
        self.measurement, self.scheduler, self.plan = measurement, measurement.scheduler, measurement.plan
        self.dataset = measurement.dataset
        self.words = self.dataset.vocabulary_sizes
        self.workload = build_workload(self.plan.base, self.dataset)
        self.trained = flops.count_tokens(self.workload.training)
        self.evaluated = flops.count_tokens(self.workload.validation)

    def settings(self) -> doc.Settings:
        amounts, spec = self.plan.amounts, self.plan.base.spec
        return doc.Settings(
            size=amounts.name,
            parts=tuple(self.plan.parts),
            rounds=amounts.rounds,
            decoding_rounds=amounts.decoding_rounds,
            updates=len(self.workload.training),
            threads=spec.threads,
            device=spec.device,
            precision=spec.precision,
            matmul_precision=spec.matmul_precision,
            cuda_graphs=spec.cuda_graphs,
            sentences=len(self.workload.sentences),
            single_sentences=len(self.workload.single),
            batch_size=spec.training.batch_size,
            decoding_batch_size=spec.decoding.batch_size,
            beam=self.plan.base.beam,
            length_penalty=spec.decoding.length_penalty,
            max_tokens=spec.decoding.max_tokens,
            unknown=spec.decoding.unknown,
            scaling_variant=spec.variant,
        )

    def data(self) -> doc.Data:
        batches, spec, train = self.workload.training, self.plan.base.spec, self.dataset.train
        return doc.Data(
            spec=spec.data,
            tokenised=self.dataset.digests["tokenised"],
            stream=digest(batches),
            source_words=self.words[0],
            target_words=self.words[1],
            epoch_updates=updates_per_epoch(train, spec.training),
            epoch_tokens=sum(map(len, train.source)) + sum(map(len, train.target)) - len(train),
            sentences=self.trained.sentence,
            source=self.trained.source,
            target=self.trained.target,
            positions=sum(batch.source.size + batch.target_out.size for batch in batches),
        )

    def rates(self) -> tuple[doc.MatrixRate, ...]:
        """Return the measured matmul peak for each set of matrix products."""
        rates = []
        for index, (products, jobs) in enumerate(self.measurement.products):
            values, recipe = self.scheduler.samples(PRODUCTS, "products", index), jobs[0].spec.recipe
            if values and recipe is not None:
                rates.append(
                    doc.MatrixRate(
                        variants=tuple(dict.fromkeys(job.spec.variant for job in jobs)),
                        library=self.scheduler.facts[PRODUCTS]["library"],
                        products=tuple(doc.KernelProduct(**asdict(product)) for product in products),
                        operations=flops.PASSES * flops.kernel_operations(recipe, self.words, self.trained),
                        seconds=Samples.of(values),
                    )
                )
        return tuple(rates)

    # Subjects ---------------------------------------------------------------------------------------------------------

    def subject(self, job: ModelJob) -> model.TimedModel:
        scheduler, name = self.scheduler, job.name
        facts, lost, declined = scheduler.facts.get(name, {}), scheduler.lost.get(name), scheduler.declined.get(name)
        tasks = [series.facts for task, series in scheduler.series.items() if task.model == name]
        compiled = [facts["compilation_seconds"] for facts in tasks if facts.get("compilation_seconds") is not None]
        return model.TimedModel(
            name=name,
            kind=job.kind,
            variant=job.spec.variant,
            framework=job.library,
            backend=job.spec.backend,
            ending="failed" if lost else "missing" if declined else "completed",
            reason=lost or declined or "",
            parameters=facts.get("parameters"),
            weights_from=self.measurement.weights_from.get(name, ""),
            start_seconds=facts.get("start_seconds"),
            compilation_seconds=max(compiled, default=None),
            idle_share=scheduler.idle_share(name),
            environment=facts.get("environment", {}),
            left_out={task.measure: reason for task, reason in scheduler.refused.items() if task.model == name},
            training=self._training(job),
            evaluation=self._evaluation(job),
            decoding=tuple(times for measure in DECODINGS if (times := self._decoding(job, measure)) is not None),
            breakdown=breakdown(self.measurement.breakdowns.get(name)),
        )

    def _series(self, job: ModelJob, measure: Measure) -> tuple[list[float], dict[str, Any], dict[str, Any]]:
        """Return the seconds of a task, the facts of its warm-up, and the fields that all times have."""
        values = self.scheduler.samples(job.name, measure)
        if not values:
            return [], {}, {}
        facts = self.scheduler.series[TimedTask(job.name, measure)].facts
        return values, facts, {"seconds": Samples.of(values), **{name: facts[name] for name in MEMORY}}

    def _training(self, job: ModelJob) -> model.TrainingTimes | None:
        values, facts, times = self._series(job, "training")
        if not values:
            return None
        recipe = job.spec.recipe
        return model.TrainingTimes(
            updates=len(self.workload.training),
            target=self.trained.target,
            operations=0 if recipe is None else flops.training_operations(recipe, self.words, self.trained),
            first_update_seconds=facts["first_update_seconds"],
            **times,
        )

    def _evaluation(self, job: ModelJob) -> model.EvaluationTimes | None:
        values, facts, times = self._series(job, "evaluation")
        if not values:
            return None
        recipe = job.spec.recipe
        return model.EvaluationTimes(
            target=self.evaluated.target,
            operations=0 if recipe is None else flops.forward_operations(recipe, self.words, self.evaluated),
            nats_per_token=facts["nats_per_token"],
            **times,
        )

    def _decoding(self, job: ModelJob, measure: Measure) -> model.DecodingTimes | None:
        values, facts, times = self._series(job, measure)
        if not values:
            return None
        reference, translations = self._reference(job, measure), facts["translations"]
        expected = (
            [] if reference is None else self.scheduler.series[TimedTask(reference, measure)].facts["translations"]
        )
        return model.DecodingTimes(
            name=measure,
            beam=job.beam if measure in BEAM else 1,
            batch_size=1 if measure in SINGLE else job.spec.decoding.batch_size,
            sentences=len(translations),
            compared_with=reference,
            equal=None if reference is None else sum(map(operator.eq, translations, expected)),
            **{name: facts[name] for name in ("words", "unfinished", "digest")},
            **times,
        )

    def _reference(self, job: ModelJob, measure: Measure) -> str | None:
        """Return the first model that translated the same sentences with the same weights; None for itself."""
        key = weights_key(job.spec)
        for candidate in self.plan.jobs:
            same = weights_key(candidate.spec) == key
            if same and TimedTask(candidate.name, measure) in self.scheduler.series:
                return None if candidate == job else candidate.name
        return None


def breakdown(profiled: dict[str, Any] | None) -> model.Breakdown | None:
    """Return the shares of an update's time, which add up to 1; None if nothing was profiled."""
    if profiled is None:
        return None
    bare, data, harness = profiled["bare_seconds"], profiled["data_seconds"], profiled["harness_seconds"]
    total = bare + data + harness
    groups: dict[Any, Any] = profiled.get("groups", {"compute": [1.0, 0]})
    profiled_seconds = math.fsum(seconds for seconds, _ in groups.values())
    shares = [
        model.Share(group=group, share=seconds / profiled_seconds * bare / total, calls=calls)
        for group, (seconds, calls) in sorted(groups.items(), key=lambda pair: -pair[1][0])
    ]
    shares += [model.Share(group="data", share=data / total, calls=0)]
    shares += [model.Share(group="harness", share=harness / total, calls=0)]
    return model.Breakdown(
        profiled_updates=profiled["updates"],
        overhead_ratio=profiled["profiled_seconds"] / bare if "profiled_seconds" in profiled else None,
        shares=tuple(shares),
    )
