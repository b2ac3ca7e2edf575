"""Tables of run records for the terminal and in Markdown: figures over seeds, or what forbids a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.analysis.fairness import differences, fairness, other_vocabulary
from harness.analysis.grouping import RunTable, Summary, TableRow, groups
from harness.analysis.metric_registry import METRICS, Metric
from harness.reporting.markdown import Markdown, code, text
from harness.storage.records import RunRecord
from harness.text import short_line

__all__ = ["fairness", "markdown", "terminal"]

MISSING = "–"
MARK = "*"
LINE = 104
"""Letters a terminal's line should hold: a wider table is printed in two parts."""


QUALITY = tuple(
    METRICS[name]
    for name in (
        "training_perplexity",
        "validation_perplexity",
        "test_perplexity",
        "tutorial_perplexity",
        "bleu_tutorial",
        "bleu_tokenised",
        "bleu_sacre",
        "chrf",
        "brevity_penalty",
        "unknown_tokens",
    )
)
COST = tuple(
    METRICS[name]
    for name in (
        "parameters",
        "epochs",
        "updates",
        "training_tokens_per_second",
        "decoding_sentences_per_second",
        "total_seconds",
    )
)
SPEED = tuple(
    METRICS[name]
    for name in (
        "training_tokens_per_second",
        "epoch_seconds",
        "first_update_seconds",
        "decoding_sentences_per_second",
        "validation_seconds",
        "total_seconds",
        "peak_memory_bytes",
    )
)
ORDERS = tuple(metric for metric in METRICS.values() if metric.kind == "orders")


def terminal(records: Iterable[RunRecord]) -> str:
    """Return the tables that `bench` prints: for each group of like runs its quality, then its size and speed."""
    parts = [_terminal_group(group) for group in groups(records)]
    return "\n\n".join(parts) if parts else "There are no runs yet."


def markdown(records: Iterable[RunRecord]) -> str:
    """Return all tables in Markdown: for each group the main one, the BLEU orders, and the speed."""
    parts = [f"### {text(group.heading)}\n\n{markdown_group(group)}" for group in groups(records)]
    return "\n\n".join(parts) if parts else "There are no runs yet."


# Terminal -------------------------------------------------------------------------------------------------------------


def _terminal_group(group: RunTable) -> str:
    lines = [short_line(group.heading), *map(short_line, group.caveats)]
    found = differences(group)
    if found:
        lines += ["No table: these runs are not comparable. They differ in", *(f"  - {one}" for one in found)]
        lines += [f"  {row.label}: {row.status}" for row in group.rows]
    else:
        troubled = any(row.completed < len(row.records) for row in group.rows)
        extra = [("", "status", [row.status for row in group.rows])] if troubled else []
        blocks = [(*QUALITY,)] if max(map(len, _aligned(group, QUALITY, []))) <= LINE else [QUALITY[:4], QUALITY[4:]]
        for columns in blocks:
            lines += ["", *_aligned(group, columns, [])]
        lines += ["", *_aligned(group, COST, extra)]
        lines += ["", *_footnotes(group)] if _footnotes(group) else []
    return "\n".join([*lines, *endings(group)])


def _aligned(group: RunTable, columns: Sequence[Metric], extra: Sequence[tuple[str, str, list[str]]]) -> list[str]:
    table = [("", "variant", [row.label for row in group.rows], "<")]
    table.append(("", "seeds", [str(len(row.counted)) for row in group.rows], ">"))
    for column in columns:
        cells = _column(group, column)
        if any(cell != MISSING for cell in cells):
            table.append((*column.head, cells, ">"))
    table += [(top, bottom, cells, "<") for top, bottom, cells in extra]
    widths = [max(map(len, (top, bottom, *cells))) for top, bottom, cells, _ in table]
    printed = [[top, bottom, "─" * width, *cells] for (top, bottom, cells, _), width in zip(table, widths, strict=True)]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, (*_, side), width in zip(line, table, widths, strict=True)).rstrip()
        for line in zip(*printed, strict=True)
    ]


def _column(group: RunTable, column: Metric) -> list[str]:
    """Return the cells of a column, digits under digits: where one has a deviation, the others leave room for it."""
    found = [(row, row.summary(column.name)) for row in group.rows]
    cells = [written(summary, column) for _, summary in found]
    tails = [vocabulary_mark(group, row, column) for row, _ in found]
    deviations = [f" ± {spread}" if spread else "" for _, spread in cells]
    room, mark = max(map(len, deviations), default=0), max(map(len, tails), default=0)
    return [
        MISSING if value == MISSING else f"{value}{deviation:<{room}}{tail:<{mark}}"
        for (value, _), deviation, tail in zip(cells, deviations, tails, strict=True)
    ]


def written(summary: Summary, column: Metric) -> tuple[str, str]:
    """Return the mean and the standard deviation as text, with equal digits."""
    if summary.mean is None:
        return MISSING, ""
    mean = summary.mean / column.divisor
    digits = column.decimals(mean)
    deviation = summary.deviation
    constant = deviation is None or (deviation == 0 and column.digits == 0)
    return f"{mean:,.{digits}f}", "" if constant or deviation is None else f"{deviation / column.divisor:,.{digits}f}"


def vocabulary_mark(group: RunTable, row: TableRow, column: Metric) -> str:
    """Return the mark of a figure that compares with no other row, for its run has other words; else nothing."""
    other = other_vocabulary(group.records) if group.budget == "source" and column.token_based else frozenset()
    return MARK if any(record.id in other for record in row.records) else ""


def _footnotes(group: RunTable) -> list[str]:
    found = []
    if group.budget == "source" and other_vocabulary(group.records):
        found.append(
            f"{MARK} another vocabulary than most rows: perplexities and BLEU on tokens compare with no other row; "
            "sacreBLEU and chrF do."
        )
    if any(len(row.counted) > 1 for row in group.rows):
        found.append("± is the standard deviation over seeds.")
    return found


def endings(group: RunTable) -> list[str]:
    """Return one line for each run that did not complete."""
    return [
        f"{row.label}, seed {record.spec.seed}: {record.status}"
        + (f" after {len(record.curve)} epochs" if record.curve else "")
        + (f": {short_line(record.reason)}" if record.reason else "")
        for row in group.rows
        for record in row.records
        if record.status != "completed"
    ]


# Markdown -------------------------------------------------------------------------------------------------------------


def markdown_group(group: RunTable) -> Markdown:
    """Return the caption and the tables of one group, or the differences that forbid them."""
    parts = ["\n".join(f"> {text(line)}  " for line in group.caveats)] if group.caveats else []
    found = differences(group)
    if found:
        lines = [f"- {text(one)}" for one in found]
        parts.append("No table: these runs are not comparable. They differ in\n\n" + "\n".join(lines))
        parts.append("\n".join(f"- {code(row.label)}: {row.status}" for row in group.rows))
    else:
        parts.append(_markdown_table(group, (COST[0], *COST[1:3], *QUALITY, *COST[3:])))
        parts += ["\n".join(f"{text(line)}  " for line in _footnotes(group))] if _footnotes(group) else []
        for title, columns in (("BLEU by order of n-gram", ORDERS), ("Speed and memory", SPEED)):
            if any(row.summary(column.name).values for row in group.rows for column in columns):
                parts.append(f"**{title}**\n\n{_markdown_table(group, columns)}")
    ended = endings(group)
    parts += ["Runs that did not complete:\n\n" + "\n".join(f"- {text(line)}" for line in ended)] if ended else []
    return Markdown("\n\n".join(parts))


def _markdown_table(group: RunTable, columns: Sequence[Metric]) -> str:
    shown = [column for column in columns if any(row.summary(column.name).values for row in group.rows)]
    troubled = any(row.completed < len(row.records) for row in group.rows)
    heads = ["variant", "seeds", *(" ".join(one.head).strip() for one in shown)]
    lines = [heads + ["status"] * troubled, ["---", *["---:"] * (len(heads) - 1), *["---"] * troubled]]
    for row in group.rows:
        cells = [code(row.label, in_table=True), str(len(row.counted))]
        for column in shown:
            value, deviation = written(row.summary(column.name), column)
            mark = text(vocabulary_mark(group, row, column)) if value != MISSING else ""
            cells.append(f"{value} ± {deviation}{mark}" if deviation else f"{value}{mark}")
        lines.append([*cells, *[row.status] * troubled])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
