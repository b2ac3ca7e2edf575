"""`ablate`: the planned runs, bad input, and a grid that is run and reported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ablation_factory import tiny_options
from places import FIXTURES

from harness.cli import ablate, bench
from harness.cli.main import main, parser
from harness.execution import local
from harness.experiments.specs import RunSpec
from harness.storage import run_store

TINY = tiny_options("--updates", "2", pairs=200)


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("MULTI30K_DIR", str(tmp_path_factory.mktemp("empty") / "missing"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(FIXTURES))
        patch.setattr("harness.processes.machine.gpus", list)
        yield


def planned(line: list[str]) -> list[RunSpec]:
    arguments = parser().parse_args(line)
    arguments.typed = ""
    return ablate._plan(arguments).specs if line[0] == "ablate" else bench._plan(arguments)[1]


def test_default_is_all_fields_of_learned_positions_with_three_seeds() -> None:
    specs = planned(["ablate", *TINY])
    assert len(specs) == (1 + 4 + 3 + 1 + 3 + 2 + 1 + 1 + 2 + 2 + 2) * 3
    assert {spec.seed for spec in specs} == {0, 1, 2}
    assert {spec.budget for spec in specs} == {"controlled"}
    assert len({spec.seed for spec in planned(["ablate", *TINY, "--suite", "full"])}) == 8


def test_cell_is_the_run_of_bench_with_the_same_settings() -> None:
    cell = planned(["ablate", *TINY, "--field", "positions", "--seed", "3"])[2]
    setting = f"--set=recipe.positions={cell.recipe.positions}"  # type: ignore[union-attr]
    assert cell.recipe.positions != "learned"  # type: ignore[union-attr]
    line = ["bench", *TINY, "--variant", "learned_positions", "--budget", "controlled", "--seed", "3", setting]
    assert [spec.id for spec in planned(line)] == [cell.id]


def test_levels_of_a_field_are_chosen() -> None:
    line = ["ablate", *TINY, "--field", "positions=rotary", "--field", "embedding_init=width", "--seed", "0"]
    assert len(planned(line)) == 1 + 1 + 1
    assert len(planned([*line, "--factorial"])) == 2 * 2
    assert len(planned([*line, "--field", "positions=none"])) == 1 + 2 + 1


def test_set_changes_the_base_and_every_cell() -> None:
    line = ["ablate", *TINY, "--field", "norm", "--set=recipe.norm=rms", "--set=recipe.dropout=0", "--seed=0"]
    specs = planned(line)
    assert [spec.recipe.norm for spec in specs] == ["rms", "layernorm", "handmade", "none"]  # type: ignore[union-attr]
    assert {spec.recipe.dropout for spec in specs} == {0.0}  # type: ignore[union-attr]


def test_base_can_be_an_external_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine_to_ablate.py").write_text(
        "from dataclasses import replace\nfrom impls.recipes import PAPER\nMINE = replace(PAPER, positions='rotary')\n"
    )
    specs = planned(["ablate", *TINY, "--field", "positions", "--base", "mine_to_ablate:MINE", "--seed=0"])
    assert specs[0].recipe.positions == "rotary"  # type: ignore[union-attr]
    assert {spec.recipe.tying for spec in specs} == {"output"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--base bahdanau_gru", "base 'bahdanau_gru' is of the family 'gru', which has no field 'positions'"),
        ("--base torch_reference", "is of the family 'torch_reference'"),
        ("--base counting_model:build", "is a builder, which has no field"),
        ("--base papre", "did you mean 'paper'?"),
        ("--field norms", "did you mean 'norm'?"),
        ("--field norm=rmz", "did you mean 'rms'?"),
        ("--field norm --factorial", "--factorial with --field norm alone: give --field twice or more"),
        ("--corpus multi30k", "MULTI30K_DIR"),
        ("--set recipe.width=129", "heads=8: expected a divisor of width=129"),
        ("--budget source", "there is no argument '--budget'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ablate", *line.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bakeoff: ")
    assert error.count("\n") == 1
    assert message in error
    assert os.listdir(tmp_path) == []


def test_grid_is_reported_and_only_missing_runs_are_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["ablate", *TINY, "--field", "norm_order", "--seed", "0"]
    assert main(line) == 0
    output = capsys.readouterr().out
    assert "2 recipes, 1 seed: 2 runs on captions de-en" in output
    assert "2 to run" in output
    assert "finished earlier" not in output
    page, results = Path("reports/local/ablation/index.md"), Path("results/local")
    assert str(page) in output
    assert "seed noise is unknown" in page.read_text()
    records = {record.spec.recipe.norm_order: record for record in run_store.records(results)}  # type: ignore[union-attr]
    assert [record.status for record in records.values()] == ["completed"] * 2
    run_store.remove_record(results, records["pre"].id)
    executed: list[str] = []
    execute = local.execute

    def note_and_execute(specs: list[RunSpec], *arguments: Any, **options: Any) -> Any:
        executed.extend(spec.id for spec in specs)
        return execute(specs, *arguments, **options)

    monkeypatch.setattr("harness.execution.local.execute", note_and_execute)
    assert main(line) == 0
    assert "1 of them finished earlier and are not run again." in capsys.readouterr().out
    assert executed == [records["pre"].id]
    page.unlink()
    assert main(line) == 0
    assert executed == [records["pre"].id]
    assert page.is_file()
