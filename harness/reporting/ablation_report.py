"""The report of an ablation: what matters most, the effects of each level, limits, and all effects as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.analysis.ablation import Analysis, FieldEffects, StudyEffects
from harness.analysis.ablation_study import label
from harness.analysis.contrasts import AblationEffect
from harness.analysis.effects import LEGEND, assumption
from harness.analysis.grouping import RunTable, group_by, groups, statuses
from harness.analysis.leaderboard import TableAnalysis
from harness.reporting import ablation_findings, csv_export, pages, report_sections
from harness.reporting import ablation_tables as tables
from harness.reporting.ablation_plots import forest
from harness.reporting.ablation_tables import MAIN, SECOND
from harness.reporting.document import (
    Block,
    Disclosure,
    Document,
    Figure,
    Heading,
    Headline,
    Items,
    Links,
    Table,
    Text,
)
from harness.reporting.formatting import listed
from harness.reporting.run_files import CorpusTexts
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles
from harness.text import count, short_line

FOLDER, EFFECTS = "ablation", "effects.csv"
INTERACTION = (
    "An interaction is the effect of two changes together minus the sum of their effects alone. In BLEU and "
    "perplexity it is computed on the logit or log scale: from the shown effects, it can have another size and sign."
)


def write(report: Document, analysis: Analysis, folder: Path) -> Path:
    """Write the pages of a report of `analysis`, and its CSV files, under `folder`; return the HTML page."""
    csv_export.save(_records(analysis), folder)
    csv_export.write_table([row for effects in analysis.studies for row in _csv_rows(effects)], folder / EFFECTS)
    return pages.write(report, folder)


def document(
    analysis: Analysis,
    *,
    results: Path | StoredFiles | None = None,
    texts: CorpusTexts | None = None,
    failures: Sequence[str] = (),
) -> Document:
    """Return the report of an ablation and its runs; see `bench_report.document` for the other arguments."""
    records = _records(analysis)
    stored = None if results is None else StoredFiles.of(results)
    headline = ablation_findings.headline(analysis)
    warnings = [*report_sections.warnings(records, failures), *_warnings(analysis, headline)]
    return Document(
        title=f"Ablation: {report_sections.corpora(record.spec.data for record in records)}" if records else "Ablation",
        headline=headline,
        warnings=tuple(warnings),
        about=report_sections.about(records) if records else "",
        blocks=tuple(_blocks(analysis, records, stored, texts or {})) if records else (),
    )


def _blocks(
    analysis: Analysis, records: Sequence[RunRecord], stored: StoredFiles | None, texts: CorpusTexts
) -> list[Block]:
    runs = [(record, recipe) for effects in analysis.studies for record, recipe in _runs(effects)]
    recipes = {record.id: recipe for record, recipe in runs}
    labelled = [_labelled(table, recipes) for table in groups(records)]
    agreements = [f"{item.study.title}: {ablation_findings.agreement(item.study)}" for item in analysis.studies]
    links = (("Runs report", "../index.html"), ("Speed", "../speed/index.html"), ("Models", "../models.html"))
    files = tuple((name, name) for name in (EFFECTS, csv_export.RUNS, csv_export.CURVES))
    return [
        Links((*links, *files)),
        Heading("What matters most", slug="most"),
        *_figures(analysis),
        *_tables(analysis),
        *([] if any(item.study.differences for item in analysis.studies) else report_sections.curves(labelled)),
        Heading("Limits", slug="limits"),
        Items(tuple(ablation_findings.limits(analysis))),
        *report_sections.translations(labelled, stored, texts),
        *report_sections.method(records, agreements),
        Disclosure("What each run is", (Table("cl", ("run", "recipe"), tuple(recipes.items())),), "recipes"),
    ]


def _labelled(table: RunTable, recipes: Mapping[str, str]) -> TableAnalysis:
    """Return a table without statistics, with rows named by their changes, such as "norm=rms", the base first."""
    order = list(dict.fromkeys(recipes.values()))
    rows = [replace(row, label=recipes[row.records[0].id]) for row in table.rows]
    rows.sort(key=lambda row: order.index(row.label))
    return TableAnalysis(replace(table, rows=tuple(rows)), (), {})


def _records(analysis: Analysis) -> list[RunRecord]:
    return [record for effects in analysis.studies for record, _ in _runs(effects)]


def _runs(effects: StudyEffects) -> list[tuple[RunRecord, str]]:
    """Return the runs of a study with their recipes; those of tuning with their learning rate."""
    cells, tuned = effects.study.cells, effects.tuned
    runs = [(record, cell.label) for cell in cells for record in cell.records.values()]
    if tuned is None:
        return runs
    recipes = {cell.changes: cell.label for cell in cells}
    tuned_cells = tuned.effects.study.cells if tuned.effects else ()
    final = [(record, cell.changes, "learning rate") for cell in tuned_cells for record in cell.records.values()]
    final = [run for run in final if run[0].spec.budget == "tuned"]
    pilots = [(record, changes, "pilot at") for changes, same in tuned.pilots.items() for record in same]
    return runs + [
        (record, f"{recipes[changes]}, {noun} {record.spec.training.peak_rate:g}")
        for record, changes, noun in (*final, *pilots)
    ]


def sections(analysis: Analysis) -> list[Block]:
    """Return the ablation as sections of the report of runs, its tables disclosed; empty without any effect."""
    if not any(map(_has_effect, analysis.studies)):
        return []
    limits = Items(tuple(ablation_findings.limits(analysis)))
    headline = ablation_findings.headline(analysis)
    return [
        Heading("Ablation", slug="ablation"),
        Text(headline.finding),
        *(Text(line, "warning") for line in _warnings(analysis, headline)),
        *_figures(analysis),
        Disclosure("Effects in numbers", tuple(_tables(analysis)), "effects"),
        Disclosure("What the ablation does not show", (limits,), "limits"),
    ]


def _warnings(analysis: Analysis, headline: Headline) -> list[str]:
    """Return the warnings of an ablation, without the one that is its headline where no effect is known."""
    return [line for line in ablation_findings.warnings(analysis) if line != headline.finding]


def _has_effect(effects: StudyEffects) -> bool:
    """Return whether an effect is known, or a recipe has diverged. Recipes without a common seed have no effect."""
    has_diverged = any(cell.diverged for cell in effects.study.cells)
    return any(has_diverged or effect.mean is not None for _, effect in effects.each())


def _figures(analysis: Analysis) -> list[Block]:
    """Return forest plots of the effects and main effects of each study; those that rank the fields come first."""
    blocks: list[Block] = []
    for number, untuned in enumerate(analysis.studies, start=1):
        name, title = f"ablation-{number}", untuned.study.title
        parts = [(name, title, untuned)]
        if (after := untuned.other_rates) is not None:
            parts = [(f"{name}-tuned", f"{title}, learning rate tuned for each recipe", after)]
            parts.insert(int(untuned.ranked is after), (name, f"{title}, one learning rate for all", untuned))
        for slug, heading, effects in parts:
            if effects.fields:
                blocks.append(_forest(slug, heading, effects, effects.fields))
            if effects.factorial and effects.factorial.main:
                crossed = f"{heading}: main effects in {' × '.join(effects.factorial.fields)}"
                mean = "averaged over the levels of the others"
                blocks.append(_forest(f"{slug}-main", crossed, effects, effects.factorial.main, mean))
    return blocks


def _forest(
    name: str, heading: str, effects: StudyEffects, fields: Sequence[FieldEffects], others: str = "all else equal"
) -> Figure:
    alt = short_line(f"Forest plot of validation loss and sacreBLEU, each level against the base: {heading}")
    caption = f"{heading}. Each level against the base, {others}."
    return Figure(name, caption, alt, partial(forest, effects.study, fields))


def _tables(analysis: Analysis) -> list[Block]:
    blocks: list[Block] = []
    for variant, ranks in analysis.rankings.items():
        if len(ranks[MAIN]) > 1:
            blocks += [] if blocks else [Heading("Fields by their largest effect", slug="fields")]
            blocks += [Heading(variant, 3)] if len(analysis.rankings) > 1 else []
            blocks.append(tables.ranking_table(ranks[MAIN], ranks[SECOND]))
            by_title = group_by(ranks[MAIN], lambda rank: rank.study.title)
            if len(by_title) > 1:
                settings = (f"{listed([rank.field for rank in same])} in {title}" for title, same in by_title.items())
                blocks.append(Text(f"Measured in different settings: {'; '.join(settings)}.", "note"))
    blocks.append(Heading("Effects of each level", slug="levels"))
    for effects in analysis.studies:
        blocks += _study(effects)
    if any(effects.fields or effects.factorial for effects in analysis.studies):
        condition = assumption(min(len(effects.study.seeds) for effects in analysis.studies))
        note = (
            "Differences from the base with 95 % intervals. Those of BLEU and perplexity are estimated on a logit or "
            f"log scale, so they can deviate from the mean over seeds. After Holm's correction{condition}: {LEGEND}."
        )
        blocks.append(Text(note, "note"))
    return blocks


def _study(effects: StudyEffects) -> list[Block]:
    study, factorial, after = effects.study, effects.factorial, effects.tuned.effects if effects.tuned else None
    blocks: list[Block] = [Heading(study.title, 3)]
    if study.differences:
        runs = "; ".join(f"{cell.label} ({statuses(cell.records.values())})" for cell in study.cells)
        text = Text("No table: these runs are not comparable. They differ in")
        return [*blocks, text, Items(study.differences), Text(f"The runs: {runs}.", "note")]
    if effects.fields:
        blocks.append(tables.levels_table([tables.base_row(study), *tables.field_rows(study, effects.fields)]))
        blocks += [Text(line, "note") for line in tables.detectable_notes(study, effects.fields)]
    if factorial is not None:
        crossed = " × ".join(factorial.fields)
        numbers = sorted({row.seeds for row in tables.field_rows(study, factorial.main) if row.seeds})
        least = f"{numbers[0]} to " if len(numbers) > 1 else ""
        seeds = f", {least}{count(numbers[-1], 'seed')}" if numbers else ""
        coverage = f"{count(factorial.combinations, 'combination')}{seeds}."
        if factorial.missing:
            coverage += f" Not run: {'; '.join(factorial.missing)}."
        if factorial.left_out:
            coverage += f" Not completed at every seed, and so in no average: {'; '.join(factorial.left_out)}."
        blocks += [
            Text(coverage, "note"),
            tables.levels_table(tables.field_rows(study, factorial.main), f"Main effects in {crossed}"),
            *(Text(line, "note") for line in tables.detectable_notes(study, factorial.main)),
            tables.levels_table(tables.interaction_rows(study, factorial), f"Interactions in {crossed}"),
            Text(INTERACTION, "note"),
        ]
    blocks += tables.tuning_tables(effects)
    if after is not None and after.study.differences:
        blocks.append(Text("No tuned table: these runs are not comparable. They differ in"))
        blocks.append(Items(after.study.differences))
    return blocks


def _csv_rows(effects: StudyEffects) -> Iterator[dict[str, Any]]:
    tuned = effects.tuned.effects if effects.tuned is not None else None
    for rates, part in (("untuned", effects), ("tuned", tuned)):
        if part is not None:
            yield from (_csv_row(part, kind, effect) | {"learning_rates": rates} for kind, effect in part.each())


def _csv_row(effects: StudyEffects, kind: str, effect: AblationEffect) -> dict[str, Any]:
    contrast = effect.contrast
    return {
        "variant": effects.study.variant,
        "vocabulary": "joint" if effects.study.joint else "separate",
        "study": effects.study.title,
        "kind": kind,
        "changed": label(contrast.changed),
        "against": label(contrast.against),
        "figure": effect.metric,
        "effect": _rounded(effect.mean),
        **{name: _rounded(getattr(effect, name)) for name in ("low", "high", "p", "p_holm")},
        "significant": int(effect.significant),
        "conclusion": effect.conclusion.label,
        "above_zero_on_new_seed": _rounded(effect.above_zero),
        "seeds": " ".join(map(str, contrast.seeds)),
        "combinations": contrast.combinations,
        "interval_covers": effect.basis,
    }


def _rounded(value: float | None) -> float | None:
    """Return a value with six significant digits: the last digits of sums differ between processors."""
    return value if value is None or float(value).is_integer() else float(f"{value:.6g}")
