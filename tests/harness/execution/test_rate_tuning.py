"""`ablate --tune-rate`: pilots, the rate they choose, and effects with and without it side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from record_factory import record as made_up

from harness.analysis.ablation import Analysis, StudyEffects, analyse
from harness.analysis.fairness import unfair
from harness.analysis.grouping import groups
from harness.audit import plausibility_rules, row_difference_rules
from harness.audit.rules import check
from harness.audit.run_folder import Skipped
from harness.audit.table_rules import ComparedRuns
from harness.cli import ablate
from harness.cli.main import main, parser
from harness.execution import rate_tuning
from harness.execution.launcher import Outcome
from harness.execution.rate_tuning import PILOT_SEED, Choice, choose, pilots, tuned
from harness.experiments import ablation_grids
from harness.experiments.ablation_grids import Grid
from harness.experiments.specs import RunSpec
from harness.reporting import ablation_findings, ablation_report, ablation_tables, bench_report, render_text
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import train
from impls.contract import Training, TransformerRecipe
from impls.recipes import LEARNED_POSITIONS

LOSS = "validation_loss"
RATES = (5e-4, 1e-3, 2e-3)
TINY = ["--corpus", "captions", "--tokenizer", "whitespace", "--threads", "1", "--epochs", "1"]
TINY += [f"--set={one}" for one in ("data.training_pairs=100", "decoding.max_tokens=5", "training.batch_size=32")]
TINY += [f"--set=recipe.{one}" for one in ("width=16", "ffn_width=16", "layers=1", "heads=2")]
LINE = ["ablate", *TINY, "--field", "norm_order", "--seed", "0", "--tune-rate", "2e-2,5e-4,1e-2"]
COUNTS = {"pilot": 2 * 3, "controlled": 2, "tuned": 2}
"""The runs of this line: two recipes, three rates, one seed."""


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr("harness.processes.machine.gpus", list)
        yield


# Pilots and choices ---------------------------------------------------------------------------------------------------


def run_spec(**changes: Any) -> RunSpec:
    return RunSpec(variant="learned_positions", recipe=LEARNED_POSITIONS, **changes)


def findings(analysis: Analysis) -> str:
    return "\n".join([*ablation_findings.findings(analysis), *ablation_findings.warnings(analysis)])


def page_of(analysis: Analysis, folder: Path) -> str:
    """Write a report and return its Markdown page."""
    report = ablation_report.document(analysis)
    return ablation_report.write(report, analysis, folder).with_suffix(".md").read_text()


def test_pilots_are_the_beginning_of_the_run_at_other_rates_and_another_seed() -> None:
    spec = run_spec(seed=2, updates=100, training=Training(epochs=10, averaged_epochs=3))
    found = pilots(spec, RATES)
    assert [one.training.peak_rate for one in found] == list(RATES)
    for one in found:
        assert (one.budget, one.seed, one.updates) == ("pilot", PILOT_SEED, 40)
        assert one.training == replace(spec.training, epochs=4, averaged_epochs=0, peak_rate=one.training.peak_rate)
        assert (one.recipe, one.data, one.decoding) == (spec.recipe, spec.data, spec.decoding)
        assert (
            rate_tuning.cell_key(one)
            == rate_tuning.cell_key(spec)
            == rate_tuning.cell_key(replace(spec, seed=0, updates=None))
        )
    assert {one.training.epochs for one in pilots(spec, RATES, 2)} == {2}
    with pytest.raises(ValueError, match="--pilot-epochs 11: give at most 10"):
        pilots(spec, RATES, 11)


def test_no_two_cells_share_their_pilots() -> None:
    everything = [cell for grid in ablation_grids.ONE_AT_A_TIME for cell in ablation_grids.cells(grid, run_spec())]
    assert len({rate_tuning.cell_key(one) for one in everything}) == len({one.id for one in everything})


def pilot(rate: float, losses: Sequence[float], status: Any = "completed", **changes: Any) -> RunRecord:
    """Return a made-up pilot with these validation losses, one per epoch."""
    settings = Training(peak_rate=rate, epochs=len(losses))
    one = made_up("learned_positions", PILOT_SEED, training=settings, budget="pilot", **changes)
    curve = tuple(replace(line, validation_loss=loss) for line, loss in zip(one.curve, losses, strict=True))
    return replace(one, curve=curve, status=status)


def test_the_rate_with_the_lowest_validation_loss_of_any_epoch_is_chosen() -> None:
    found = choose([pilot(1e-3, [4.0, 2.9]), pilot(5e-4, [3.0, 3.5]), pilot(2e-3, [3.1, 3.0])])
    assert found.losses == {5e-4: 3.0, 1e-3: 2.9, 2e-3: 3.0}
    assert list(found.losses) == sorted(RATES)
    assert (found.rate, found.edge, found.epochs) == (1e-3, "", 2)


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
def test_edges_ties_and_diverged_pilots(losses: Mapping[float, float | None], rate: float | None, edge: str) -> None:
    given = [
        pilot(one, [9.0 if loss is None else loss], "completed" if loss else "diverged") for one, loss in losses.items()
    ]
    found = choose(given)
    assert (found.rate, found.edge) == (rate, edge)
    assert found.losses == losses


def test_longer_pilots_of_a_cell_replace_shorter_ones() -> None:
    found = choose([pilot(5e-4, [1.0]), pilot(5e-4, [3.0, 3.0]), pilot(1e-3, [2.5, 2.5])])
    assert (found.losses, found.rate) == ({5e-4: 3.0, 1e-3: 2.5}, 1e-3)


def test_a_choice_waits_for_all_pilots() -> None:
    planned = pilots(run_spec(), RATES)
    records = [pilot(rate, [3.0] * 4) for rate in RATES]
    assert [one.id for one in records] == [one.id for one in planned]
    assert rate_tuning.complete(planned, records)
    assert not rate_tuning.complete(planned, records[:2])
    failed = [*records[:2], replace(records[2], status="failed")]
    assert not rate_tuning.complete(planned, failed)
    assert not ablate.AblationPlan(None, [run_spec()], {rate_tuning.cell_key(run_spec()): planned}).tuned(failed)  # type: ignore[arg-type]


def test_the_tuned_run_differs_in_the_rate_alone_and_is_the_run_itself_at_its_own_rate() -> None:
    spec = run_spec(seed=1)
    choice = Choice(1e-3, {5e-4: 3.0, 1e-3: 2.0}, 1, 10, 0)
    found = tuned(spec, choice)
    assert found == replace(spec, budget="tuned", training=replace(spec.training, peak_rate=1e-3))
    assert tuned(spec, replace(choice, rate=spec.training.peak_rate)) is spec
    assert tuned(spec, replace(choice, rate=None)) is tuned(spec, None) is spec


# Effects side by side -------------------------------------------------------------------------------------------------

BEST = {"learned": 1e-3, "sinusoidal": 2e-3, "none": 5e-4}
UNTUNED = {"learned": 2.0, "sinusoidal": 2.5, "none": 2.2}
TUNED = {"learned": 1.8, "sinusoidal": 1.6, "none": 2.2}


def positions(one: RunRecord) -> str:
    assert isinstance(one.spec.recipe, TransformerRecipe)
    return one.spec.recipe.positions


def levels(chosen: Iterable[str] = BEST, **changes: Any) -> list[RunRecord]:
    """Return untuned runs, pilots, and tuned runs of three seeds, with planted losses."""
    found = []
    for level in chosen:
        recipe = replace(LEARNED_POSITIONS, positions=level)  # type: ignore[arg-type]
        for rate in RATES:
            distance = abs(RATES.index(rate) - RATES.index(BEST[level]))
            found.append(pilot(rate, [3.0 + distance], recipe=recipe, **changes))
        for seed in range(3):
            found.append(made_up(seed=seed, recipe=recipe, final=UNTUNED[level], **changes))
            rate = Training(peak_rate=BEST[level])
            if rate != Training():
                found.append(
                    made_up(seed=seed, recipe=recipe, final=TUNED[level], training=rate, budget="tuned", **changes)
                )
    return found


def study(records: list[RunRecord]) -> StudyEffects:
    (found,) = analyse(records, lambda one: None).studies
    return found


def loss_effects(found: StudyEffects | None) -> dict[str, float]:
    assert found is not None
    return {
        one.contrast.changed[0][1]: round(one.mean, 1)
        for field in found.fields
        for one in field.effects[LOSS]
        if one.mean is not None
    }


def test_tuned_and_untuned_effects_stand_side_by_side_with_their_rates(tmp_path: Path) -> None:
    records = levels()
    found = study(records)
    assert found.tuned is not None
    assert {dict(cell).get("positions", "learned"): one.rate for cell, one in found.tuned.choices.items()} == BEST
    assert loss_effects(found) == {"sinusoidal": 0.5, "none": 0.2}
    assert loss_effects(found.tuned.effects) == {"sinusoidal": -0.2, "none": 0.4}
    assert found.tuned.missing == ()
    assert found.tuned.effects is not None
    assert found.tuned.effects.study.differences == ()
    analysis = analyse(records, lambda one: None)
    said = findings(analysis)
    assert "With the learning rate chosen for each recipe (0.0005, 0.001, 0.002; pilots of 1 epoch, seed 1000" in said
    assert "The estimate changes its sign for positions=sinusoidal." in said
    assert "The best learning rate is the lowest of the grid for positions=none (0.0005)." in said
    assert "The best learning rate is the highest of the grid for positions=sinusoidal (0.002)." in said
    assert "none was tuned" not in "\n".join(ablation_findings.limits(analysis))
    page = page_of(analysis, tmp_path)
    for shown in (page.replace("&#126;", "~"), render_text.document(ablation_report.document(analysis))):
        assert re.search(r"sinusoidal\W+0\.002\W+\+0\.5.*−0\.2", shown)
        assert re.search(r"positions=none\W+3\.000\W+4\.000\W+5\.000\W+0\.0005\W+lowest", shown)
    lines = pd.read_csv(tmp_path / ablation_report.EFFECTS)
    chosen = lines[(lines.figure == LOSS) & (lines.changed == "positions=sinusoidal") & (lines.kind == "word")]
    assert dict(zip(chosen.learning_rates, chosen.effect.round(1), strict=True)) == {"untuned": 0.5, "tuned": -0.2}
    html = (tmp_path / "index.html").read_text()
    assert sum(record.id in html for record in records) == len(records)


def test_only_the_rate_may_differ_between_tuned_runs(tmp_path: Path) -> None:
    records = levels()
    wanted = ("tuned", 1, "sinusoidal")
    (bad,) = [one for one in records if (one.spec.budget, one.spec.seed, positions(one)) == wanted]
    assert unfair(records, "tuned") == []
    for change, expected in (
        ({"stream": "1" * 64}, "stream of batches, seed 1"),
        ({"tokenised": "1" * 64}, "tokenised"),
        ({"weights": {}}, "initial weights, seed 1"),
    ):
        changed = replace(bad, fingerprints={**bad.fingerprints, **change})
        damaged = [changed if one is bad else one for one in records]
        found = study(damaged)
        assert found.study.differences == ()
        assert found.tuned is not None
        assert found.tuned.effects is not None
        assert any(expected in line for line in found.tuned.effects.study.differences)
        assert not found.tuned.effects.fields
        assert any(expected in str(line) for line in unfair(damaged, "tuned"))
        page = page_of(analyse(damaged, lambda one: None), tmp_path)
        assert "No tuned table: these runs are not comparable." in page
    # Another setting makes another spec, which is not the tuned run of this cell.
    told = replace(bad.spec, training=replace(bad.spec.training, beta2=0.98))
    assert study([replace(bad, spec=told, id=told.id) if one is bad else one for one in records]).tuned is not None
    assert any(
        "training.beta2" in str(line) for line in unfair([*records, replace(bad, spec=told, id=told.id)], "tuned")
    )


def test_a_level_without_its_tuned_run_is_named_and_without_the_base_there_are_no_effects() -> None:
    records = levels()
    without = [one for one in records if (one.spec.budget, positions(one)) != ("tuned", "sinusoidal")]
    found = study(without).tuned
    assert found is not None
    assert found.missing == ("positions=sinusoidal",)
    assert loss_effects(found.effects) == {"none": 0.4}
    found = study([one for one in records if one.spec.budget != "tuned"]).tuned
    assert found is not None
    assert found.missing == ("base", "positions=sinusoidal")
    assert found.effects is None
    said = findings(analyse(without, lambda one: None))
    assert "Not tuned, because pilots or runs at the chosen rate are missing: positions=sinusoidal." in said


def test_pilots_that_never_reach_their_rate_or_all_diverge_are_warned_of() -> None:
    records = levels(("learned", "none"))
    slow = [
        replace(one, spec=replace(one.spec, training=replace(one.spec.training, warmup_updates=4_000)))
        for one in records
    ]
    said = findings(analyse([replace(one, id=one.spec.id) for one in slow], lambda one: None))
    assert "The pilots end after 227 updates, within the warm-up of 4,000" in said
    gone = [
        replace(one, status="diverged") if (one.spec.budget, positions(one)) == ("pilot", "none") else one
        for one in records
    ]
    said = findings(analyse(gone, lambda one: None))
    assert "Every pilot diverged for positions=none" in said


def test_reports_show_tuned_runs_in_a_table_of_their_own_and_no_pilots(tmp_path: Path) -> None:
    records = levels()
    assert [group.budget for group in groups(records)] == ["controlled", "tuned"]
    assert [group.budget for group in groups(records, pilots=True)] == ["controlled", "tuned", "pilot"]
    assert [unfair(group.records, group.budget) for group in groups(records, pilots=True)] == [[], [], []]
    report = bench_report.document(records)
    shown = bench_report.write(report, records, tmp_path).read_text()
    for text in (render_text.document(report), shown):
        assert "Tuned learning rate:" in text
        assert "-pilot-s1000-" not in text
    assert "learning rate tuned for each recipe" in shown
    assert "by learning rate (0.0005, 0.001, 0.002; pilots of 1 epoch" in shown
    untuned = [one for one in records if one.spec.budget == "controlled"]
    assert "Tuned learning rate" not in render_text.document(bench_report.document(untuned))


def test_check_knows_that_pilots_have_a_seed_of_their_own_and_that_a_base_may_keep_its_rate() -> None:
    tables = {group.budget: ComparedRuns(group, (), ()) for group in groups(levels(), pilots=True)}
    assert tables.keys() == {"controlled", "tuned", "pilot"}
    with pytest.raises(Skipped, match="stands in the controlled table"):
        list(row_difference_rules.differences(tables["tuned"]))
    with pytest.raises(Skipped, match="a seed of their own"):
        list(plausibility_rules.seeds(tables["pilot"]))
    assert [list(row_difference_rules.differences(tables[budget])) for budget in ("controlled", "pilot")] == [[], []]
    assert [list(plausibility_rules.seeds(tables[budget])) for budget in ("controlled", "tuned")] == [[], []]


def test_tuning_crosses_with_a_factorial() -> None:
    norms = [
        replace(one, spec=replace(one.spec, recipe=replace(one.spec.recipe, norm="rms")))  # type: ignore[type-var, arg-type]
        for one in levels(("learned", "none"))
    ]
    records = [*levels(("learned", "none")), *(replace(one, id=one.spec.id) for one in norms)]
    found = study(records)
    headings = [table.title for table in ablation_tables.tuning_tables(found)]
    assert [one.partition(" in ")[0] for one in headings[2:]] == ["Main effects", "Interactions"]
    main = ablation_tables.tuning_tables(found)[2].rows
    assert [row[:2] for row in main] == [("positions (learned)", "none"), ("norm (layernorm)", "rms")]
    assert str(main[0][3]).startswith("+0.2")
    assert str(main[0][4]).startswith("+0.4")


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Run what the command plans in this process; return the ids of what it ran, a list that grows."""
    found: list[str] = []

    def execute(specs: Sequence[RunSpec], results: Path, **_: Any) -> Outcome:
        found.extend(spec.id for spec in specs)
        return Outcome([train.run(spec, results) for spec in specs])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.execution.local.execute", execute)
    return found


def stored() -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for one in run_store.records(Path("results/local")):
        found.setdefault(one.spec.budget, []).append(one)
    return found


def test_every_recipe_gets_its_rate_and_what_is_there_is_not_run_again(ran: list[str], capsys: Any) -> None:
    assert main(LINE) == 0
    shown = capsys.readouterr().out
    assert "Learning rates 0.0005, 0.01, 0.02: 6 pilots of 1 epoch with seed 1000" in shown
    assert "2 runs at a chosen learning rate other than 0.0005." in shown
    assert "Validation loss of the pilots by learning rate" in shown
    assert "validation loss, tuned" in shown
    found = stored()
    assert {budget: len(same) for budget, same in found.items()} == COUNTS
    assert {one.spec.seed for one in found["pilot"]} == {PILOT_SEED}
    for one in found["tuned"]:
        same = [other for other in found["pilot"] if rate_tuning.cell_key(other.spec) == rate_tuning.cell_key(one.spec)]
        assert one.spec.training.peak_rate == choose(same).rate != Training().peak_rate
    page = Path("reports/local/ablation/index.md")
    before, everything = page.read_bytes(), list(ran)
    candidates = ablate._plan(parse(LINE)).candidates()
    assert set(everything) <= {spec.id for spec in candidates}
    assert len(candidates) == 6 + 2 + 2 * 2
    gone = [found["pilot"][0].id, found["tuned"][-1].id, found["controlled"][1].id]
    for run in gone:
        run_store.remove_record(Path("results/local"), run)
    ran.clear()
    assert main(LINE) == 0
    assert sorted(ran) == sorted(gone)
    assert strip(page.read_bytes()) == strip(before)
    checked = check(Path("results/local"))
    assert {one.rule.code for one in checked.failed} <= {"C53"}  # models this small can translate alike
    assert "W03" not in {one.rule.code for one in checked.warnings if one.end not in ("ok", "n/a")}


def strip(page: bytes) -> bytes:
    """Return a page without when its runs started and what made them."""
    return re.sub(rb"\d{4}-\d\d-\d\dT\S+", b"", page)


def test_an_interrupted_tuning_goes_on_where_it_ended(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ablate.sweep.execute

    def broken(specs: list[RunSpec], there: list[RunRecord], arguments: Any) -> Any:
        done = whole(specs[:3], there, arguments)
        done.outcome.signal = 15
        return done

    monkeypatch.setattr(ablate.sweep, "execute", broken)
    assert main(LINE) == 128 + 15
    assert "3 of 8 runs are done" in capsys.readouterr().out
    assert stored().keys() == {"pilot"}
    monkeypatch.setattr(ablate.sweep, "execute", whole)
    first = list(ran)
    ran.clear()
    assert main(LINE) == 0
    assert len(first) == 3
    assert not set(first) & set(ran)
    assert {budget: len(same) for budget, same in stored().items()} == COUNTS


def parse(line: Sequence[str]) -> Any:
    given = parser().parse_args(list(line))
    given.typed = ""
    return given


def test_a_base_at_its_best_rate_already_is_not_run_twice() -> None:
    plan = ablate._plan(parse(LINE))
    recipe: Any = plan.specs[0].recipe
    assert isinstance(recipe, TransformerRecipe)
    records = []
    for planned in (one for same in plan.pilots.values() for one in same):
        one = made_up(seed=PILOT_SEED, recipe=planned.recipe, final=planned.training.peak_rate)
        records.append(replace(one, spec=planned, id=planned.id))
    assert plan.tuned(records) == []


def test_a_pilot_that_diverges_is_no_failure_and_a_run_that_does_is() -> None:
    def code(budget: Any, status: Any) -> int:
        one = replace(made_up(budget=budget), status=status)
        return ablate.sweep.Done([one], Outcome([one])).code

    assert [code("pilot", end) for end in ("completed", "diverged", "failed")] == [0, 0, 1]
    assert [code(budget, "diverged") for budget in ("controlled", "tuned", "source")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--tune-rate 1e-3", "'1e-3': give two or more different learning rates above 0"),
        ("--tune-rate 1e-3,0.001", "give two or more different learning rates"),
        ("--tune-rate 1e-3,fast", "'1e-3,fast': give two or more"),
        ("--tune-rate 1e-3,-1", "learning rates above 0"),
        ("--tune-rate 1e-3,nan", "learning rates above 0"),
        ("--tune-rate 1e-3,inf", "learning rates above 0"),
        ("--pilot-epochs 2", "--pilot-epochs without --tune-rate: give the learning rates to try"),
        ("--tune-rate 1e-3,2e-3 --pilot-epochs 4 --corpus captions", "--pilot-epochs 4: give at most 3"),
        ("--tune-rate 1e-3,2e-3 --pilot-epochs 0", "'0' is not a whole number of at least 1"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    line: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ablate", *line.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bakeoff: ")
    assert error.count("\n") == 1
    assert expected in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["run", "bench"])
@pytest.mark.parametrize("budget", ["tuned", "pilot"])
def test_the_budgets_of_tuning_are_made_by_ablate_alone(command: str, budget: str, capsys: Any) -> None:
    assert main([command, *(["paper"] if command == "run" else []), "--budget", budget]) == 2
    assert "--budget" in capsys.readouterr().err


def test_tying_is_tuned_with_its_joint_vocabulary() -> None:
    cells = ablation_grids.cells(Grid(("tying",)), run_spec())
    assert {one.data.vocabulary for cell in cells for one in pilots(cell, RATES)} == {"joint"}
