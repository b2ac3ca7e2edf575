"""Trains random runs again for their first updates; only these rules detect invented runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.audit.rules import AuditReport, Rule, apply_rules
from harness.audit.run_folder import AuditContext, Skipped, StoredRun, read, skip_unless, unequal
from harness.data.batch_digest import WEIGHTS_MARK
from harness.experiments.serialization import to_json
from harness.processes import json_process
from harness.processes.environment_variables import worker_environment
from harness.processes.machine import arithmetic_differences, differences
from harness.storage import run_store
from harness.storage.records import RunRecord

LOSS_TOLERANCE = 0.03
"""Tolerance of the training loss of the first epoch on another machine, where published runs differ by up to 0.022.
Units: nats per target token."""


@dataclass(frozen=True)
class Rerun:
    """A stored run and the answer of `harness.audit.rerun_worker`, or why it failed."""

    stored: StoredRun
    answer: dict[str, Any]
    failure: str = ""

    @property
    def record(self) -> RunRecord:
        """The record. Raises: Skipped if the run could not be trained again."""
        skip_unless(not self.failure, self.failure)
        return self.stored.record


def add(
    report: AuditReport,
    results: Path,
    number: int,
    *,
    seed: int | None = None,
    whole_epoch: bool = False,
    log: Callable[[str], None],
) -> AuditReport:
    """Train some of the runs of a report again, and return the report with the results.

    Runs of external builders are left out: code that a record names is not imported.

    Args:
        report: The results of a check of the folder `results`.
        number: How many runs to train again.
        seed: The seed of their choice; None draws one.
        whole_epoch: Whether to train the first epoch and compare its loss, instead of at most 50 updates.
        log: Called with a line for each run.

    Raises:
        ValueError: No run can be trained again.
    """
    context = AuditContext()
    stored = [read(results, name, context) for name in report.runs]
    runs = [run for run in stored if run.parsed is not None and run.parsed.status in run_store.FINISHED]
    runs = [run for run in runs if run.record.curve and run.record.spec.recipe is not None]
    if not runs:
        raise ValueError("--rerun: no completed run of a recipe is among the runs; those of builders are left out")
    reruns = []
    for run in sorted(random.Random(seed).sample(runs, min(number, len(runs))), key=lambda run: run.name):
        first, last = run.record.curve[0].updates, run.record.curve[-1].updates
        updates = max(1, first if whole_epoch else min(WEIGHTS_MARK, last))
        log(f"{run.name}: training its first {updates} updates again")
        reruns.append((run.name, str(run.folder), _rerun(run, updates)))
    outcomes = apply_rules([rule for rule in RULES if whole_epoch or rule.check is not loss], reruns)
    warnings = apply_rules(WARNINGS, reruns)
    return replace(report, outcomes=(*report.outcomes, *outcomes), warnings=(*report.warnings, *warnings))


def batches(rerun: Rerun) -> Iterator[str]:
    """Training again consumes batches with the digests in the record."""
    recorded = rerun.record.fingerprints.get("batches")
    if recorded is None:
        raise Skipped("the record has no digests of batches")
    for update, digest in rerun.answer["batches"].items():
        if recorded.get(update, digest) != digest:
            yield f"the batches up to update {int(update):,} have another digest"
            return


def weights(rerun: Rerun) -> Iterator[str]:
    """Training again gives weights with the digest in the record, on the same machine and versions."""
    if update := _other_weights(rerun):
        reasons = _differences(rerun.record, rerun.answer["environment"])
        skip_unless(not reasons, f"cannot tell: the weights differ, but the run was made with {reasons}")
        yield f"the weights after update {update:,} have another digest"


def undecided(rerun: Rerun) -> Iterator[str]:
    """Training again gives weights with the digest in the record, so that the record is proven."""
    reasons = _differences(rerun.record, rerun.answer["environment"])
    if (update := _other_weights(rerun)) and reasons:
        yield (
            f"nothing is proven: the weights after update {update:,} differ, as those of an invented run would; the "
            f"run was made with {reasons}: check it there, in a checkout of its commit"
        )


def loss(rerun: Rerun) -> Iterator[str]:
    """Training the first epoch again gives the same training loss up to 0.03 nats."""
    recorded, retrained = rerun.record.curve[0].training_loss, rerun.answer["loss"]
    if recorded is None or retrained is None or abs(recorded - retrained) > LOSS_TOLERANCE:
        yield from unequal("epoch 1: training_loss", recorded, retrained, "trained again")


RULES = (
    Rule("C70", "rerun batches", batches),
    Rule("C71", "rerun weights", weights),
    Rule("C72", "rerun loss", loss),
)
WARNINGS = (Rule("W04", "rerun undecided", undecided),)


def _other_weights(rerun: Rerun) -> int | None:
    """Return the first update with other weights than in the record, or None. Raises: Skipped without digests."""
    recorded, retrained = rerun.record.fingerprints.get("weights_after") or {}, rerun.answer["weights_after"]
    common = sorted(recorded.keys() & retrained.keys(), key=int)
    skip_unless(common, "no digest of weights after the first updates")
    return next((int(update) for update in common if recorded[update] != retrained[update]), None)


def _differences(record: RunRecord, current: dict[str, Any]) -> str:
    """Return the differences between a run's environment and the current one that may change its weights."""
    recorded = record.environment
    lines = arithmetic_differences(recorded, current, record.spec.computes)
    commits = [environment.get("commit") or {} for environment in (recorded, current)]
    lines += [f"commit {name} {value}" for name, value in sorted(differences(*commits).items())]
    if commits[1].get("dirty") and not lines:
        lines.append("the same commit, from which the files here differ")
    if recorded.get("earlier_processes"):
        lines.append("processes that differed in their environment")
    return ", ".join(lines)


def _rerun(stored: StoredRun, updates: int) -> Rerun:
    """Train a run again in a process of its own."""
    spec, digests = stored.record.spec, stored.record.fingerprints.get("files") or {}
    arguments = {"spec": to_json(spec), "updates": updates, "digests": digests}
    try:
        answer = json_process.request_once(
            "harness.audit.rerun_worker", "retrain", arguments, environment=worker_environment(spec)
        )
    except (json_process.ProcessFailed, json_process.RequestRefused) as error:
        return Rerun(stored, {}, f"cannot be trained here: {error}")
    return Rerun(stored, answer)
