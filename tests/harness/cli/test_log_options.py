"""`--log` and `export --to mlflow`: the commands; the logs are tested in tests/harness/reporting/test_trackers.py."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from command_line import Refused, Trained
from log_readers import ListTracker, epoch_and_test_points, expected_points, mlflow_runs, tensorboard_points
from small_runs import OPTIONS

from harness.cli import log_options
from harness.cli.main import main
from harness.reporting import trackers
from harness.storage import run_store
from harness.storage.records import RunRecord

pytestmark = pytest.mark.usefixtures("offline", "empty_folder", "undrawn")

SMALL = " ".join(["--epochs 2", *OPTIONS])
MODEL = "counting_model:build_observable"
COMMANDS = (f"run {MODEL}", f"bench --variant {MODEL} --seed 0", "ablate --field norm --seed 0")


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> ListTracker:
    """Let `--log tensorboard` write to memory."""
    kept = ListTracker()
    monkeypatch.setitem(log_options.LIBRARIES, "tensorboard", "json")
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", lambda folder: kept)
    return kept


def records(results: str = "results/local") -> list[RunRecord]:
    return run_store.records(Path(results))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("tool", "library"), [("tensorboard", "tensorboardX"), ("mlflow", "mlflow")])
def test_missing_library_is_one_line_before_anything_is_trained(
    command: str, tool: str, library: str, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    message = f"--log {tool}: {library} is not installed: python -m pip install '.[{tool}]'\n"
    refused([*command.split(), *SMALL.split(), "--log", tool], message)
    assert not list(Path().iterdir())


def test_log_that_cannot_be_opened_is_refused_before_training(
    tracker: ListTracker, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", Mock(side_effect=RuntimeError("no space")))
    words = ["run", MODEL, *SMALL.split(), "--log", "tensorboard"]
    refused([*words, "--log-folder", "mine"], "--log tensorboard: mine/tensorboard: RuntimeError: no space\n")
    refused([*words, "--experiment", "e"], "--log tensorboard: logs/local/e/tensorboard: RuntimeError: no space\n")
    refused([*words, "--log-folder", "mine", "--experiment", "e"], "--log-folder with --experiment e: give one or ")
    assert not Path("results").exists()


@pytest.mark.usefixtures("tracker")
@pytest.mark.parametrize("launcher", ["ray", "slurm"])
def test_log_of_runs_on_a_cluster_is_refused(launcher: str, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr("harness.execution.launcher.library", lambda launcher: None)
    refused(
        ["bench", *SMALL.split(), "--launcher", launcher, "--log", "tensorboard"],
        f"--log tensorboard with --launcher {launcher}: runs on a cluster send no values",
    )


@pytest.mark.parametrize("command", COMMANDS[:2])
def test_runs_are_logged_while_they_train_and_their_records_stay_the_same(
    command: str, tracker: ListTracker, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*command.split(), *SMALL.split()]
    assert main([*line, "--log", "tensorboard", "--log=tensorboard", "--log-folder", "mine"]) == 0
    output = capsys.readouterr().out
    assert output.count("Log: mine/tensorboard; open it with: tensorboard --logdir mine/tensorboard\n") == 1
    (record,) = records()
    points = tracker.points[record.id]
    assert epoch_and_test_points(points) == expected_points(record)
    assert points["update/training_loss"][0][0] == 1
    assert points["update/learning_rate"][0] == (1, record.curve[0].learning_rate)
    stored = Path("results/local", record.id, "record.json").read_bytes()
    assert tracker.ended == [(record, stored)]
    assert main([*line, "--results", "other"]) == 0
    (plain,) = records("other")
    same = ("id", "spec", "command", "note", "fingerprints", "sizes", "scores", "decode", "chosen_epochs")
    assert [getattr(record, name) for name in same] == [getattr(plain, name) for name in same]
    assert record.command == shlex.join(["python", "-m", "harness", *line])
    losses = [[epoch.training_loss for epoch in one.curve] for one in (record, plain)]
    assert losses[0] == losses[1]
    assert main([*line, "--log", "tensorboard"]) == 0
    assert "Log: " not in capsys.readouterr().out, "nothing is trained"


@pytest.mark.parametrize("command", COMMANDS[:2])
@pytest.mark.parametrize("fault", ["update/learning_rate", "begin"])
def test_failing_log_stops_no_run(
    command: str, fault: str, tracker: ListTracker, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker.failing = (fault,)
    assert main([*command.split(), *SMALL.split(), "--log", "tensorboard"]) == 0
    assert [record.status for record in records()] == ["completed"]
    assert capsys.readouterr().err.count("bakeoff: --log tensorboard: RuntimeError: the planted fault; the runs") == 1


def test_failed_run_ends_in_the_log(tracker: ListTracker) -> None:
    for command in ("run", "bench --seed 0 --variant"):
        words = f"{command} counting_model:build_breaking_later {SMALL} --log tensorboard"
        assert main(words.split()) == 1
        assert [record.status for record, _ in tracker.ended] == ["failed"]
        assert tracker.ended[0][0].reason.startswith("RuntimeError: the planted fault")
        tracker.ended.clear()


def test_real_logs_are_those_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    for library in log_options.LIBRARIES.values():
        pytest.importorskip(library, reason="needs the extras tensorboard and mlflow")
    assert main([*COMMANDS[1].split(), *SMALL.split(), "--log", "tensorboard", "--log", "mlflow"]) == 0
    printed = capsys.readouterr()
    assert "--log" not in printed.err
    assert "mlflow ui --backend-store-uri sqlite:///logs/local/mlflow/mlflow.db\n" in printed.out
    (record,) = records()
    ((_, points),) = mlflow_runs(Path("logs/local/mlflow"))
    assert epoch_and_test_points(points) == expected_points(record)
    assert tensorboard_points(Path("logs/local/tensorboard", record.id)).keys() == points.keys()


def test_export_to_mlflow_needs_mlflow_and_says_how_to_open_it(
    trained: Trained,
    of_run: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: Refused,
) -> None:
    record, line = trained[1], ["export", *of_run, "--to", "mlflow", "--output", "my store"]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mlflow", None)
        refused(line, "--to mlflow: mlflow is not installed: python -m pip")
    assert not Path("my store").exists()
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    assert main(line) == 0
    shown = "open it with: mlflow ui --backend-store-uri 'sqlite:///my store/mlflow.db'\n"
    assert capsys.readouterr().out == f"{record.id}: exported; {shown}"
    ((_, points),) = mlflow_runs(Path("my store"))
    assert points == expected_points(record)
    refused(line, f"my store: its mlflow.db has the run {record.id} already")
