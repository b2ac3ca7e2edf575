"""A run that crashes, is killed, hangs or floods its log ends in a record and does not affect other runs."""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_runs import QUICK, FaultyRuns, all_end, faulty, until

from harness.execution import local
from harness.execution.launcher import Outcome, RunSettings
from harness.execution.retry_policy import LOST_PROCESSES
from harness.processes import exit_status, json_process
from harness.storage import logs, run_store
from harness.storage.records import RunRecord

QUICK = RunSettings(silence_seconds=60.0, grace_seconds=1.0)
PATIENCE_SECONDS = 60.0

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")


@pytest.fixture(scope="module", autouse=True)
def _data(processes: None) -> None:
    prepare(DATA)


class Place:
    """A folder of results and one of the notes that the models leave."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.results, self.notes, self.patch = folder / "results", folder / "notes", patch
        self.notes.mkdir()
        patch.setenv(faulty_models.NOTES, str(self.notes))
        self.shown = io.StringIO()

    def execute(self, specs: Sequence[RunSpec], *, jobs: int = 2, settings: RunSettings = QUICK) -> Outcome:
        return local.execute(specs, self.results, jobs=jobs, stream=self.shown, settings=settings)

    def one(self, kind: str, *, settings: RunSettings = QUICK) -> RunRecord:
        """Run a model beside a sound one, which has to be completed, and return the record of the first."""
        first = faulty(kind)
        outcome = self.execute([first, faulty("sound", seed=9)], settings=settings)
        records = {record.id: record for record in outcome.records}
        assert len(records) == 2
        assert records.pop(faulty("sound", seed=9).id).status == "completed"
        (record,) = records.values()
        assert record == run_store.load_record(self.results, first.id)
        assert self.locks() == []
        return record

    def processes(self, name: str) -> list[int]:
        """Return what a file of the notes says, by default the processes that trained."""
        path = self.notes / name
        return [int(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def trained(self) -> dict[str, int]:
        return {path.name: len(path.read_text().splitlines()) for path in self.notes.iterdir()}

    def locks(self) -> list[Path]:
        return list(self.results.glob(f"*/{locks.LOCK}"))

    def runner(self, kind: str = "slow") -> subprocess.Popen[str]:
        """Start a process that runs a model with the seeds 0, 1 and 2, two at once."""
        command = [sys.executable, "-c", RUNNER, str(self.results), kind]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)

    def bench(self, *words: str) -> subprocess.Popen[str]:
        """Start the command line on slow, sound models with the seeds 0, 1 and 2, or on what more words say."""
        command = [sys.executable, "-m", "harness", "bench", *WORDS, "--results", str(self.results)]
        return subprocess.Popen(
            [*command, "--reports", str(self.results.parent / "reports"), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )


RUNNER = """
import sys
from pathlib import Path
from small_runs import spec
from harness.execution import local
specs = [spec(f"faulty_models:build_{sys.argv[2]}", seed=seed) for seed in range(3)]
outcome = local.execute(specs, Path(sys.argv[1]), jobs=2, stream=sys.stdout)
sys.exit(any(record.status != "completed" for record in outcome.records) or len(outcome.records) != 3)
"""
WORDS = ["--corpus", "captions", "--tokenizer", "whitespace", "--set", "data.training_pairs=200", "--threads", "1"]
WORDS += ["--set", "training.batch_size=32", "--set", "decoding.max_tokens=5", "--jobs", "2"]
WORDS += ["--variant", "faulty_models:build_slow", "--seed", "0", "--seed", "1", "--seed", "2"]


def faulty(kind: str, *, seed: int = 0) -> RunSpec:
    return spec(f"faulty_models:build_{kind}", seed=seed)


def gone(process: int) -> bool:
    """Return whether a process ends within the time that a test has."""
    return until(lambda: not Path(f"/proc/{process}").exists() or "Z" in _state(process))


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def read_until(process: subprocess.Popen[str], words: str, count: int = 1) -> str:
    """Read what a process prints until it has printed some words so often."""
    assert process.stdout is not None
    seen = ""
    while seen.count(words) < count:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    return seen


# A run that ends badly by itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("raising", "RuntimeError: the planted fault; its log ends: File "),
        ("out_of_memory", "MemoryError: Unable to allocate 8.00 PiB"),
        pytest.param("aborting", "killed by SIGABRT; abort() was called; its log ends: ", marks=pytest.mark.sample),
        ("segfaulting", "killed by SIGSEGV; a fault in compiled code; its log ends: epoch 1/3"),
        ("exiting", "its process ended with code 0 and left no complete record; its log ends: epoch"),
        pytest.param("half_record", "its process ended with code 0 and left no comp", marks=pytest.mark.sample),
    ],
)
def test_run_ending_badly_fails_with_its_reason(runs: FaultyRuns, kind: str, reason: str) -> None:
    record = runs.record_of(kind)
    assert record.status == "failed"
    assert record.reason.startswith(reason)
    assert len(record.curve) == (kind == "raising")
    assert "\x1b" not in record.reason + runs.output
    assert runs.starts()[f"{kind}-0"] == 1
    assert LOST_PROCESSES not in record.environment


def test_run_failing_again_does_not_keep_its_earlier_reason(runs: FaultyRuns) -> None:
    run = faulty("exiting")
    run_store.save_record(runs.results, RunRecord(id=run.id, spec=run, status="failed", reason="long ago"))
    assert runs.record_of("exiting").reason.startswith("its process ended with code 0")


@pytest.mark.sample
def test_run_leaving_a_child_ends_it(runs: FaultyRuns) -> None:
    assert runs.record_of("leaving_a_child").reason.startswith("its process ended with code 3; ")
    (child,) = runs.processes("children")
    assert all_end([child])


def test_run_flooding_its_log_shortens_it(runs: FaultyRuns) -> None:
    record = runs.record_of("flooding")
    assert record.status == "completed"
    path = run_store.log_path(runs.results, record.id)
    assert path.stat().st_size < logs.LOG_BYTES + 2_000_000
    log = path.read_bytes()
    assert b"longer than 8,000,000 bytes" in log
    assert log.startswith(b"epoch 1/3")
    assert b"epoch 3/3" in log
    assert "was shortened" in runs.output


# A run whose process is lost ------------------------------------------------------------------------------------------


def is_killed(place: Place) -> None:
    record = place.one("signalled", settings=replace(QUICK, retries=2))
    assert record.status == "failed"
    assert record.reason.startswith("killed by SIGKILL; often because memory is exhausted; lost before it: 2")
    assert record.environment[LOST_PROCESSES] == ["killed by SIGKILL; often because memory is exhausted"] * 2
    assert place.trained()["Signalled-0"] == 3
    assert "it resumes from its last checkpoint (retry 2 of 2)" in place.shown.getvalue()


@pytest.mark.sample
def test_run_killed_once_resumes_and_equals_an_undisturbed_run(runs: FaultyRuns) -> None:
    record = runs.record_of("killed_once")
    assert record.status == "completed"
    assert record.environment[LOST_PROCESSES] == [KILLED]
    assert "goes on after update 7 of 21" in runs.output
    (undisturbed,) = runs.execute(faulty("sound")).records
    assert record.scores == undisturbed.scores
    assert record.fingerprints == undisturbed.fingerprints
    assert LOST_PROCESSES not in undisturbed.environment


def is_not_tried_again_where_that_is_said(place: Place) -> None:
    record = place.one("killed_once", settings=replace(QUICK, retries=0))
    assert record.status == "failed"
    assert "; its log ends: epoch 1/3" in record.reason
    assert place.trained()["KilledOnce-0"] == 1


def is_asked_to_end_by_somebody(place: Place) -> None:
    record = place.one("asked_once")
    assert record.status == "completed"
    (lost,) = record.environment[LOST_PROCESSES]
    assert reason in lost


def test_run_killed_by_oom_killer_names_it(runs: FaultyRuns) -> None:
    counter = runs.notes / "counter"
    counter.write_text("low 0\noom 3\noom_kill 3\n")
    place.patch.setattr(exit_status, "_counters", lambda: [counter])
    record = place.one("killed_for_memory", settings=replace(QUICK, retries=0))
    assert record.status == "failed"
    assert record.reason.startswith("killed by SIGKILL: out of memory (the kernel's OOM killer)")


def hangs(place: Place) -> None:
    record = place.one("hanging", settings=RunSettings(silence_seconds=6.0, grace_seconds=0.5, retries=1))
    assert record.status == "failed"
    assert record.reason.startswith("hung: no progress for 6 s; lost before it: 1")
    assert place.trained()["Hanging-0"] == 2
    assert all(gone(process) for process in place.processes("Hanging-0"))


def hangs_once(place: Place) -> None:
    record = place.one("hanging_once", settings=RunSettings(silence_seconds=6.0, grace_seconds=0.5))
    assert record.status == "completed"
    assert record.environment[LOST_PROCESSES] == ["hung: no progress for 6 s"]


def takes_too_long(place: Place) -> None:
    slow = faulty("slow")
    (record,) = place.execute([slow], settings=RunSettings(timeout_seconds=4.0, grace_seconds=30.0)).records
    assert record.status == "failed"
    assert record.reason.startswith("timed out after 4 s; its log ends: ")
    assert runs.starts() == {"slow-0": 1}
    (record,) = runs.execute(slow).records
    assert record.status == "completed"
    assert "goes on after update" in runs.output


# The conditions of a run ----------------------------------------------------------------------------------------------


@pytest.mark.sample
def test_run_whose_process_cannot_start_fails_alone(runs: FaultyRuns) -> None:
    popen, refusals = subprocess.Popen, [OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))]

    def refuse_first(*arguments: object, **settings: object) -> object:
        if refusals:
            raise refusals.pop()
        return popen(*arguments, **settings)  # type: ignore[call-overload]

    runs.patch.setattr(json_process.subprocess, "Popen", refuse_first)
    records = runs.execute(faulty("sound"), faulty("sound", seed=1)).records
    assert [record.status for record in records] == ["failed", "completed"]
    assert "could not be started: [Errno 11] Resource temporarily unavailable" in records[0].reason


def test_run_whose_record_cannot_be_written_fails_alone(runs: FaultyRuns) -> None:
    save = run_store.save_record

    def refuse(results: Path, record: RunRecord) -> Path:
        if "raising" in record.id:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "record.json")
        return save(results, record)

    runs.patch.setattr(run_store, "save_record", refuse)
    outcome = runs.execute(faulty("raising"), faulty("killed_once"))
    assert sorted(record.status for record in outcome.records) == ["completed", "failed"]
    assert "its record cannot be written: [Errno 28] No space left on device" in runs.output


@pytest.mark.sample
def test_too_many_jobs_for_the_limit_on_open_files_raise(runs: FaultyRuns) -> None:
    resource = pytest.importorskip("resource")
    runs.patch.setattr(resource, "getrlimit", lambda which: (90, 100))
    with pytest.raises(ValueError, match=r"jobs=13: expected at most 12 where a process may open 100 files"):
        runs.execute(*(faulty("sound", seed=seed) for seed in range(13)), jobs=200)
    raised = []
    runs.patch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    local.check_descriptors(12)
    assert raised == [(100, 100)]


def test_200_failing_runs_leak_no_descriptors(runs: FaultyRuns) -> None:
    runs.patch.setattr(json_process.sys, "executable", "/bin/false")
    runs.execute(faulty("sound", seed=1000))
    before = len(os.listdir("/proc/self/fd"))
    outcome = runs.execute(*(faulty("sound", seed=seed) for seed in range(200)), jobs=8)
    assert [record.status for record in outcome.records] == ["failed"] * 200
    assert {record.reason for record in outcome.records} == {"its process ended with code 1; it printed nothing"}
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= before)


# Two runners ----------------------------------------------------------------------------------------------------------


HOLDER = """
import os, sys, time
from pathlib import Path
from harness.storage import locks, run_store
results, run, seconds, end = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]
with locks.hold(results, run):
    print("held", flush=True)
    time.sleep(seconds)
    if end == "dies":
        os.kill(os.getpid(), 9)
    from small_runs import spec
    from harness.storage.records import RunRecord
    one = spec("faulty_models:build_sound")
    run_store.save_record(results, RunRecord(id=one.id, spec=one, status="diverged", note="the other's"))
"""


@contextlib.contextmanager
def holder(place: Place, end: str, seconds: int = 3) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the lock of a run for a while and then ends the run, or dies."""
    command = [sys.executable, "-c", HOLDER, str(place.results), faulty("sound").id, str(seconds), end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def is_run_by_another(place: Place) -> None:
    with holder(place, "ends") as other:
        outcome = place.execute([faulty("sound"), faulty("sound", seed=1)], jobs=1)
    found = {record.spec.seed: record for record in outcome.records}
    assert {seed: record.status for seed, record in found.items()} == {0: "diverged", 1: "completed"}
    assert found[0].note == "the other's"
    assert place.trained() == {"Sound-1": 1}
    shown = place.shown.getvalue()
    assert f"{faulty('sound').id}: is being run by process {other.pid} on " in shown
    assert "diverged by another process" in shown
    assert place.locks() == []


def is_left_by_another_that_dies(place: Place) -> None:
    with holder(place, "dies"):
        outcome = place.execute([faulty("sound")])
    assert [record.status for record in outcome.records] == ["completed"]
    assert "is gone and left it unfinished; resuming it" in place.shown.getvalue()
    assert place.trained() == {"Sound-0": 1}


def is_begun_by_another_at_the_same_moment(place: Place) -> None:
    """The lock is free when the runner looks, taken when its process does, and free again when that has ended."""
    hold, others, held = locks.hold, contextlib.ExitStack(), []

    @contextlib.contextmanager
    def overtaken(results: Path, run: str) -> Iterator[None]:
        if held:
            held[0].kill()
            held[0].wait()
        with hold(results, run):
            yield
        if not held:
            held.append(others.enter_context(holder(place, "dies", seconds=600)))

    place.patch.setattr(locks, "hold", overtaken)
    with others:
        (record,) = place.execute([faulty("sound")]).records
    assert record.status == "completed"
    assert place.trained() == {"Sound-0": 1}
    assert f"is being run by process {held[0].pid} on " in place.shown.getvalue()


def is_run_by_hand_at_the_same_time(place: Place) -> None:
    words = [word for word in WORDS if word not in ("--jobs", "2", "--variant", "faulty_models:build_slow")]
    words = words[: words.index("--seed")]
    command = [sys.executable, "-m", "harness", "run", "faulty_models:build_sound", *words, "--results"]
    command += [str(place.results), "--set", "updates=3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    run = next(line for line in done.stdout.splitlines() if line.startswith("faulty_models")).partition(":")[0]
    run_store.remove_record(place.results, run)
    with locks.hold(place.results, run):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"bakeoff: {run}: is being run by process {os.getpid()} on ")
    assert done.stderr.count("\n") == 1
    assert place.trained() == {"Sound-0": 1}


def has_two_runners(place: Place) -> None:
    first, second = place.runner(), place.runner()
    shown = [one.communicate(timeout=PATIENCE_SECONDS)[0] for one in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), shown
    assert place.trained() == {"Sound-0": 1, "Sound-1": 1, "Sound-2": 1}
    assert len(run_store.records(place.results)) == 3
    assert "is being run by process" in "".join(shown)
    assert place.locks() == []


def lies_where_nothing_can_be_locked(place: Place) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    place.patch.setattr("fcntl.flock", refuse)
    with pytest.raises(locks.NoLocks, match=r"run\.lock: cannot be locked \(No locks available\): expected a folder"):
        place.execute([faulty("sound")])
    assert place.trained() == {}


# The runner itself is ended -------------------------------------------------------------------------------------------


def ends_on(place: Place, number: int) -> None:
    with place.bench() as process:
        read_until(process, "epoch 1/3: training loss", 2)
        process.send_signal(number)
        assert process.stdout is not None
        rest = process.stdout.read()
    assert process.returncode == 128 + number
    assert "Traceback" not in rest
    assert "0 of 3 runs are done, 2 started, 1 not started. Repeat the command to continue." in rest
    records = run_store.records(place.results)
    assert [record.status for record in records] == ["interrupted"] * 2
    assert all("of 21 updates" in record.reason for record in records)
    trained = [one for seed in range(2) for one in place.processes(f"Sound-{seed}")]
    assert len(trained) == 2
    assert all(gone(one) for one in trained)
    assert place.locks() == []


def goes_on_where_half_a_grid_was_left(place: Place) -> None:
    """One run is done, one failed, one is interrupted, one was not begun: the first alone is left as it is."""
    done, failed, interrupted, new = (faulty(kind) for kind in ("sound", "killed_once", "asked_once", "out_of_memory"))
    outcome = place.execute([done, failed, interrupted], settings=replace(QUICK, retries=0))
    found = {record.id: record.status for record in outcome.records}
    assert found == {done.id: "completed", failed.id: "failed", interrupted.id: "interrupted"}
    before = (place.results / done.id / run_store.RECORD).stat()
    outcome = place.execute([done, failed, interrupted, new])
    assert {record.id: record.status for record in outcome.records} == {
        done.id: "completed",
        failed.id: "completed",
        interrupted.id: "completed",
        new.id: "failed",
    }
    assert place.trained() == {"Sound-0": 1, "KilledOnce-0": 2, "AskedOnce-0": 2, "OutOfMemory-0": 1}
    after = (place.results / done.id / run_store.RECORD).stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def ends_with_its_runner(place: Place) -> None:
    """The runner is killed, so it can tell its runs nothing: they end by themselves, and lose nothing."""
    with place.runner() as process:
        read_until(process, "epoch 1/3: training loss", 2)
        process.kill()
    trained = [one for seed in range(2) for one in place.processes(f"Sound-{seed}")]
    assert len(trained) == 2
    assert all(gone(one) for one in trained)
    records = run_store.records(place.results)
    assert [record.status for record in records] == ["interrupted"] * 2
    with place.runner() as process:
        shown = process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert process.returncode == 0
    assert shown.count("goes on after update") == 2


def ends_with_its_runner_in_the_middle_of_an_update(place: Place) -> None:
    with place.runner("heeding") as process:
        read_until(process, "epoch 1/3: training loss", 2)
        assert until(lambda: len(place.processes("heeding")) == 2)
        process.kill()
    assert all(gone(one) for one in place.processes("heeding"))


def ends_with_its_runner_though_it_hangs(place: Place) -> None:
    command = [sys.executable, "-c", DEAF]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert gone(process.pid)
        assert gone(child)


def ends_at_once_on_a_second_ctrl_c(place: Place) -> None:
    words = ["--variant", "faulty_models:build_hanging", "--seed", "0"]
    with place.bench(*words) as process:
        assert until(lambda: len(place.processes("hanging")) == 1)
        process.send_signal(signal.SIGINT)
        read_until(process, "writes its checkpoint and ends")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_SECONDS)
    assert process.returncode == 130
    assert all(gone(one) for one in place.processes("hanging"))
    assert time.monotonic() - began < 10


DEAF = """
import signal, subprocess, sys, time
from harness.processes import parent_watchdog
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
parent_watchdog.exit_with_parent(grace_seconds=1.0)
print(child.pid, flush=True)
time.sleep(600)
"""

CASES: dict[str, Callable[[Place], None]] = {
    case.__name__: case
    for case in (
        raises,
        needs_too_much_memory,
        aborts,
        segfaults,
        leaves_without_a_record,
        leaves_half_a_record,
        fails_anew,
        leaves_a_child,
        floods_its_log,
        is_killed,
        is_killed_once,
        is_not_tried_again_where_that_is_said,
        is_asked_to_end_by_somebody,
        is_killed_for_its_memory,
        hangs,
        hangs_once,
        takes_too_long,
        cannot_be_started,
        leaves_its_record_nowhere,
        opens_too_many_files,
        leaks_nothing,
        is_run_by_another,
        is_left_by_another_that_dies,
        is_begun_by_another_at_the_same_moment,
        is_run_by_hand_at_the_same_time,
        has_two_runners,
        lies_where_nothing_can_be_locked,
        goes_on_where_half_a_grid_was_left,
        ends_with_its_runner,
        ends_with_its_runner_in_the_middle_of_an_update,
        ends_with_its_runner_though_it_hangs,
        ends_at_once_on_a_second_ctrl_c,
    )
} | {f"ends_on_{number.name}": lambda place, number=number: ends_on(place, number) for number in exit_status.LOST[1:]}

SAMPLE = (
    "aborts",
    "leaves_half_a_record",
    "leaves_a_child",
    "is_killed_once",
    "cannot_be_started",
    "opens_too_many_files",
    "is_run_by_another",
    "is_left_by_another_that_dies",
    "lies_where_nothing_can_be_locked",
    "ends_on_SIGTERM",
)


@pytest.mark.parametrize("case", SAMPLE)
def test_failing_run_does_not_affect_others_sample(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CASES[case](Place(tmp_path, monkeypatch))


@pytest.mark.faults
@pytest.mark.parametrize("case", CASES)
def test_failing_run_does_not_affect_others(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CASES[case](Place(tmp_path, monkeypatch))
