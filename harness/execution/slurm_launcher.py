"""Executes runs as Slurm jobs, through submitit. The jobs share the file system of the results and of the cache.

RESULTS/.slurm/SUBMISSION/JOB/   submitit's files about a job: its pickled task, until it ends, and its output
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from harness.execution import local, transfer
from harness.execution.launcher import Launcher, NoRecord, Outcome, RunHandle, RunSettings, library
from harness.experiments.specs import RunSpec
from harness.processes import json_process
from harness.storage import files, logs, run_store
from harness.storage.records import RunRecord
from harness.text import count

FOLDER = ".slurm"
MINUTES = 24 * 60
"""The default time limit of a job; submitit's own is five minutes."""

MOST_TIMEOUTS = 1000
"""How often a job that is out of time is queued again. Each time its run goes on from a checkpoint; submitit gives up
after three.
"""

POLL_SECONDS = 1.0
SHARED_SECONDS = 10.0
"""The time after which a file of another machine is visible on a shared file system."""


def execute(
    specs: Sequence[RunSpec],
    results: Path,
    *,
    parameters: Mapping[str, str],
    stream: TextIO,
    settings: RunSettings,
    names: Mapping[str, str] | None = None,
) -> Outcome:
    """Execute each run as a Slurm job; see `Launcher.execute`. Preempted jobs are queued again and resume.

    `parameters` are those of submitit for Slurm, such as partition, time or gres, or options of sbatch. With
    cluster=local submitit starts processes on this machine instead of Slurm jobs.

    Raises: as `Launcher.execute`; also ValueError if submitit or Slurm is missing or does not accept a parameter.
    """
    launcher = SlurmLauncher(
        specs=specs,
        results=results.absolute(),
        stream=stream,
        settings=settings,
        names=names or {},
        parameters=parameters,
    )
    # Jobs inherit this environment: they can import this package and the modules of the current folder.
    paths = [str(json_process.ROOT), os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    with transfer.environment_variables(PYTHONPATH=os.pathsep.join(paths)):
        return launcher.execute()


@dataclass(frozen=True)
class SlurmTask:
    """What a job executes. submitit calls `checkpoint` when the job is preempted or out of time."""

    spec: RunSpec
    results: Path
    settings: RunSettings

    def __call__(self) -> None:
        """Execute the run with the local launcher, on the machine that Slurm chose."""
        outcome = local.execute([self.spec], self.results, jobs=1, stream=sys.stdout, settings=self.settings)
        if outcome.signal is not None:
            # Without a result the job is not done, and Slurm may queue it again.
            raise SystemExit(128 + outcome.signal)

    def checkpoint(self) -> Any:
        """Queue the same task again; the run resumes from its own checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass(kw_only=True)
class SlurmRun(RunHandle):
    """A run and its job, None until it is submitted. `read_bytes` counts the output that was shown; None before any."""

    job: Any = None
    read_bytes: int | None = None

    @property
    def resources(self) -> tuple[int, int]:
        """The cores and GPUs that the run needs."""
        return self.spec.threads, int(self.spec.device.startswith("cuda"))


@dataclass(kw_only=True, eq=False)
class SlurmLauncher(Launcher[SlurmRun]):
    """Executes each run as a Slurm job."""

    parameters: Mapping[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._submitit, options = library("slurm"), dict(self.parameters)
        self._cluster = _cluster(options.pop("cluster", "slurm"))
        self._submitit_parameters = _submitit_parameters(options)
        self._folder = _folder(self.results)

    def start(self, spec: RunSpec) -> SlurmRun:
        """Return the run; `poll` submits it together with others."""
        return SlurmRun(spec=spec)

    def poll(self) -> list[SlurmRun]:
        """Submit waiting runs, show the output of the jobs, and return the runs whose jobs have ended."""
        if not self.stopping:
            self._submit([run for run in self.running.values() if run.job is None])
        ended = [run for run in self.running.values() if run.job is None or run.job.done()]
        for run in self.running.values():
            self._show_output(run)
        if not ended:
            time.sleep(POLL_SECONDS)
        return ended

    def _submit(self, runs: list[SlurmRun]) -> None:
        """Submit runs, those with the same resources as one job array. Raises: ValueError if one is refused."""
        failed_job = self._submitit.core.utils.FailedJobError
        for threads, gpus in dict.fromkeys(run.resources for run in runs):
            group = [run for run in runs if run.resources == (threads, gpus)]
            resources = {"timeout_min": MINUTES, "cpus_per_task": threads, "gpus_per_node": gpus or None}
            try:
                executor = self._submitit.AutoExecutor(
                    folder=self._folder / "%j", cluster=self._cluster, slurm_max_num_timeout=MOST_TIMEOUTS
                )
                executor.update_parameters(name="bakeoff", **resources, **self._submitit_parameters)
                with executor.batch():
                    jobs = [executor.submit(SlurmTask(run.spec, self.results, self.settings)) for run in group]
            except (NameError, ValueError, RuntimeError, AssertionError, failed_job) as error:
                raise ValueError(f"--launcher slurm: {' '.join(str(error).split())}") from error
            for run, job in zip(group, jobs, strict=True):
                run.job = job
            ids = ", ".join(job.job_id for job in jobs)
            self.display.line(f"{self._cluster.capitalize()}: {count(len(jobs), 'job')}, {ids}.")

    def _show_output(self, run: SlurmRun) -> None:
        """Show the complete lines about a run that its job has printed since the last time."""
        if run.job is None:
            return
        with contextlib.suppress(OSError), Path(run.job.paths.stdout).open("rb") as file:
            file.seek(run.read_bytes or 0)
            lines, newline, _ = file.read().rpartition(b"\n")
            run.read_bytes = (run.read_bytes or 0) + len(lines + newline)
            for line in lines.decode(errors="replace").split("\n"):
                self.show_remote(run.spec.id, line)

    def has_started(self, handle: SlurmRun) -> bool:
        """Return whether the job has opened its output."""
        return handle.read_bytes is not None

    def collect(self, handle: SlurmRun) -> RunRecord | None:
        """Return the record that the job has written to the shared results."""
        spec, job = handle.spec, handle.job
        folder = run_store.run_folder(self.results, spec.id)
        end = time.monotonic() + SHARED_SECONDS
        while not (folder / run_store.RECORD).is_file() and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        try:
            record = run_store.load_record(self.results, spec.id)
            if record is None:
                raise ValueError("no record")
            names = [name for name in transfer.HASHED.values() if (folder / name).is_file()]
            transfer.check(spec, record, {name: files.file_digest(folder / name) for name in names})
            if record.status == "interrupted" and not self.stopping:
                raise ValueError(record.reason)
        except (ValueError, OSError) as error:
            last_lines = " / ".join(logs.last_lines(Path(job.paths.stderr))) or "it printed nothing"
            raise NoRecord(
                f"job {job.job_id} ended in the state {job.state}: {error}; its log ends: {last_lines}"
            ) from error
        finally:
            for path in (job.paths.submitted_pickle, job.paths.result_pickle):
                Path(path).unlink(missing_ok=True)
        return record

    def interrupt(self) -> None:
        """Cancel every job."""
        for run in self.running.values():
            if run.job is not None:
                run.job.cancel(check=False)


def _folder(results: Path) -> Path:
    """Create a folder for a submission, with a new name: a job executes the pickle that it finds there."""
    folder = run_store.own_folder(results, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=folder))


def _cluster(name: str) -> str:
    """Return submitit's name of a cluster. Raises: ValueError if it is unknown or not available."""
    if name not in ("slurm", "local"):
        raise ValueError(f"--slurm cluster={name}: expected slurm, or local for processes on this machine")
    if name == "slurm" and shutil.which("sbatch") is None:
        raise ValueError(
            "--launcher slurm: sbatch is not installed here: run this where Slurm jobs can be submitted, or try "
            "without Slurm: --slurm cluster=local"
        )
    return name


def _submitit_parameters(options: Mapping[str, str]) -> dict[str, Any]:
    """Return options under submitit's names; those that submitit does not have become options of sbatch.

    Raises: ValueError if the time is not in minutes, with which submitit calculates when a job is out of time.
    """
    from submitit.slurm.slurm import SlurmExecutor

    accepted = SlurmExecutor._valid_parameters()
    values = {name: int(text) if text.isdecimal() else text for name, text in options.items()}
    if isinstance(values.get("time"), str):
        raise ValueError(f"--slurm time={values['time']}: expected minutes, such as 240")
    parameters: dict[str, Any] = {f"slurm_{name}": value for name, value in values.items() if name in accepted}
    sbatch = {name: value for name, value in values.items() if name not in accepted}
    return parameters | ({"slurm_additional_parameters": sbatch} if sbatch else {})
