"""Runs of a suite as tasks of an existing Ray cluster: Ray finds them a node and runs those of lost nodes again."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import harness
import impls
from harness import text as terminal
from harness.data import portable_corpus
from harness.data.dataset import prepare
from harness.data.portable_corpus import PackedCorpus
from harness.execution import launcher, local, transfer
from harness.execution.launcher import Outcome, library
from harness.execution.transfer import Contents, Order
from harness.experiments.specs import DataSpec, RunSpec
from harness.processes.signals import SignalGuard
from harness.storage import locks, run_store
from harness.storage.records import RunRecord, Status
from harness.text import count

RETRIES = 5
"""How often Ray runs a task again whose worker or node was lost; what a run itself does wrong is not tried again."""

POLL_SECONDS = 1.0
GRACE_SECONDS = launcher.GRACE_SECONDS + 15.0
"""How long runs that a signal ends may take to send back what they go on from."""

CONNECT_SECONDS = 10.0
ALLOWED = "expected the HOST:PORT of a cluster that runs (ray start --head), or auto on one of its machines"
QUIET = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}


def execute(
    specs: Sequence[RunSpec], results: Path, *, address: str, stream: TextIO, settings: Mapping[str, Any]
) -> Outcome:
    """Run each spec as a Ray task and gather what comes of them in `results`; show how far they are on `stream`.

    `address` is "HOST:PORT" or "auto": RAY_ADDRESS, else the cluster that this machine is part of. `settings` are
    those of `harness.execution.local.execute`, which runs the task on each node. The code of this package, external
    variants and the prepared corpora are sent along; nothing is read from the nodes' disks.

    Raises: ValueError where Ray is not installed or no cluster answers.
    """
    ray = library("ray")
    local.check_descriptors(len(specs))
    corpora = {
        data: portable_corpus.pack(data, prepare(data).key) for data in dict.fromkeys(spec.data for spec in specs)
    }
    quiet = contextlib.redirect_stdout(stream)  # Ray prints there what it thinks of lost nodes
    with quiet, _connected(ray, address, _code(specs)), contextlib.ExitStack() as held, SignalGuard() as watch:
        gang = _Gang(ray, results, stream, dict(settings), _mailbox(ray))
        held.callback(gang.release)
        gang.say(_welcome(ray, specs))
        gang.corpora = {data: ray.put(corpus) for data, corpus in corpora.items()}
        gang.elsewhere = list(specs)
        while (gang.elsewhere or gang.tasks) and watch.received is None:
            gang.start()
            gang.attend()
        if gang.elsewhere or gang.tasks:
            gang.outcome.signal = watch.received
            gang.stop()
        return gang.outcome


@dataclass
class _Gang:
    """The runs that Ray has not finished yet, and those that another process runs; the locks of the first are held."""

    ray: Any
    results: Path
    stream: TextIO
    settings: dict[str, Any]
    mailbox: Any
    corpora: dict[DataSpec, Any] = field(default_factory=dict)
    elsewhere: list[RunSpec] = field(default_factory=list)
    tasks: dict[Any, RunSpec] = field(default_factory=dict)
    held: dict[str, contextlib.ExitStack] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    outcome: Outcome = field(default_factory=Outcome)

    def start(self) -> None:
        """Give Ray every run that no other process runs; take the record of one that such a process has ended."""
        for spec in list(self.elsewhere):
            try:
                self.held[spec.id] = contextlib.ExitStack()
                self.held[spec.id].enter_context(locks.hold(self.results, spec.id))
            except locks.Locked as error:
                if spec.id not in self.said:
                    self.said.add(spec.id)
                    self.say(f"{error}; it is passed over and waited for at the end")
                continue
            self.elsewhere.remove(spec)
            there = run_store.finished(self.results, spec.id)
            if there is None:
                self._start(spec)
            else:
                self.release(spec.id)
                self.outcome.records.append(there)

    def _start(self, spec: RunSpec) -> None:
        """Give Ray a run; it starts where and when there are cores, or an accelerator, for it."""
        run_store.remove_record(self.results, spec.id)
        task = self.ray.remote(_task).options(
            name=spec.id,
            num_cpus=spec.threads,
            num_gpus=int(spec.device.startswith("cuda")),
            max_retries=RETRIES,
            retry_exceptions=False,
        )
        sent = transfer.order(spec, self.results, self.settings)
        self.tasks[task.remote(sent, self.corpora[spec.data], self.mailbox)] = spec

    def release(self, run: str | None = None) -> None:
        """Give up the lock of a run, or all of them."""
        for one in [run] if run is not None else list(self.held):
            self.held.pop(one).close()

    def attend(self) -> None:
        """Wait a moment for the next task to end, and show what the runs said meanwhile."""
        if not self.tasks:
            time.sleep(POLL_SECONDS)
            return
        ready, _ = self.ray.wait(list(self.tasks), num_returns=1, timeout=POLL_SECONDS)
        self._listen()
        for task in ready:
            self._finish(task)

    def _listen(self) -> None:
        """Show the lines that are in the mailbox."""
        for run, line in self.mailbox.get_nowait_batch(self.mailbox.qsize()):
            if line.startswith(STARTED):
                self.starts[run] = self.starts.get(run, 0) + 1
                again = f", try {self.starts[run]}: Ray lost the one before" if self.starts[run] > 1 else ""
                line = f"{run}: {line}{again}"
            self.say(line)

    def _finish(self, task: Any) -> None:
        """Take what came of a task; write a record that says why where nothing did."""
        spec = self.tasks.pop(task)
        try:
            record = transfer.accept(self.results, spec, self.ray.get(task))
        except self.ray.exceptions.TaskCancelledError:
            record = self._without(spec, "interrupted", "interrupted before it could send what it had done")
        except self.ray.exceptions.RayError as error:
            record = self._without(spec, "failed", f"Ray lost it: {type(error).__name__}: {_first_line(error)}")
        except (ValueError, OSError) as error:
            record = self._without(spec, "failed", f"what came back from the cluster is refused: {error}")
        self.release(spec.id)
        if record.status == "interrupted" and spec.id not in self.starts:
            run_store.remove_record(self.results, spec.id)
            return
        if record.status == "failed":
            self.say(f"{spec.id}: failed: {record.reason} (its log: {run_store.log_path(self.results, spec.id)})")
        self.outcome.records.append(record)

    def _without(self, spec: RunSpec, status: Status, reason: str) -> RunRecord:
        return transfer.without(self.results, spec, status, reason, self.settings)

    def stop(self) -> None:
        """Cancel every task, and wait a little while for what the runs go on from."""
        for task in self.tasks:
            self.ray.cancel(task, force=False)
        until = time.monotonic() + GRACE_SECONDS
        while self.tasks and time.monotonic() < until:
            self.attend()
        for task, spec in self.tasks.items():
            self.ray.cancel(task, force=True)
            if spec.id in self.starts:
                reason = "interrupted; its node did not answer in time"
                self.outcome.records.append(self._without(spec, "interrupted", reason))

    def say(self, line: str) -> None:
        """Show a line."""
        self.stream.write(terminal.one_line(line) + "\n")
        self.stream.flush()


STARTED = "started on "


def _task(sent: Order, corpus: PackedCorpus, mailbox: Any) -> Contents:
    """Carry out a run on the node where Ray calls this."""
    mailbox.put((sent.run, STARTED + socket.gethostname()))
    return transfer.fulfil(sent, corpus, lambda line: mailbox.put((sent.run, line)))


def _mailbox(ray: Any) -> Any:
    """Return a queue that tasks write lines to. It lies on this machine's node: that one is not lost before this is."""
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})


@contextlib.contextmanager
def _connected(ray: Any, address: str, code: list[str]) -> Iterator[None]:
    """Join the cluster for a while. Raises: ValueError where there is none that answers."""
    _answers(address)
    try:
        environment = {"py_modules": code, "excludes": ["__pycache__"]}
        ray.init(address=address, runtime_env=environment, **QUIET)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ValueError(f"--engine ray --address {address}: {_first_line(error)}: {ALLOWED}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """Raise ValueError where nothing listens at the address that is meant; Ray itself would try for minutes."""
    chosen = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if chosen == "auto":
        return
    host, _, port = chosen.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ValueError(f"--engine ray --address {chosen}: {error}: {ALLOWED}") from error


def _code(specs: Sequence[RunSpec]) -> list[str]:
    """Return what has to travel along: this package, and the modules of variants from outside."""
    found = {str(Path(package.__path__[0])) for package in (harness, impls)}
    for variant in {spec.variant for spec in specs if ":" in spec.variant}:
        top = importlib.util.find_spec(variant.partition(":")[0].partition(".")[0])
        places = [] if top is None else [*(top.submodule_search_locations or ()), *filter(None, [top.origin])]
        found.update(places[:1])
    return sorted(found)


def _welcome(ray: Any, specs: Sequence[RunSpec]) -> str:
    """Return what there is for the runs, and a warning where no node is large enough for one."""
    nodes = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    cores, gpus = (int(sum(one.get(kind, 0) for one in nodes)) for kind in ("CPU", "GPU"))
    text = f"Ray: {count(len(nodes), 'node')}, {count(cores, 'core')}, {count(gpus, 'GPU')}."
    needs = {(spec.threads, int(spec.device.startswith("cuda"))) for spec in specs}
    for threads, gpu in sorted(needs):
        if not any(one.get("CPU", 0) >= threads and one.get("GPU", 0) >= gpu for one in nodes):
            text += f" No node has {threads} cores{' and a GPU' * gpu}: these runs wait until one joins."
    return text


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
