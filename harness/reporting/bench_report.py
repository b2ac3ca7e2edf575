"""The report of runs: headline, leaderboards, learning curves, quality against speed, significance, translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from harness.analysis.effects import METHOD, Conclusion, Difference, Method
from harness.analysis.fairness import other_vocabulary
from harness.analysis.grouping import TableRow
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.leaderboard import SYMBOLS, MetricLeaderboard, TableAnalysis, analyse_bench
from harness.analysis.metric_registry import METRICS
from harness.reporting import (
    ablation_report,
    bench_headline,
    concept_plots,
    csv_export,
    models_report,
    pages,
    report_sections,
    run_files,
    run_plots,
)
from harness.reporting.document import Block, Cell, Disclosure, Document, Figure, Heading, Items, Links, Table, Text
from harness.reporting.formatting import MISSING, between, bounds, p_value, percent, signed
from harness.reporting.run_files import CorpusTexts
from harness.storage.records import RunRecord
from harness.text import count, short_line

SHOWN = (
    "bleu_sacre",
    "test_perplexity",
    "parameters",
    "training_tokens_per_second",
    "decoding_sentences_per_second",
)
"""The metrics of a leaderboard that are always shown, where a run has them; the others are optional columns."""
TITLES = {"training_tokens_per_second": "training tokens/s", "decoding_sentences_per_second": "sentences/s"}
MATRICES = ("bleu_sacre", "test_perplexity")
MARK = "*"
EXPLANATIONS = {
    "controlled": "One training recipe for all: only the architecture differs.",
    "source": "Each variant with the training its source uses: compare sacreBLEU and chrF; perplexity and BLEU on "
    "tokens only between equal vocabularies.",
    "tuned": "Each recipe with the learning rate that a pilot chose for it. A recipe whose best rate is that of the "
    "controlled table stands there only; the ablation shows both together.",
}
AGREEMENTS = {
    "controlled": "data settings and files, vocabularies, token ids, test set, decoding, signatures, training "
    "settings, updates, seeds, the stream of batches, and every initial tensor that two recipes share by name and "
    "shape",
    "source": "data files, test set and signatures. Whether translations may contain unknown words is part of each "
    "source's search",
    "tuned": "everything that agrees in a controlled table, except the learning rate",
}


def write(report: Document, records: Sequence[RunRecord], folder: Path) -> Path:
    """Write the pages of a report of `records`, their CSV files and models.html under `folder`.

    Returns:
        The path of the HTML page.
    """
    csv_export.save(records, folder)
    models_report.write(folder)
    return pages.write(report, folder)


def document(
    records: Sequence[RunRecord],
    *,
    results: Path | None = None,
    texts: CorpusTexts | None = None,
    command: str = "",
    method: Method = METHOD,
    failures: Sequence[str] = (),
) -> Document:
    """Return the report of some runs.

    Args:
        records: The runs.
        results: The folder of the runs: translations, sentence statistics, attention and weights are read there.
            Without it the page shows the records alone.
        texts: The test sets whose source and reference the page may show.
        command: The command that made the runs; by default those of the records.
        method: How intervals and tests are made.
        failures: The rules of `check` that fail, a line each.

    Raises:
        ValueError: There are no records, or a stored file is damaged; the message names it.
    """
    analysis = analyse_bench(records, results, method=method)
    tables = analysis.tables
    if not tables:
        raise ValueError("there are no run records to report; train something first: python -m harness bench")
    shown = [record for judged in tables for record in judged.table.records]
    warnings = [f"This record fails the check of this project: {line}" for line in failures]
    return Document(
        title="Bakeoff: small Transformers and a GRU compared",
        headline=bench_headline.headline(tables),
        warnings=(*report_sections.corpus_warnings(shown), *warnings),
        about=report_sections.about(shown),
        blocks=(
            Links(
                (
                    ("Ablation", "ablation/index.html"),
                    ("Speed", "speed/index.html"),
                    ("Models", models_report.PAGE),
                    (csv_export.RUNS, csv_export.RUNS),
                    (csv_export.CURVES, csv_export.CURVES),
                )
            ),
            *_leaderboards(tables),
            *report_sections.curves(tables),
            *_scores(tables),
            *_speeds(tables),
            *ablation_report.sections(analysis.ablation),
            *_significance(tables),
            *report_sections.translations(tables, results, texts or {}),
            *report_sections.attention(tables, results, texts or {}),
            *_learned_positions(tables, results),
            *report_sections.method(shown, command, [_agreement(judged) for judged in tables if judged.leaderboards]),
        ),
    )


# Leaderboards ---------------------------------------------------------------------------------------------------------


def _leaderboards(tables: Sequence[TableAnalysis]) -> list[Block]:
    blocks: list[Block] = [Heading("Leaderboard", slug="leaderboard")]
    for judged in tables:
        table = judged.table
        blocks += [Heading(table.heading, 3), Text(EXPLANATIONS[table.budget], "aside")]
        blocks += [Text(line, "note") for line in table.caveats]
        if judged.mismatches:
            blocks.append(Text("No table: these runs are not comparable. They differ in"))
            blocks.append(Items((*judged.mismatches, *(f"{row.label}: {row.status}" for row in table.rows))))
            continue
        blocks.append(leaderboard(judged))
        blocks += [Text(line, "note") for line in _visible_notes(judged)]
        notes = _notes(judged)
        blocks += [Disclosure("Notes on this table", (Items(tuple(notes)),))] if notes else []
    return blocks


def leaderboard(judged: TableAnalysis) -> Table:
    """Return a table's leaderboard, best row first by the first judged metric, missing columns left out."""
    first = next(iter(judged.leaderboards.values()), None)
    order = first.ranking if first else []
    rows = sorted(
        zip(judged.labels, judged.table.rows, strict=True),
        key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order),
    )
    known = [name for name in METRICS if any(row.summary(name).values for _, row in rows)]
    names = [name for name in SHOWN if name in known]
    others = [name for name in known if name not in names]
    heads = ["variant", *(_title(name) for name in names), "seeds"]
    troubled = any(row.completed < len(row.records) for _, row in rows)
    heads += [*(["runs"] if troubled else []), *map(_title, others)]
    lines = []
    for label, row in rows:
        cells: list[str | Cell] = [Cell(label, detail=_rank(first, label), value=label)]
        cells += [_cell(judged, label, row, name) for name in names]
        cells.append(Cell(str(len(row.counted)), value=float(len(row.counted))))
        cells += [row.status] if troubled else []
        lines.append((*cells, *(_cell(judged, label, row, name) for name in others)))
    fixed = len(heads) - len(others)
    columns = ["l", *["r"] * len(names), "r", *(["l"] if troubled else []), *["r"] * len(others)]
    return Table(
        "".join(columns),
        tuple(heads),
        tuple(lines),
        kind="leaderboard",
        optional=frozenset(range(fixed, len(heads))),
        descending=frozenset(heads.index(_title(name)) for name in known if METRICS[name].direction == "higher"),
        filters=tuple({"text": _searched(label, row)} for label, row in rows),
    )


def _title(name: str) -> str:
    return TITLES.get(name, METRICS[name].heading)


def _searched(label: str, row: TableRow) -> str:
    spec = row.records[0].spec
    return short_line(f"{label} {spec.framework} {spec.device} {row.status}", longest=600)


def _rank(metric: MetricLeaderboard | None, label: str) -> str:
    """Return the ranks that a row may have by the first metric, such as "rank 1–3, tied with the best"."""
    ranks = metric.rank_interval(label) if metric else None
    if metric is None or ranks is None:
        return ""
    rank = f"rank {ranks[0]}" if ranks[0] == ranks[1] else f"rank {ranks[0]}–{ranks[1]}"
    return f"{rank}, tied with the best" if metric.tied_with_best(label) else rank


def _cell(judged: TableAnalysis, label: str, row: TableRow, name: str) -> str | Cell:
    metric, summary = METRICS[name], row.summary(name)
    if summary.mean is None:
        return MISSING
    text, mark = metric.format(summary.mean), _vocabulary_mark(judged, row, name)
    board = judged.leaderboards.get(name)
    if board is not None and (interval := board.intervals.get(label)) is not None and interval.mean is not None:
        against = board.against_best(label)
        best = len(board.ranking) > 1 and label == board.ranking[0]
        return Cell(
            metric.format(interval.mean),
            mark=against.symbol if against else "",
            detail=between(interval, metric.digits),
            value=interval.mean,
            tone="best" if best else "",
        )
    spread = summary.deviation
    constant = spread is None or (spread == 0 and metric.digits == 0)
    digits = metric.decimals(summary.mean / metric.divisor)
    detail = "" if constant or spread is None else f"± {spread / metric.divisor:,.{digits}f}"
    return Cell(text, mark=mark, detail=detail, value=summary.mean)


def _vocabulary_mark(judged: TableAnalysis, row: TableRow, name: str) -> str:
    """Return the mark of a figure that compares with no other row, because its run has another vocabulary."""
    table = judged.table
    other = other_vocabulary(table.records) if table.budget == "source" and METRICS[name].token_based else frozenset()
    return MARK if any(record.id in other for record in row.records) else ""


def _visible_notes(judged: TableAnalysis) -> list[str]:
    """Return what a reader needs beside the table: its symbols, and which runs did not complete."""
    rows, notes = judged.table.rows, []
    if any(len(board.ranking) > 1 for board in judged.leaderboards.values()):
        notes.append(f"Beside the best of each column: {SYMBOLS}")
    if any(_vocabulary_mark(judged, row, name) for row in rows for name in METRICS):
        notes.append(f"{MARK} another vocabulary than most rows: this figure compares with no other row.")
    ended = endings(judged)
    return notes + ([f"Did not complete: {'; '.join(ended)}."] if ended else [])


def _notes(judged: TableAnalysis) -> list[str]:
    """Return what the intervals, ranks and tests of a table cover."""
    boards = [board for board in judged.leaderboards.values() if len(board.ranking) > 1]
    remarks = dict.fromkeys(line for board in boards for line in board.comparisons.remarks)
    notes = [short_line(line) for line in remarks]
    if boards and boards[0].seeds >= LEAST_SEEDS:
        notes.append("A rank lies between the significantly better and the significantly worse variants.")
        notes += [line for board in boards for line in board.notes]
    if any(len(row.counted) > 2 for row in judged.table.rows):
        notes.append("Ranges are 95 % intervals, ± the standard deviation over seeds.")
    return notes


def endings(judged: TableAnalysis) -> list[str]:
    """Return for each run that did not complete how it ended."""
    return [
        f"{row.label}, seed {record.spec.seed}: {record.status}"
        + (f" after {count(len(record.curve), 'epoch')}" if record.curve else "")
        + (f": {short_line(record.reason)}" if record.reason else "")
        for row in judged.table.rows
        for record in row.records
        if record.status != "completed"
    ]


def _agreement(judged: TableAnalysis) -> str:
    """Return what all runs of a comparable table have in common."""
    table = judged.table
    text = f"{table.heading}: {AGREEMENTS[table.budget]}."
    outside = [row.label for row in table.rows if any(record.spec.recipe is None for record in row.records)]
    if outside and table.budget == "controlled":
        text += f" Without a recipe, and so not compared in their initial weights: {', '.join(outside)}."
    return short_line(text, longest=2_000)


# Charts ---------------------------------------------------------------------------------------------------------------


def _scores(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return a chart of sacreBLEU and perplexity for each table with at least two rows."""
    blocks: list[Block] = []
    for judged, slug in zip(tables, report_sections.slugs(tables), strict=True):
        rows = judged.table.rows
        names = [name for name in MATRICES if sum(bool(row.by_seed(name)) for row in rows) > 1]
        if judged.mismatches or not names:
            continue
        titles = " and ".join(METRICS[name].title for name in names)
        alt = short_line(f"Points, one per variant: {titles} of {', '.join(judged.labels)}", longest=600)
        draw = partial(run_plots.scores, rows, judged.labels, names)
        blocks.append(Figure(f"{slug}-scores", f"{judged.table.heading}. {titles} on the test set.", alt, draw))
    return [Heading("Scores", slug="scores"), *blocks] if blocks else []


def _speeds(tables: Sequence[TableAnalysis]) -> list[Block]:
    blocks: list[Block] = []
    for judged, slug in zip(tables, report_sections.slugs(tables), strict=True):
        rows = judged.table.rows
        names = [] if judged.mismatches else run_plots.speeds(rows)
        if not names:
            continue
        alt = f"Points, one per variant: sacreBLEU against throughput, {', '.join(judged.labels)}"
        caption = f"{judged.table.heading}. Throughput holds for the machine named under environment."
        draw = partial(run_plots.quality_against_speed, rows, judged.labels, names)
        blocks.append(Figure(f"{slug}-speed", caption, short_line(alt, longest=600), draw))
    return [Heading("Quality against speed", slug="speed"), *blocks] if blocks else []


def _learned_positions(tables: Sequence[TableAnalysis], results: Path | None) -> list[Block]:
    found = run_files.learned_positions([judged.table for judged in tables], results) if results else []
    if not found:
        return []
    figures = tuple(
        Figure(
            f"positions-{number}",
            f"Learned positions of {label}",
            short_line(f"Heat map of the learned positions of {label}: position downwards, embedding column across"),
            partial(concept_plots.learned_positions, values),
            models_report.position_table(values),
        )
        for number, (label, values) in enumerate(found, start=1)
    )
    return [Heading("Learned positions", slug="positions"), Disclosure("Position tables of the encoder", figures)]


# Significance ---------------------------------------------------------------------------------------------------------


def _significance(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return the matrix of differences of each table with at least two seeds and two rows, perplexity disclosed."""
    blocks: list[Block] = []
    for judged in tables:
        boards = [judged.leaderboards[name] for name in MATRICES if name in judged.leaderboards]
        for board in boards:
            if len(board.ranking) < 2 or board.seeds < 2:
                continue
            title = f"{board.metric.title}, {judged.table.heading}"
            table = matrix(title, board)
            blocks.append(table if board.name == MATRICES[0] else Disclosure(title, (table,)))
    if not blocks:
        return []
    note = (
        "Each cell is the row less the column: the mean difference over paired seeds with its 95 % interval (two "
        f"seeds: both values), p after Holm's correction, and the probability to be better in a new seed. {SYMBOLS}"
    )
    return [Heading("Significance", slug="significance"), Text(note, "aside"), *blocks]


def matrix(title: str, board: MetricLeaderboard) -> Table:
    """Return the differences of all pairs of rows in the order of their means; each pair stands there once."""
    names = board.ranking
    rows = tuple(
        (name, *(_difference(board, name, other) if index > column else "" for column, other in enumerate(names[:-1])))
        for index, name in enumerate(names)
        if index
    )
    return Table("l" + "r" * (len(names) - 1), ("row less column", *names[:-1]), rows, title, "matrix")


def _difference(board: MetricLeaderboard, first: str, second: str) -> Cell:
    difference: Difference = board.comparisons.between(first, second)
    if difference.mean is None:
        return Cell(MISSING, mark=Conclusion.NOT_TESTED.symbol)
    digits, conclusion = board.metric.digits, board.conclusion(difference)
    chance = difference.better_on_new_seed(less_is_better=board.metric.less_is_better)
    interval = bounds(difference, digits)
    details = [] if interval == MISSING else [interval]
    details += [] if difference.p_holm is None else [f"p {p_value(difference.p_holm)}"]
    details += [] if chance is None else [f"new seed {percent(chance)}"]
    tones: Mapping[Conclusion, str] = {Conclusion.BETTER: "better", Conclusion.WORSE: "worse"}
    return Cell(
        signed(difference.mean, digits),
        mark=conclusion.symbol,
        detail="; ".join(filter(None, details)),
        value=difference.mean,
        tone=tones.get(conclusion, ""),  # type: ignore[arg-type]
    )
