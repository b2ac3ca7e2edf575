"""Reports of ablations with tuned learning rates: effects with and without tuning, warnings, and missing runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ablation_factory import LOSS, analysed, markdown, not_completed, pilot, terminal
from record_factory import record as synthetic_record

from harness.analysis.ablation import StudyEffects
from harness.analysis.fairness import find_mismatches
from harness.analysis.grouping import groups
from harness.audit import plausibility_rules, row_difference_rules
from harness.audit.run_folder import Skipped
from harness.audit.table_rules import ComparedRuns
from harness.experiments.specs import DataSpec
from harness.reporting import ablation_findings, ablation_report, ablation_tables, bench_report, render_text
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
        recipe = replace(LEARNED_POSITIONS, positions=level)  # type: ignore[arg-type]
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


def study_of(records: list[RunRecord]) -> StudyEffects:
    (study,) = analysed(records).studies
    return study


def loss_effects(study: StudyEffects | None) -> dict[str, float]:
    assert study is not None
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
    assert study.tuned is not None
    assert {dict(cell).get("positions", "learned"): choice.rate for cell, choice in study.tuned.choices.items()} == BEST
    assert loss_effects(study) == {"sinusoidal": 0.5, "none": 0.2}
    assert loss_effects(study.tuned.effects) == {"sinusoidal": -0.2, "none": 0.4}
    assert study.tuned.missing == ()
    assert study.tuned.effects is not None
    assert study.tuned.effects.study.differences == ()
    analysis = analysed(records)
    text = "\n".join(ablation_findings.warnings(analysis))
    assert "The best learning rate is the lowest of the grid for positions=none (0.0005)." in text
    assert "The best learning rate is the highest of the grid for positions=sinusoidal (0.002)." in text
    headline = ablation_findings.headline(analysis)
    assert "+0.400 nats" in headline.finding, "the untuned effect is +0.5, of another level"
    assert "a learning rate tuned for each recipe" in str(headline.caveat)
    untuned = ablation_findings.headline(analysed(record for record in records if record.spec.budget == "controlled"))
    assert "+0.500 nats" in untuned.finding
    assert "none was tuned" not in "\n".join(ablation_findings.limits(analysis))
    page = markdown(analysis, tmp_path).replace("&#126;", "~")
    figures = re.findall(r"\((figures/ablation-\S+)\)", page)
    assert figures == ["figures/ablation-1-tuned.svg", "figures/ablation-1.svg"], "the ranking is that of tuned effects"
    for report in (page, terminal(analysis)):
        assert re.search(r"sinusoidal\W+0\.002\W+\+0\.5.*−0\.2", report)
        assert re.search(r"positions=none\W+3\.000\W+4\.000\W+5\.000\W+0\.0005\W+lowest", report)
    effects = pd.read_csv(tmp_path / ablation_report.EFFECTS)
    rows = effects[(effects.figure == LOSS) & (effects.changed == "positions=sinusoidal") & (effects.kind == "level")]
    assert dict(zip(rows.learning_rates, rows.effect.round(1), strict=True)) == {"untuned": 0.5, "tuned": -0.2}
    html = (tmp_path / "index.html").read_text()
    assert sum(record.id in html for record in records) == len(records)


def test_limits_tell_which_of_two_studies_was_tuned() -> None:
    other = [run for run in tuned_runs(data=DataSpec(direction="en-de")) if run.spec.budget == "controlled"]
    analysis = analysed([*tuned_runs(), *other])
    of_rates = [line for line in ablation_findings.limits(analysis) if "tuned" in line]
    assert [line.partition(": ")[0] for line in of_rates] == [effects.study.title for effects in analysis.studies]
    assert "multi30k de-en" in of_rates[0]
    assert of_rates[0].endswith("The headline and the ranking use the effects with tuning.")
    assert "none was tuned" in of_rates[1]
    warned = [line for line in ablation_findings.warnings(analysis) if "of the grid" in line]
    assert all(line.startswith(f"{analysis.studies[0].study.title}: The best") for line in warned)
    assert len(warned) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stream": "1" * 64}, "stream of batches, seed 1"),
        ({"tokenised": "1" * 64}, "tokenised"),
        ({"weights": {}}, "initial weights, seed 1"),
    ],
)
def test_tuned_runs_may_differ_in_the_rate_only(change: dict[str, Any], message: str) -> None:
    records = tuned_runs()
    assert find_mismatches(records, "tuned") == []
    changed = [
        replace(record, fingerprints={**record.fingerprints, **change})
        if (record.spec.budget, record.spec.seed, positions(record)) == ("tuned", 1, "sinusoidal")
        else record
        for record in records
    ]
    study = study_of(changed)
    assert study.study.differences == ()
    assert study.tuned is not None
    assert study.tuned.effects is not None
    assert any(message in line for line in study.tuned.effects.study.differences)
    assert not study.tuned.effects.fields
    assert any(message in str(line) for line in find_mismatches(changed, "tuned"))
    assert "No tuned table: these runs are not comparable." in terminal(analysed(changed))


def test_run_with_another_setting_is_not_the_tuned_run_of_a_cell() -> None:
    records = tuned_runs()
    (record,) = [
        record
        for record in records
        if (record.spec.budget, record.spec.seed, positions(record)) == ("tuned", 1, "sinusoidal")
    ]
    spec = replace(record.spec, training=replace(record.spec.training, beta2=0.98))
    changed = replace(record, spec=spec, id=spec.id)
    assert study_of([changed if run is record else run for run in records]).tuned is not None
    assert any("training.beta2" in str(line) for line in find_mismatches([*records, changed], "tuned"))


def test_level_without_its_tuned_run_is_named() -> None:
    records = tuned_runs()
    partial = [record for record in records if (record.spec.budget, positions(record)) != ("tuned", "sinusoidal")]
    tuned = study_of(partial).tuned
    assert tuned is not None
    assert tuned.missing == ("positions=sinusoidal",)
    assert loss_effects(tuned.effects) == {"none": 0.4}
    message = "Not tuned, because pilots or runs at the chosen rate are missing: positions=sinusoidal."
    assert message in "\n".join(ablation_findings.warnings(analysed(partial)))


def test_level_with_an_unfinished_pilot_is_not_tuned_by_the_other_pilots() -> None:
    """The pilot at the best rate of the base may be the one that failed; pilots of other lengths do not matter."""
    records = tuned_runs()
    failed = [
        (record.spec.budget, positions(record), record.spec.training.peak_rate) == ("pilot", "learned", 1e-3)
        for record in records
    ]
    partial = [not_completed(run, "failed") if is_one else run for run, is_one in zip(records, failed, strict=True)]
    analysis = analysed(partial)
    assert "are missing: base." in "\n".join(ablation_findings.warnings(analysis))
    assert "the effects without tuning" in "\n".join(ablation_findings.limits(analysis))
    longer = not_completed(pilot(1e-3, [3.0, 2.0], recipe=LEARNED_POSITIONS), "interrupted")
    assert study_of([*records, longer]).tuned == study_of(records).tuned


def test_report_of_pilots_alone_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="there are only pilots of a learning rate, which no table has; train"):
        bench_report.document([pilot(1e-3, [3.0])])


def test_tuned_run_that_diverged_is_named() -> None:
    records = [
        not_completed(record)
        if (record.spec.budget, positions(record), record.spec.seed) == ("tuned", "sinusoidal", 1)
        else record
        for record in tuned_runs()
    ]
    warned = "\n".join(ablation_findings.warnings(analysed(records)))
    assert "positions=sinusoidal at its chosen rate (1 of 3 diverged). If some seeds" in warned
    assert "did not complete" not in "\n".join(ablation_findings.warnings(analysed(tuned_runs())))


def test_untuned_base_leaves_no_tuned_effects() -> None:
    tuned = study_of([record for record in tuned_runs() if record.spec.budget != "tuned"]).tuned
    assert tuned is not None
    assert tuned.missing == ("base", "positions=sinusoidal")
    assert tuned.effects is None


@pytest.mark.parametrize(("warmup", "warned"), [("4,000", True), ("228", True), ("227", False)])
def test_pilots_within_the_warmup_are_warned_of(warmup: str, warned: bool) -> None:
    slow = [
        replace(record.spec, training=replace(record.spec.training, warmup_updates=int(warmup.replace(",", ""))))
        for record in tuned_runs(("learned", "none"))
    ]
    records = [
        replace(run, spec=spec, id=spec.id) for run, spec in zip(tuned_runs(("learned", "none")), slow, strict=True)
    ]
    text = "\n".join(ablation_findings.warnings(analysed(records)))
    assert (f"The pilots end after 227 updates, within the warm-up of {warmup}" in text) == warned


def test_level_whose_pilots_all_diverged_is_warned_of() -> None:
    records = [
        replace(record, status="diverged") if (record.spec.budget, positions(record)) == ("pilot", "none") else record
        for record in tuned_runs(("learned", "none"))
    ]
    assert "Every pilot diverged for positions=none" in "\n".join(ablation_findings.warnings(analysed(records)))


@pytest.mark.parametrize(
    ("length", "reason"), [(1, "give more --pilot-epochs"), (10, "the one seed of a pilot can mislead")]
)
def test_rate_that_makes_full_runs_worse_is_warned_of(length: int, reason: str) -> None:
    message = "The chosen rate gives the full runs a higher validation loss than the untuned one"
    records = [run for run in tuned_runs(("learned", "none")) if run.spec.budget != "pilot"]
    for level, chosen in (("learned", 1e-3), ("none", 5e-4)):
        recipe = replace(LEARNED_POSITIONS, positions=level)  # type: ignore[arg-type]
        records += [pilot(rate, [3.0 + (rate != chosen)] * length, recipe=recipe) for rate in RATES]
    assert message not in "\n".join(ablation_findings.warnings(analysed(records))), "lower by 0.2 nats"
    tuned = [(run.spec.budget, run.spec.seed) == ("tuned", 1) for run in records]
    worse = [worsened(run) if changed else run for run, changed in zip(records, tuned, strict=True)]
    (line,) = [line for line in ablation_findings.warnings(analysed(worse)) if message in line]
    assert line.endswith(f": base (2.123 at 0.001, 2.023 at 0.0005); {reason}.")


def test_tuning_that_changes_no_rate_has_no_second_table(tmp_path: Path) -> None:
    records = [run for run in tuned_runs(("learned", "none")) if run.spec.budget == "controlled"]
    for level in ("learned", "none"):
        recipe = replace(LEARNED_POSITIONS, positions=level)  # type: ignore[arg-type]
        records += [pilot(rate, [3.0 + (rate != Training().peak_rate)], recipe=recipe) for rate in RATES]
    page = markdown(analysed(records), tmp_path)
    assert "every recipe keeps the learning rate of its runs, so tuning changes no effect" in page
    assert "untuned and tuned" not in page
    assert not list(tmp_path.rglob("*-tuned.svg"))


def worsened(record: RunRecord) -> RunRecord:
    """Return a run with a validation loss higher by 0.9."""
    curve = tuple(replace(line, validation_loss=(line.validation_loss or 0) + 0.9) for line in record.curve)
    return replace(record, curve=curve)


@pytest.mark.usefixtures("undrawn")
def test_bench_report_has_a_table_of_tuned_runs_and_no_pilots(tmp_path: Path) -> None:
    records = tuned_runs()
    assert [group.budget for group in groups(records)] == ["controlled", "tuned"]
    assert [group.budget for group in groups(records, pilots=True)] == ["controlled", "tuned", "pilot"]
    assert [find_mismatches(group.records, group.budget) for group in groups(records, pilots=True)] == [[], [], []]
    report = bench_report.document(records)
    page = bench_report.write(report, records, tmp_path).read_text()
    for text in (render_text.document(report), page):
        assert "Tuned learning rate:" in text
        assert "-pilot-s1000-" not in text
    assert "learning rate tuned for each recipe" in page
    assert "by learning rate (0.0005, 0.001, 0.002; pilots of 1 epoch" in page
    untuned = [record for record in records if record.spec.budget == "controlled"]
    assert "Tuned learning rate" not in render_text.document(bench_report.document(untuned))


def test_audit_accepts_the_seed_of_pilots_and_a_base_at_its_own_rate() -> None:
    tables = {group.budget: ComparedRuns(group, (), ()) for group in groups(tuned_runs(), pilots=True)}
    assert tables.keys() == {"controlled", "tuned", "pilot"}
    with pytest.raises(Skipped, match="stands in the controlled table"):
        list(row_difference_rules.differences(tables["tuned"]))
    with pytest.raises(Skipped, match="a seed of their own"):
        list(plausibility_rules.seeds(tables["pilot"]))
    assert [list(row_difference_rules.differences(tables[budget])) for budget in ("controlled", "pilot")] == [[], []]
    assert [list(plausibility_rules.seeds(tables[budget])) for budget in ("controlled", "tuned")] == [[], []]


def test_tuning_of_a_factorial_has_tuned_main_effects() -> None:
    records = tuned_runs(("learned", "none"))
    rms_specs = [replace(record.spec, recipe=replace(record.spec.recipe, norm="rms")) for record in records]  # type: ignore[type-var, arg-type]
    records += [replace(record, spec=spec, id=spec.id) for record, spec in zip(records, rms_specs, strict=True)]
    tables = ablation_tables.tuning_tables(study_of(records))
    assert [table.title.partition(" in ")[0] for table in tables[2:]] == ["Main effects", "Interactions"]
    rows = tables[2].rows
    assert [row[:2] for row in rows] == [("positions (learned)", "none"), ("norm (layernorm)", "rms")]
    assert str(rows[0][3]).startswith("+0.2")
    assert str(rows[0][4]).startswith("+0.4")
