"""Writes the report of an ablation: a Markdown page, its pictures, and all effects as CSV; same records, same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.analysis.ablation import Analysis, FieldEffects, Rank, StudyEffects
from harness.analysis.ablation_study import label
from harness.analysis.contrasts import AblationEffect, Contrast
from harness.analysis.grouping import groups
from harness.analysis.leaderboard import SYMBOLS
from harness.analysis.metric_registry import ABLATION
from harness.reporting import ablation_text, ablation_tuning, bench_report, csv_export, provenance, run_plots
from harness.reporting.ablation_plots import forest
from harness.reporting.ablation_tables import (
    MISSING,
    LevelRow,
    base_line,
    detectable_notes,
    field_lines,
    interaction_lines,
    written,
)
from harness.reporting.ablation_text import MAIN, SECOND
from harness.reporting.markdown import Markdown, code, text
from harness.storage import files
from harness.storage.records import RunRecord
from harness.text import count

FOLDER, EFFECTS = "ablation", "effects.csv"


def write(analysis: Analysis, folder: Path, *, command: str = "") -> Path:
    """Write `folder`/index.md, its pictures under `folder`/figures and the CSV files; return the page's path.

    Raises: ValueError where there is nothing to compare.
    """
    if not analysis.studies:
        raise ValueError("there is no ablation to report: no two runs differ in nothing but the words of their recipes")
    records = [record for one in analysis.studies for record, _ in _runs_of(one)]
    context = {
        "finding": [*bench_report.warnings(groups(records)), *ablation_text.finding(analysis)],
        "symbols": SYMBOLS,
        "limits": ablation_text.limits(analysis),
        "rankings": [
            (code(variant), _ranking(ranks[MAIN], ranks[SECOND]))
            for variant, ranks in analysis.rankings.items()
            if ranks[MAIN]
        ],
        "studies": [_study(one, f"study-{place}", folder) for place, one in enumerate(analysis.studies, start=1)],
        "command": Markdown("\n".join(f"    {line}" for line in provenance.commands(records, command))),
        "environment": provenance.environment(records),
        "runs": _runs(analysis),
    }
    csv_export.save(records, folder)
    csv_export.table([line for one in analysis.studies for line in _effects(one)], folder / EFFECTS)
    page = folder / bench_report.PAGE
    files.write_bytes(page, bench_report.render("ablation.md.j2", context).encode())
    return page


def _study(found: StudyEffects, slug: str, folder: Path) -> dict[str, Any]:
    """Return what the template shows of a study, and draw its pictures."""
    study, crossed = found.study, found.factorial
    shown: dict[str, Any] = {"title": study.title, "slug": slug, "differences": study.differences}
    shown |= {"alone": "", "notes": [], "crossed": "", "agreement": ablation_text.agreement(study)}
    shown["tuning"] = [(one.heading, _markdown(one.heads, one.rows, left=2)) for one in ablation_tuning.tables(found)]
    shown["tuned_differences"] = found.tuned.effects.study.differences if found.tuned and found.tuned.effects else ()
    if found.fields:
        run_plots.save(forest(study, found.fields), folder / "figures", slug)
        shown["alone"] = _table([base_line(study), *field_lines(study, found.fields)])
        shown["notes"] = detectable_notes(study, found.fields)
    if crossed is not None:
        run_plots.save(forest(study, crossed.main), folder / "figures", f"{slug}-main")
        shown |= {
            "crossed": " × ".join(crossed.fields),
            "coverage": _coverage(found),
            "main": _table(field_lines(study, crossed.main)),
            "main_notes": detectable_notes(study, crossed.main),
            "interactions": _table(interaction_lines(study, crossed)),
        }
    return shown


def _runs_of(found: StudyEffects) -> list[tuple[RunRecord, str]]:
    """Return the runs of a study, each once, with what they are: untuned, at a chosen learning rate, or a pilot."""
    made = [(record, cell.label) for cell in found.study.cells for record in cell.records.values()]
    if found.tuned is not None:
        cells = found.tuned.effects.study.cells if found.tuned.effects else ()
        made += [
            (record, f"{cell.label}, learning rate {record.spec.training.peak_rate:g}")
            for cell in cells
            for record in cell.records.values()
            if record.spec.budget == "tuned"
        ]
        names = {cell.departures: cell.label for cell in found.study.cells}
        made += [
            (record, f"{names[departures]}, pilot at {record.spec.training.peak_rate:g}")
            for departures, pilots in found.tuned.pilots.items()
            for record in pilots
        ]
    return made


def _coverage(found: StudyEffects) -> str:
    crossed = found.factorial
    assert crossed is not None
    said = f"{count(crossed.combinations, 'combination')}, {count(len(crossed.seeds), 'seed')}."
    if crossed.missing:
        said += f" Not run: {'; '.join(crossed.missing)}."
    if crossed.left_out:
        said += f" Not completed at every seed, and so in no average: {'; '.join(crossed.left_out)}."
    return said


# Tables ---------------------------------------------------------------------------------------------------------------


def _table(lines: Sequence[LevelRow]) -> Markdown:
    heads = ["field (base)", "word", "seeds", *(one.title for one in ABLATION.values()), "parameters"]
    ended = any(line.status for line in lines)
    rows = [
        [
            text(line.name),
            code(line.word, in_table=True),
            str(line.seeds),
            *(Markdown(line.cells[name]) for name in ABLATION),
            line.parameters,
            *([line.status] if ended else []),
        ]
        for line in lines
    ]
    return _markdown([*heads, *(["status"] if ended else [])], rows, left=2)


def _ranking(ranks: Sequence[Rank], seconds: Sequence[Rank]) -> Markdown:
    main, second = (ABLATION[name].title for name in (MAIN, SECOND))
    heads = ["rank", "field", f"largest effect on {main}", f"best and worst word for {main}", f"rank by {second}"]
    heads.append(f"largest effect on {second}")
    order = [rank.field for rank in seconds]
    rows = []
    for place, rank in enumerate(ranks, start=1):
        other = order.index(rank.field)
        name = f"{rank.field}{' (joint vocabulary)' * rank.joint}"
        rows.append([str(place), name, _largest(rank), _apart(rank), str(other + 1), _largest(seconds[other])])
    return _markdown(heads, rows, left=2)


def _largest(rank: Rank) -> str:
    lost = "; ".join(f"{word}: diverged" for word in rank.lost)
    known = f"{rank.effect.contrast.changed[0][1]}: {written(rank.effect)}" if rank.effect else ""
    return "; ".join(filter(None, (lost, known))) or MISSING


def _apart(rank: Rank) -> str:
    if rank.spread is None:
        return MISSING
    return f"{rank.spread.best}, {rank.spread.worst}: {written(rank.spread.effect)}"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> Markdown:
    """Return a Markdown table whose first `left` columns are aligned left, the others right."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    lines = [heads, rule, *([text(cell) for cell in row] for row in rows)]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _runs(analysis: Analysis) -> list[dict[str, str]]:
    return [
        {
            "id": code(record.id, in_table=True),
            "recipe": recipe,
            "status": record.status,
            "started": record.started or MISSING,
        }
        for one in analysis.studies
        for record, recipe in _runs_of(one)
    ]


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
