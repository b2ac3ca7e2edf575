"""One process per run: what fails stays where it is, what is there stays, Ctrl-C ends all, forecasts add up."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from interrupted_bench import interrupted
from small_runs import TINY, spec

from harness.cli import sweep
from harness.data.dataset import prepare
from harness.execution import eta, local
from harness.execution.eta import Estimate, Forecast
from harness.execution.retry_policy import LOST_PROCESSES, Records, Running, Task
from harness.experiments import suites
from harness.experiments.specs import DataSpec, RunSpec
from harness.processes import environment_variables
from harness.processes.progress import Event, describe, duration, from_line, to_line
from harness.storage import checkpoint_files, run_store
from harness.storage.records import RunRecord
from impls import registry
from impls.recipes import TUTORIAL

pytestmark = pytest.mark.usefixtures("processes")


def test_a_run_that_fails_stays_where_it_is(tmp_path: Path) -> None:
    variants = ("build", "build_breaking", "build_dying", "build_nothing")
    specs = [spec(f"counting_model:{name}") for name in variants]
    stream = io.StringIO()
    outcome = local.execute(specs, tmp_path, jobs=2, stream=stream, command="the command", note="a note")
    found = {record.spec.variant.partition(":")[2]: record for record in outcome.records}
    assert {name: record.status for name, record in found.items()} == {
        "build": "completed",
        "build_breaking": "failed",
        "build_dying": "failed",
        "build_nothing": "failed",
    }
    assert found["build_breaking"].reason.startswith("RuntimeError: the planted fault; its log ends: File ")
    assert "in train_step / raise RuntimeError" in found["build_breaking"].reason
    assert "code 9" in found["build_dying"].reason
    assert "the last words" in found["build_dying"].reason
    assert "returned an object of type str" in found["build_nothing"].reason
    for record in outcome.records:
        assert run_store.load_record(tmp_path, record.id) == record
        assert (record.command, record.note) == ("the command", "a note")
    log = run_store.log_path(tmp_path, found["build_breaking"].id).read_text()
    assert "Traceback" in log
    shown = stream.getvalue()
    assert "failed: RuntimeError: the planted fault" in shown
    assert "epoch 3/3: training loss" in shown
    assert "\x1b" not in shown
    assert not outcome.interrupted


def test_a_run_has_its_environment(tmp_path: Path) -> None:
    one = spec(threads=3)
    record = local.execute([one], tmp_path, jobs=1, stream=io.StringIO()).records[0]
    variables = record.environment["variables"]
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "3"
    assert variables["MALLOC_MMAP_MAX_"] == environment_variables.worker_environment(one)["MALLOC_MMAP_MAX_"]


class Judged:
    """A run whose process has ended, and the records that judge it."""

    def __init__(self, results: Path, *, lost: int = 0) -> None:
        self.results, self.spec, self.said = results, spec(), list[str]()
        task = Task(self.spec, ["killed by SIGKILL"] * lost)
        worker: Any = None
        self.running = Running(task, worker, 0.0, 0.0, 0, 0)

    def judge(self, code: int, printed: str = "", **left: Any) -> RunRecord | None:
        if left:
            run_store.save_record(self.results, RunRecord(id=self.spec.id, spec=self.spec, **left))
        with run_store.open_log(self.results, self.spec.id) as log:
            log.write(printed.encode())
        return Records(self.results, {}, 1, self.said.append).judge(self.running, code, last=False)


def test_a_log_that_says_no_more_than_the_reason_is_not_called_empty(tmp_path: Path) -> None:
    reason, printed = "RuntimeError: one\ntwo\nthree", "RuntimeError: one\ntwo\nthree\n"
    record = Judged(tmp_path / "the same").judge(1, printed, status="failed", reason=reason)
    assert record is not None
    assert record.reason == reason
    record = Judged(tmp_path / "nothing").judge(1, status="failed", reason=reason)
    assert record is not None
    assert record.reason == f"{reason}; it printed nothing"


def test_a_run_that_is_interrupted_to_the_last_says_how_often_it_was_lost(tmp_path: Path) -> None:
    record = Judged(tmp_path, lost=1).judge(143, status="interrupted", reason="interrupted by SIGTERM")
    assert record is not None
    assert (record.status, record.environment[LOST_PROCESSES]) == ("interrupted", ["killed by SIGKILL"])
    assert run_store.load_record(tmp_path, record.id) == record


def test_a_process_that_is_killed_once_its_record_is_there_leaves_no_checkpoint(tmp_path: Path) -> None:
    judged = Judged(tmp_path)
    checkpoint_files.save(tmp_path, judged.spec.id, {}, {})
    record = judged.judge(-9, status="diverged", reason="epoch 1")
    assert record is not None
    assert record.status == "diverged"
    assert not checkpoint_files.exists(tmp_path, record.id)
    assert judged.said[0].endswith("after its record was written")


DEAF = """
import signal, sys
from pathlib import Path
from small_runs import spec
from harness.execution import local
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
(record,) = local.execute([spec()], Path(sys.argv[1]), jobs=1, stream=sys.stdout).records
sys.exit(record.status != "completed")
"""


@pytest.mark.skipif(os.name != "posix", reason="ignores SIGCHLD")
def test_a_runner_that_was_started_deaf_to_its_children_notices_their_end(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DEAF, str(tmp_path)], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_the_runs_in_order_with_a_checkpoint_of_each(tmp_path: Path) -> None:
    records = interrupted(tmp_path / "results", "--jobs", "2")
    assert [len(record.curve) for record in records] == [1, 1]


def test_events_survive_a_pipe() -> None:
    event = Event(run="x", stage="training", epoch=1, tokens_per_second=5.5, remark="ä\u2028")
    assert to_line(event).count("\n") == 1
    assert from_line(to_line(event)) == event
    for line in ("", "a warning of a library", "{}", '{"run": "x", "stage": "resting"}', "[1]"):
        assert from_line(line) is None
    assert describe(event).startswith("epoch 1/0")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "unknown"),
        (float("inf"), "unknown"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (60, "1 min 00 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_durations_are_said_as_a_person_does(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


def test_a_forecast_is_corrected_by_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    whole = {"a": Estimate(10.0), "b": Estimate(10.0), "c": Estimate(20.0)}
    found = Forecast(whole, jobs=1)
    assert found.seconds() == 40
    found.start("a")
    moment = 20.0
    found.end("a")
    assert found.seconds() == 60  # b and c take twice as long as thought, as a did
    found.start("b")
    moment = 22.0
    found.note(Event(run="b", stage="training", remaining_seconds=8.0))
    assert found.seconds() == pytest.approx(8 + 20 * 30 / 20)
    unknown = Forecast({}, jobs=1)
    unknown.start("a")
    unknown.note(Event(run="a", stage="training", remaining_seconds=8.0))
    assert unknown.seconds() is None
    assert Forecast(whole, jobs=2).seconds() == 20


def test_a_forecast_counts_only_what_is_left_of_a_resumed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    found = Forecast({"a": Estimate(40.0, 10.0), "b": Estimate(40.0, 10.0)}, jobs=1, done={"a": 0.75})
    assert found.seconds() == 20 + 50
    found.start("a")
    moment = 40.0
    found.end("a")
    assert found.seconds() == 100, "a took twice as long as thought, so b will"
    found.start("b")
    found.note(Event(run="b", stage="preparing", updates=0, all_updates=8, remark="a checkpoint cannot be used"))
    found.note(Event(run="b", stage="preparing", updates=4, all_updates=8, remark="goes on"))
    assert found.seconds() == 60


def test_what_is_left_of_a_run_is_what_its_checkpoint_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eta, "machine_rate", lambda: 1e9)
    run = spec()
    assert sweep.forecast_runs([run], tmp_path, 1).done == {run.id: 0.0}
    checkpoint_files.save(tmp_path, run.id, {}, {"updates": 3})
    checkpoint_files.save(tmp_path, run.id, {}, {"updates": 7})
    assert sweep.forecast_runs([run], tmp_path, 1).done == {run.id: 7 / 21}
    (tmp_path / run.id / "checkpoint-2.json").write_bytes(b"half")
    assert sweep.forecast_runs([run], tmp_path, 1).done == {run.id: 3 / 21}


def test_a_forecast_grows_with_the_work() -> None:
    prepared = prepare(spec().data)

    def seconds(one: RunSpec) -> float:
        return eta.estimate(one, prepared, 1e9).seconds()

    base = spec("learned_positions", TINY)
    assert seconds(spec("learned_positions", registry.recipe("learned_positions"))) > seconds(base)
    assert seconds(spec("paper", registry.recipe("paper"), training=TUTORIAL)) > seconds(spec("paper", TINY))
    assert seconds(spec("learned_positions", TINY, updates=2)) < seconds(base)
    assert seconds(spec()) > 0
    assert eta.estimate(base, prepared, 1e9).seconds(0.5) < seconds(base)
    assert eta.estimate(base, prepared, 1e9).seconds(1.0) > eta.START_SECONDS
    assert eta.machine_rate(0.05) > 1e6


@pytest.mark.parametrize("suite", suites.SUITES.values(), ids=lambda suite: suite.name)
@pytest.mark.parametrize("corpus", ["multi30k", "captions"])
def test_every_run_of_every_suite_can_be_said(suite: suites.Suite, corpus: str) -> None:
    data = DataSpec(corpus=corpus)  # type: ignore[arg-type]
    specs = [
        suites.spec(suite, variant, budget=budget, seed=seed, data=data)
        for budget in ("controlled", "source")
        for seed in suite.seeds
        for variant in suite.variants
    ]
    assert len({one.id for one in specs}) == len(specs)
    controlled = [one for one in specs if one.budget == "controlled"]
    assert len({(one.training, one.data, one.decoding) for one in controlled}) == 1
    for one in specs:
        # No warm-up longer than the whole training.
        assert one.training.warmup_updates < one.training.epochs * 29_000 / one.training.batch_size


def test_the_settings_of_a_source_stand_for_the_budget_source_alone() -> None:
    standard, data = suites.SUITES["standard"], DataSpec()
    found = {
        (variant, budget): suites.spec(standard, variant, budget=budget, seed=0, data=data)
        for variant in suites.VARIANTS
        for budget in ("controlled", "source")
    }
    for variant in suites.VARIANTS:
        source = found[variant, "source"]
        assert source.training == registry.training(variant)
        assert found[variant, "controlled"].recipe == registry.recipe(variant)
        assert found[variant, "controlled"].training == TUTORIAL
        assert (source.recipe == registry.recipe(variant)) == (variant != "sinusoidal_handmade")
        assert (source.data == data) == (variant != "conv_ffn")
        assert source.decoding.beam == (5 if variant == "paper" else 1)
        assert found[variant, "controlled"].decoding.unknown == "never"
        assert source.decoding.unknown == ("never" if variant in ("paper", "conv_ffn") else "allowed")


def test_the_captions_have_words_enough_for_every_source() -> None:
    quick = suites.SUITES["quick"]
    for variant in suites.VARIANTS:
        one = suites.spec(quick, variant, budget="source", seed=0, data=DataSpec(corpus="captions", training_pairs=500))
        if one.data.tokenizer != "spacy":
            assert len(prepare(one.data).source_words) == one.data.vocabulary_size


def test_quick_suite_is_small_and_short_in_both_budgets() -> None:
    quick = suites.SUITES["quick"]
    for variant in quick.variants:
        source, controlled = (
            suites.spec(quick, variant, budget=budget, seed=0, data=DataSpec()) for budget in ("source", "controlled")
        )
        assert controlled.recipe is not None
        assert (controlled.recipe.width, getattr(controlled.recipe, "layers", 2)) == (128, 2)
        assert (controlled.training.batch_size, controlled.training.peak_rate) == (64, 1e-3)
        assert source.training.epochs == controlled.training.epochs == 3
        assert source.training.warmup_updates < 3 * 29_000 / source.training.batch_size
