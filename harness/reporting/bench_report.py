"""The report of runs: headline, leaderboards, learning curves, quality against speed, significance, translations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness.analysis.effects import LEGEND, Conclusion
from harness.analysis.grouping import stop_early
from harness.analysis.leaderboard import MetricLeaderboard, TableAnalysis, analyse_bench
from harness.analysis.metric_registry import METRICS
from harness.reporting import (
    ablation_report,
    bench_headline,
    concept_plots,
    cost_table,
    csv_export,
    leaderboard_table,
    models_report,
    outside_figures,
    pages,
    report_sections,
    run_files,
    run_plots,
)
from harness.reporting.document import Block, Cell, Disclosure, Document, Figure, Heading, Links, Table, Text
from harness.reporting.formatting import MISSING, effect_cell, p_value, percent
from harness.reporting.run_files import CorpusTexts
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles
from harness.text import command_line, short_line

MAIN_METRICS = ("bleu_sacre", "test_perplexity")
"""The metrics with a chart and a matrix of differences."""
AGREEMENTS = {
    "controlled": "data settings and files, vocabularies, token ids, test set, decoding, signatures, training "
    "settings, {batches}, and every initial tensor that two recipes share by name and shape",
    "source": "data files, test set and signatures. Whether translations may contain unknown words is part of each "
    "source's search",
    "tuned": "everything that agrees in a controlled table, except the learning rate",
}


def write(report: Document, records: Sequence[RunRecord], folder: Path) -> Path:
    """Write the pages of a report of `records` and their CSV files under `folder`; return the path of the HTML page.

    models.html, which is the same for all reports, is written too unless the folder above has it.
    """
    csv_export.save(records, folder)
    if not (folder.parent / models_report.PAGE).is_file():
        models_report.write(folder)
    return pages.write(report, folder)


LINKS = Links(
    (
        ("Ablation", "ablation/index.html"),
        ("Speed", "speed/index.html"),
        ("Models", models_report.PAGE),
        ("Models", f"../{models_report.PAGE}"),
        ("Captions", report_sections.CAPTIONS[1]),
        ("Runs report", "../index.html"),
        (csv_export.RUNS, csv_export.RUNS),
        (csv_export.CURVES, csv_export.CURVES),
    )
)


def document(
    records: Sequence[RunRecord],
    *,
    results: Path | StoredFiles | None = None,
    texts: CorpusTexts | None = None,
    failures: Sequence[str] = (),
) -> Document:
    """Return the report of some runs.

    Args:
        records: The runs.
        results: The folder of the runs with translations, sentence statistics, attention and weights. Without it, the
            page only shows the records.
        texts: The test sets whose source and reference the page may show.
        failures: A line for each failed rule of `check`.

    Raises:
        ValueError: There are no records, or a stored file is damaged; the message names the file.
    """
    stored = None if results is None else StoredFiles.of(results)
    analysis = analyse_bench(records, stored)
    tables, charted = analysis.tables, analysis.charted
    if not tables:
        kind = "only pilots of a learning rate, which no table has" if records else "no run records to report"
        raise ValueError(f"there are {kind}; train something first: {command_line('bench')}")
    records = [record for judged in charted for record in judged.table.records]
    return Document(
        title=f"Benchmark: {report_sections.corpora(record.spec.data for record in records)}",
        headline=bench_headline.headline(tables, charted),
        warnings=tuple(report_sections.warnings(records, failures)),
        about=report_sections.about(records),
        blocks=(
            LINKS,
            *leaderboard_table.sections(tables),
            *outside_figures.blocks(tables),
            *report_sections.curves(charted),
            *cost_table.disclosures(charted),
            *_scores(charted),
            *_speeds(charted),
            *ablation_report.sections(analysis.ablation),
            *_significance(tables),
            *report_sections.translations(charted, stored, texts or {}),
            *report_sections.attention(charted, stored, texts or {}),
            *_learned_positions(charted, stored),
            *report_sections.method(records, [_agreement(judged) for judged in tables if judged.leaderboards]),
        ),
    )


def _agreement(judged: TableAnalysis) -> str:
    table = judged.table
    early = stop_early(table.records)
    batches = "seeds, the batches of the first epoch" if early else "updates, seeds, the stream of batches"
    text = f"{table.heading}: {AGREEMENTS[table.budget].format(batches=batches)}."
    external = [row.label for row in table.rows if any(record.spec.recipe is None for record in row.records)]
    if external and table.budget == "controlled":
        text += f" Without a recipe, and so not compared in their initial weights: {', '.join(external)}."
    return short_line(text, longest=2_000)


def _scores(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return a chart of sacreBLEU and perplexity for each table with at least two rows."""
    blocks: list[Block] = [Heading("Scores", slug="scores")]
    for judged, slug in zip(tables, report_sections.slugs(tables), strict=True):
        rows = judged.table.rows
        names = [
            name
            for name in MAIN_METRICS
            if sum(bool(row.by_seed(name)) for row in rows) > 1
            and not any(leaderboard_table.has_other_vocabulary(judged, label, name) for label in judged.labels)
        ]
        if names and not judged.mismatches:
            titles = " and ".join(METRICS[name].title for name in names)
            alt = f"Points, one per variant: {titles} of {'; '.join(judged.labels)}"
            caption = f"{judged.table.heading}. {titles} on the test set."
            if any(name in judged.leaderboards for name in names):
                caption += " Compare rows by their tests in the leaderboard, not by whether their intervals overlap."
            intervals = {name: judged.leaderboards[name].intervals for name in names if name in judged.leaderboards}
            draw = partial(run_plots.scores, rows, judged.labels, names, intervals)
            blocks.append(Figure(f"{slug}-scores", caption, short_line(alt, longest=600), draw))
    return blocks


def _speeds(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return a chart of sacreBLEU against throughput for each table that has the throughput of every row."""
    blocks: list[Block] = [Heading("Quality against speed", slug="speed")]
    for judged, slug in zip(tables, report_sections.slugs(tables), strict=True):
        comparable = [] if judged.mismatches else leaderboard_table.comparable_speeds(judged)
        names = [name for name in run_plots.speeds(judged.table.rows) if name in comparable]
        if names:
            alt = f"Points, one per variant: sacreBLEU against throughput of {'; '.join(judged.labels)}"
            caption = f"{judged.table.heading}. Throughput holds for the machine named under environment."
            draw = partial(run_plots.quality_against_speed, judged.table.rows, judged.labels, names)
            blocks.append(Figure(f"{slug}-speed", caption, short_line(alt, longest=600), draw))
    return blocks


def _learned_positions(tables: Sequence[TableAnalysis], stored: StoredFiles | None) -> list[Block]:
    positions = run_files.learned_positions([judged.table for judged in tables], stored) if stored else []
    if not positions:
        return []
    figures = tuple(
        Figure(
            f"positions-{number}",
            f"Learned positions of {label}",
            short_line(f"Heat map of the learned positions of {label}: position downwards, embedding column across"),
            partial(concept_plots.positions, values, learned=True),
            models_report.position_table(values),
        )
        for number, (label, values) in enumerate(positions, start=1)
    )
    some = f", the first {len(figures)}" if len(figures) == run_files.MOST_POSITION_TABLES else ""
    title = f"Position tables of the encoder{some}"
    return [Heading("Learned positions", slug="positions"), Disclosure(title, figures)]


def _significance(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return the matrix of differences of each table with at least two seeds and two rows, perplexity disclosed."""
    blocks: list[Block] = []
    for judged in tables:
        for name in MAIN_METRICS:
            board = judged.leaderboards.get(name)
            if board is not None and len(board.ranking) > 1 and board.seeds > 1 and board.comparisons.differences:
                title = f"{board.metric.title}, {judged.table.heading}"
                table = _matrix(title, board)
                blocks.append(table if name == MAIN_METRICS[0] else Disclosure(title, (table,)))
    if not blocks:
        return []
    note = (
        "Each cell is the row minus the column over paired seeds with its 95 % interval (two seeds: both values), p "
        "after Holm's correction, and the probability of being better with a new seed. Differences are estimated on a "
        "logit or log scale, so they can deviate from those of the means. "
        f"{LEGEND}."
    )
    return [Heading("Significance", slug="significance"), Text(note, "aside"), *blocks]


def _matrix(title: str, board: MetricLeaderboard) -> Table:
    names = board.ranking
    rows: list[tuple[str | Cell, ...]] = []
    for index, name in enumerate(names[1:], start=1):
        differences = [_difference(board, name, better) for better in names[:index]]
        rows.append((name, *differences, *[""] * (len(names) - 1 - index)))
    return Table("l" + "r" * (len(names) - 1), ("row minus column", *names[:-1]), tuple(rows), title, "matrix")


def _difference(board: MetricLeaderboard, first: str, second: str) -> Cell:
    difference = board.comparisons.between(first, second)
    if difference.mean is None:
        return Cell(MISSING, mark=Conclusion.NOT_TESTED.symbol)
    probability = difference.better_on_new_seed(less_is_better=board.metric.less_is_better)
    details = [] if difference.p_holm is None else [f"p {p_value(difference.p_holm)}"]
    details += [] if probability is None else [f"new seed {percent(probability)}"]
    return effect_cell(difference, board.conclusion(difference), board.metric.digits, *details)
