"""The headline of a report of runs: the leader of the longest-trained table, its significance, and its limits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness.analysis.caveats import overlap
from harness.analysis.effects import CLAIM_SEEDS, Conclusion, assumption
from harness.analysis.grouping import BUDGETS, RunTable, group_by, statuses
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.leaderboard import MetricLeaderboard, TableAnalysis
from harness.analysis.metric_registry import MAIN
from harness.reporting.document import Headline
from harness.reporting.formatting import interval_words, listed
from harness.text import count

MOST_NAMES = 3
CONVERGED = 0.01
"""Training that lowers the validation loss by a larger share in its last epoch has not converged."""


def headline(tables: Sequence[TableAnalysis], charted: Sequence[TableAnalysis]) -> Headline:
    """Return the finding of the longest-trained table with a completed run, and its limits.

    The arguments are as in `BenchAnalysis`.
    """
    main = next((judged for judged in tables if any(row.completed for row in judged.table.rows)), tables[0])
    run = main.table.records[0].id
    whole = next(judged.table for judged in charted if any(record.id == run for record in judged.table.records))
    elsewhere = [row.label for row in whole.rows if row.completed and row.label not in main.labels]
    return Headline(_finding(main), _caveat(main, len(tables), elsewhere))


def _finding(judged: TableAnalysis) -> str:
    table, board = judged.table, judged.leaderboards.get(MAIN)
    where = f"{table.title} ({BUDGETS[table.budget].lower()})"
    if judged.mismatches:
        points = count(len(judged.mismatches), "point")
        return f"The runs on {where} differ in {points} in which they must agree, so they are not compared."
    if board is None or not board.ranking:
        return f"No run on {where} has completed with a sacreBLEU, so there is nothing to compare."
    best, *rest = board.ranking
    row = table.rows[judged.labels.index(best)]
    estimate = board.intervals[best]
    assert estimate.mean is not None
    interval = interval_words(estimate, 1)
    seeds = count(estimate.n, "seed") + (f", {interval}" if interval else "")
    curves = sorted((record.curve for record in row.counted), key=len)
    shortest, longest = curves[0], curves[-1]
    fewer = f"{len(shortest)} to " if len(shortest) < len(longest) else ""  # of runs that stopped early
    limit, length = row.records[0].spec.updates, f"{fewer}{count(len(longest), 'epoch')}"
    if longest and limit is not None and longest[-1].updates >= limit:
        length = count(limit, "update")
    after = f"After {length} " if longest else ""
    finding = f"{after}{best} reaches {estimate.mean:.1f} sacreBLEU ({seeds}) on {where}"
    return f"{finding}{_lead(board, rest)}."


def _lead(board: MetricLeaderboard, rest: Sequence[str]) -> str:
    if not rest:
        return "; no other variant has completed there"
    lead = f"{_margin(board):.2f}"
    margin = f", level with {rest[0]}" if lead == "0.00" else f", {lead} above {rest[0]}"
    if board.seeds < 2:
        seeds = "with one seed," if board.seeds else "without a seed that all variants have,"
        return f"{margin}; {seeds} seed noise is unknown, so no variant can be called better than another"
    if board.seeds < LEAST_SEEDS:
        return (
            f"{margin}; an interval over seeds needs {LEAST_SEEDS} seeds (--seed 0-{LEAST_SEEDS - 1}), and a claim "
            f"{CLAIM_SEEDS}"
        )
    if not board.comparisons.differences:
        return f"{margin}; so many variants are not compared pair by pair"
    if board.seeds < CLAIM_SEEDS:
        return f"{margin}; {board.seeds} seeds are too few for a claim, which needs {CLAIM_SEEDS}"
    condition = assumption(board.seeds)
    others = group_by(rest, board.against_best)
    above, untested = (others.get(conclusion, []) for conclusion in (Conclusion.WORSE, Conclusion.NOT_TESTED))
    tied = [label for label in rest if label not in (*above, *untested)]
    if len(untested) == len(rest):
        reason = board.comparisons.between(board.ranking[0], rest[0]).remark.rstrip(".")
        return f"{margin}; its lead is not tested ({reason})"
    if not above:
        return f"{margin}; its lead over no other variant is significant{condition}"
    if len(above) == len(rest):
        among = "the only other" if len(rest) == 1 else f"all {len(rest)} others"
        return f", significantly above {among}{condition}"
    parts = [(tied, "tied with it"), (untested, "not compared with it")]
    left = [f"{_names(labels)} {'is' if len(labels) == 1 else 'are'} {how}" for labels, how in parts if labels]
    among = f"{len(above)} of the {len(rest)} others"
    return f", significantly above {among}, while {' and '.join(left)}{condition}"


def _margin(board: MetricLeaderboard) -> float:
    """Return the lead of the best row over the next: the tested difference, or that of the means without one."""
    best, second = board.ranking[:2]
    if board.comparisons.differences and (tested := board.comparisons.between(best, second).mean or 0.0) > 0:
        return tested
    first, other = (board.intervals[label].mean or 0.0 for label in (best, second))
    return first - other


def _caveat(judged: TableAnalysis, tables: int, elsewhere: Sequence[str]) -> str:
    records, board, parts = judged.table.records, judged.leaderboards.get(MAIN), []
    if board is not None and board.ranking:
        others = f" ({count(tables - 1, 'other table')} below)" if tables > 1 else ""
        parts.append(f"this holds for this corpus, test set, size and budget alone{others}")
    if elsewhere:
        lack = "lacks" if len(elsewhere) == 1 else "lack"
        parts.append(f"this table leaves out {_names(elsewhere)}, which {lack} some of its seeds")
    if repeated := overlap(records):
        parts.append(repeated)
    if lost := [record for record in records if record.status != "completed"]:
        parts.append(f"{len(lost)} of {count(len(records), 'run')} did not complete ({statuses(lost)})")
    if unfinished := _still_improving(judged.table, "order" if board and len(board.ranking) > 1 else "scores"):
        parts.append(unfinished)
    if judged.table.departures:
        reason, *further = judged.table.departures
        more = f" (and {count(len(further), 'more reason')})" if further else ""
        parts.append(f"not comparable with published figures: {reason}{more}")
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in parts)


def _still_improving(table: RunTable, result: str) -> str:
    """Return which rows have not converged; empty if all have, or if no completed run has two epochs.

    `result` is what longer training may change.
    """
    falls: dict[str, float] = {}
    for row in table.rows:
        curves = [record.curve for record in row.records if record.status == "completed"]
        ends = [[line.validation_loss for line in curve[-2:]] for curve in curves]
        shares = [1 - end[1] / end[0] for end in ends if len(end) == 2 and end[0] and end[1] is not None]
        if shares and statistics.fmean(shares) > CONVERGED:
            falls[row.label] = statistics.fmean(shares)
    if not falls:
        return ""
    largest = f"{100 * max(falls.values()):.0f} %"
    return (
        f"longer training may change the {result}: in the last epoch the validation loss of {_names(list(falls))} "
        f"still fell by {'up to ' * (len(falls) > 1)}{largest}"
    )


def _names(labels: Sequence[str]) -> str:
    if len(labels) <= MOST_NAMES + 1:
        return listed(labels)
    return listed([*labels[:MOST_NAMES], f"{len(labels) - MOST_NAMES} more"])
