"""The commands that train, score, list and describe."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import record_folders
from cluster_doubles import install_submitit
from command_line import Trained
from places import ROOT
from record_factory import record as made_up
from small_runs import OPTIONS

from harness.cli import score, sweep
from harness.cli.main import main
from harness.execution import launcher, local
from harness.processes import machine
from harness.storage import files, locks, run_store

pytestmark = pytest.mark.usefixtures("offline", "empty_folder")

SMALL = [*OPTIONS, "--epochs", "1"]


def test_run_without_multi30k_uses_the_captions_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "counting_model:build", *SMALL[2:]]
    folder = ["--results", "my results"]
    assert main([*line, *folder]) == 0
    output = capsys.readouterr().out
    assert "Multi30k is not available: MULTI30K_DIR" in output
    assert "results are for captions" in output
    (record,) = run_store.records(Path("my results"))
    for command in ("list", "check", "compare A B", f"translate --run {record.id}"):
        assert f"  python -m harness {command} --results 'my results' " in output
    assert "--import-builder 'Ein Hund springt über einen Zaun.'\n" in output
    assert record.spec.data.corpus == "captions"
    assert record.note.startswith("Multi30k was not available: MULTI30K_DIR")
    assert record.command == shlex.join(["python", "-m", "harness", *line])
    assert main([*line, *folder]) == 0
    assert "already completed" in capsys.readouterr().out


def test_run_restarts_its_process_before_it_looks_for_the_corpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def restart(spec: Any, is_program: bool) -> None:
        raise SystemExit(spec.variant)

    monkeypatch.setattr("harness.cli.run._set_environment", restart)
    with pytest.raises(SystemExit, match="counting_model:build"):
        main(["run", "counting_model:build", *SMALL[2:]])
    assert capsys.readouterr().out == "", "what is printed before a restart is printed twice"


@pytest.mark.parametrize("option", ["--direction=en-fr", "--set=data.test_split=test_2017_flickr"])
def test_captions_do_not_replace_what_only_multi30k_has(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--variant", "counting_model:build", option, "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("bakeoff: MULTI30K_DIR=")
    assert printed.out == ""


@pytest.mark.usefixtures("undrawn")
def test_bench_trains_reports_and_repeats_only_failed_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["bench", *SMALL, "--variant", "counting_model:build", "--seed", "0", "--seed", "1", "--score-every", "1"]
    assert main([*line, "--results", "results/local", "--reports=reports/local"]) == 0
    records = run_store.records(Path("results/local"))
    recorded = shlex.join(["python", "-m", "harness", *line])
    assert {record.command for record in records} == {recorded}, "without the folders of this machine"
    assert all(epoch.validation_bleu is not None for record in records for epoch in record.curve)
    output = capsys.readouterr().out
    for text in ("2 runs on captions de-en", "not with published ones", "2 to run", "about"):
        assert text in output
    page = Path("reports/local/quick/index.md")
    assert page.is_file()
    assert str(page) in output
    reports: list[tuple[int, Path]] = []
    monkeypatch.setattr(
        "harness.reporting.bench_report.write",
        lambda report, records, folder: reports.append((len(list(records)), folder)) or folder / "index.html",
    )
    assert main([*line, "--variant", "counting_model:build_breaking", "--seed", "0"]) == 1
    printed = capsys.readouterr()
    assert printed.out.count("already completed, not run again") == 2
    assert "failed: RuntimeError: the planted fault" in printed.err
    assert main(["list"]) == 0
    assert "failed: RuntimeError: the planted fault; its log ends: " in capsys.readouterr().out
    assert main(["score"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("  every score agrees") == 2
    assert lines[0].startswith("counting_model_build-"), "the id comes before the lines about it"
    assert lines[0].endswith(":")
    assert main(["report"]) == 1
    assert "check: C06 status: " in capsys.readouterr().err
    assert reports == [(4, Path("reports/local/quick")), (4, Path("reports/local"))]


@pytest.mark.parametrize(("load", "warnings"), [(9.5, 1), (2.0, 0)])
@pytest.mark.parametrize("command", ["bench --seed 0,1 --jobs 1 --variant", "ablate --field norm --base"])
def test_busy_machine_gives_one_warning(
    command: str, load: float, warnings: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "load_average", lambda: load)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(local, "execute", lambda *_, **settings: launcher.Outcome())
    sweep.warn_of_load.cache_clear()
    for epochs in ("1", "2"):  # as after the pilots of `ablate --tune-rate`
        main([*command.split(), "learned_positions", *SMALL, "--epochs", epochs])
    sweep.warn_of_load.cache_clear()
    assert capsys.readouterr().err.count(f"the load average is {load} on 2 cores: ") == warnings


def test_bench_whose_runs_all_fail_prints_each_reason_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *SMALL, "--variant", "counting_model:build_breaking", "--seed", "0"]) == 1
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("the planted fault") == 1
    assert printed.out.endswith("No run completed; see the runs with: python -m harness list\n")


@pytest.mark.parametrize(
    ("launcher", "at_once"),
    [
        (["--jobs", "2"], "2 at once: "),
        (["--launcher", "slurm", "--slurm", "cluster=local"], "as many at once as slurm allows"),
    ],
)
def test_dry_run_lists_runs_in_columns_and_how_many_the_launcher_executes_at_once(
    launcher: list[str], at_once: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_submitit(monkeypatch)
    frameworks = ["--framework", "torch", "--framework", "keras"]
    assert main(["bench", *SMALL, "--variant", "paper", *frameworks, "--seed", "0", *launcher, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert f"still to run, {at_once}" in printed
    lines = [line for line in printed.split("\n") if "MiB  paper-" in line]
    assert len(lines) == 2
    assert len({line.index("paper-") for line in lines}) == 1


def test_score_reports_a_changed_score(trained: Trained, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, record = trained
    assert main(["score", "--results", str(results)]) == 0
    capsys.readouterr()
    assert main(["score", "--results", str(results), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["run"], run["agrees"], run["sentences"], run["wrong_counts"]) == (record.id, True, 500, [])
    assert {name: score["signature"] for name, score in run["scores"].items()} == record.signatures
    run_store.save_record(copied, replace(record, scores={**record.scores, "chrf": 99.0}))
    assert main(["score", "--results", str(copied)]) == 1
    assert "the record says 99.0" in capsys.readouterr().out
    assert main(["score", "--results", str(copied), "--json"]) == 1
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["run"], run["agrees"], run["sentences"]) == (record.id, False, None)
    assert [name for name, score in run["scores"].items() if not score["agrees"]] == ["chrf"]
    assert run["scores"]["chrf"]["recorded"] == 99.0
    assert run["scores"]["chrf"]["recomputed"] == pytest.approx(record.scores["chrf"])
    (copied / record.id / "hypotheses.jsonl").write_bytes(b'{"sentence":0,"text":"","tokens":[]}\n')
    assert main(["score", "--results", str(copied)]) == 2


def test_score_of_an_infinite_perplexity_agrees_with_null_in_its_record() -> None:
    run = replace(made_up(), scores={"test_perplexity": None})
    assert score._wrong_counts(run, {"nats": np.array([1e6]), "tokens": np.array([1])}, {}) == []


def test_score_beside_an_unreadable_record_scores_the_others_and_ends_with_1(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    shutil.copytree(trained[0], results)
    (results / "damaged").mkdir()
    (results / "damaged" / run_store.RECORD).write_text('{"id": ')
    assert main(["score", "--results", str(results)]) == 1
    out, err = capsys.readouterr()
    assert f"{trained[1].id}:" in out
    assert "not JSON" in err


def test_score_of_a_variant_scores_all_its_completed_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = record_folders.write_set(tmp_path)
    papers = [run.id for run in runs if run.spec.variant == "paper"]
    assert main(["score", "--results", str(tmp_path), "--run", "paper", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert sorted(run["run"] for run in scored) == sorted(papers)
    assert len(papers) == 2
    assert main(["score", "--results", str(tmp_path), "--run", "paper-"]) == 2
    assert "2 ids begin with it" in capsys.readouterr().err


def test_list_skips_records_of_another_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_sealed(tmp_path / "results/local/foreign/record.json", {"schema": 99})
    assert main(["list"]) == 0
    printed = capsys.readouterr()
    assert "foreign" in printed.err
    assert "schema=99" in printed.err
    assert "Runs in results" in printed.out


def test_list_names_runs_that_have_begun_and_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    results = Path("results/local")
    (results / "killed").mkdir(parents=True)
    (results / "killed" / "checkpoint-1.json").write_text("{}")
    (results / "an experiment").mkdir()
    with locks.hold(results, "running"):
        assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:-1] == [
        "Runs in results/local: none has ended",
        "  killed: was killed; repeat its command to resume it",
    ]
    assert lines[-1].startswith("  running: in progress, by process ")
    main(["list"])
    assert "running" not in capsys.readouterr().out


def test_laws_prints_a_line_with_the_seconds_of_each_law(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laws", "--variant", "learned_positions", "--law", "8", "--law", "9", "--fast"]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[0] == "learned_positions:"
    assert re.fullmatch(r"  law 8 round trip, \d+\.\d\d s … ok", lines[1])
    assert re.fullmatch(r"  law 9 standstill, \d+\.\d\d s … ok", lines[2])
    assert lines[3] == "the chosen laws hold in the fast checks; run without --fast for the full ones"


@pytest.mark.parametrize(("chosen", "threads"), [(None, "1"), ("2", "2")])
def test_laws_use_one_thread_unless_chosen(chosen: str | None, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    code = (
        "from harness.cli.main import main; from harness.conformance import law_runner\n"
        "law_runner.check = lambda *_: []\n"
        "main('laws --fast --variant learned_positions'.split())\n"
        "import torch; print(torch.get_num_threads())"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.split()[-1] == threads
