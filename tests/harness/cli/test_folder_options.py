"""`--experiment` keeps the runs and reports of an experiment in folders of its own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import Refused
from small_runs import OPTIONS

from harness.cli.main import main
from harness.experiments.suites import SUITES
from harness.reporting import ablation_report, speed_report
from harness.storage import run_store
from harness.storage.records import RunRecord

pytestmark = pytest.mark.usefixtures("offline", "empty_folder")

SMALL = " ".join(["--epochs 1", *OPTIONS])
REPORT_FOLDERS = (*SUITES, ablation_report.FOLDER, speed_report.FOLDER)
TINY = "--set recipe.width=8 --set recipe.layers=1 --set recipe.heads=2 --set recipe.ffn_width=8 --updates 2"


def stored(experiment: str) -> list[RunRecord]:
    return run_store.records(Path("results/local", experiment))


@pytest.mark.usefixtures("executed", "one_process", "undrawn")
def test_commands_with_an_experiment_use_its_folders_alone(capsys: pytest.CaptureFixture[str]) -> None:
    builders = "--variant counting_model:build --variant counting_model:build_logging_gpus"
    assert main(f"bench {builders} --seed 0 {SMALL} --experiment first".split()) == 0
    ablation = f"ablate --field norm_order --seed 0 --suite quick {SMALL} {TINY} --experiment=second"
    assert main(ablation.split()) == 0
    (a, b), second = stored("first"), stored("second")
    assert len(second) == 2
    capsys.readouterr()
    run = f"run counting_model:build --suite quick {SMALL}"
    assert main(f"{run} --experiment first".split()) == 0
    (added,) = {record.id: record for record in stored("first") if record.id not in (a.id, b.id)}.values()
    assert added.command == f"python -m harness {run}", "without the folders of this machine"
    next_command = r"^  python -m harness (\w+ .*--experiment first(?: --import-builder '.*')?)"
    commands = re.findall(next_command, capsys.readouterr().out, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["list", "check", "compare", "translate"]
    for command in commands:
        assert main(shlex.split(command.replace("compare A B", f"compare {a.id} {b.id}"))) == 0
    printed = capsys.readouterr().out
    assert all(record.id in printed for record in (a, b, added))
    assert not any(record.id in printed for record in second)
    assert main(["report", "--experiment", "second"]) == 0
    pages = {str(page.parent) for page in Path().rglob("index.html")}
    assert pages == {f"reports/local/{folder}" for folder in ("first/quick", "second/ablation", "second")}
    capsys.readouterr()
    assert main(["list"]) == 0
    assert "Runs in results/local: none" in capsys.readouterr().out
    assert {path.name for path in Path("results/local").iterdir()} == {"first", "second"}


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "-a", "a b", "a\n", "ä", *REPORT_FOLDERS])
def test_experiment_that_is_no_simple_name_is_refused(name: str, refused: Refused) -> None:
    refused(["list", f"--experiment={name}"], f"{name!r} names no experiment: use letters, digits")


@pytest.mark.parametrize("folder", ["--results=results/local", "--reports=mine"])
@pytest.mark.parametrize("is_first", [True, False])
def test_experiment_with_a_folder_is_refused(folder: str, is_first: bool, refused: Refused) -> None:
    words = [folder, "--experiment=mine"] if is_first else ["--experiment=mine", folder]
    refused(["report", *words], f"{folder.split('=')[0]} with --experiment mine: give one or the other")


@pytest.mark.parametrize("words", [["clean", "--results", ""], ["report", "--reports="], ["list", "--results="]])
def test_folder_without_a_name_is_refused(words: list[str], refused: Refused) -> None:
    refused(words, "'' names no folder; give . for the current one")


def test_message_about_an_empty_experiment_names_it(refused: Refused) -> None:
    for command in ("check", "report"):
        refused([command, "--experiment", "v1.2_a-B"], "with: python -m harness bench --experiment v1.2_a-B\n")
