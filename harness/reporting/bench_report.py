"""The report of runs: headline, leaderboards, learning curves, quality against speed, significance, translations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness.analysis import statistics
from harness.analysis.effects import METHOD, Conclusion, Difference, Method
from harness.analysis.evidence import Evidence
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

DEFAULT_COLUMNS = (
    "bleu_sacre",
    "test_perplexity",
    "parameters",
    "training_tokens_per_second",
    "decoding_sentences_per_second",
)
"""The metrics that a leaderboard shows at first, if a run has them; other metrics are optional columns."""

TITLES = {"training_tokens_per_second": "training tokens/s", "decoding_sentences_per_second": "sentences/s"}
MAIN_METRICS = ("bleu_sacre", "test_perplexity")
"""The metrics with a chart and a matrix of differences."""

OTHER_VOCABULARY = "*"
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
        results: The folder of the runs with translations, sentence statistics, attention and weights. Without it, the
            page only shows the records.
        texts: The test sets whose source and reference the page may show.
        command: The command that made the runs; by default the commands of the records.
        method: The method of intervals and tests.
        failures: A line for each failed rule of `check`.

    Raises:
        ValueError: There are no records, or a stored file is damaged; the message names the file.
    """
    analysis = analyse_bench(records, results, method=method)
    tables = analysis.tables
    if not tables:
        raise ValueError("there are no run records to report; train something first: python -m harness bench")
    records = [record for judged in tables for record in judged.table.records]
    warnings = [f"This record fails the check of this project: {line}" for line in failures]
    return Document(
        title="Bakeoff: small Transformers and a GRU compared",
        headline=bench_headline.headline(tables),
        warnings=(*report_sections.corpus_warnings(records), *warnings),
        about=report_sections.about(records),
        blocks=(
            Links(
                (
                    ("Ablation", "ablation/index.html"),
                    ("Speed", "speed/index.html"),
                    ("Models", models_report.PAGE),
                    ("Captions", report_sections.CAPTIONS[1]),
                    ("Runs report", "../index.html"),
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
            *report_sections.method(records, command, [_agreement(judged) for judged in tables if judged.leaderboards]),
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
    """Return the leaderboard of a table, best row first, without columns that have no values."""
    first = next(iter(judged.leaderboards.values()), None)
    order = first.ranking if first else []
    rows = sorted(
        zip(judged.labels, judged.table.rows, strict=True),
        key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order),
    )
    names = [name for name in METRICS if any(row.summary(name).values for _, row in rows)]
    default = [name for name in DEFAULT_COLUMNS if name in names]
    optional = [name for name in names if name not in default]
    with_status = any(row.completed < len(row.records) for _, row in rows)
    heads = ["variant", *map(_title, default), "seeds", *(["runs"] if with_status else []), *map(_title, optional)]
    lines: list[tuple[str | Cell, ...]] = []
    for label, row in rows:
        cells = {name: _cell(judged, label, row, name) for name in names}
        lines.append(
            (
                Cell(label, detail=_rank(first, label), value=label),
                *(cells[name] for name in default),
                Cell(str(len(row.counted)), value=float(len(row.counted))),
                *([row.status] if with_status else []),
                *(cells[name] for name in optional),
            )
        )
    return Table(
        "l" + "r" * (len(default) + 1) + "l" * with_status + "r" * len(optional),
        tuple(heads),
        tuple(lines),
        kind="leaderboard",
        optional=frozenset(range(len(heads) - len(optional), len(heads))),
        descending=frozenset(heads.index(_title(name)) for name in names if METRICS[name].direction == "higher"),
        filters=tuple({"text": _search_text(label, row)} for label, row in rows),
    )


def _title(name: str) -> str:
    return TITLES.get(name, METRICS[name].heading)


def _search_text(label: str, row: TableRow) -> str:
    spec = row.records[0].spec
    return short_line(f"{label} {spec.framework} {spec.device} {row.status}", longest=600)


def _rank(metric: MetricLeaderboard | None, label: str) -> str:
    """Return the possible ranks of a row by the first metric, such as "rank 1–3, tied with the best"."""
    ranks = metric.rank_interval(label) if metric else None
    if metric is None or ranks is None:
        return ""
    rank = "–".join(map(str, sorted(set(ranks))))
    return f"rank {rank}{', tied with the best' if metric.tied_with_best(label) else ''}"


def _cell(judged: TableAnalysis, label: str, row: TableRow, name: str) -> str | Cell:
    metric, summary = METRICS[name], row.summary(name)
    if summary.mean is None:
        return MISSING
    board = judged.leaderboards.get(name)
    interval = board.intervals.get(label) if board else None
    if board is not None and interval is not None and interval.mean is not None:
        conclusion = board.against_best(label)
        return Cell(
            metric.format(interval.mean),
            mark=conclusion.symbol if conclusion else "",
            detail=between(interval, metric.digits),
            value=interval.mean,
            tone="best" if len(board.ranking) > 1 and label == board.ranking[0] else "",
        )
    seeds, values = zip(*row.by_seed(name).items(), strict=True)
    estimate = statistics.interval(Evidence(label, seeds, values), scale=metric.scale)
    digits = metric.decimals(summary.mean / metric.divisor)
    detail = between(estimate, digits, metric.divisor) if len(set(values)) > 1 else ""
    mark = OTHER_VOCABULARY if _has_other_vocabulary(judged, row, name) else ""
    return Cell(metric.format(summary.mean), mark=mark, detail=detail, value=summary.mean)


def _has_other_vocabulary(judged: TableAnalysis, row: TableRow, name: str) -> bool:
    """Return whether the vocabulary of a run makes a metric incomparable with other rows."""
    if judged.table.budget != "source" or not METRICS[name].token_based:
        return False
    ids = other_vocabulary(judged.table.records)
    return any(record.id in ids for record in row.records)


def _visible_notes(judged: TableAnalysis) -> list[str]:
    """Return the notes below a table: its symbols, and the runs that did not complete."""
    rows, notes = judged.table.rows, []
    if any(len(board.ranking) > 1 for board in judged.leaderboards.values()):
        notes.append(f"Beside the best of each column: {SYMBOLS}")
    if any(_has_other_vocabulary(judged, row, name) for row in rows for name in METRICS):
        notes.append(f"{OTHER_VOCABULARY} another vocabulary than most rows: this figure compares with no other row.")
    incomplete = _incomplete_runs(judged)
    return notes + ([f"Did not complete: {'; '.join(incomplete)}."] if incomplete else [])


def _notes(judged: TableAnalysis) -> list[str]:
    """Return explanations of the intervals, ranks and tests of a table."""
    boards = [board for board in judged.leaderboards.values() if len(board.ranking) > 1]
    remarks = dict.fromkeys(line for board in boards for line in board.comparisons.remarks)
    notes = [short_line(line) for line in remarks]
    if boards and boards[0].seeds >= LEAST_SEEDS:
        notes.append("A rank lies between the significantly better and the significantly worse variants.")
        notes += [line for board in boards for line in board.notes]
    if any(len(row.counted) > 2 for row in judged.table.rows):
        notes.append("Ranges are 95 % intervals.")
    return notes


def _incomplete_runs(judged: TableAnalysis) -> list[str]:
    """Return the runs that did not complete, each with its status and reason."""
    return [
        f"{row.label}, seed {record.spec.seed}: {record.status}"
        + (f" after {count(len(record.curve), 'epoch')}" if record.curve else "")
        + (f": {short_line(record.reason)}" if record.reason else "")
        for row in judged.table.rows
        for record in row.records
        if record.status != "completed"
    ]


def _agreement(judged: TableAnalysis) -> str:
    """Return the settings that all runs of a comparable table share."""
    table = judged.table
    text = f"{table.heading}: {AGREEMENTS[table.budget]}."
    external = [row.label for row in table.rows if any(record.spec.recipe is None for record in row.records)]
    if external and table.budget == "controlled":
        text += f" Without a recipe, and so not compared in their initial weights: {', '.join(external)}."
    return short_line(text, longest=2_000)


# Charts ---------------------------------------------------------------------------------------------------------------


def _scores(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return a chart of sacreBLEU and perplexity for each table with at least two rows."""
    blocks: list[Block] = []
    for judged, slug in zip(tables, report_sections.slugs(tables), strict=True):
        rows = judged.table.rows
        names = [name for name in MAIN_METRICS if sum(bool(row.by_seed(name)) for row in rows) > 1]
        if names and not judged.mismatches:
            titles = " and ".join(METRICS[name].title for name in names)
            alt = f"Points, one per variant: {titles} of {', '.join(judged.labels)}"
            caption = f"{judged.table.heading}. {titles} on the test set."
            intervals = {name: judged.leaderboards[name].intervals for name in names if name in judged.leaderboards}
            draw = partial(run_plots.scores, rows, judged.labels, names, intervals)
            blocks.append(Figure(f"{slug}-scores", caption, short_line(alt, longest=600), draw))
    return [Heading("Scores", slug="scores"), *blocks] if blocks else []


def _speeds(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return a chart of sacreBLEU against throughput for each table with measured throughput."""
    blocks: list[Block] = []
    for judged, slug in zip(tables, report_sections.slugs(tables), strict=True):
        names = [] if judged.mismatches else run_plots.speeds(judged.table.rows)
        if names:
            alt = f"Points, one per variant: sacreBLEU against throughput, {', '.join(judged.labels)}"
            caption = f"{judged.table.heading}. Throughput holds for the machine named under environment."
            draw = partial(run_plots.quality_against_speed, judged.table.rows, judged.labels, names)
            blocks.append(Figure(f"{slug}-speed", caption, short_line(alt, longest=600), draw))
    return [Heading("Quality against speed", slug="speed"), *blocks] if blocks else []


def _learned_positions(tables: Sequence[TableAnalysis], results: Path | None) -> list[Block]:
    stored = run_files.learned_positions([judged.table for judged in tables], results) if results else []
    if not stored:
        return []
    figures = tuple(
        Figure(
            f"positions-{number}",
            f"Learned positions of {label}",
            short_line(f"Heat map of the learned positions of {label}: position downwards, embedding column across"),
            partial(concept_plots.learned_positions, values),
            models_report.position_table(values),
        )
        for number, (label, values) in enumerate(stored, start=1)
    )
    return [Heading("Learned positions", slug="positions"), Disclosure("Position tables of the encoder", figures)]


# Significance ---------------------------------------------------------------------------------------------------------


def _significance(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return the matrix of differences of each table with at least two seeds and two rows, perplexity disclosed."""
    blocks: list[Block] = []
    for judged in tables:
        for name in MAIN_METRICS:
            board = judged.leaderboards.get(name)
            if board is not None and len(board.ranking) > 1 and board.seeds > 1:
                title = f"{board.metric.title}, {judged.table.heading}"
                table = _matrix(title, board)
                blocks.append(table if name == MAIN_METRICS[0] else Disclosure(title, (table,)))
    if not blocks:
        return []
    note = (
        "Each cell is the row less the column: the mean difference over paired seeds with its 95 % interval (two "
        f"seeds: both values), p after Holm's correction, and the probability to be better in a new seed. {SYMBOLS}"
    )
    return [Heading("Significance", slug="significance"), Text(note, "aside"), *blocks]


def _matrix(title: str, board: MetricLeaderboard) -> Table:
    """Return the differences of all pairs of rows in the order of their means; each pair occurs once."""
    names = board.ranking
    rows: list[tuple[str | Cell, ...]] = []
    for index, name in enumerate(names[1:], start=1):
        differences = [_difference(board, name, better) for better in names[:index]]
        rows.append((name, *differences, *[""] * (len(names) - 1 - index)))
    return Table("l" + "r" * (len(names) - 1), ("row less column", *names[:-1]), tuple(rows), title, "matrix")


def _difference(board: MetricLeaderboard, first: str, second: str) -> Cell:
    difference: Difference = board.comparisons.between(first, second)
    if difference.mean is None:
        return Cell(MISSING, mark=Conclusion.NOT_TESTED.symbol)
    digits, conclusion = board.metric.digits, board.conclusion(difference)
    probability = difference.better_on_new_seed(less_is_better=board.metric.less_is_better)
    interval = bounds(difference, digits)
    details = [] if interval == MISSING else [interval]
    details += [] if difference.p_holm is None else [f"p {p_value(difference.p_holm)}"]
    details += [] if probability is None else [f"new seed {percent(probability)}"]
    return Cell(
        signed(difference.mean, digits),
        mark=conclusion.symbol,
        detail="; ".join(details),
        value=difference.mean,
        tone="better" if conclusion is Conclusion.BETTER else "worse" if conclusion is Conclusion.WORSE else "",
    )
