"""The process of one subject: hears in lines of JSON what to do, and answers each with a line when it is done.

    {"do": "start", "job": …}                          prepare the data and build; answers with what the subject is
    {"do": "learn", "updates": 200, "path": …}         train so long and store the weights
    {"do": "load", "path": …}                          have these weights
    {"do": "warm", "measure": "greedy", "of": 0}       do it once, not timed: peak memory, and what it gives
    {"do": "time", "measure": "greedy", "of": 0}       do it once, timed

What it refuses, a ValueError, or fails in, anything else, is answered in a line that says why.
Between two lines it waits: nothing of it runs while another subject is timed, which `idle_seconds` shows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from harness.data.batches import training_batches
from harness.data.dataset import prepare
from harness.experiments.serialization import canonical_json, from_json
from harness.experiments.specs import DecodingSpec
from harness.processes import machine
from harness.speed import memory, timing
from harness.speed.matmul_peak import Products, described, synchronize
from harness.speed.models import BaselineModel, OwnModel
from harness.speed.plan import DECODINGS, ModelJob
from harness.speed.workload import material
from harness.storage import tensors
from impls.contract import Batch


class Bench:
    """One subject ready to be timed."""

    def __init__(self, job: ModelJob) -> None:
        self.job = job
        self.prepared = prepare(job.spec.data)
        self.material = material(job, self.prepared)
        self._products: dict[int, Products] = {}
        self._first_seconds: float | None = None
        self.model: OwnModel | BaselineModel | None = None
        if not job.products:
            self.model = BaselineModel(job, self.prepared) if job.baseline else OwnModel(job, self.prepared)
            if job.weights and isinstance(self.model, OwnModel):
                self.model.take(tensors.read(Path(job.weights)))

    def facts(self) -> dict[str, Any]:
        """Return what the driver has to know of it."""
        found: dict[str, Any] = {
            "environment": {name: os.environ[name] for name in machine.PINNED if name in os.environ}
        }
        if self.model is None:
            return {**found, "library": described(self.job.spec.device, self.job.spec.precision)}
        can = {"train": self.model.can_train, "translate": self.model.can_translate}
        return {**found, "parameters": self.model.parameters, "can": {**can, "evaluate": self.model.can_evaluate}}

    # What it is asked to do -------------------------------------------------------------------------------------------

    def learn(self, updates: int, path: str) -> dict[str, Any]:
        """Train on the first batches of the first epochs, and store the weights that it gives."""
        assert isinstance(self.model, OwnModel)
        self._first_update()
        self.model.ready()
        spec, epoch = self.job.spec, 0
        batches: list[Batch] = []
        while len(batches) < updates:
            more = training_batches(self.prepared.train, spec.training, seed=spec.seed, epoch=epoch)
            batches += islice(more, updates - len(batches))
            epoch += 1
        return {"sha256": tensors.write(Path(path), self.model.learn(batches))}

    def load(self, path: str) -> dict[str, Any]:
        """Have these weights from now on."""
        assert self.model is not None
        self.model.take(tensors.read(Path(path)))
        return {}

    def warm(self, measure: str, of: int) -> dict[str, Any]:
        """Do what is to be timed once, and say how much memory it took and what it gave."""
        first: dict[str, Any] = {}
        self._ready(measure)
        resets = memory.forget_peak()
        memory.forget_device_peak()
        began = time.perf_counter()
        if measure == "training":
            first["first_update_seconds"] = self._first_update()
        gave = self._work(measure, of)()
        self._synchronize()
        took = time.perf_counter() - began
        found = {**first, "warmup_seconds": took, **(gave if isinstance(gave, dict) else {})}
        found["peak_memory_bytes"] = memory.peak() if resets else None
        found["device_memory_bytes"] = memory.device_peak()
        if self.model is not None:
            found["compilation_seconds"] = self.model.compilation_seconds
        return found

    def time(self, measure: str, of: int) -> dict[str, Any]:
        """Do it once, timed."""
        self._ready(measure)
        return {"seconds": timing.seconds(self._work(measure, of), self._synchronize)}

    def breakdown(self) -> dict[str, Any]:
        """Say what an update spends its time on."""
        from harness.speed.profile import breakdown

        assert isinstance(self.model, OwnModel)
        return breakdown(self.model, self.material.training[: self.job.profiled_updates], self.prepared)

    # ------------------------------------------------------------------------------------------------------------------

    def _ready(self, measure: str) -> None:
        if self.model is not None and measure not in ("training", "loop"):
            self.model.ready()

    def _synchronize(self) -> None:
        if self.model is None:
            synchronize(self.job.spec.device)
        else:
            self.model.synchronize()

    def _first_update(self) -> float:
        """Return the seconds of this process's very first update, which is made where there was none yet."""
        assert self.model is not None
        if self._first_seconds is None:
            first = self.model.updates(self.material.training[:1])
            self._first_seconds = timing.seconds(first, self.model.synchronize)
        return self._first_seconds

    def _work(self, measure: str, of: int) -> Callable[[], object]:
        """Return the work that a measure names; what it gives is told once, when it is warmed up."""
        model, there = self.model, self.material
        if measure == "products":
            return self._products_of(of).multiply
        assert model is not None
        if measure == "training":
            return model.updates(there.training)
        if measure in DECODINGS:
            sources = there.single if measure.startswith("single") else there.sentences
            return lambda: self._translate(measure, sources)
        assert isinstance(model, OwnModel)
        if measure == "loop":
            return model.driven(len(there.training))
        assert measure == "evaluation", measure
        return lambda: {"nats_per_token": model.evaluation(there.validation)}

    def _translate(self, measure: str, sources: Any) -> dict[str, Any]:
        assert self.model is not None
        found = self.model.translation(sources, decoding_spec(self.job, measure))
        return {
            "words": sum(map(len, found.tokens)),
            "unfinished": found.unfinished,
            "digest": hashlib.sha256(canonical_json(found.tokens).encode()).hexdigest(),
            "translations": found.tokens,
        }

    def _products_of(self, of: int) -> Products:
        if of not in self._products:
            spec = self.job.products[of]
            assert spec.recipe is not None
            words = len(self.prepared.source_words), len(self.prepared.target_words)
            self._products = {of: Products(spec.recipe, words, self.material.training, spec.device, spec.precision)}
        return self._products[of]


def decoding_spec(job: ModelJob, measure: str) -> DecodingSpec:
    """Return how a measure translates."""
    return replace(
        job.spec.decoding,
        beam=job.beam if measure.endswith("beam") else 1,
        batch_size=1 if measure.startswith("single") else job.spec.decoding.batch_size,
    )


# The conversation -----------------------------------------------------------------------------------------------------


def converse() -> None:
    """Answer every line of standard input until it ends, and with it whoever asked."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what anything prints is no answer
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    bench: Bench | None = None
    while True:
        waits, works = time.perf_counter(), time.process_time()
        told = json.loads(lines.get())
        idle = {"idle_seconds": time.perf_counter() - waits, "idle_cpu_seconds": time.process_time() - works}
        do = told.pop("do")
        try:
            if do == "start":
                bench = Bench(from_json(ModelJob, told["job"], "job"))
                answer = bench.facts()
            else:
                assert bench is not None, "the first line starts"
                answer = getattr(bench, do)(**told)
        except Exception as error:
            traceback.print_exc()
            told = " ".join(str(error).split())[:500]
            answer = (
                {"refused": told} if isinstance(error, ValueError) else {"failed": f"{type(error).__name__}: {told}"}
            )
        try:
            answers.write(json.dumps({**answer, **idle}, allow_nan=False) + "\n")
        except BrokenPipeError:
            return


def _listen(lines: queue.SimpleQueue[str]) -> None:
    """Pass on lines; end this process, in the middle of anything, when whoever writes them is gone."""
    with contextlib.suppress(OSError):
        for line in sys.stdin:
            lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    converse()
