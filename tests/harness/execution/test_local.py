"""Runs on this machine: failures stay with their run, lost processes are retried."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_runs import spec

from harness.execution import local
from harness.execution.launcher import RunSettings
from harness.execution.local import LOST_PROCESSES, LocalLauncher, RunProcess
from harness.processes import environment_variables
from harness.processes.progress import Event
from harness.storage import checkpoint_files, run_store
from harness.storage.records import RunRecord

pytestmark = pytest.mark.usefixtures("processes")


def test_failed_run_does_not_affect_others(tmp_path: Path) -> None:
    reasons = {"": "", "_breaking": "RuntimeError: the planted fault; its log ends: File ", "_dying": "the last words"}
    reasons["_nothing"] = "returned an object of type str"
    specs, stream = [spec(f"counting_model:build{name}") for name in reasons], io.StringIO()
    settings = RunSettings(command="the command", note="a note")
    outcome = local.execute(specs, tmp_path, jobs=2, stream=stream, settings=settings)
    records = {record.spec.variant.removeprefix("counting_model:build"): record for record in outcome.records}
    for name, record in records.items():
        assert record.status == ("failed" if name else "completed")
        assert reasons[name] in record.reason
        assert run_store.load_record(tmp_path, record.id) == record
        assert (record.command, record.note) == ("the command", "a note")
    assert "Traceback" in run_store.log_path(tmp_path, records["_breaking"].id).read_text()
    assert stream.getvalue().count("failed: RuntimeError: the planted fault") == 1
    assert "epoch 3/3: training loss" in stream.getvalue()
    assert outcome.signal is None


def test_listener_gets_the_events_of_each_run_and_one_end(tmp_path: Path) -> None:
    specs, events = [spec(), spec(seed=1)], list[tuple[str, str]]()

    def listen(event: Event) -> None:
        events.append((event.run, event.stage))
        if event.stage == "ended":
            record = run_store.load_record(tmp_path, event.run)
            assert record is not None
            assert record.status == "completed"

    local.execute(specs, tmp_path, jobs=1, stream=io.StringIO(), listener=listen)
    for run in specs:
        stages = [stage for name, stage in events if name == run.id]
        assert (stages[0], stages[-1], stages.count("ended")) == ("preparing", "ended", 1)
        assert "training" in stages
    assert events.index((specs[0].id, "ended")) < events.index((specs[1].id, "training")), "not all at the end"


def test_run_has_and_records_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    run = spec(threads=3)
    record = local.execute([run], tmp_path, jobs=1, stream=io.StringIO()).records[0]
    variables = record.environment["variables"]
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "3"
    assert variables["MALLOC_MMAP_MAX_"] == environment_variables.worker_environment(run)["MALLOC_MMAP_MAX_"]
    assert variables["OMP_WAIT_POLICY"] == "passive"
    assert "GOMP_SPINCOUNT" not in variables


def test_run_is_read_as_utf_8_in_every_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    settings = RunSettings(note="für Übungen")
    record = local.execute([spec()], tmp_path, jobs=1, stream=io.StringIO(), settings=settings).records[0]
    assert (record.status, record.note) == ("completed", settings.note)


def test_timeout_below_a_second_is_named(tmp_path: Path) -> None:
    settings = RunSettings(timeout_seconds=0.5, grace_seconds=30.0)
    runs = [spec("counting_model:build_slow")]
    (record,) = local.execute(runs, tmp_path, jobs=1, stream=io.StringIO(), settings=settings).records
    assert (record.status, record.reason.partition(";")[0]) == ("failed", "timed out after 0.5 s")


class EndedProcess:
    """The process of a run that has ended, and the launcher that decides what follows."""

    def __init__(self, results: Path, *, losses: int = 0) -> None:
        self.results, self.spec, self.stream = results, spec(), io.StringIO()
        settings = RunSettings(retries=1)
        self.launcher = LocalLauncher(specs=[self.spec], results=results, stream=self.stream, settings=settings)
        self.launcher.losses[self.spec.id] += ["killed by SIGKILL"] * losses

    def collect(self, code: int, printed: str = "", **record: Any) -> RunRecord | None:
        """Collect the record of an end with this exit code and output, and the fields of a record that it left."""
        if record:
            run_store.save_record(self.results, RunRecord(id=self.spec.id, spec=self.spec, **record))
        with run_store.open_log(self.results, self.spec.id) as log:
            log.write(printed.encode())
        worker: Any = None
        process = RunProcess(spec=self.spec, worker=worker, started=0.0, last_event=0.0, exit_code=code)
        return self.launcher.collect(process)


@pytest.mark.parametrize(
    ("reason", "printed", "end"),
    [
        ("RuntimeError: one\ntwo\nthree", "RuntimeError: one\ntwo\nthree\n", ""),
        ("RuntimeError: one  two", "    raise RuntimeError('one  two')\npackage.RuntimeError: one  two\n", ""),
        (f"RuntimeError: {'long ' * 99}", f"f(x)\nRuntimeError: {'long ' * 99}\n", "; its log ends: f(x)"),
        ("RuntimeError: one", "", "; it printed nothing"),
        ("RuntimeError: one", "a warning\nbakeoff: no text\n", "; its log ends: bakeoff: no text"),
    ],
)
def test_collect_does_not_repeat_the_reason_from_the_log(reason: str, printed: str, end: str, tmp_path: Path) -> None:
    record = EndedProcess(tmp_path).collect(1, printed, status="failed", reason=reason)
    assert record is not None
    assert record.reason == reason + end


def test_collect_interrupted_run_after_its_last_retry_keeps_the_losses(tmp_path: Path) -> None:
    record = EndedProcess(tmp_path, losses=1).collect(143, status="interrupted", reason="interrupted by SIGTERM")
    assert record is not None
    assert (record.status, record.environment[LOST_PROCESSES]) == ("interrupted", ["killed by SIGKILL"])
    assert run_store.load_record(tmp_path, record.id) == record


def test_collect_killed_process_is_retried_as_often_as_allowed(tmp_path: Path) -> None:
    ended = EndedProcess(tmp_path)
    assert ended.collect(-9) is None
    record = ended.collect(-9)
    assert record is not None
    assert record.status == "failed"
    assert "; earlier attempts lost: 1" in record.reason


def test_collect_process_killed_after_its_record_leaves_no_checkpoint(tmp_path: Path) -> None:
    ended = EndedProcess(tmp_path)
    checkpoint_files.save(tmp_path, ended.spec.id, {}, {})
    record = ended.collect(-9, status="diverged", reason="epoch 1")
    assert record is not None
    assert record.status == "diverged"
    assert not checkpoint_files.exists(tmp_path, record.id)
    assert ended.stream.getvalue().endswith("after its record was written\n")


IGNORING_SIGCHLD = """
import signal, sys
from pathlib import Path
from small_runs import spec
from harness.execution import local
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
(record,) = local.execute([spec()], Path(sys.argv[1]), jobs=1, stream=sys.stdout).records
sys.exit(record.status != "completed")
"""


@pytest.mark.skipif(os.name != "posix", reason="ignores SIGCHLD")
def test_parent_that_ignores_sigchld_notices_the_end_of_its_children(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IGNORING_SIGCHLD, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert process.returncode == 0, process
