"""Trains random runs again for their first updates; only these rules detect invented runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.audit.rules import AuditReport, Rule, apply_rule
from harness.audit.run_folder import FileCache, Skipped, StoredRun, read
from harness.data.batch_digest import WEIGHTS_MARK
from harness.experiments.serialization import to_json
from harness.processes import json_process
from harness.processes.environment_variables import worker_environment
from harness.processes.machine import arithmetic_differences, differences
from harness.storage import run_store
from harness.storage.records import RunRecord

LOSS_TOLERANCE = 0.05
"""How far the training loss of the first epoch may be from that of a run made elsewhere. Units: nats per token."""


@dataclass(frozen=True)
class RerunPlan:
    """How many runs to train again, the seed of their choice (None: random), and for how long."""

    runs: int
    seed: int | None = None
    whole_epoch: bool = False


@dataclass(frozen=True)
class Rerun:
    """A stored run and the answer of `harness.audit.rerun_worker`, or why it failed."""

    stored: StoredRun
    answer: dict[str, Any]
    failure: str = ""

    @property
    def record(self) -> RunRecord:
        """The record. Raises `Skipped` if the run could not be trained again."""
        if self.failure:
            raise Skipped(self.failure)
        return self.stored.known


def add(checked: AuditReport, results: Path, plan: RerunPlan, *, tell: Callable[[str], None]) -> AuditReport:
    """Return the results of a check and of training some of its runs again; `tell` is called with each run.

    Runs of external builders are left out: code that a record names is not imported.

    Raises:
        ValueError: there is no run that can be trained again.
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
    """Training again consumes batches with the digests in the record."""
    recorded = rerun.record.fingerprints.get("batches")
    if recorded is None:
        raise Skipped("schema 1 has no digests of batches")
    for mark, digest in rerun.answer["batches"].items():
        if mark in recorded and recorded[mark] != digest:
            yield f"batches up to update {int(mark):,} are others"
            return


def weights(rerun: Rerun) -> Iterator[str]:
    """Training again gives weights with the digest in the record, on the same machine and versions."""
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
    """Training the first epoch again gives the same training loss up to 0.05 nats."""
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
    """Return the differences between a run's environment and this one that may change its weights."""
    there = record.environment
    found = arithmetic_differences(there, here, record.spec.computes)
    commits = [environment.get("commit") or {} for environment in (there, here)]
    found += [f"commit {name} {value}" for name, value in sorted(differences(*commits).items())]
    if commits[1].get("dirty") and not found:
        found.append("the files of its commit, and those here differ from it")
    if there.get("earlier_processes"):
        found.append("processes that differed in their environment")
    return ", ".join(found)


def _rerun(stored: StoredRun, updates: int) -> Rerun:
    """Train a run again in a process of its own."""
    spec, files = stored.known.spec, stored.known.fingerprints.get("files") or {}
    arguments = {"spec": to_json(spec), "updates": updates, "digests": files}
    try:
        answer = json_process.request_once(
            "harness.audit.rerun_worker", "retrain", arguments, environment=worker_environment(spec)
        )
    except (json_process.ProcessFailed, json_process.RequestRefused) as error:
        return Rerun(stored, {}, f"cannot be trained here: {error}")
    return Rerun(stored, answer)
