"""The process of one timed model: answers the requests of `harness.speed.scheduler`.

The first request, "start", makes a `Bench`; the others are methods of it. Between two requests the process waits
without computing anything, so that it does not disturb the model being timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from harness.data.batches import training_batches
from harness.data.dataset import prepare
from harness.experiments.serialization import from_json, json_digest
from harness.experiments.specs import number_format
from harness.processes import machine
from harness.processes.json_process import serve
from harness.speed import memory, timing
from harness.speed.matmul_peak import Products, library_description, synchronize
from harness.speed.models import BaselineModel, VariantModel
from harness.speed.plan import BEAM, DECODINGS, SINGLE, Measure, ModelJob
from harness.speed.workload import build_workload
from harness.storage import tensors
from impls.contract import Batch, Ids


class Bench:
    """One model, or the matrix products of some recipes, ready to be timed; answers are dictionaries."""

    def __init__(self, job: ModelJob) -> None:
        self.job = job
        self.dataset = prepare(job.spec.data)
        self.workload = build_workload(job, self.dataset)
        self._products: dict[int, Products] = {}
        self._first_seconds: float | None = None
        self.model: VariantModel | BaselineModel | None = None
        if not job.products:
            self.model = BaselineModel(job, self.dataset) if job.baseline else VariantModel(job, self.dataset)
            if job.weights and isinstance(self.model, VariantModel):
                self.model.use_weights(tensors.read(Path(job.weights)))

    def facts(self) -> dict[str, Any]:
        """Return the environment, and the library or the size and abilities of the model."""
        environment = {"environment": machine.variables()}
        if self.model is None:
            library = library_description(self.job.spec.device, number_format(self.job.spec))
            return {**environment, "library": library}
        return {**environment, "parameters": self.model.parameters, "abilities": sorted(self.model.abilities)}

    # Requests ---------------------------------------------------------------------------------------------------------

    def train(self, updates: int, path: str) -> dict[str, Any]:
        """Train on the first batches of the first epochs and store the weights."""
        assert isinstance(self.model, VariantModel)
        self._first_update()
        self.model.restore_weights()
        spec, epoch = self.job.spec, 0
        batches: list[Batch] = []
        while len(batches) < updates:
            epoch_batches = training_batches(self.dataset.train, spec.training, seed=spec.seed, epoch=epoch)
            batches += islice(epoch_batches, updates - len(batches))
            epoch += 1
        return {"sha256": tensors.write(Path(path), self.model.train(batches))}

    def load(self, path: str) -> dict[str, Any]:
        assert self.model is not None
        self.model.use_weights(tensors.read(Path(path)))
        return {}

    def warm_up(self, measure: Measure, index: int) -> dict[str, Any]:
        """Do a task once; return its peak memory and its results."""
        facts: dict[str, Any] = {}
        self._make_ready(measure)
        resets = memory.reset_peak()
        memory.reset_device_peak()
        if measure == "training":
            facts["first_update_seconds"] = self._first_update()
        result = self._work(measure, index)()
        self._synchronize()
        if isinstance(result, dict):
            facts |= result
        facts["peak_memory_bytes"] = machine.peak_memory_bytes() if resets else None
        facts["device_memory_bytes"] = memory.device_peak()
        if self.model is not None:
            facts["compilation_seconds"] = self.model.compilation_seconds
        return facts

    def time(self, measure: Measure, index: int) -> dict[str, Any]:
        """Do a task once and return its seconds."""
        self._make_ready(measure)
        return {"seconds": timing.seconds(self._work(measure, index), self._synchronize)}

    def profile(self) -> dict[str, Any]:
        from harness.speed.profile import breakdown

        assert isinstance(self.model, VariantModel)
        return breakdown(self.model, self.workload.training[: self.job.amounts.profiled_updates], self.dataset)

    # Work -------------------------------------------------------------------------------------------------------------

    def _make_ready(self, measure: Measure) -> None:
        if self.model is not None and measure != "training":
            self.model.restore_weights()

    def _synchronize(self) -> None:
        if self.model is None:
            synchronize(self.job.spec.device)
        else:
            self.model.synchronize()

    def _first_update(self) -> float:
        """Return the seconds of the first update of this process; make it now if it has not been made yet."""
        assert self.model is not None
        if self._first_seconds is None:
            first = self.model.bare_updates(self.workload.training[:1])
            self._first_seconds = timing.seconds(first, self.model.synchronize)
        return self._first_seconds

    def _work(self, measure: Measure, index: int) -> Callable[[], object]:
        """Return the function that is timed. Its results are only reported after the warm-up."""
        model, workload = self.model, self.workload
        if measure == "products":
            return self._products_of(index).multiply
        assert model is not None
        if measure == "training":
            return model.bare_updates(workload.training)
        if measure in DECODINGS:
            sources = workload.single if measure in SINGLE else workload.sentences
            return lambda: self._translate(measure, sources)
        assert isinstance(model, VariantModel)
        assert measure == "evaluation", measure
        return lambda: {"nats_per_token": model.evaluate(workload.validation)}

    def _translate(self, measure: Measure, sources: Sequence[Ids]) -> dict[str, Any]:
        assert self.model is not None
        job = self.job
        batch_size = 1 if measure in SINGLE else job.spec.decoding.batch_size
        spec = replace(job.spec.decoding, beam=job.beam if measure in BEAM else 1, batch_size=batch_size)
        translations, unfinished = self.model.translate(sources, spec)
        return {
            "words": sum(map(len, translations)),
            "unfinished": unfinished,
            "digest": json_digest(translations),
            "translations": translations,
        }

    def _products_of(self, index: int) -> Products:
        if index not in self._products:
            spec = self.job.products[index]
            assert spec.recipe is not None
            sizes, precisions = self.dataset.vocabulary_sizes, (spec.precision, spec.matmul_precision)
            products = Products(spec.recipe, sizes, self.workload.training, spec.device, *precisions)
            self._products = {index: products}
        return self._products[index]


def main() -> None:
    commands: dict[str, Callable[..., dict[str, Any]]] = {}

    def start(job: dict[str, Any]) -> dict[str, Any]:
        parsed: ModelJob = from_json(ModelJob, job, "job")
        if parsed.baseline and parsed.spec.matmul_precision != "highest":  # baselines do not set it themselves
            import torch

            torch.set_float32_matmul_precision(parsed.spec.matmul_precision)
        bench = Bench(parsed)
        commands.update({name: getattr(bench, name) for name in ("train", "load", "warm_up", "time", "profile")})
        return bench.facts()

    commands["start"] = start
    serve(commands)


if __name__ == "__main__":
    main()
