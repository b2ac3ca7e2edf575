"""`ablate`: the planned runs, and a grid that is run and reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import TINY_OPTIONS

from harness.cli import ablate, bench, sweep
from harness.cli.main import main, parser
from harness.experiments.specs import RunSpec
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import train

pytestmark = pytest.mark.usefixtures("offline", "empty_folder", "undrawn")
TINY = [*TINY_OPTIONS, "--updates", "2"]


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
    setting = f"--set=recipe.positions={cell.recipe.positions}"
    assert cell.recipe.positions != "learned"
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
    assert [spec.recipe.norm for spec in specs] == ["rms", "layernorm", "handmade", "none"]
    assert {spec.recipe.dropout for spec in specs} == {0.0}


def test_seed_of_the_pilots_is_refused_for_the_compared_runs() -> None:
    line = ["ablate", *TINY, "--field", "norm", "--seed", "999-1000"]
    assert len(planned(line)) == 4 * 2
    with pytest.raises(ValueError, match="--seed 1000 with --tune-rate: the pilots have this seed"):
        planned([*line, "--tune-rate", "1e-3,2e-3"])


def test_base_can_be_an_external_recipe() -> None:
    Path("mine_to_ablate.py").write_text(
        "from dataclasses import replace\nfrom impls.recipes import PAPER\nMINE = replace(PAPER, positions='rotary')\n"
    )
    specs = planned(["ablate", *TINY, "--field", "positions", "--base", "mine_to_ablate:MINE", "--seed=0"])
    assert specs[0].recipe.positions == "rotary"
    assert {spec.recipe.tying for spec in specs} == {"output"}


def test_device_is_needed_for_unfinished_runs_only() -> None:
    line = ["ablate", *TINY, "--field", "norm", "--seed=0", "--device", "cudda"]
    specs, arguments = planned(line), parser().parse_args(line)
    arguments.typed = ""
    finished = [RunRecord(id=spec.id, spec=spec, status="completed") for spec in specs[1:]]
    for start in (sweep.execute, sweep.dry_run):
        with pytest.raises(ValueError, match="device 'cudda' is not available"):
            start(specs, finished, arguments)
    assert sweep.execute(specs[1:], finished, arguments).records == finished
    with pytest.raises(ValueError, match="device 'cudda' with --launcher ray: use cpu or cuda; the cluster assigns"):
        sweep.check_devices(specs, "ray")


def test_grid_is_reported_and_only_missing_runs_are_run_again(
    executed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["ablate", *TINY, "--field", "norm_order", "--seed", "0"]
    assert main(line) == 0
    output = capsys.readouterr().out
    assert "2 recipes, 1 seed: 2 runs on captions de-en" in output
    assert "2 to run" in output
    assert "finished earlier" not in output
    page, results = Path("reports/local/ablation/index.md"), Path("results/local")
    assert str(page) in output
    assert "seed noise is unknown" in page.read_text()
    records = {record.spec.recipe.norm_order: record for record in run_store.records(results)}
    assert [record.status for record in records.values()] == ["completed"] * 2
    run_store.remove_record(results, records["pre"].id)
    executed.clear()
    assert main(line) == 0
    assert "1 of them finished earlier and are not run again." in capsys.readouterr().out
    assert executed == [records["pre"].id]
    page.unlink()
    assert main(line) == 0
    assert executed == [records["pre"].id]
    assert page.is_file()


def test_run_with_a_damaged_file_is_named_and_left_out_of_the_report(
    executed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["ablate", *TINY, "--field", "norm=rms,none", "--seed", "0"]
    assert main(line) == 0
    records = {record.spec.recipe.norm: record.id for record in run_store.records(Path("results/local"))}
    assert executed == [records[norm] for norm in ("layernorm", "rms", "none")]
    with (Path("results/local") / records["rms"] / "hypotheses.jsonl").open("a") as file:
        file.write("damage")
    Path("reports/local/ablation/index.md").unlink()
    capsys.readouterr()
    assert main(line) == 0
    (warning,) = (text for text in capsys.readouterr().err.splitlines() if "left out of the report" in text)
    assert f"{records['rms']}/hypotheses.jsonl: damaged" in warning
    effects = Path("reports/local/ablation/effects.csv").read_text()
    assert "norm=none" in effects
    assert "norm=rms" not in effects
    assert f"C23 translations: {records['rms']}" in Path("reports/local/ablation/index.md").read_text()


def test_missing_runs_are_shown_with_what_differs_from_the_finished_ones(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["ablate", *TINY, "--field", "norm=rms", "--seed", "0-1", "--jobs", "1"]
    for spec in planned(line):
        if spec.recipe.norm == "layernorm":
            train.run(spec, Path("results/local"))
    assert main(line) == 0
    shown = [text.partition(":")[0] for text in capsys.readouterr().err.splitlines() if ": completed in" in text]
    assert shown == ["norm=rms s0", "norm=rms s1"]
