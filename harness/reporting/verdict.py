"""The verdict of a report: what the evidence says, in two sentences, and what it does not cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.effects import CLAIM_SEEDS, Conclusion, assumption
from harness.analysis.grouping import BUDGETS, RunTable
from harness.analysis.leaderboard import MetricLeaderboard
from harness.analysis.metric_registry import MAIN
from harness.text import count

MOST_NAMES = 3


def verdict(found: Sequence[tuple[RunTable, Mapping[str, MetricLeaderboard], Sequence[str]]]) -> str:
    """Return two sentences on the table that compares most: who leads it and how surely, and how far that reaches.

    `found` has each group with what was judged of it and why its runs are not comparable, if they are not.
    """
    _, place = max(
        (sum(row.completed > 0 for row in group.rows), -number) for number, (group, _, _) in enumerate(found)
    )
    group, judged, differences = found[-place]
    return f"{_leader(group, judged.get(MAIN), differences)} {_reach(group, len(found))}"


def _leader(group: RunTable, judged: MetricLeaderboard | None, differences: Sequence[str]) -> str:
    where = f"{group.title} ({BUDGETS[group.budget].lower()})"
    if differences:
        points = count(len(differences), "point")
        return f"The runs on {where} differ in {points} where they must agree, so they are not compared."
    if judged is None or not judged.ranking:
        return f"No run on {where} has completed with a sacreBLEU, so there is nothing to compare."
    best, *others = judged.ranking
    score = f"{judged.intervals[best].mean:.2f}"
    if not others:
        return (
            f"Only {best} has completed on {where}, with a sacreBLEU of {score}; there is nothing to compare it with."
        )
    ahead = judged.comparisons.between(best, others[0]).mean
    lead = f"{best} has the highest sacreBLEU on {where}, {score}"
    margin = "" if ahead is None else f", {ahead:.2f} above {others[0]}"
    if judged.seeds < 2:
        seeds = "one seed" if judged.seeds else "no seed that all variants have"
        return (
            f"With {seeds}, {lead}{margin}, but seed noise is unknown, so no variant can be called better than another."
        )
    if judged.seeds < CLAIM_SEEDS:
        return f"Over {judged.seeds} seeds, {lead}{margin}, but fewer than {CLAIM_SEEDS} seeds are too few for a claim."
    under = assumption(judged.seeds)
    undecided = [one for one in others if judged.against_best(one) is not Conclusion.WORSE]
    if len(undecided) == len(others):
        return f"Over {judged.seeds} seeds, {lead}{margin}, but its lead over no other variant is significant{under}."
    decided = len(others) - len(undecided)
    among = f"all {decided} others" if not undecided else f"{decided} of the {len(others)} others"
    among = "the only other" if len(others) == 1 else among
    rest = f", while {_names(undecided)} {'is' if len(undecided) == 1 else 'are'} tied with it" if undecided else ""
    return f"Over {judged.seeds} seeds{under}, {lead}, significantly above {among}{rest}."


def _names(found: Sequence[str]) -> str:
    if len(found) > MOST_NAMES:
        return f"{', '.join(found[:MOST_NAMES])} and {len(found) - MOST_NAMES} more"
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _reach(group: RunTable, groups: int) -> str:
    """Say for what the first sentence holds, and of which runs it knows nothing."""
    lost = [record for record in group.records if record.status != "completed"]
    said = "This holds for this corpus, test set, size and budget alone"
    if groups > 1:
        others = groups - 1
        said += f" (the other {others} tables stand below)" if others > 1 else " (the other table stands below)"
    if lost:
        diverged = sum(record.status == "diverged" for record in lost)
        what = f"{len(lost)} of its {len(group.records)} runs did not complete"
        said += f"; {what}" + (f", {diverged} of them because they diverged" if diverged else "")
    if group.departures:
        said += f"; the figures are not comparable with published ones, for {group.departures[0]}"
        more = len(group.departures) - 1
        said += f" and {more} more reason{'s' * (more > 1)} given below" if more else ""
    return said + "."
