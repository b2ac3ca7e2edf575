"""The report of an ablation: what matters most, the effects of each level, limits, and all effects as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.analysis.ablation import Analysis, FieldEffects, StudyEffects
from harness.analysis.ablation_study import label
from harness.analysis.bench_analysis import TableAnalysis
from harness.analysis.contrasts import AblationEffect, Contrast
from harness.analysis.effects import assumption
from harness.analysis.grouping import RunTable, groups
from harness.analysis.leaderboard import SYMBOLS
from harness.analysis.metric_registry import ABLATION
from harness.reporting import ablation_findings, ablation_tuning, csv_export, pages, report_sections
from harness.reporting.ablation_plots import forest
from harness.reporting.ablation_tables import (
    MAIN,
    SECOND,
    base_row,
    detectable_notes,
    field_rows,
    interaction_rows,
    levels_table,
    ranking_table,
)
from harness.reporting.document import Block, Disclosure, Document, Figure, Heading, Items, Links, Table, Text
from harness.reporting.formatting import MISSING
from harness.reporting.run_files import CorpusTexts
from harness.storage.records import RunRecord
from harness.text import count, short_line

FOLDER, EFFECTS = "ablation", "effects.csv"


def write(report: Document, analysis: Analysis, folder: Path) -> Path:
    """Write the pages of a report of `analysis`, and its CSV files, under `folder`.

    Returns:
        The path of the HTML page.
    """
    csv_export.save(_records(analysis), folder)
    lines = [line for effects in analysis.studies for line in _effects(effects)]
    csv_export.write_table(lines, folder / EFFECTS)
    return pages.write(report, folder)


def document(
    analysis: Analysis,
    *,
    results: Path | None = None,
    texts: CorpusTexts | None = None,
    command: str = "",
    failures: Sequence[str] = (),
) -> Document:
    """Return the report of an ablation and its runs.

    Args:
        analysis: What the runs show.
        results: The folder of the runs, for translations; without it the page has none.
        texts: The test sets whose source and reference the page may show.
        command: The command that made the runs; by default those of the records.
        failures: The rules of `check` that fail, a line each.
    """
    records = _records(analysis)
    warnings = [*report_sections.corpus_warnings(records), *ablation_findings.warnings(analysis)]
    warnings += [f"This record fails the check of this project: {line}" for line in failures]
    blocks = _blocks(analysis, records, results, texts or {}, command) if records else []
    return Document(
        title="Bakeoff: ablation",
        headline=ablation_findings.headline(analysis),
        warnings=tuple(warnings),
        about=report_sections.about(records) if records else "",
        blocks=tuple(blocks),
    )


def _blocks(
    analysis: Analysis, records: Sequence[RunRecord], results: Path | None, texts: CorpusTexts, command: str
) -> list[Block]:
    runs = [record for record in records if record.spec.budget != "pilot"]
    labels = {record.id: recipe for effects in analysis.studies for record, recipe in _runs_of(effects)}
    tables = [_labelled(table, labels) for table in groups(runs)]
    shared = [f"{effects.study.title}: {ablation_findings.agreement(effects.study)}" for effects in analysis.studies]
    links = (("Runs report", "../index.html"), ("Speed", "../speed/index.html"), ("Models", "../models.html"))
    files = tuple((name, name) for name in (EFFECTS, csv_export.RUNS, csv_export.CURVES))
    return [
        Links((*links, *files)),
        *_figures(analysis),
        *_tables(analysis),
        Heading("Limits", slug="limits"),
        Items(tuple(ablation_findings.limits(analysis))),
        *_words(analysis),
        *report_sections.translations(tables, results, texts),
        *report_sections.method(records, command, shared),
        Disclosure("What each run is", (_runs(analysis),), "recipes"),
    ]


def _labelled(table: RunTable, labels: Mapping[str, str]) -> TableAnalysis:
    """Return a table without statistics whose rows are named by what changed, such as "norm=rms"."""
    rows = tuple(replace(row, label=labels[row.records[0].id]) for row in table.rows)
    return TableAnalysis(replace(table, rows=rows), tuple(row.label for row in rows), (), {})


def _records(analysis: Analysis) -> list[RunRecord]:
    return [record for effects in analysis.studies for record, _ in _runs_of(effects)]


def sections(analysis: Analysis) -> list[Block]:
    """Return the ablation as sections of the report of runs, its tables disclosed; empty without any effect."""
    if not any(effects.fields or effects.factorial for effects in analysis.studies):
        return []
    warnings = [Text(line, "warning") for line in ablation_findings.warnings(analysis)]
    limits = Items(tuple(ablation_findings.limits(analysis)))
    return [
        Heading("Ablation", slug="ablation"),
        Text(ablation_findings.headline(analysis).finding),
        *warnings,
        *_figures(analysis)[1:],
        Disclosure("Effects in numbers", tuple(_tables(analysis)), "effects"),
        Disclosure("What the ablation does not show", (limits,), "limits"),
    ]


# Parts ----------------------------------------------------------------------------------------------------------------


def _figures(analysis: Analysis) -> list[Block]:
    """Return a forest plot for each study and each factorial, and with tuned rates another one."""
    blocks: list[Block] = [Heading("What matters most", slug="most")]
    for number, effects in enumerate(analysis.studies, start=1):
        after = effects.tuned.effects if effects.tuned else None
        blocks += _forests(effects, f"ablation-{number}", effects.study.title)
        if after is not None:
            title = f"{effects.study.title}, learning rate tuned for each recipe"
            blocks += _forests(after, f"ablation-{number}-tuned", title)
    return blocks


def _forests(effects: StudyEffects, name: str, title: str) -> list[Block]:
    parts: list[tuple[str, str, Sequence[FieldEffects]]] = [(name, title, effects.fields)]
    if effects.factorial is not None:
        crossed = " × ".join(effects.factorial.fields)
        parts.append((f"{name}-main", f"{title}: main effects in {crossed}", effects.factorial.main))
    return [
        Figure(
            slug,
            f"{heading}. Each level against the base, all else equal.",
            short_line(f"Forest plot of validation loss and sacreBLEU, each level against the base: {heading}"),
            partial(forest, effects.study, fields),
        )
        for slug, heading, fields in parts
        if fields
    ]


def _tables(analysis: Analysis) -> list[Block]:
    """Return the ranking of fields and the effects of every study."""
    blocks: list[Block] = []
    for variant, ranks in analysis.rankings.items():
        if ranks[MAIN]:
            several = len(analysis.rankings) > 1
            blocks += [Heading("Fields by their largest effect", slug="fields")] if not blocks else []
            blocks += [Heading(variant, 3)] if several else []
            blocks.append(ranking_table(ranks[MAIN], ranks[SECOND]))
    blocks.append(Heading("Effects of each level", slug="levels"))
    for effects in analysis.studies:
        blocks += _study(effects)
    if any(effects.fields or effects.factorial for effects in analysis.studies):
        seeds = max(len(effects.study.seeds) for effects in analysis.studies)
        note = f"Differences from the base with 95 % intervals; after Holm's correction{assumption(seeds)}: {SYMBOLS}"
        blocks.append(Text(note, "note"))
    return blocks


def _study(effects: StudyEffects) -> list[Block]:
    study, crossed = effects.study, effects.factorial
    blocks: list[Block] = [Heading(study.title, 3)]
    if study.differences:
        blocks.append(Text("No table: these runs are not comparable. They differ in"))
        ends = [f"{cell.label}: {', '.join(record.status for record in cell.records.values())}" for cell in study.cells]
        return [*blocks, Items((*study.differences, *ends))]
    if effects.fields:
        blocks.append(levels_table([base_row(study), *field_rows(study, effects.fields)]))
        blocks += [Text(line, "note") for line in detectable_notes(study, effects.fields)]
    if crossed is not None:
        names = " × ".join(crossed.fields)
        blocks += [Text(_coverage(effects), "note")]
        blocks.append(levels_table(field_rows(study, crossed.main), f"Main effects in {names}"))
        blocks += [Text(line, "note") for line in detectable_notes(study, crossed.main)]
        blocks.append(levels_table(interaction_rows(study, crossed), f"Interactions in {names}"))
    blocks += ablation_tuning.tables(effects)
    if effects.tuned and effects.tuned.effects and effects.tuned.effects.study.differences:
        blocks.append(Text("No tuned table: these runs are not comparable. They differ in"))
        blocks.append(Items(tuple(effects.tuned.effects.study.differences)))
    return blocks


def _coverage(effects: StudyEffects) -> str:
    crossed = effects.factorial
    assert crossed is not None
    text = f"{count(crossed.combinations, 'combination')}, {count(len(crossed.seeds), 'seed')}."
    if crossed.missing:
        text += f" Not run: {'; '.join(crossed.missing)}."
    if crossed.left_out:
        text += f" Not completed at every seed, and so in no average: {'; '.join(crossed.left_out)}."
    return text


def _words(analysis: Analysis) -> list[Block]:
    lines = ablation_findings.findings(analysis)
    return [Disclosure("Findings in words", (Items(tuple(lines)),), "words")] if lines else []


def _runs_of(effects: StudyEffects) -> list[tuple[RunRecord, str]]:
    """Return the runs of a study, each once, with what they are: untuned, at a chosen learning rate, or a pilot."""
    runs = [(record, cell.label) for cell in effects.study.cells for record in cell.records.values()]
    if effects.tuned is not None:
        cells = effects.tuned.effects.study.cells if effects.tuned.effects else ()
        runs += [
            (record, f"{cell.label}, learning rate {record.spec.training.peak_rate:g}")
            for cell in cells
            for record in cell.records.values()
            if record.spec.budget == "tuned"
        ]
        names = {cell.departures: cell.label for cell in effects.study.cells}
        runs += [
            (record, f"{names[departures]}, pilot at {record.spec.training.peak_rate:g}")
            for departures, pilots in effects.tuned.pilots.items()
            for record in pilots
        ]
    return runs


def _runs(analysis: Analysis) -> Table:
    rows = tuple(
        (record.id, recipe, record.status, record.started or MISSING)
        for effects in analysis.studies
        for record, recipe in _runs_of(effects)
    )
    return Table("clll", ("run", "recipe", "status", "started"), rows)


# CSV ------------------------------------------------------------------------------------------------------------------


def _effects(found: StudyEffects) -> list[dict[str, Any]]:
    """Return a line for each effect and figure of a study, an unknown number as an empty cell."""
    after = found.tuned.effects if found.tuned is not None else None
    sides = [("untuned", found)] + [("tuned", after)] * (after is not None)
    return [{**line, "learning_rates": side} for side, one in sides if one is not None for line in _effects_of(one)]


def _effects_of(found: StudyEffects) -> list[dict[str, Any]]:
    lines = _of_fields(found, found.fields, "word")
    if found.factorial is not None:
        lines += _of_fields(found, found.factorial.main, "main effect")
        for effects in found.factorial.interactions.values():
            lines += [_effect(found, "interaction", one) for one in effects]
    return lines


def _of_fields(found: StudyEffects, fields: Sequence[FieldEffects], kind: str) -> list[dict[str, Any]]:
    lines = []
    for field in fields:
        for name in ABLATION:
            lines += [_effect(found, kind, one) for one in field.effects[name]]
            spread = field.spread[name]
            lines += [_effect(found, f"{kind}, worst against best", spread.effect)] if spread else []
    return lines


def _effect(found: StudyEffects, kind: str, effect: AblationEffect) -> dict[str, Any]:
    contrast: Contrast = effect.contrast
    return {
        "variant": found.study.variant,
        "vocabulary": "joint" if found.study.joint else "separate",
        "study": found.study.title,
        "kind": kind,
        "changed": label(contrast.changed),
        "against": label(contrast.against),
        "figure": effect.figure,
        "effect": effect.mean,
        "low": effect.low,
        "high": effect.high,
        "p": effect.p,
        "p_holm": effect.p_holm,
        "significant": int(effect.significant),
        "conclusion": effect.conclusion.label,
        "above_zero_on_new_seed": effect.above_zero,
        "seeds": " ".join(map(str, contrast.seeds)),
        "combinations": contrast.combinations,
        "interval_covers": effect.basis,
    }
