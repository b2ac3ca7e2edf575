"""Executes runs as tasks of a Ray cluster, which chooses their nodes and repeats the tasks of lost nodes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

import harness
import impls
from harness.data.dataset import PackedCorpus, pack, prepare
from harness.execution import local, transfer
from harness.execution.launcher import Launcher, NoRecord, Outcome, RunHandle, RunSettings, library
from harness.execution.transfer import Contents, RemoteRun
from harness.experiments.specs import DataSpec, RunSpec
from harness.storage.records import RunRecord
from harness.text import count

RETRIES = 5
"""How often Ray repeats a task whose worker or node was lost. Errors of the run itself are not retried."""

POLL_SECONDS = 1.0
CONNECT_SECONDS = 10.0
ALLOWED = "expected the HOST:PORT of a cluster that runs (ray start --head), or auto on one of its machines"
QUIET = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
STARTED = "started on "


def execute(
    specs: Sequence[RunSpec],
    results: Path,
    *,
    address: str,
    stream: TextIO,
    settings: RunSettings,
    checkpoint_folder: Path | None = None,
    names: Mapping[str, str] | None = None,
) -> Outcome:
    """Execute each run as a Ray task; see `Launcher.execute`.

    The code of this package, external variants and the prepared corpora are sent to the nodes; apart from
    `checkpoint_folder`, nothing is read from their disks.

    Args:
        address: "HOST:PORT", or "auto" for RAY_ADDRESS or else the cluster that this machine is part of.
        checkpoint_folder: A folder that all nodes share, from which the runs of a lost node resume. Without it they
            begin anew.

    Raises: as `Launcher.execute`; also ValueError if Ray is not installed or no cluster answers.
    """
    ray = library("ray")
    local.check_descriptors(len(specs))
    corpora = {data: pack(prepare(data)) for data in dict.fromkeys(spec.data for spec in specs)}
    # Ray prints messages about lost nodes to standard output.
    with contextlib.redirect_stdout(stream), _connected(ray, address, _code(specs)):
        references = {data: ray.put(corpus) for data, corpus in corpora.items()}
        launcher = RayLauncher(
            specs=specs,
            results=results,
            stream=stream,
            settings=settings,
            names=names or {},
            ray=ray,
            corpora=references,
            checkpoint_folder="" if checkpoint_folder is None else str(checkpoint_folder.absolute()),
        )
        return launcher.execute()


@dataclass(kw_only=True)
class RayTask(RunHandle):
    """The task of a run, and how often Ray has started it."""

    reference: Any
    starts: int = 0


@dataclass(kw_only=True, eq=False)
class RayLauncher(Launcher[RayTask]):
    """Executes each run as a Ray task. The nodes share no file system, so this process holds the locks.

    `ray` is connected to a cluster; `corpora` are references to the prepared corpora in its object store.
    """

    ray: Any
    corpora: Mapping[DataSpec, Any]
    checkpoint_folder: str = ""
    holds_locks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mailbox = _mailbox(self.ray)
        self.display.line(_resources(self.ray, self.specs))

    def start(self, spec: RunSpec) -> RayTask:
        """Submit a run. Ray starts it as soon as the cores and the GPU that it needs are free."""
        task = self.ray.remote(_execute_task).options(
            name=spec.id,
            num_cpus=spec.threads,
            num_gpus=int(spec.device.startswith("cuda")),
            max_retries=RETRIES,
            retry_exceptions=False,
        )
        remote_run = transfer.remote_run(spec, self.results, self.settings, checkpoint_folder=self.checkpoint_folder)
        return RayTask(spec=spec, reference=task.remote(remote_run, self.corpora[spec.data], self._mailbox))

    def poll(self) -> list[RayTask]:
        """Wait for the next task to end, and show the lines that the runs have sent."""
        tasks = {task.reference: task for task in self.running.values()}
        if not tasks:
            time.sleep(POLL_SECONDS)
            return []
        ended, _ = self.ray.wait(list(tasks), num_returns=1, timeout=POLL_SECONDS)
        for run, line in self.ray.get(self._mailbox.take.remote()):
            task = self.running.get(run)
            if task is not None and line.startswith(STARTED):
                task.starts += 1
                line = f"{run}: {line}"
                if task.starts > 1:
                    line += f", try {task.starts}: Ray lost the one before"
            self.show_remote(run, line)
        return [tasks[reference] for reference in ended]

    def has_started(self, handle: RayTask) -> bool:
        """Return whether a node has begun with the run."""
        return handle.starts > 0

    def collect(self, handle: RayTask) -> RunRecord | None:
        """Store the files that a task returns, and return the record."""
        try:
            return transfer.accept_results(self.results, handle.spec, self.ray.get(handle.reference))
        except self.ray.exceptions.TaskCancelledError as error:
            raise NoRecord("interrupted before it could send its files") from error
        except self.ray.exceptions.RayError as error:
            cause = getattr(error, "cause", error)  # what the task raised; the error itself begins with a traceback
            raise NoRecord(f"Ray lost it: {type(cause).__name__}: {_first_line(cause)}") from error

    def interrupt(self) -> None:
        """Interrupt every task as Ctrl-C does, but not the calls of the mailbox that it has in progress."""
        for task in self.running.values():
            self.ray.cancel(task.reference, force=False, recursive=False)

    def kill(self) -> None:
        """Kill the worker of every task."""
        for task in list(self.running.values()):
            self.ray.cancel(task.reference, force=True)


def _execute_task(remote_run: RemoteRun, corpus: PackedCorpus, mailbox: Any) -> Contents:
    """Execute a run on the node that Ray calls this on."""

    def say(line: str) -> None:
        # Without waiting for it: Ray lends the cores of a waiting task to another one, and interrupts the wait.
        mailbox.put.remote(remote_run.spec.id, line)

    say(STARTED + socket.gethostname())
    return transfer.execute_remote(remote_run, corpus, say)


class Mailbox:
    """The lines that tasks have sent, in an actor. It calls its methods in the order in which each task does."""

    def __init__(self) -> None:
        self._lines = list[tuple[str, str]]()

    def put(self, run: str, line: str) -> None:
        """Add a line about a run."""
        self._lines.append((run, line))

    def take(self) -> list[tuple[str, str]]:
        """Remove and return all lines."""
        lines, self._lines = self._lines, []
        return lines


def _mailbox(ray: Any) -> Any:
    """Return a mailbox on this machine's node, which lasts as long as this process."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=strategy).remote()


@contextlib.contextmanager
def _connected(ray: Any, address: str, code: list[str]) -> Iterator[None]:
    """Join the cluster for a while. Raises: ValueError if no cluster answers."""
    _check_address(address)
    try:
        environment = {"py_modules": code, "excludes": ["__pycache__"]}
        ray.init(address=address, runtime_env=environment, **QUIET)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ValueError(f"--launcher ray --address {address}: {_first_line(error)}: {ALLOWED}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise ValueError if nothing listens at an address. Ray itself would try for minutes."""
    chosen = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if chosen == "auto":
        return
    host, _, port = chosen.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ValueError(f"--launcher ray --address {chosen}: {error}: {ALLOWED}") from error


def _code(specs: Sequence[RunSpec]) -> list[str]:
    """Return the paths of the code that is sent: this package, and the modules of external variants."""
    paths = {str(Path(package.__path__[0])) for package in (harness, impls)}
    for variant in {spec.variant for spec in specs if ":" in spec.variant}:
        module = importlib.util.find_spec(variant.partition(":")[0].partition(".")[0])
        if module is not None:
            paths.update([*(module.submodule_search_locations or ()), *filter(None, [module.origin])][:1])
    return sorted(paths)


def _resources(ray: Any, specs: Sequence[RunSpec]) -> str:
    """Return the resources of the cluster, with a warning if no node is large enough for a run."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores, gpus = (int(sum(node.get(kind, 0) for node in nodes)) for kind in ("CPU", "GPU"))
    text = f"Ray: {count(len(nodes), 'node')}, {count(cores, 'core')}, {count(gpus, 'GPU')}."
    for threads, gpu in sorted({(spec.threads, int(spec.device.startswith("cuda"))) for spec in specs}):
        if not any(node.get("CPU", 0) >= threads and node.get("GPU", 0) >= gpu for node in nodes):
            text += f" No node has {threads} cores{' and a GPU' * gpu}: these runs wait until one joins."
    return text


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
