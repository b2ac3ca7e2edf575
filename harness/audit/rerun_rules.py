"""Trains random runs again for their first updates and compares: the only rules that detect invented runs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.audit.rules import AuditReport, Rule, apply_rule
from harness.audit.run_folder import FileCache, Skipped, StoredRun, read
from harness.data.batch_digest import WEIGHTS_MARK
from harness.experiments.serialization import canonical_json, to_json
from harness.processes.machine import differences
from harness.processes.workers import ROOT, worker_environment
from harness.storage import run_store
from harness.storage.records import RunRecord

LOSS_TOLERANCE = 0.05
"""How far the training loss of the first epoch may be from that of a run made elsewhere. Units: nats per token."""

LIBRARIES = {
    "torch": ("numpy", "torch"),
    "tensorflow": ("numpy", "keras", "tensorflow", "tensorflow-cpu"),
    "jax": ("numpy", "keras", "jax", "jaxlib"),
}
"""The libraries on whose versions the bits of trained weights depend, by the framework that computes."""


@dataclass(frozen=True)
class RerunPlan:
    """How many runs are trained again, by which seed they are chosen (None: at random), and for how long."""

    runs: int
    seed: int | None = None
    whole_epoch: bool = False


@dataclass(frozen=True)
class Rerun:
    """A stored run, and the answer of `harness.audit.rerun_worker` for it, or why there is none."""

    stored: StoredRun
    answer: dict[str, Any]
    failure: str = ""

    @property
    def record(self) -> RunRecord:
        """The record. Raises: NotTried where the run could not be trained again."""
        if self.failure:
            raise Skipped(self.failure)
        return self.stored.known


def add(checked: AuditReport, results: Path, plan: RerunPlan, *, tell: Callable[[str], None]) -> AuditReport:
    """Return the results of a check with those of training some of its runs again; `tell` is called with each run.

    Runs with a model from outside are left out: nothing that a record names is imported here.

    Raises: ValueError where there is no run that can be trained again.
    """
    memory = FileCache()
    found = [read(results, name, memory) for name in checked.runs]
    found = [one for one in found if one.record is not None and _can_be_trained(one.record)]
    if not found:
        raise ValueError("--rerun: no completed run of a built-in recipe is among them")
    chosen = random.Random(plan.seed).sample(found, min(plan.runs, len(found)))
    reruns = []
    for one in sorted(chosen, key=lambda one: one.name):
        updates = _updates(one.known, whole_epoch=plan.whole_epoch)
        tell(f"{one.name}: training its first {updates} updates again")
        reruns.append(_rerun(one, updates))
    subjects = [(one.stored.name, str(one.stored.folder), one) for one in reruns]
    outcomes = [apply_rule(rule, subjects) for rule in RULES if plan.whole_epoch or rule.check is not loss]
    return replace(checked, outcomes=(*checked.outcomes, *outcomes))


def batches(rerun: Rerun) -> Iterator[str]:
    """Training again consumes the batches that the record has the digests of."""
    recorded = rerun.record.fingerprints.get("batches")
    if recorded is None:
        raise Skipped("schema 1 has no digests of batches")
    for mark, digest in rerun.answer["batches"].items():
        if mark in recorded and recorded[mark] != digest:
            yield f"batches up to update {int(mark):,} are others"
            return


def weights(rerun: Rerun) -> Iterator[str]:
    """Training again gives the weights that the record has the digest of, to the bit where that can be expected."""
    recorded = rerun.record.fingerprints.get("weights_after") or {}
    common = sorted(recorded.keys() & rerun.answer["weights_after"].keys(), key=int)
    if not common:
        raise Skipped("no digest of weights after the first updates")
    wrong = [mark for mark in common if recorded[mark] != rerun.answer["weights_after"][mark]]
    if wrong:
        elsewhere = _elsewhere(rerun.record, rerun.answer["environment"])
        if elsewhere:
            raise Skipped(f"cannot tell: the weights differ, but the run was made with {elsewhere}")
        yield f"the weights after update {int(wrong[0]):,} are others"


def loss(rerun: Rerun) -> Iterator[str]:
    """Training the first epoch again gives its training loss, to 0.05 nats."""
    record = rerun.record
    recorded, found = record.curve[0].training_loss, rerun.answer["loss"]
    if recorded is None or found is None:
        if recorded is not found:
            yield f"epoch 1: training_loss={recorded}, trained again {found}"
    elif abs(recorded - found) > LOSS_TOLERANCE:
        yield f"epoch 1: training_loss={recorded:.4f}, trained again {found:.4f}"


RULES = (
    Rule("C70", "rerun batches", batches),
    Rule("C71", "rerun weights", weights),
    Rule("C72", "rerun loss", loss),
)


def _can_be_trained(record: RunRecord) -> bool:
    return record.status in run_store.FINISHED and bool(record.curve) and record.spec.recipe is not None


def _updates(record: RunRecord, *, whole_epoch: bool) -> int:
    epoch = record.curve[0].updates
    return max(1, epoch if whole_epoch else min(WEIGHTS_MARK, record.curve[-1].updates))


def _elsewhere(record: RunRecord, here: dict[str, Any]) -> str:
    """Return what of a run's environment is not as it is here, and may change the bits of its weights; or nothing."""
    there = record.environment
    libraries = LIBRARIES.get(record.spec.computes, tuple(there.get("versions") or {}))
    sides = [
        {
            "machine": {name: (one.get("machine") or {}).get(name) for name in ("processor", "gpu")},
            "versions": {name: (one.get("versions") or {}).get(name) for name in libraries},
            "commit": one.get("commit") or {},
        }
        for one in (there, here)
    ]
    found = [
        f"{name} {value}" for part in differences(sides[0], sides[1]).values() for name, value in sorted(part.items())
    ]
    if (here.get("commit") or {}).get("dirty") and not found:
        found.append("the files of its commit, and those here differ from it")
    if there.get("earlier_processes"):
        found.append("processes that differed in their environment")
    return ", ".join(found)


def _rerun(stored: StoredRun, updates: int) -> Rerun:
    """Train a run again in a process of its own."""
    spec, files = stored.known.spec, stored.known.fingerprints.get("files") or {}
    paths: Sequence[str] = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **worker_environment(spec), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-m", "harness.audit.rerun_worker"],
        input=canonical_json({"spec": to_json(spec), "updates": updates, "files": files}) + "\n",
        capture_output=True,
        env=environment,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        return Rerun(stored, {}, f"cannot be trained here: {said}")
    return Rerun(stored, json.loads(done.stdout))
