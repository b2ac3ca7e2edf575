"""Pilots, the learning rates that they choose, and `ablate --tune-rate`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ablation_factory import base_spec, pilot
from record_factory import record as synthetic_record
from small_runs import TINY_OPTIONS

from harness.audit.rules import check
from harness.cli import ablate, sweep
from harness.cli.main import main
from harness.execution import rate_tuning
from harness.execution.launcher import Outcome
from harness.execution.rate_tuning import PILOT_SEED, Choice, choose, pilots, tuned
from harness.experiments import ablation_grids
from harness.experiments.specs import RunSpec
from harness.experiments.suites import SUITES
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls.contract import Training

pytestmark = pytest.mark.usefixtures("offline", "empty_folder", "undrawn")
RATES = (5e-4, 1e-3, 2e-3)
LINE = ["ablate", *TINY_OPTIONS, "--set=data.training_pairs=100", "--epochs", "1", "--seed", "0"]
LINE += ["--field", "norm_order", "--tune-rate", "2e-2,1e-3,1e-2"]
COUNTS = {"pilot": 2 * 3, "controlled": 2, "tuned": 2}
"""The runs of this line: two recipes, three rates, one seed."""


def test_pilots_are_the_beginning_of_the_run_at_other_rates_and_another_seed() -> None:
    spec = base_spec(seed=2, updates=100, training=Training(epochs=10, averaged_epochs=3))
    specs = pilots(spec, RATES, 4)
    assert [run.training.peak_rate for run in specs] == list(RATES)
    key = rate_tuning.cell_key(spec)
    for run in specs:
        assert (run.budget, run.seed, run.updates) == ("pilot", PILOT_SEED, 40)
        assert run.training == replace(spec.training, epochs=4, averaged_epochs=0, peak_rate=run.training.peak_rate)
        assert (run.recipe, run.data, run.decoding) == (spec.recipe, spec.data, spec.decoding)
        assert rate_tuning.cell_key(run) == key == rate_tuning.cell_key(replace(spec, seed=0, updates=None))
    assert {(run.training.epochs, run.updates) for run in pilots(spec, RATES)} == {(10, 100)}


def test_no_two_cells_share_pilots() -> None:
    cells = [cell for grid in ablation_grids.grids() for cell in ablation_grids.cells(grid, base_spec())]
    assert len({rate_tuning.cell_key(cell) for cell in cells}) == len({cell.id for cell in cells})


def test_choose_takes_the_lowest_validation_loss_of_any_epoch() -> None:
    choice = choose([pilot(1e-3, [4.0, 2.9]), pilot(5e-4, [3.0, 3.5]), pilot(2e-3, [3.1, 3.0])])
    assert choice.losses == {5e-4: 3.0, 1e-3: 2.9, 2e-3: 3.0}
    assert list(choice.losses) == sorted(RATES)
    assert (choice.rate, choice.edge, choice.epochs) == (1e-3, "", 2)


@pytest.mark.parametrize(
    ("losses", "rate", "edge"),
    [
        ({5e-4: 2.0, 1e-3: 3.0, 2e-3: 4.0}, 5e-4, "lowest"),
        ({5e-4: 4.0, 1e-3: 3.0, 2e-3: 2.0}, 2e-3, "highest"),
        ({5e-4: 3.0, 1e-3: 3.0, 2e-3: 4.0}, 5e-4, "lowest"),
        ({5e-4: 3.0, 1e-3: 2.0, 2e-3: None}, 1e-3, ""),
        ({5e-4: None, 1e-3: None}, None, ""),
    ],
)
def test_choose_with_edges_ties_and_diverged_pilots(
    losses: Mapping[float, float | None], rate: float | None, edge: str
) -> None:
    choice = choose([pilot(rate, [loss or 9.0], "completed" if loss else "diverged") for rate, loss in losses.items()])
    assert (choice.rate, choice.edge) == (rate, edge)
    assert choice.losses == losses


def test_choose_ignores_shorter_pilots() -> None:
    whole = [pilot(5e-4, [3.0, 3.0]), pilot(1e-3, [2.5, 2.5])]
    for shorter in (pilot(5e-4, [1.0]), pilot(5e-4, [1.0, 1.0, 1.0], updates=3)):  # the last has 3 updates
        choice = choose([shorter, *whole])
        assert (choice.losses, choice.rate) == ({5e-4: 3.0, 1e-3: 2.5}, 1e-3)


def test_choice_waits_for_all_pilots() -> None:
    planned = pilots(base_spec(), RATES, 4)
    records = [pilot(rate, [3.0 - rate] * 4) for rate in RATES]
    assert [record.id for record in records] == [run.id for run in planned]
    plan = ablate.AblationPlan(SUITES["quick"], [base_spec()], {rate_tuning.cell_key(base_spec()): planned})
    assert [run.training.peak_rate for run in plan.tuned(records)] == [2e-3]
    assert not plan.tuned(records[:2])
    assert not plan.tuned([*records[:2], replace(records[2], status="failed")])


def test_tuned_run_differs_in_the_rate_only() -> None:
    spec = base_spec(seed=1)
    choice = Choice(1e-3, {5e-4: 3.0, 1e-3: 2.0}, 1, 10, 0)
    assert tuned(spec, choice) == replace(spec, budget="tuned", training=replace(spec.training, peak_rate=1e-3))
    assert tuned(spec, replace(choice, rate=spec.training.peak_rate)) is spec
    assert tuned(spec, replace(choice, rate=None)) is spec


def stored() -> dict[str, list[RunRecord]]:
    """Return the stored records by budget."""
    records: dict[str, list[RunRecord]] = {}
    for record in run_store.records(Path("results/local")):
        records.setdefault(record.spec.budget, []).append(record)
    return records


def without_times(page: bytes) -> bytes:
    return re.sub(rb"\d{4}-\d\d-\d\dT\S+", b"", page)


def test_announced_pilots_with_a_limit_of_updates_have_no_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--updates", "1", "--dry-run"]) == 0
    assert "6 pilots of at most 1 update with seed 1000" in capsys.readouterr().out


def test_every_recipe_is_tuned_and_finished_runs_are_not_repeated(
    executed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(LINE) == 0
    output = capsys.readouterr().out
    assert "Learning rates 0.001, 0.01, 0.02: 6 pilots of 1 epoch with seed 1000" in output
    assert "2 runs at a chosen learning rate other than 0.001." in output
    assert "Validation loss of the pilots by learning rate" in output
    assert "validation loss, tuned" in output
    records = stored()
    assert {budget: len(runs) for budget, runs in records.items()} == COUNTS
    assert {record.spec.seed for record in records["pilot"]} == {PILOT_SEED}
    for record in records["tuned"]:
        key = rate_tuning.cell_key(record.spec)
        own_pilots = [run for run in records["pilot"] if rate_tuning.cell_key(run.spec) == key]
        assert record.spec.training.peak_rate == choose(own_pilots).rate != Training().peak_rate
    page = Path("reports/local/ablation/index.md")
    before = page.read_bytes()
    removed = [records["pilot"][0].id, records["tuned"][-1].id, records["controlled"][1].id]
    for run in removed:
        run_store.remove_record(Path("results/local"), run)
    executed.clear()
    assert main(LINE) == 0
    assert sorted(executed) == sorted(removed)
    assert without_times(page.read_bytes()) == without_times(before)
    audit = check(Path("results/local"))
    assert {outcome.rule.code for outcome in audit.failed} <= {"C53"}  # models this small can translate alike
    assert "W03" not in {outcome.rule.code for outcome in audit.warnings if outcome.end not in ("ok", "n/a")}


def test_interrupted_tuning_resumes(
    executed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    execute = sweep.execute

    def execute_three(specs: list[RunSpec], finished: list[RunRecord], arguments: Any) -> sweep.SweepResult:
        result = execute(specs[:3], finished, arguments)
        result.outcome.signal = 15
        return result

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "execute", execute_three)
        assert main(LINE) == 128 + 15
    assert "3 of 8 runs are done" in capsys.readouterr().out
    assert stored().keys() == {"pilot"}
    first = list(executed)
    executed.clear()
    assert main(LINE) == 0
    assert len(first) == 3
    assert not set(first) & set(executed)
    assert {budget: len(runs) for budget, runs in stored().items()} == COUNTS


@pytest.mark.parametrize(
    ("budget", "status", "code"),
    [
        ("pilot", "completed", 0),
        ("pilot", "diverged", 0),
        ("pilot", "failed", 1),
        ("controlled", "diverged", 1),
        ("tuned", "diverged", 1),
        ("source", "diverged", 1),
    ],
)
def test_only_diverged_pilots_are_no_failure(budget: Any, status: Any, code: int) -> None:
    record = replace(synthetic_record(budget=budget), status=status)
    for new in ([record], []):  # the same when the command is repeated
        assert sweep.SweepResult([record], Outcome(new)).exit_code == code
