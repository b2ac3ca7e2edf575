"""Assembles the document of a measurement: the figures of every model, and the ratios between models."""

from __future__ import annotations

import math
import operator
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from harness.data.batches import updates_per_epoch
from harness.processes import machine
from harness.speed import speed_document as doc
from harness.speed import timing
from harness.speed.measurement import PRODUCTS, Measurement, now
from harness.speed.plan import BEAM, DECODINGS, SINGLE, Measure, ModelJob, same_weights
from harness.speed.scheduler import TimedTask
from harness.speed.speed_document import SpeedDocument, Status
from harness.speed.timing import Samples
from harness.speed.workload import build_workload, digest
from impls import flops

PEER_PACKAGES = ("transformers", "ctranslate2")
MEMORY = ("peak_memory_bytes", "device_memory_bytes")


def assemble(measurement: Measurement, *, status: Status = "complete", reason: str = "") -> SpeedDocument:
    """Return the document of what has been measured so far."""
    plan = measurement.plan
    assembly = _Assembly(measurement)
    subjects = tuple(assembly.subject(job) for job in plan.jobs)
    absent = tuple(
        doc.TimedModel(
            name=model.name,
            kind="peer" if model.is_baseline else "variant",
            variant=model.variant,
            framework=model.framework,
            ending="missing",
            reason=model.reason,
        )
        for model in plan.absent
    )
    return SpeedDocument(
        started=measurement.started,
        ended=now(),
        command=plan.command,
        note=plan.note,
        status=status,
        reason=reason or assembly.missing_rate(),
        settings=assembly.settings(),
        machine=_machine(measurement),
        data=assembly.data(),
        subjects=subjects + absent,
        rates=assembly.rates(),
        comparisons=tuple(comparisons(subjects)),
        scaling=tuple(measurement.scaling),
    )


def _machine(measurement: Measurement) -> doc.Machine:
    facts, commit = machine.machine(measurement.plan.base.spec.device), machine.commit() or {}
    versions = machine.versions()
    for name in PEER_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return doc.Machine(
        processor=facts["processor"],
        cores=facts["cores"],
        memory_bytes=facts["memory_bytes"],
        gpu=facts.get("gpu"),
        system=facts["system"],
        python=platform.python_version(),
        versions=versions,
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
        self.words = len(self.dataset.source_words), len(self.dataset.target_words)
        self.workload = build_workload(self.plan.base, self.dataset)
        self.counted = flops.count_tokens(self.workload.training)
        self.evaluated = flops.count_tokens(self.workload.validation)
        train = self.dataset.train
        self.epoch_target = sum(map(len, train.target)) - len(train)
        self.epoch_tokens = self.epoch_target + sum(map(len, train.source))

    def settings(self) -> doc.Settings:
        """Return the settings of the measurement."""
        base, size = self.plan.base, self.plan.size
        return doc.Settings(
            size=size.name,
            parts=tuple(self.plan.parts),
            rounds=self.plan.rounds,
            decoding_rounds=self.plan.decoding_rounds,
            updates=len(self.workload.training),
            threads=base.spec.threads,
            device=base.spec.device,
            precision=base.spec.precision,
            matmul_precision=base.spec.matmul_precision,
            cuda_graphs=base.spec.cuda_graphs,
            sentences=len(self.workload.sentences),
            single_sentences=len(self.workload.single),
            batch_size=base.spec.training.batch_size,
            decoding_batch_size=base.spec.decoding.batch_size,
            beam=base.beam,
            length_penalty=base.spec.decoding.length_penalty,
            max_tokens=base.spec.decoding.max_tokens,
            unknown=base.spec.decoding.unknown,
            learning_updates=size.learning_updates,
            scaling_variant=base.spec.variant,
        )

    def data(self) -> doc.Data:
        """Return the facts about the corpus and the timed batches."""
        batches, spec = self.workload.training, self.plan.base.spec
        return doc.Data(
            spec=spec.data,
            tokenised=self.dataset.digests["tokenised"],
            stream=digest(batches),
            source_words=self.words[0],
            target_words=self.words[1],
            epoch_updates=updates_per_epoch(self.dataset.train, spec.training),
            epoch_target=self.epoch_target,
            epoch_tokens=self.epoch_tokens,
            batches=len(batches),
            sentences=self.counted.sentence,
            source=self.counted.source,
            target=self.counted.target,
            positions=sum(batch.source.size + batch.target_out.size for batch in batches),
        )

    def missing_rate(self) -> str:
        """Return why the matmul peak could not be measured, or an empty string."""
        name = PRODUCTS
        return f"{name}: {self.scheduler.lost[name]}" if name in self.scheduler.lost else ""

    def rates(self) -> tuple[doc.MatrixRate, ...]:
        """Return the measured matmul peak for each set of matrix products."""
        rates = []
        for index, (products, jobs) in enumerate(self.measurement.products):
            values = self._rate(index)
            if not values:
                continue
            rates.append(
                doc.MatrixRate(
                    variants=tuple(dict.fromkeys(job.spec.variant for job in jobs)),
                    library=self.scheduler.facts[PRODUCTS]["library"],
                    products=tuple(
                        doc.KernelProduct(
                            name=product.name,
                            rows=product.rows,
                            inputs=product.inputs,
                            outputs=product.outputs,
                            count=product.count,
                        )
                        for product in products
                    ),
                    operations=self._kernel_operations(jobs[0]),
                    seconds=Samples.of(values),
                )
            )
        return tuple(rates)

    def _rate(self, index: int) -> list[float]:
        return self.scheduler.samples(PRODUCTS, "products", index)

    def _kernel_operations(self, job: ModelJob) -> int:
        assert job.spec.recipe is not None
        return flops.PASSES * flops.kernel_operations(job.spec.recipe, self.words, self.counted)

    # Subjects ---------------------------------------------------------------------------------------------------------

    def subject(self, job: ModelJob) -> doc.TimedModel:
        """Return what was measured of one model."""
        facts, lost = self.scheduler.facts.get(job.name, {}), self.scheduler.lost.get(job.name, "")
        declined = self.scheduler.declined.get(job.name, "")
        compiled = [self.scheduler.series[task].facts.get("compilation_seconds") for task in self.scheduler.series
                    if task.model == job.name]  # fmt: skip
        return doc.TimedModel(
            name=job.name,
            kind=job.kind,
            variant=job.spec.variant,
            framework=job.library,
            backend=job.spec.backend,
            ending="failed" if lost else "missing" if declined else "completed",
            reason=lost or declined,
            parameters=facts.get("parameters"),
            weights_from=self.measurement.weights_from.get(job.name, ""),
            start_seconds=facts.get("start_seconds"),
            compilation_seconds=max((seconds for seconds in compiled if seconds is not None), default=None),
            idle_share=self.scheduler.idle_share(job.name),
            environment=facts.get("environment", {}),
            left_out={task.measure: why for task, why in self.scheduler.refused.items() if task.model == job.name},
            training=self._training(job),
            evaluation=self._evaluation(job),
            decoding=tuple(times for measure in DECODINGS if (times := self._decoding(job, measure)) is not None),
            breakdown=_breakdown(self.measurement.breakdowns.get(job.name)),
        )

    def _facts(self, job: ModelJob, measure: Measure) -> dict[str, Any]:
        return self.scheduler.series[TimedTask(job.name, measure)].facts

    def _training(self, job: ModelJob) -> doc.TrainingTimes | None:
        values = self.scheduler.samples(job.name, "training")
        if not values:
            return None
        facts, recipe = self._facts(job, "training"), job.spec.recipe
        operations = 0 if recipe is None else flops.training_operations(recipe, self.words, self.counted)
        seconds, loop = Samples.of(values), self.scheduler.samples(job.name, "loop")
        return doc.TrainingTimes(
            updates=len(self.workload.training),
            target=self.counted.target,
            tokens=self.counted.source + self.counted.target,
            epoch_tokens=self.epoch_tokens,
            operations=operations,
            first_update_seconds=facts["first_update_seconds"],
            warmup_seconds=facts["warmup_seconds"],
            seconds=seconds,
            limit_share=self._limit_share(job, values, operations),
            harness_seconds=Samples.of(loop) if loop else None,
            loop_ratio=_paired(loop, values),
            **{name: facts[name] for name in MEMORY},
        )

    def _limit_share(self, job: ModelJob, values: Sequence[float], operations: int) -> Samples | None:
        """Return the MFU of each round: operations / seconds over the matmul peak of the same round and recipe."""
        for index, (_, jobs) in enumerate(self.measurement.products):
            if same_weights(job.spec.recipe, job.spec.variant) in [
                same_weights(other.spec.recipe, other.spec.variant) for other in jobs
            ]:
                scale = operations / self._kernel_operations(jobs[0])
                return _paired([seconds * scale for seconds in self._rate(index)], values)
        return None

    def _evaluation(self, job: ModelJob) -> doc.EvaluationTimes | None:
        values = self.scheduler.samples(job.name, "evaluation")
        if not values:
            return None
        facts, recipe = self._facts(job, "evaluation"), job.spec.recipe
        return doc.EvaluationTimes(
            batches=len(self.workload.validation),
            target=self.evaluated.target,
            operations=0 if recipe is None else flops.forward_operations(recipe, self.words, self.evaluated),
            nats_per_token=facts["nats_per_token"],
            seconds=Samples.of(values),
            **{name: facts[name] for name in MEMORY},
        )

    def _decoding(self, job: ModelJob, measure: Measure) -> doc.DecodingTimes | None:
        values = self.scheduler.samples(job.name, measure)
        if not values:
            return None
        facts = self._facts(job, measure)
        other = self._reference(job, measure)
        translations = facts["translations"]
        reference = [] if other is None else self._facts(other, measure)["translations"]
        return doc.DecodingTimes(
            name=measure,
            beam=job.beam if measure in BEAM else 1,
            batch_size=1 if measure in SINGLE else job.spec.decoding.batch_size,
            sentences=len(translations),
            words=facts["words"],
            unfinished=facts["unfinished"],
            digest=facts["digest"],
            warmup_seconds=facts["warmup_seconds"],
            seconds=Samples.of(values),
            compared_with=None if other is None else other.name,
            equal=None if other is None else sum(map(operator.eq, translations, reference)),
            **{name: facts[name] for name in MEMORY},
        )

    def _reference(self, job: ModelJob, measure: Measure) -> ModelJob | None:
        """Return the first job that translated the same sentences with the same weights; None for that job itself."""
        key = same_weights(job.spec.recipe, job.spec.variant)
        for other in self.plan.jobs:
            same = same_weights(other.spec.recipe, other.spec.variant) == key
            if same and TimedTask(other.name, measure) in self.scheduler.series:
                return None if other == job else other
        return None


def _breakdown(profiled: dict[str, Any] | None) -> doc.Breakdown | None:
    """Return the shares of an update's time, which add up to 1; None if nothing was profiled."""
    if profiled is None:
        return None
    bare, data, harness = profiled["bare_seconds"], profiled["data_seconds"], profiled["harness_seconds"]
    whole = bare + data + harness
    groups: dict[Any, Any] = profiled.get("groups", {"compute": [1.0, 0]})
    profiled_seconds = math.fsum(seconds for seconds, _ in groups.values())
    shares = [
        doc.Share(group=group, share=seconds / profiled_seconds * bare / whole, calls=calls)
        for group, (seconds, calls) in sorted(groups.items(), key=lambda pair: -pair[1][0])
    ]
    shares += [doc.Share(group="data", share=data / whole, calls=0)]
    shares += [doc.Share(group="harness", share=harness / whole, calls=0)]
    return doc.Breakdown(
        profiled_updates=profiled["updates"],
        overhead_ratio=profiled["profiled_seconds"] / bare if "profiled_seconds" in profiled else None,
        shares=tuple(shares),
    )


def _paired(first: Sequence[float], second: Sequence[float]) -> Samples | None:
    """Return the ratio of the rounds that both series have; an interrupted one lacks the last round."""
    count = min(len(first), len(second))
    return timing.ratio(Samples.of(first[:count]), Samples.of(second[:count])) if count else None


# Ratios ---------------------------------------------------------------------------------------------------------------


def comparisons(subjects: Sequence[doc.TimedModel]) -> list[doc.SpeedRatio]:
    """Return how many times as fast each variant is as each baseline, in everything that both do.

    Seconds per sentence of a baseline that translates one sentence at a time are also compared with batches.
    """
    ratios = []
    for subject in subjects:
        for baseline in subjects:
            if subject.kind == "variant" and baseline.kind == "peer":
                costs, baseline_costs = _costs(subject), _costs(baseline)
                pairs = [(name, name) for name in costs if name in baseline_costs]
                pairs += [
                    (name, f"single_{name}")
                    for name in costs
                    if name not in baseline_costs and f"single_{name}" in baseline_costs
                ]
                for name, other in pairs:
                    ratio = _paired(baseline_costs[other], costs[name])
                    if ratio is not None:
                        ratios.append(
                            doc.SpeedRatio(
                                subject=subject.name,
                                baseline=baseline.name,
                                what=name,
                                baseline_what=other,
                                ratio=ratio,
                            )
                        )
    return ratios


def _costs(subject: doc.TimedModel) -> dict[str, list[float]]:
    """Return the samples of a model: seconds per update ("training") and per sentence (by name of the decoding)."""
    costs = {times.name: [value / times.sentences for value in times.seconds.values] for times in subject.decoding}
    if subject.training is not None:
        costs["training"] = [value / subject.training.updates for value in subject.training.seconds.values]
    return costs
