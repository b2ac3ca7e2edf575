"""Reports of ablations with tuned learning rates: effects with and without tuning, warnings, and missing runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pages_factory
import pandas as pd
import pytest
from ablation_factory import LOSS, analysed, effect_of, markdown, not_completed, pilot, terminal
from record_factory import record as synthetic_record
from record_factory import with_digests

from harness.analysis.ablation import StudyEffects
from harness.analysis.fairness import find_mismatches
from harness.analysis.grouping import groups
from harness.experiments.specs import DataSpec
from harness.reporting import ablation_findings, ablation_report, ablation_tables
from harness.storage.records import RunRecord
from impls.contract import Training, TransformerRecipe
from impls.recipes import LEARNED_POSITIONS

RATES = (5e-4, 1e-3, 2e-3)
BEST = {"learned": 1e-3, "sinusoidal": 2e-3, "none": 5e-4}
UNTUNED = {"learned": 2.0, "sinusoidal": 2.5, "none": 2.2}
TUNED = {"learned": 1.8, "sinusoidal": 1.6, "none": 2.2}


def positions(record: RunRecord) -> str:
    assert isinstance(record.spec.recipe, TransformerRecipe)
    return record.spec.recipe.positions


def tuned_runs(levels: Iterable[str] = BEST, **changes: Any) -> list[RunRecord]:
    """Return untuned runs, pilots and tuned runs of three seeds for some levels of `positions`."""
    records = []
    for level in levels:
        recipe = replace(LEARNED_POSITIONS, positions=level)
        for rate in RATES:
            distance = abs(RATES.index(rate) - RATES.index(BEST[level]))
            records.append(pilot(rate, [3.0 + distance], recipe=recipe, **changes))
        training = Training(peak_rate=BEST[level])
        for seed in range(3):
            records.append(synthetic_record(seed=seed, recipe=recipe, final=UNTUNED[level], **changes))
            if training != Training():
                tuning: dict[str, Any] = {"training": training, "budget": "tuned"}
                records.append(synthetic_record(seed=seed, recipe=recipe, final=TUNED[level], **tuning, **changes))
    return records


def changed(
    change: Callable[[RunRecord], RunRecord],
    budget: str,
    level: str,
    seed: int | None = None,
    rate: float | None = None,
) -> list[RunRecord]:
    """Return `tuned_runs()` with a change of the runs of a budget and level, and of a seed or rate."""
    return [
        change(record)
        if (record.spec.budget, positions(record)) == (budget, level)
        and seed in (None, record.spec.seed)
        and rate in (None, record.spec.training.peak_rate)
        else record
        for record in tuned_runs()
    ]


def study_of(records: list[RunRecord]) -> StudyEffects:
    (study,) = analysed(records).studies
    return study


def warnings(records: list[RunRecord]) -> str:
    return "\n".join(ablation_findings.warnings(analysed(records)))


def loss_effects(study: StudyEffects) -> dict[str, float]:
    return {
        effect.contrast.changed[0][1]: round(effect.mean, 1)
        for field in study.fields
        for effect in field.effects[LOSS]
        if effect.mean is not None
    }


@pytest.mark.usefixtures("undrawn")
def test_tuned_and_untuned_effects_are_shown_with_their_rates(tmp_path: Path) -> None:
    records = tuned_runs()
    study = study_of(records)
    assert {dict(cell).get("positions", "learned"): choice.rate for cell, choice in study.tuned.choices.items()} == BEST
    assert loss_effects(study) == {"sinusoidal": 0.5, "none": 0.2}
    assert loss_effects(study.tuned.effects) == {"sinusoidal": -0.2, "none": 0.4}
    assert study.tuned.missing == ()
    text = warnings(records)
    assert "The best learning rate is the lowest of the grid for positions=none (0.0005)." in text
    assert "The best learning rate is the highest of the grid for positions=sinusoidal (0.002)." in text
    assert "did not complete" not in text
    headline = ablation_findings.headline(analysed(records))
    assert "+0.400 nats" in headline.finding, "the untuned effect is +0.5, of another level"
    assert "a learning rate tuned for each recipe" in headline.caveat
    untuned = ablation_findings.headline(analysed(record for record in records if record.spec.budget == "controlled"))
    assert "+0.500 nats" in untuned.finding
    page = markdown(analysed(records), tmp_path).replace("&#126;", "~")
    figures = re.findall(r"\((figures/ablation-\S+)\)", page)
    assert figures == ["figures/ablation-1-tuned.svg", "figures/ablation-1.svg"], "the ranking is that of tuned effects"
    assert re.search(r"sinusoidal\W+0\.002\W+\+0\.5.*−0\.2", page)
    assert re.search(r"positions=none\W+3\.000\W+4\.000\W+5\.000\W+0\.0005\W+lowest", page)
    effects = pd.read_csv(tmp_path / ablation_report.EFFECTS)
    rows = effects[(effects.figure == LOSS) & (effects.changed == "positions=sinusoidal") & (effects.kind == "level")]
    assert dict(zip(rows.learning_rates, rows.effect.round(1), strict=True)) == {"untuned": 0.5, "tuned": -0.2}
    html = (tmp_path / "index.html").read_text()
    assert all(record.id in html for record in records)


def test_limits_tell_which_of_two_studies_was_tuned() -> None:
    other = [run for run in tuned_runs(data=DataSpec(direction="en-de")) if run.spec.budget == "controlled"]
    analysis = analysed([*tuned_runs(), *other])
    of_rates = [line for line in ablation_findings.limits(analysis) if "tuned" in line]
    assert [line.partition(": ")[0] for line in of_rates] == [effects.study.title for effects in analysis.studies]
    assert of_rates[0].endswith("The headline and the ranking use the effects with tuning.")
    assert "none was tuned" in of_rates[1]
    warned = [line for line in ablation_findings.warnings(analysis) if "of the grid" in line]
    assert [line.partition(": The best")[0] for line in warned] == [analysis.studies[0].study.title] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stream": "1" * 64}, "stream of batches, seed 1"),
        ({"tokenised": "1" * 64}, "tokenised"),
        ({"weights": {}}, "initial weights, seed 1"),
    ],
)
def test_tuned_runs_may_differ_in_the_rate_only(change: dict[str, Any], message: str) -> None:
    assert find_mismatches(tuned_runs(), "tuned") == []
    records = changed(lambda run: with_digests(run, **change), "tuned", "sinusoidal", seed=1)
    study = study_of(records)
    assert study.study.differences == ()
    assert any(message in line for line in study.tuned.effects.study.differences)
    assert not study.tuned.effects.fields
    assert any(message in str(line) for line in find_mismatches(records, "tuned"))
    assert "No tuned table: these runs are not comparable." in terminal(analysed(records))


def test_run_with_another_setting_is_not_the_tuned_run_of_a_cell() -> None:
    def with_another_beta(run: RunRecord) -> RunRecord:
        spec = replace(run.spec, training=replace(run.spec.training, beta2=0.98))
        return replace(run, spec=spec, id=spec.id)

    study = study_of(changed(with_another_beta, "tuned", "sinusoidal", seed=1))
    effect = effect_of(study.tuned.effects.fields, "positions", "sinusoidal")
    assert effect.contrast.seeds == (0, 2)


def test_level_without_its_tuned_run_is_named_and_without_that_of_the_base_nothing_is_tuned() -> None:
    records = tuned_runs()
    partial = [record for record in records if (record.spec.budget, positions(record)) != ("tuned", "sinusoidal")]
    tuned = study_of(partial).tuned
    assert loss_effects(tuned.effects) == {"none": 0.4}
    message = "Not tuned, because pilots or runs at the chosen rate are missing: positions=sinusoidal."
    assert message in warnings(partial)
    tuned = study_of([record for record in records if record.spec.budget != "tuned"]).tuned
    assert (tuned.missing, tuned.effects) == (("base", "positions=sinusoidal"), None)


def test_level_with_an_unfinished_pilot_is_not_tuned_by_the_other_pilots() -> None:
    """The pilot at the best rate of the base may be the one that failed; pilots of other lengths do not matter."""
    partial = changed(lambda run: not_completed(run, "failed"), "pilot", "learned", rate=1e-3)
    assert "are missing: base." in warnings(partial)
    assert "the effects without tuning" in "\n".join(ablation_findings.limits(analysed(partial)))
    longer = not_completed(pilot(1e-3, [3.0, 2.0], recipe=LEARNED_POSITIONS), "interrupted")
    assert study_of([*tuned_runs(), longer]).tuned == study_of(tuned_runs()).tuned


def test_tuned_run_that_diverged_is_named() -> None:
    warned = warnings(changed(not_completed, "tuned", "sinusoidal", seed=1))
    assert "positions=sinusoidal at its chosen rate (1 of 3 diverged). If some seeds" in warned


@pytest.mark.parametrize(("warmup", "warned"), [("4,000", True), ("228", True), ("227", False)])
def test_pilots_within_the_warmup_are_warned_of(warmup: str, warned: bool) -> None:
    records = []
    for run in tuned_runs(("learned", "none")):
        training = replace(run.spec.training, warmup_updates=int(warmup.replace(",", "")))
        spec = replace(run.spec, training=training)
        records.append(replace(run, spec=spec, id=spec.id))
    message = f"The pilots end after 227 updates, within the warm-up of {warmup}"
    assert (message in warnings(records)) == warned


def test_pilots_with_a_limit_of_updates_are_not_said_to_have_their_epochs() -> None:
    limited = [replace(run, spec=replace(run.spec, updates=100)) for run in tuned_runs()]
    for records, length in ((tuned_runs(), "1 epoch"), (limited, "at most 100 updates")):
        tuned = analysed(records).studies[0].tuned
        assert f"; pilots of {length}, seed 1000" in ablation_tables.pilots_text(tuned)


def test_level_whose_pilots_all_diverged_is_warned_of() -> None:
    records = changed(lambda run: replace(run, status="diverged"), "pilot", "none")
    assert "Every pilot diverged for positions=none" in warnings(records)


@pytest.mark.parametrize(
    ("length", "reason"), [(1, "give more --pilot-epochs"), (10, "the one seed of a pilot can mislead")]
)
def test_rate_that_makes_full_runs_worse_is_warned_of(length: int, reason: str) -> None:
    message = "The chosen rate gives the full runs a higher validation loss than the untuned one"
    records = [run for run in tuned_runs(("learned", "none")) if run.spec.budget != "pilot"]
    for level, chosen in (("learned", 1e-3), ("none", 5e-4)):
        recipe = replace(LEARNED_POSITIONS, positions=level)
        records += [pilot(rate, [3.0 + (rate != chosen)] * length, recipe=recipe) for rate in RATES]
    assert message not in warnings(records), "lower by 0.2 nats"
    for index, run in enumerate(records):
        if (run.spec.budget, run.spec.seed) == ("tuned", 1):
            higher = [replace(line, validation_loss=(line.validation_loss or 0) + 0.9) for line in run.curve]
            records[index] = replace(run, curve=tuple(higher))
    (line,) = [line for line in ablation_findings.warnings(analysed(records)) if message in line]
    assert line.endswith(f": base (2.123 at 0.001, 2.023 at 0.0005); {reason}.")


def test_tuning_that_changes_no_rate_has_no_second_table(tmp_path: Path) -> None:
    records = [run for run in tuned_runs(("learned", "none")) if run.spec.budget == "controlled"]
    for level in ("learned", "none"):
        recipe = replace(LEARNED_POSITIONS, positions=level)
        records += [pilot(rate, [3.0 + (rate != Training().peak_rate)], recipe=recipe) for rate in RATES]
    page = markdown(analysed(records), tmp_path)
    assert "every recipe keeps the learning rate of its runs, so tuning changes no effect" in page
    assert "untuned and tuned" not in page
    assert not list(tmp_path.rglob("*-tuned.svg"))


@pytest.mark.usefixtures("undrawn")
def test_bench_report_has_a_table_of_tuned_runs_and_no_pilots(tmp_path: Path) -> None:
    records = tuned_runs()
    assert [group.budget for group in groups(records)] == ["controlled", "tuned"]
    assert [group.budget for group in groups(records, pilots=True)] == ["controlled", "tuned", "pilot"]
    assert [find_mismatches(group.records, group.budget) for group in groups(records, pilots=True)] == [[], [], []]
    page = pages_factory.write(records, tmp_path).read_text()
    assert "Tuned learning rate:" in page
    assert "-pilot-s1000-" not in page
    assert "learning rate tuned for each recipe" in page
    assert "by learning rate (0.0005, 0.001, 0.002; pilots of 1 epoch" in page
