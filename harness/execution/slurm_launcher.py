"""Runs of a suite as Slurm jobs, through submitit. The file system with the results and the data is shared, as usual.

RESULTS/.slurm/SUBMISSION/JOB/   submitit's files about a job: what it was given, until it ends, and what it printed
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from harness import text as terminal
from harness.execution import launcher, local, transfer
from harness.execution.launcher import Outcome, library
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec, spec_from_json
from harness.processes import json_process
from harness.processes.signals import SignalGuard
from harness.storage import files, locks, logs, run_store
from harness.storage.records import RunRecord, Status

FOLDER = ".slurm"
MINUTES = 24 * 60
"""The time limit of a job where none is given; submitit's own is five minutes."""

POLL_SECONDS = 1.0
SHARED_SECONDS = 10.0
"""How long a file that another machine wrote may take to show on a shared file system."""

GRACE_SECONDS = launcher.GRACE_SECONDS + 15.0
"""How long cancelled runs may take to leave a record."""


def execute(
    specs: Sequence[RunSpec],
    results: Path,
    *,
    parameters: Mapping[str, str],
    stream: TextIO,
    settings: Mapping[str, Any],
) -> Outcome:
    """Run each spec as a Slurm job of its own and show how far they are on `stream`.

    `parameters` are submitit's for Slurm, such as partition, time or gres, others those of sbatch; `cluster` "local"
    stands for submitit's processes on this machine instead of Slurm. `settings` are those of
    `harness.execution.local.execute`, which runs the spec of each job. Preempted jobs are queued again and resume from
    their checkpoints.

    Raises: ValueError where submitit or Slurm is missing, or a parameter does not fit.
    """
    queue = _Queue(results.absolute(), stream, dict(settings))
    with _importable():
        queue.submit(specs, dict(parameters))
    with SignalGuard() as watch:
        while queue.jobs and watch.received is None:
            queue.attend()
            time.sleep(POLL_SECONDS)
    if queue.jobs:
        queue.outcome.signal = watch.received
        queue.stop()
    return queue.outcome


@dataclass(frozen=True)
class SlurmJob:
    """What a job does. submitit calls `checkpoint` when it is preempted or out of time, and queues the answer."""

    spec: str
    results: str
    settings: dict[str, Any]

    def __call__(self) -> None:
        """Run the spec as the local engine does, on the machine that Slurm chose."""
        spec = spec_from_json(json.loads(self.spec))
        outcome = local.execute([spec], Path(self.results), jobs=1, stream=sys.stdout, **self.settings)
        if outcome.signal is not None:
            # Without a result the job is not done, and Slurm may queue it again.
            raise SystemExit(128 + outcome.signal)

    def checkpoint(self) -> Any:
        """Return the same once more: a run goes on from its own checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass
class _Queue:
    """The jobs that have not ended yet."""

    results: Path
    stream: TextIO
    settings: dict[str, Any]
    jobs: dict[str, Any] = field(default_factory=dict)
    specs: dict[str, RunSpec] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=Outcome)

    def submit(self, specs: Sequence[RunSpec], parameters: dict[str, str]) -> None:
        """Queue all runs; those that need the same cores are one array.

        Raises: ValueError where a library, Slurm, or what a parameter names is missing.
        """
        submitit = library("slurm")
        cluster = _cluster(parameters.pop("cluster", "slurm"))
        self.specs = {spec.id: spec for spec in specs}
        folder = _folder(self.results)
        for spec in specs:
            # Else an old failure would be taken for what this job has left. Whoever runs it now goes on.
            with contextlib.suppress(locks.Locked), locks.hold(self.results, spec.id):
                run_store.remove_record(self.results, spec.id)
        groups: dict[tuple[int, int], list[RunSpec]] = {}
        for spec in specs:
            groups.setdefault((spec.threads, int(spec.device.startswith("cuda"))), []).append(spec)
        for (threads, gpus), group in groups.items():
            given = {"timeout_min": MINUTES, "cpus_per_task": threads, "gpus_per_node": gpus or None}
            try:
                found = submitit.AutoExecutor(folder=folder / "%j", cluster=cluster)
                found.update_parameters(name="bakeoff", **given, **_parameters(parameters))
                with found.batch():
                    jobs = [found.submit(self._job(spec)) for spec in group]
            except (NameError, ValueError, RuntimeError, AssertionError, submitit.core.utils.FailedJobError) as error:
                for job in self.jobs.values():
                    job.cancel(check=False)
                raise ValueError(f"--engine slurm: {' '.join(str(error).split())}") from error
            self.jobs |= {spec.id: job for spec, job in zip(group, jobs, strict=True)}
        self.say(f"{cluster.capitalize()}: {len(specs)} jobs, {', '.join(job.job_id for job in self.jobs.values())}.")

    def _job(self, spec: RunSpec) -> SlurmJob:
        return SlurmJob(canonical_json(to_json(spec)), str(self.results), self.settings)

    def attend(self) -> None:
        """Show what the jobs have printed, and take the records of those that have ended."""
        for run, job in list(self.jobs.items()):
            done = job.done()
            self._follow(run, job)
            if done:
                del self.jobs[run]
                self._finish(run, job)

    def _follow(self, run: str, job: Any) -> None:
        """Show the whole lines about a run that its job has printed since the last time."""
        with contextlib.suppress(OSError), Path(job.paths.stdout).open("rb") as file:
            file.seek(self.read.get(run, 0))
            whole, newline, _ = file.read().rpartition(b"\n")
            self.read[run] = self.read.get(run, 0) + len(whole + newline)
            for line in whole.decode(errors="replace").split("\n"):
                if line.startswith(run):
                    self.say(line)

    def _finish(self, run: str, job: Any) -> None:
        """Take the record that a job has left; write one that says why where it left none, or not its own."""
        stopped = self.outcome.interrupted
        if stopped and run not in self.read:
            return
        record, reason = self._record(self.specs[run])
        if record is None or (record.status == "interrupted" and not stopped):
            last = " / ".join(logs.last_lines(Path(job.paths.stderr))) or "it printed nothing"
            record = self._without(
                run, f"job {job.job_id} ended in the state {job.state}: {reason}; its log ends: {last}"
            )
        for pickled in (job.paths.submitted_pickle, job.paths.result_pickle):
            Path(pickled).unlink(missing_ok=True)
        self.outcome.records.append(record)

    def _without(self, run: str, reason: str) -> RunRecord:
        status: Status = "interrupted" if self.outcome.interrupted else "failed"
        self.say(f"{run}: {status}: {reason}")
        with locks.hold(self.results, run):
            return transfer.without(self.results, self.specs[run], status, reason, self.settings)

    def _record(self, spec: RunSpec) -> tuple[RunRecord | None, str]:
        """Return the record of a run whose job has ended, or None and why it is none."""
        until = time.monotonic() + SHARED_SECONDS
        folder = run_store.run_folder(self.results, spec.id)
        while not (folder / run_store.RECORD).is_file() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        try:
            record = run_store.load_record(self.results, spec.id)
            if record is None:
                return None, "no record"
            written = [name for name in (*transfer.HASHED.values(), transfer.MANIFEST) if (folder / name).is_file()]
            transfer.check(spec, record, {name: files.file_digest(folder / name) for name in written})
        except (ValueError, OSError) as error:
            return None, str(error)
        return record, record.reason

    def stop(self) -> None:
        """Cancel every job, and wait a little while for the records of those that were under way."""
        for job in self.jobs.values():
            job.cancel(check=False)
        until = time.monotonic() + GRACE_SECONDS
        while self.jobs and time.monotonic() < until:
            self.attend()
            time.sleep(POLL_SECONDS)
        for run in self.read.keys() & self.jobs.keys():
            with contextlib.suppress(locks.Locked):
                self.outcome.records.append(self._without(run, "its job was cancelled and has not ended in time"))

    def say(self, line: str) -> None:
        """Show a line."""
        self.stream.write(terminal.one_line(line) + "\n")
        self.stream.flush()


def _folder(results: Path) -> Path:
    """Make a folder for a submission, of a new name: a job executes the pickle it finds, so none may wait there."""
    place = run_store.own_folder(results, FOLDER)
    place.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=place))


def _cluster(name: str) -> str:
    """Return which of submitit's clusters is meant. Raises: ValueError where it is not available."""
    if name not in ("slurm", "local"):
        raise ValueError(f"--slurm cluster={name}: expected slurm, or local for processes on this machine")
    if name == "slurm" and shutil.which("sbatch") is None:
        raise ValueError(
            "--engine slurm: there is no sbatch here: expected a machine that can submit Slurm jobs; to try without "
            "Slurm: --slurm cluster=local"
        )
    return name


def _parameters(given: Mapping[str, str]) -> dict[str, Any]:
    """Return parameters under submitit's names: what it does not know itself is an option of sbatch."""
    from submitit.slurm.slurm import SlurmExecutor

    known = SlurmExecutor._valid_parameters()
    values = {name: int(text) if text.isdecimal() else text for name, text in given.items()}
    others = {name: value for name, value in values.items() if name not in known}
    found = {f"slurm_{name}": value for name, value in values.items() if name in known}
    return found | ({"slurm_additional_parameters": others} if others else {})


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Let jobs, which inherit this environment, find this package and what this process finds beside it."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(json_process.ROOT), os.getcwd(), *filter(None, [before])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
