"""The leaderboards of a report of runs: a table of rows and metrics, best row first, and the notes below it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import statistics
from harness.analysis.comparability import machine_kind
from harness.analysis.effects import LEGEND
from harness.analysis.evidence import Evidence
from harness.analysis.grouping import TableRow, incomplete, stop_early
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.leaderboard import MetricLeaderboard, TableAnalysis
from harness.analysis.metric_registry import DEFAULT_COLUMNS, METRICS, SPEEDS
from harness.reporting.csv_export import RUNS
from harness.reporting.document import Block, Cell, Disclosure, Heading, Items, Table, Text
from harness.reporting.formatting import MISSING, between, listed
from harness.text import short_line

TITLES = {"training_tokens_per_second": "training tokens/s", "decoding_sentences_per_second": "sentences/s"}
OTHER_VOCABULARY = "*"
EXPLANATIONS = {
    "controlled": "The same optimiser, batches and number of updates for all; architecture, initial values and dropout "
    "are those of each recipe.",
    "source": "Each variant with its own training, by default that of its source: compare sacreBLEU and chrF; "
    "perplexity and BLEU on tokens only between equal vocabularies.",
    "tuned": "Each recipe with the learning rate that a pilot chose for it. A recipe whose best rate is that of the "
    "controlled table stands there only; the ablation shows both together.",
}
STOPPED_EARLY = (
    "The same optimiser and batches for all, each until its validation loss no longer falls, or for all epochs, so the "
    "numbers of updates may differ; architecture, initial values and dropout are those of each recipe."
)


def sections(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return the leaderboard of each table, or why its runs are not comparable."""
    blocks: list[Block] = [Heading("Leaderboard", slug="leaderboard")]
    for judged in tables:
        table = judged.table
        early = table.budget == "controlled" and stop_early(table.records)
        blocks += [Heading(table.heading, 3), Text(STOPPED_EARLY if early else EXPLANATIONS[table.budget], "aside")]
        blocks += [Text(line, "note") for line in table.caveats]
        if judged.mismatches:
            runs = "; ".join(f"{row.label} ({row.status})" for row in table.rows)
            blocks.append(Text("No table: these runs are not comparable. They differ in"))
            blocks += [Items(judged.mismatches), Text(f"The runs: {runs}.", "note")]
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
    hidden = set(SPEEDS) - set(comparable_speeds(judged))
    names = [name for name in METRICS if name not in hidden and any(row.by_seed(name) for _, row in rows)]
    default = [name for name in DEFAULT_COLUMNS if name in names]
    optional = [name for name in names if name not in default]
    with_status = any(row.completed < len(row.records) for _, row in rows)
    heads = ["variant", *map(_title, default), "seeds", *(["runs"] if with_status else []), *map(_title, optional)]
    lines: list[tuple[str | Cell, ...]] = []
    search = []
    for label, row in rows:
        spec, cells = row.records[0].spec, {name: _cell(judged, label, row, name) for name in names}
        search.append(short_line(f"{label} {spec.framework} {spec.device} {row.status}", longest=600))
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
        search=tuple(search),
    )


def comparable_speeds(judged: TableAnalysis) -> list[str]:
    """Return the speeds that every row with completed runs has, if all were measured on one kind of machine."""
    if len(speed_machines(judged)) > 1:
        return []
    return [name for name in SPEEDS if not _without(judged, name)]


def speed_machines(judged: TableAnalysis) -> list[str]:
    """Return the kinds of machines on which speeds of a table were measured."""
    records = [record for row in judged.table.rows for record in row.counted]
    return sorted({machine_kind(record) for record in records if record.speed.keys() & set(SPEEDS)})


def _without(judged: TableAnalysis, name: str) -> list[str]:
    return [row.label for row in judged.table.rows if row.completed and not row.by_seed(name)]


def _hidden_speeds(judged: TableAnalysis) -> list[str]:
    if len(machines := speed_machines(judged)) > 1:
        return [f"No speed columns: measured on different machines ({'; '.join(machines)}). {RUNS} has the speeds."]
    missing = {name: _without(judged, name) for name in DEFAULT_COLUMNS if name in SPEEDS}
    titles = [_title(name) for name, labels in missing.items() if labels]
    if not titles:
        return []
    labels = list(dict.fromkeys(label for row_labels in missing.values() for label in row_labels))
    without = "no row has any" if len(labels) == len(judged.labels) else f"missing for {listed(labels)}"
    reason = "A run of one update has none, and published reports leave out those of a busy machine."
    what = "speeds" if len(titles) == len(missing) else titles[0]
    return [f"No {what} in this table: {short_line(without, longest=600)}. {reason}"]


def _title(name: str) -> str:
    return TITLES.get(name, METRICS[name].heading)


def _rank(metric: MetricLeaderboard | None, label: str) -> str:
    """Return the possible ranks of a row by the first metric, such as "rank 1–3, tied with the best"."""
    ranks = metric.rank_interval(label) if metric else None
    if metric is None or ranks is None:
        return ""
    rank = "–".join(map(str, sorted(set(ranks))))
    return f"rank {rank}{', tied with the best' if metric.tied_with_best(label) else ''}"


def _cell(judged: TableAnalysis, label: str, row: TableRow, name: str) -> Cell:
    metric, mean = METRICS[name], row.mean(name)
    if mean is None:
        return Cell(MISSING)
    board = judged.leaderboards.get(name)
    interval = board.intervals.get(label) if board else None
    if board is not None and interval is not None and interval.mean is not None:
        conclusion = board.against_best(label)
        return Cell(
            metric.format(interval.mean),
            mark=OTHER_VOCABULARY if label in board.not_compared else conclusion.symbol if conclusion else "",
            detail=between(interval, metric.decimals(interval.mean)),
            value=interval.mean,
            tone="best" if len(board.ranking) > 1 and label == board.ranking[0] else "",
        )
    seeds, values = zip(*row.by_seed(name).items(), strict=True)
    estimate = statistics.interval(Evidence(label, seeds, values), scale=metric.scale)
    digits = metric.decimals(mean / metric.divisor)
    detail = between(estimate, digits, metric.divisor) if len(set(values)) > 1 else ""
    mark = OTHER_VOCABULARY if has_other_vocabulary(judged, label, name) else ""
    return Cell(metric.format(mean), mark=mark, detail=detail, value=mean)


def has_other_vocabulary(judged: TableAnalysis, label: str, name: str) -> bool:
    """Return whether the vocabulary of a row makes a metric incomparable with that of other rows."""
    return METRICS[name].token_based and label in judged.table.other_vocabulary


def _visible_notes(judged: TableAnalysis) -> list[str]:
    rows, notes = judged.table.rows, []
    if any(len(board.ranking) > 1 for board in judged.leaderboards.values()):
        notes.append(f"Beside the best of each column: {LEGEND}.")
    board = judged.main
    if board is not None and board.seeds >= LEAST_SEEDS and board.comparisons.detectable is not None:
        smallest = f"{board.comparisons.detectable:.{board.metric.digits}f} {board.metric.title}"
        notes.append(
            f"{board.seeds} seeds find a true difference of {smallest} in 80 % of cases; they often miss smaller ones."
        )
    if len(rows) > statistics.MOST_ROWS:
        notes.append(
            f"Pairs of these {len(rows)} rows are not tested, which a report does for at most {statistics.MOST_ROWS}. "
            "`compare` tests chosen rows."
        )
    if judged.table.other_vocabulary:
        notes.append(f"{OTHER_VOCABULARY} another vocabulary than that of the rows without this mark: not comparable.")
    lost = [line for row in rows for line in incomplete(row.label, row.records)]
    return notes + ([f"Did not complete: {'; '.join(lost)}."] if lost else [])


def _notes(judged: TableAnalysis) -> list[str]:
    boards = [board for board in judged.leaderboards.values() if len(board.ranking) > 1]
    remarks = dict.fromkeys(line for board in boards for line in board.comparisons.remarks)
    notes = [short_line(line) for line in remarks]
    if boards and boards[0].seeds >= LEAST_SEEDS:
        notes.append("A rank lies between the significantly better and the significantly worse variants.")
        notes += [board.note for board in boards if board.note]
    notes += _hidden_speeds(judged)
    if any(len(row.counted) > 2 for row in judged.table.rows):
        notes.append("Ranges are 95 % intervals.")
    return notes
