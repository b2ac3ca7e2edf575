"""Makes the document of a measurement: figures of every subject from its samples, and the ratios between them."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from harness.data.batches import updates_per_epoch
from harness.processes import machine
from harness.speed import speed_document as doc
from harness.speed import timing
from harness.speed.measurement import Measurement, now, running
from harness.speed.plan import DECODINGS, Measure, ModelJob, same_weights
from harness.speed.scheduler import TimedTask
from harness.speed.speed_document import SpeedDocument, Status
from harness.speed.timing import Samples
from harness.speed.workload import digest, material
from impls import flops

BASELINE_PACKAGES = ("transformers", "ctranslate2")
MEMORY = ("peak_memory_bytes", "device_memory_bytes")


def assemble(measurement: Measurement, *, status: Status = "complete", reason: str = "") -> SpeedDocument:
    """Return the document of what was measured so far."""
    plan = measurement.plan
    assembly = _Assembly(measurement)
    subjects = tuple(assembly.subject(job) for job in plan.jobs)
    absent = tuple(
        doc.TimedModel(
            name=one.name,
            kind="peer" if one.is_baseline else "variant",
            variant=one.variant,
            framework=one.framework,
            ending="missing",
            reason=one.reason,
        )
        for one in plan.absent
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
    found, commit = machine.machine(measurement.plan.base.spec.device), machine.commit() or {}
    versions = machine.versions()
    for name in BASELINE_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return doc.Machine(
        processor=found["processor"],
        cores=found["cores"],
        memory_bytes=found["memory_bytes"],
        gpu=found.get("gpu"),
        system=found["system"],
        python=platform.python_version(),
        versions=versions,
        commit=commit.get("digest"),
        dirty=commit.get("dirty"),
        load_before=measurement.load_before,
        load_after=running(),
    )


class _Assembly:
    """What the parts of a document are made from."""

    def __init__(self, measurement: Measurement) -> None:
        self.measurement, self.crew, self.plan = measurement, measurement.crew, measurement.plan
        self.prepared = measurement.prepared
        self.words = len(self.prepared.source_words), len(self.prepared.target_words)
        self.material = material(self.plan.base, self.prepared)
        self.counted = flops.count_tokens(self.material.training)
        self.evaluated = flops.count_tokens(self.material.validation)
        train = self.prepared.train
        self.epoch_target = sum(map(len, train.target)) - len(train)
        self.epoch_tokens = self.epoch_target + sum(map(len, train.source))

    def settings(self) -> doc.Settings:
        """Return what was asked for."""
        base, size = self.plan.base, self.plan.size
        return doc.Settings(
            size=size.name,
            parts=tuple(self.plan.parts),
            rounds=self.plan.rounds,
            decoding_rounds=self.plan.decoding_rounds,
            updates=len(self.material.training),
            threads=base.spec.threads,
            device=base.spec.device,
            precision=base.spec.precision,
            cuda_graphs=base.spec.cuda_graphs,
            sentences=len(self.material.sentences),
            single_sentences=len(self.material.single),
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
        """Return the text that it was measured on."""
        batches, spec = self.material.training, self.plan.base.spec
        return doc.Data(
            spec=spec.data,
            tokenised=self.prepared.digests["tokenised"],
            stream=digest(batches),
            source_words=self.words[0],
            target_words=self.words[1],
            epoch_updates=updates_per_epoch(self.prepared.train, spec.training),
            epoch_target=self.epoch_target,
            epoch_tokens=self.epoch_tokens,
            batches=len(batches),
            sentences=self.counted.sentence,
            source=self.counted.source,
            target=self.counted.target,
            positions=sum(one.source.size + one.target_out.size for one in batches),
        )

    def missing_rate(self) -> str:
        """Return why there is no rate of matrix products though there was to be one; or nothing."""
        name = self.measurement.PRODUCTS
        return f"{name}: {self.crew.lost[name]}" if name in self.crew.lost else ""

    def rates(self) -> tuple[doc.MatrixRate, ...]:
        """Return the machine's rates at the products of the recipes."""
        found = []
        for number, (products, jobs) in enumerate(self.measurement.products):
            values = self._rate(number)
            if not values:
                continue
            found.append(
                doc.MatrixRate(
                    variants=tuple(dict.fromkeys(job.spec.variant for job in jobs)),
                    library=self.crew.facts[self.measurement.PRODUCTS]["library"],
                    products=tuple(
                        doc.KernelProduct(
                            name=one.name, rows=one.rows, inputs=one.inputs, outputs=one.outputs, count=one.count
                        )
                        for one in products
                    ),
                    operations=self._kernel_operations(jobs[0]),
                    seconds=Samples.of(values),
                )
            )
        return tuple(found)

    def _rate(self, number: int) -> list[float]:
        return self.crew.samples(self.measurement.PRODUCTS, "products", number)

    def _kernel_operations(self, job: ModelJob) -> int:
        assert job.spec.recipe is not None
        return flops.PASSES * flops.kernel_operations(job.spec.recipe, self.words, self.counted)

    # Subjects ---------------------------------------------------------------------------------------------------------

    def subject(self, job: ModelJob) -> doc.TimedModel:
        """Return what was measured of one subject."""
        facts, lost = self.crew.facts.get(job.name, {}), self.crew.lost.get(job.name, "")
        declined = self.crew.declined.get(job.name, "")
        compiled = [self.crew.series[turn].facts.get("compilation_seconds") for turn in self.crew.series
                    if turn.subject == job.name]  # fmt: skip
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
            compilation_seconds=max((one for one in compiled if one is not None), default=None),
            idle_share=self.crew.idle_share(job.name),
            environment=facts.get("environment", {}),
            left_out={turn.measure: why for turn, why in self.crew.refused.items() if turn.subject == job.name},
            training=self._training(job),
            evaluation=self._evaluation(job),
            decoding=tuple(one for measure in DECODINGS if (one := self._decoding(job, measure)) is not None),
            breakdown=_breakdown(self.measurement.breakdowns.get(job.name)),
        )

    def _facts(self, job: ModelJob, measure: Measure) -> dict[str, Any]:
        return self.crew.series[TimedTask(job.name, measure)].facts

    def _training(self, job: ModelJob) -> doc.TrainingTimes | None:
        values = self.crew.samples(job.name, "training")
        if not values:
            return None
        facts, recipe = self._facts(job, "training"), job.spec.recipe
        operations = 0 if recipe is None else flops.training_operations(recipe, self.words, self.counted)
        seconds, loop = Samples.of(values), self.crew.samples(job.name, "loop")
        return doc.TrainingTimes(
            updates=len(self.material.training),
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
        """Return operations / seconds over the rate of the same round at the products of the job's recipe."""
        for number, (_, jobs) in enumerate(self.measurement.products):
            if same_weights(job.spec.recipe, job.spec.variant) in [
                same_weights(one.spec.recipe, one.spec.variant) for one in jobs
            ]:
                scale = operations / self._kernel_operations(jobs[0])
                return _paired([one * scale for one in self._rate(number)], values)
        return None

    def _evaluation(self, job: ModelJob) -> doc.EvaluationTimes | None:
        values = self.crew.samples(job.name, "evaluation")
        if not values:
            return None
        facts, recipe = self._facts(job, "evaluation"), job.spec.recipe
        return doc.EvaluationTimes(
            batches=len(self.material.validation),
            target=self.evaluated.target,
            operations=0 if recipe is None else flops.forward_operations(recipe, self.words, self.evaluated),
            nats_per_token=facts["nats_per_token"],
            seconds=Samples.of(values),
            **{name: facts[name] for name in MEMORY},
        )

    def _decoding(self, job: ModelJob, measure: Measure) -> doc.DecodingTimes | None:
        values = self.crew.samples(job.name, measure)
        if not values:
            return None
        facts = self._facts(job, measure)
        single = measure.startswith("single")
        other = self._reference(job, measure)
        mine = facts["translations"]
        theirs = [] if other is None else self._facts(other, measure)["translations"]
        return doc.DecodingTimes(
            name=measure,
            beam=job.beam if measure.endswith("beam") else 1,
            batch_size=1 if single else job.spec.decoding.batch_size,
            sentences=len(mine),
            words=facts["words"],
            unfinished=facts["unfinished"],
            digest=facts["digest"],
            warmup_seconds=facts["warmup_seconds"],
            seconds=Samples.of(values),
            compared_with=None if other is None else other.name,
            equal=None if other is None else sum(one == two for one, two in zip(mine, theirs, strict=True)),
            **{name: facts[name] for name in MEMORY},
        )

    def _reference(self, job: ModelJob, measure: Measure) -> ModelJob | None:
        """Return the first job with the same weights that translated the same sentences so; None for that one."""
        key = same_weights(job.spec.recipe, job.spec.variant)
        for other in self.plan.jobs:
            same = same_weights(other.spec.recipe, other.spec.variant) == key
            if same and TimedTask(other.name, measure) in self.crew.series:
                return None if other == job else other
        return None


def _breakdown(told: dict[str, Any] | None) -> doc.Breakdown | None:
    """Return the shares of an update's time, which add up to 1."""
    if told is None:
        return None
    bare, data, harness = told["bare_seconds"], told["data_seconds"], told["harness_seconds"]
    whole = bare + data + harness
    groups: dict[Any, Any] = told.get("groups", {"compute": [1.0, 0]})
    inside = math.fsum(one for one, _ in groups.values())
    shares = [
        doc.Share(group=group, share=one / inside * bare / whole, calls=calls)
        for group, (one, calls) in sorted(groups.items(), key=lambda pair: -pair[1][0])
    ]
    shares += [doc.Share(group="data", share=data / whole, calls=0)]
    shares += [doc.Share(group="harness", share=harness / whole, calls=0)]
    return doc.Breakdown(
        profiled_updates=told["updates"],
        overhead_ratio=told["profiled_seconds"] / bare if "profiled_seconds" in told else None,
        shares=tuple(shares),
    )


def _paired(first: Sequence[float], second: Sequence[float]) -> Samples | None:
    """Return the ratio of the rounds that both have; the last round of one that was broken off is not there."""
    count = min(len(first), len(second))
    return timing.ratio(Samples.of(first[:count]), Samples.of(second[:count])) if count else None


# Ratios ---------------------------------------------------------------------------------------------------------------


def comparisons(subjects: Sequence[doc.TimedModel]) -> list[doc.SpeedRatio]:
    """Return how many times as fast each variant is as each baseline, in all that both do.

    What a baseline does one sentence at a time alone is held against batches too, sentence by sentence.
    """
    found = []
    for subject in subjects:
        for baseline in subjects:
            if subject.kind == "variant" and baseline.kind == "peer":
                own, theirs = _costs(subject), _costs(baseline)
                pairs = [(name, name) for name in own if name in theirs]
                pairs += [(name, f"single_{name}") for name in own if name not in theirs and f"single_{name}" in theirs]
                for name, other in pairs:
                    ratio = _paired(theirs[other], own[name])
                    if ratio is not None:
                        found.append(
                            doc.SpeedRatio(
                                subject=subject.name,
                                baseline=baseline.name,
                                what=name,
                                baseline_what=other,
                                ratio=ratio,
                            )
                        )
    return found


def _costs(subject: doc.TimedModel) -> dict[str, list[float]]:
    """Return the samples of what a subject does: seconds of an update, or of a sentence."""
    found = {one.name: [value / one.sentences for value in one.seconds.values] for one in subject.decoding}
    if subject.training is not None:
        found["training"] = [value / subject.training.updates for value in subject.training.seconds.values]
    return found
